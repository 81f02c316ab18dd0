// The first rows of an order, without sorting the others.
//
//   rows ──► better than the k-th so far? ──► [ k kept │ newcomers ] in shared memory: sorted and cut to k when full
//   blocks leave what may still count; the last of them does the same over that
//
// Bar     the least k-th word of all blocks, in memory: a row whose word is beyond it is dropped on sight
// Launch  SORT_THREADS threads, any grid, one launch
// Traffic keys read once; 12 bytes for each row that some block keeps
// Needs   k up to TOP_MAX_ROWS; rows below 2^32 - 1; `state` and the bar set up by the launcher (sort/top.rs)
// Order   as sort.cu: stable, by whole keys
#include "tile.cuh"

static_assert(TOP_MAX_ROWS + 2 * SORT_THREADS <= SORT_TILE_ROWS, "two newcomers a thread, before the next look");

struct State {
  u64 bar;      // ~0 at first
  u32 arrived;  // 0 at first
  u32 found;    // 0 at first: pairs in the list that the blocks leave
};

// What a thread block keeps, in shared memory.
struct Kept {
  u64 *words;
  u32 *rows;
  u32 *length;
};

// Offers up to two rows a thread; `offer(i, word, row)` is false where there is none. `full` says that k rows are kept already.
template <typename Offer>
__device__ inline void take(const Keys &order, const Kept &kept, u32 k, bool full, u64 bar, Offer offer) {
#pragma unroll 1
  for (u32 i = 0; i < 2; i++) {
    u64 word = 0;
    u32 row = 0;
    bool wanted = offer(i, word, row) && word <= bar;
    if (wanted && full) wanted = before(order, word, row, kept.words[k - 1], kept.rows[k - 1]);
    if (wanted) {
      u32 at = atomicAdd(kept.length, 1u);
      kept.words[at] = word;
      kept.rows[at] = row;
    }
  }
}

extern "C" __global__ void __launch_bounds__(SORT_THREADS)
top_rows(const __grid_constant__ Keys keys, u32 k, u64 *control, const u64 *source, State *state, u64 *list_words,
         u32 *list_rows, u32 *out, u64 count, const u64 *on_device) {
  __shared__ u64 words[SORT_TILE_ROWS];
  __shared__ u32 rows[SORT_TILE_ROWS];
  __shared__ u32 length, list_start;
  __shared__ u64 shared_bar;
  __shared__ bool last;
  Kept kept = {words, rows, &length};
  u64 total = row_count(count, on_device);
  if (blockIdx.x == 0 && threadIdx.x == 0) write_control(control, source, total, k);
  if (k == 0) return;
  // Two rounds: over the rows, by all thread blocks; over what they left, by the last one to arrive.
#pragma unroll 1
  for (u32 round = 0; round < 2; round++) {
    u64 items = round == 0 ? total : state->found, step = round == 0 ? gridDim.x : 1;
    u64 first = round == 0 ? blockIdx.x : 0;
    bool full = false;
    if (threadIdx.x == 0) {
      length = 0;
      shared_bar = ~0ull;
    }
    __syncthreads();
#pragma unroll 1
    for (u64 tile = first; tile * 2 * SORT_THREADS < items; tile += step) {
      take(keys, kept, k, full, shared_bar, [&](u32 i, u64 &word, u32 &row) {
        u64 at = (tile * 2 + i) * SORT_THREADS + threadIdx.x;
        if (at >= items) return false;
        row = round == 0 ? (u32)at : list_rows[at];
        word = round == 0 ? word_at(keys.all(), keys.encoded, keys.start, row) : list_words[at];
        return true;
      });
      __syncthreads();
      u32 now = length;
      __syncthreads();
      if (now + 2 * SORT_THREADS > SORT_TILE_ROWS) {
        sort_block(keys, words, rows, now);
        full = now >= k;
        if (threadIdx.x == 0 && full) {
          length = k;
          if (round == 0) atomicMin(&state->bar, words[k - 1]);
        }
      }
      // Once a block is full, others' bars help it, too; its own rows below them stay.
      if (threadIdx.x == 0 && round == 0) shared_bar = load_relaxed(&state->bar);
      __syncthreads();
    }
    u32 now = length;
    sort_block(keys, words, rows, now);
    if (now > k) now = k;
    if (round == 1 || gridDim.x == 1) {
      for (u32 i = threadIdx.x; i < now; i += SORT_THREADS) out[i] = rows[i];
      return;
    }
    // What is beyond the bar by now is beyond it for good.
    if (threadIdx.x == 0) {
      if (now == k) atomicMin(&state->bar, words[k - 1]);
      u64 bar = load_relaxed(&state->bar);
      u32 low = 0, high = now;
      while (low < high) {
        u32 middle = (low + high) / 2;
        if (words[middle] <= bar) low = middle + 1;
        else high = middle;
      }
      length = low;
      list_start = atomicAdd(&state->found, low);
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < length; i += SORT_THREADS) {
      list_words[list_start + i] = words[i];
      list_rows[list_start + i] = rows[i];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence();
      last = atomicAdd(&state->arrived, 1u) == gridDim.x - 1;
      __threadfence();
    }
    __syncthreads();
    if (!last) return;
  }
}
