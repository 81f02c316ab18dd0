// Fetches values by row number.
//
//   in     a b c d e
//   map    3 0 3            row numbers
//   out    d a d
//
// Launch  any grid of whole warps; threads stride over the output rows
// Traffic rows·(4 + sizeof(T)) read where the map is clustered, up to 64 bytes a row where it is not; rows·sizeof(T) written
// Needs   `in` and `out` apart; every row number below the input's rows
// NULL    validity is gathered by gather_bits like any other bitmap; bits behind the last row are written as 0
#include "common.cuh"

template <typename T>
__device__ void gather_rows(const T *in, const u32 *map, T *out, u64 count, const u64 *on_device) {
  u64 rows = row_count(count, on_device);
  u64 stride = (u64)gridDim.x * blockDim.x;
  for (u64 row = (u64)blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += stride) out[row] = in[map[row]];
}

#define ENTRY(width, T)                                                                                                \
  extern "C" __global__ void gather_##width(const T *in, const u32 *map, T *out, u64 rows, const u64 *on_device) {    \
    gather_rows<T>(in, map, out, rows, on_device);                                                                     \
  }
FOR_EACH_FIXED_WIDTH(ENTRY)

// A warp makes one word: lane i tests the bit of its row.
extern "C" __global__ void gather_bits(const u32 *in, const u32 *map, u32 *out, u64 count, const u64 *on_device) {
  u64 rows = row_count(count, on_device);
  u64 stride = (u64)gridDim.x * blockDim.x;
  for (u64 row = (u64)blockIdx.x * blockDim.x + threadIdx.x; row < (rows + 31) / 32 * 32; row += stride) {
    u32 word = __ballot_sync(FULL, row < rows && bit_of(in, map[row]));
    if ((row & 31) == 0) out[row >> 5] = word;
  }
}
