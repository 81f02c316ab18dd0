// Words of lists whose items have been written one behind the other.
//
//   ends of rows      2 2 5          word of a row: where its items begin (high half), and how many there are (low half)
//   lists_by_ends     (b, 2) (b + 2, 0) (b + 2, 3)           b: where these items begin among all
//   rows of items     0 2 2          of lists that items were left out of: ascending
//   lists_by_rows     (b, 1) (b + 1, 0) (b + 1, 2)
//   lists_of_one      (b, 1) (b + 1, 1) (b + 2, 1)           what a row has one of
//
// Launch  LISTS_THREADS threads, one a row, striding
// Traffic a sum read and a word written for each row; by rows: two searches among the items instead
// Needs   b plus the items below 2^32
#include "common.cuh"

__device__ inline u64 word_of(u64 start, u64 count) { return start << 32 | count; }

extern "C" __global__ void __launch_bounds__(LISTS_THREADS)
lists_by_ends(const u64 *ends, u64 base, u64 *words, u64 rows, const u64 *on_device) {
  rows = row_count(rows, on_device);
  u64 stride = (u64)gridDim.x * LISTS_THREADS;
#pragma unroll 1
  for (u64 row = (u64)blockIdx.x * LISTS_THREADS + threadIdx.x; row < rows; row += stride) {
    u64 start = row ? ends[row - 1] : 0;
    words[row] = word_of(base + start, ends[row] - start);
  }
}

// The first of `items` ascending numbers that is not below `row`.
__device__ inline u64 first_from(const u32 *of, u64 items, u64 row) {
  u64 low = 0, high = items;
#pragma unroll 1
  while (low < high) {
    u64 middle = (low + high) / 2;
    if (of[middle] < row) low = middle + 1;
    else high = middle;
  }
  return low;
}

extern "C" __global__ void __launch_bounds__(LISTS_THREADS)
lists_by_rows(const u32 *of, u64 most, const u64 *items, u64 base, u64 *words, u64 rows, const u64 *on_device) {
  rows = row_count(rows, on_device);
  u64 known = min(most, *items), stride = (u64)gridDim.x * LISTS_THREADS;
#pragma unroll 1
  for (u64 row = (u64)blockIdx.x * LISTS_THREADS + threadIdx.x; row < rows; row += stride) {
    u64 start = first_from(of, known, row), end = first_from(of, known, row + 1);
    words[row] = word_of(base + start, end - start);
  }
}

extern "C" __global__ void __launch_bounds__(LISTS_THREADS)
lists_of_one(u64 base, u64 *words, u64 rows, const u64 *on_device) {
  rows = row_count(rows, on_device);
  u64 stride = (u64)gridDim.x * LISTS_THREADS;
#pragma unroll 1
  for (u64 row = (u64)blockIdx.x * LISTS_THREADS + threadIdx.x; row < rows; row += stride) words[row] = word_of(base + row, 1);
}
