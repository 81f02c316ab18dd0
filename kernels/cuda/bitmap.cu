// Combines and counts bitmaps, 32 rows at a time.
//
//   a    1 1 0 0
//   b    1 0 1 0        and 1 0 0 0 · or 1 1 1 0 · and_not 0 1 0 0 · not a 0 0 1 1 · count a 2
//
// Launch  any grid; threads stride over the words
// Traffic rows/8 read per input, rows/8 written
// Needs   the word that holds the last row is readable whole; `count` starts from what `*out` holds
// After   bits behind the last row are written as 0, whatever the inputs hold there
#include "common.cuh"

template <typename Combine> __device__ void bitmap_words(u32 *out, u64 rows, Combine combine) {
  u64 stride = (u64)gridDim.x * blockDim.x;
  for (u64 word = (u64)blockIdx.x * blockDim.x + threadIdx.x; word * 32 < rows; word += stride)
    out[word] = combine(word) & live_bits(word, rows);
}

#define BINARY(name, expression)                                                                                       \
  extern "C" __global__ void bitmap_##name(const u32 *a, const u32 *b, u32 *out, u64 rows, const u64 *on_device) {    \
    bitmap_words(out, row_count(rows, on_device), [=](u64 word) { return expression; });                               \
  }
BINARY(and, a[word] & b[word])
BINARY(or, a[word] | b[word])
BINARY(and_not, a[word] & ~b[word])

extern "C" __global__ void bitmap_not(const u32 *a, u32 *out, u64 rows, const u64 *on_device) {
  bitmap_words(out, row_count(rows, on_device), [=](u64 word) { return ~a[word]; });
}

extern "C" __global__ void bitmap_count(const u32 *a, u64 *out, u64 count, const u64 *on_device) {
  u64 rows = row_count(count, on_device);
  u64 stride = (u64)gridDim.x * blockDim.x;
  u64 ones = 0;
  for (u64 word = (u64)blockIdx.x * blockDim.x + threadIdx.x; word * 32 < rows; word += stride)
    ones += __popc(a[word] & live_bits(word, rows));
  for (u32 step = 16; step > 0; step >>= 1) ones += __shfl_xor_sync(FULL, ones, step);
  if ((threadIdx.x & 31) == 0 && ones > 0) atomicAdd(out, ones);
}
