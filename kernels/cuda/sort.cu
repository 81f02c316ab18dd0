// Sorts rows by comparing them: a tile in one launch, and any number of rows whose keys are strings. Stable.
//
//   key 0 (desc)   2 7 . 7        null bit and value of as many keys as fit: one 64-bit word per row
//   key 1          5 9 1 3        the rest is looked up only where words are equal
//   out            2 3 1 0        NULLS FIRST; 7 3 before 7 9; 2 last
//
//   sort_keys      keys that are too many for the parameters, put where the others find them
//   sort_tile      [ 2048 rows ] [ 2048 rows ] …      each thread block sorts its tile: (word, row) pairs in shared memory
//   sort_merge     [ runs of R ] [ runs of R ] → [ runs of 2R ]      one launch a doubling, output tiles of 2048
//
// Launch  SORT_THREADS threads; one thread block per tile of SORT_TILE_ROWS rows of the upper bound; keys: a thread each
// Traffic tile: keys read, 12 bytes a row written; merge: 12 bytes a row read and written, keys again where words tie
// Needs   rows below 2^32 - 1; `words` and `rows` of a merge's two sides apart
// Order   floats by IEEE 754's total order, as DataFusion sorts them; strings by bytes (keys.cuh)
// After   Green, McColl & Bader 2012, merge path
#include "tile.cuh"

extern "C" __global__ void sort_keys(const __grid_constant__ Keys keys, SortKey *to) {
  if (threadIdx.x < keys.count) to[threadIdx.x] = keys.all()[threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(SORT_THREADS)
sort_tile(const __grid_constant__ Keys keys, u64 *control, const u64 *source, u64 *words, u32 *rows, u64 limit, u64 count,
          const u64 *on_device) {
  __shared__ u64 shared_words[SORT_TILE_ROWS];
  __shared__ u32 shared_rows[SORT_TILE_ROWS];
  u64 total = row_count(count, on_device), start = (u64)blockIdx.x * SORT_TILE_ROWS;
  if (blockIdx.x == 0 && threadIdx.x == 0) write_control(control, source, total, limit);
  if (start >= total) return;
  u32 length = total - start < SORT_TILE_ROWS ? (u32)(total - start) : SORT_TILE_ROWS;
  for (u32 i = threadIdx.x; i < length; i += SORT_THREADS) {
    shared_words[i] = word_at(keys.all(), keys.encoded, keys.start, (u32)start + i);
    shared_rows[i] = (u32)start + i;
  }
  sort_block(keys, shared_words, shared_rows, length);
  for (u32 i = threadIdx.x; i < length; i += SORT_THREADS) {
    if (words) words[start + i] = shared_words[i];
    // Runs that are yet to be merged are whole.
    if (words || i < limit) rows[start + i] = shared_rows[i];
  }
}

extern "C" __global__ void __launch_bounds__(SORT_THREADS)
sort_merge(const __grid_constant__ Keys keys, u64 run, const u64 *words_in, const u32 *rows_in, u64 *words_out,
           u32 *rows_out, u64 limit, u64 count, const u64 *on_device) {
  __shared__ u64 shared_words[SORT_TILE_ROWS];
  __shared__ u32 shared_rows[SORT_TILE_ROWS];
  __shared__ u32 borders[2];
  u64 total = row_count(count, on_device), start = (u64)blockIdx.x * SORT_TILE_ROWS;
  if (start >= total || start >= limit) return;
  u32 length = total - start < SORT_TILE_ROWS ? (u32)(total - start) : SORT_TILE_ROWS;
  // 1. Which parts of the two runs this tile of the output comes from.
  u64 base = start / (2 * run) * (2 * run), middle = base + run < total ? base + run : total;
  u64 end = base + 2 * run < total ? base + 2 * run : total;
  Run a = {words_in + base, rows_in + base, (u32)(middle - base)};
  Run b = {words_in + middle, rows_in + middle, (u32)(end - middle)};
  u32 diagonal = (u32)(start - base);
  if (threadIdx.x < 2) borders[threadIdx.x] = merge_path(keys, a, b, diagonal + threadIdx.x * length);
  __syncthreads();
  u32 from_a = borders[0], num_a = borders[1] - from_a, from_b = diagonal - from_a, num_b = length - num_a;
  for (u32 i = threadIdx.x; i < length; i += SORT_THREADS) {
    bool left = i < num_a;
    u32 at = left ? from_a + i : from_b + i - num_a;
    shared_words[i] = left ? a.words[at] : b.words[at];
    shared_rows[i] = left ? a.rows[at] : b.rows[at];
  }
  __syncthreads();
  // 2. Each thread merges a few outputs.
  u32 first = threadIdx.x * PER_THREAD;
  u64 my_words[PER_THREAD];
  u32 my_rows[PER_THREAD];
  Run near_a = {shared_words, shared_rows, num_a}, near_b = {shared_words + num_a, shared_rows + num_a, num_b};
  if (first < length) merge_some(keys, near_a, near_b, first, PER_THREAD, my_words, my_rows);
  __syncthreads();
  for (u32 k = 0; k < PER_THREAD && first + k < length; k++) {
    shared_words[first + k] = my_words[k];
    shared_rows[first + k] = my_rows[k];
  }
  __syncthreads();
  for (u32 i = threadIdx.x; i < length; i += SORT_THREADS) {
    if (start + i >= limit) break;
    words_out[start + i] = shared_words[i];
    rows_out[start + i] = shared_rows[i];
  }
}
