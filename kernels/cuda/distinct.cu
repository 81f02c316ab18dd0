// Values that count once in a frame of a window.
//
//   values          a b a a b      rows of a partition, in order
//   near, before    . . 1 3 2      the number from 1 of the row before with the same value; ahead: of the row behind
//   firsts          1 1 0 0 0      what counts in frames from the start of the partition; ahead: in frames to its end
//
//   other frames    3 rows:  [0,1) [0,2) [0,3) [1,4) [2,5)
//   a pair          rows 0 and 2 are in the frames of row 2 alone: one is taken off from row 2 on, and put back from row 3 on
//   distinct_pairs  changes . . -1 +1 . for it, which a sum over the rows up to each makes what is too much there
//
// Launch  one thread a row, a warp for 32 rows in a row, striding
// Traffic near: the order and two values a row; pairs: two searches a row in the ends of frames, which only grow in a partition
// Sums    modulo 2^64, by atomics: their order does not matter
// Needs   rows below 2^31; `order` by partition, value and row; `changes` zeroed
#include "window.cuh"

// Of each row, the row next to it that has the same value, in the partition; its number from 1, or 0. NULL is a value where `nulls`.
extern "C" __global__ void __launch_bounds__(WINDOW_THREADS)
distinct_near(const __grid_constant__ Keys keys, const u32 *part_of, const u32 *order, u32 ahead, u32 nulls, u32 *near,
              u64 rows, const u64 *on_device) {
  rows = row_count(rows, on_device);
  u64 stride = (u64)gridDim.x * WINDOW_THREADS;
#pragma unroll 1
  for (u64 place = (u64)blockIdx.x * WINDOW_THREADS + threadIdx.x; place < rows; place += stride) {
    u32 row = order[place], found = 0;
    if (ahead ? place + 1 < rows : place > 0) {
      u32 other = order[ahead ? place + 1 : place - 1];
      bool same = part_of[row] == part_of[other] && (nulls || bit_of(keys.few[0].validity, row));
      if (same && !differ(keys.few[0], row, other)) found = other + 1;
    }
    near[row] = found;
  }
}

// Which rows are not NULL and have no such row.
extern "C" __global__ void __launch_bounds__(WINDOW_THREADS)
distinct_firsts(const u32 *validity, const u32 *near, u32 *out, u64 rows, const u64 *on_device) {
  rows = row_count(rows, on_device);
  u64 stride = (u64)gridDim.x * WINDOW_THREADS, end = (rows + 31) / 32 * 32;
#pragma unroll 1
  for (u64 row = (u64)blockIdx.x * WINDOW_THREADS + threadIdx.x; row < end; row += stride) {
    bool first = row < rows && bit_of(validity, row) && near[row] == 0;
    u32 bits = __ballot_sync(FULL, first);
    if ((threadIdx.x & 31) == 0) out[row >> 5] = bits;
  }
}

// The ends of each row's frame, which only grow in a partition; a frame without rows may get some.
extern "C" __global__ void __launch_bounds__(WINDOW_THREADS)
distinct_spans(const __grid_constant__ Positions at, const __grid_constant__ Frame frame, u32 *starts, u32 *ends, u64 rows,
               const u64 *on_device) {
  rows = row_count(rows, on_device);
  u64 stride = (u64)gridDim.x * WINDOW_THREADS;
#pragma unroll 1
  for (u64 next = (u64)blockIdx.x * WINDOW_THREADS + threadIdx.x; next < rows; next += stride) {
    Span span = ends_of(at, frame, (u32)next);
    starts[next] = span.start;
    ends[next] = span.end;
  }
}

// The first row of `from` to `to` whose end lies behind `row`.
__device__ inline u32 first_behind(const u32 *ends, u32 from, u32 to, u32 row) {
#pragma unroll 1
  while (from < to) {
    u32 middle = from + (to - from) / 2;
    if (ends[middle] > row) to = middle;
    else from = middle + 1;
  }
  return from;
}

// Each row and the one before with its value are both in the frames of some rows in a row: there the value is there once too often.
// `values` null: what counts is one for each.
extern "C" __global__ void __launch_bounds__(WINDOW_THREADS)
distinct_pairs(const __grid_constant__ Positions at, const u32 *near, const u32 *starts, const u32 *ends, const void *values, u32 kind,
               u64 *changes, u64 rows, const u64 *on_device) {
  rows = row_count(rows, on_device);
  u64 stride = (u64)gridDim.x * WINDOW_THREADS;
#pragma unroll 1
  for (u64 next = (u64)blockIdx.x * WINDOW_THREADS + threadIdx.x; next < rows; next += stride) {
    u32 row = (u32)next, before = near[row];
    if (before == 0) continue;
    u32 first = at.start(row), last = at.end(row);
    u32 from = first_behind(ends, first, last, row), to = first_behind(starts, first, last, before - 1);
    if (from >= to) continue;
    u64 value = values ? number_at(values, kind, row).low : 1;
    atomicAdd(changes + from, value);
    if (to < last) atomicAdd(changes + to, 0 - value);
  }
}

// Takes off each result what is too much there; of frames without rows nothing is.
extern "C" __global__ void __launch_bounds__(WINDOW_THREADS)
distinct_less(const __grid_constant__ Positions at, const __grid_constant__ Frame frame, const u64 *too_much, u32 bytes, void *out,
              u64 rows, const u64 *on_device) {
  rows = row_count(rows, on_device);
  u64 stride = (u64)gridDim.x * WINDOW_THREADS;
#pragma unroll 1
  for (u64 row = (u64)blockIdx.x * WINDOW_THREADS + threadIdx.x; row < rows; row += stride) {
    Span span = span_of(at, frame, (u32)row);
    if (span.start == span.end) continue;
    if (bytes == 4) ((u32 *)out)[row] -= (u32)too_much[row];
    else ((u64 *)out)[row] -= too_much[row];
  }
}
