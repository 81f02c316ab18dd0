// Sorts the pairs of words and row numbers that a thread block has in shared memory, comparing further keys where words tie.
//
//   [7 2 5 1 6 3 8 4]   runs double:   27 15 36 48   1257 3468   12345678
//
// Threads SORT_THREADS; each merges its share of the outputs of two runs, from where the merge path crosses its diagonal
// After   Green, McColl & Bader 2012, merge path
#pragma once
#include "keys.cuh"

constexpr u32 PER_THREAD = SORT_TILE_ROWS / SORT_THREADS;
static_assert(SORT_TILE_ROWS % SORT_THREADS == 0 && (PER_THREAD & (PER_THREAD - 1)) == 0, "runs double up to the tile");

// Sorted pairs, in shared or global memory.
struct Run {
  const u64 *words;
  const u32 *rows;
  u32 length;
};

// How many of the first `diagonal` outputs of merging `a` and `b` come from `a`.
__device__ __noinline__ static u32 merge_path(const Keys &keys, const Run &a, const Run &b, u32 diagonal) {
  u32 low = diagonal > b.length ? diagonal - b.length : 0;
  u32 high = diagonal < a.length ? diagonal : a.length;
#pragma unroll 1
  while (low < high) {
    u32 middle = (low + high) / 2, other = diagonal - 1 - middle;
    if (before(keys, b.words[other], b.rows[other], a.words[middle], a.rows[middle])) high = middle;
    else low = middle + 1;
  }
  return low;
}

// Merges outputs `diagonal` and the next few of two runs.
__device__ inline void merge_some(const Keys &keys, const Run &a, const Run &b, u32 diagonal, u32 count, u64 *words, u32 *rows) {
  u32 i = merge_path(keys, a, b, diagonal), j = diagonal - i;
#pragma unroll 1
  for (u32 k = 0; k < count && (i < a.length || j < b.length); k++) {
    bool left = j >= b.length || (i < a.length && before(keys, a.words[i], a.rows[i], b.words[j], b.rows[j]));
    words[k] = left ? a.words[i] : b.words[j];
    rows[k] = left ? a.rows[i] : b.rows[j];
    if (left) i++;
    else j++;
  }
}

// Sorts the first `length` of the SORT_TILE_ROWS pairs; all threads of the block come here, and leave together.
__device__ __noinline__ static void sort_block(const Keys &keys, u64 *words, u32 *rows, u32 length) {
  u32 first = threadIdx.x * PER_THREAD;
  u64 my_words[PER_THREAD];
  u32 my_rows[PER_THREAD];
#pragma unroll 1
  for (u32 run = 1; run < length; run *= 2) {
    __syncthreads();
    // A run shorter than a thread's share is merged by the thread on its own, pair by pair.
    u32 share = 2 * run < PER_THREAD ? 2 * run : PER_THREAD;
#pragma unroll 1
    for (u32 at = first; at < first + PER_THREAD && at < length; at += share) {
      u32 base = at / (2 * run) * (2 * run), middle = base + run < length ? base + run : length;
      u32 end = base + 2 * run < length ? base + 2 * run : length;
      Run a = {words + base, rows + base, middle - base}, b = {words + middle, rows + middle, end - middle};
      merge_some(keys, a, b, at - base, share, my_words + (at - first), my_rows + (at - first));
    }
    __syncthreads();
    for (u32 k = 0; k < PER_THREAD && first + k < length; k++) {
      words[first + k] = my_words[k];
      rows[first + k] = my_rows[k];
    }
  }
  __syncthreads();
}
