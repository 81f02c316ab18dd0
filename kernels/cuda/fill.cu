// Sets every value of a column to one value, or a column to its row numbers.
//
//   fill      value 7, rows 4      →  7 7 7 7
//   iota      first 10, rows 4     →  10 11 12 13
//   fill_bits bit 1, rows 35       →  11111111 11111111 11111111 11111111  11100000 …
//
// Launch  any grid; threads stride over the rows
// Traffic rows·sizeof(T) written
// Needs   nothing initialised; bits behind the last row of a bitmap are written as 0
#include "common.cuh"

template <typename T> __device__ void fill_rows(T *out, T value, u64 count, const u64 *on_device) {
  u64 rows = row_count(count, on_device);
  u64 stride = (u64)gridDim.x * blockDim.x;
  for (u64 row = (u64)blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += stride) out[row] = value;
}

#define ENTRY(width, T)                                                                                                \
  extern "C" __global__ void fill_##width(T *out, T value, u64 rows, const u64 *on_device) {                          \
    fill_rows<T>(out, value, rows, on_device);                                                                         \
  }
FOR_EACH_FIXED_WIDTH(ENTRY)

extern "C" __global__ void fill_bits(u32 *out, u32 bit, u64 count, const u64 *on_device) {
  u64 rows = row_count(count, on_device);
  u64 stride = (u64)gridDim.x * blockDim.x;
  for (u64 word = (u64)blockIdx.x * blockDim.x + threadIdx.x; word * 32 < rows; word += stride)
    out[word] = bit ? live_bits(word, rows) : 0;
}

extern "C" __global__ void iota_4(u32 *out, u32 first, u64 count, const u64 *on_device) {
  u64 rows = row_count(count, on_device);
  u64 stride = (u64)gridDim.x * blockDim.x;
  for (u64 row = (u64)blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += stride) out[row] = first + (u32)row;
}
