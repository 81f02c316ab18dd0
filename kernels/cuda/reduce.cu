// Count, sum, smallest and largest of the valid values of a column of integers, in one pass.
//
//   in     7 . -2 5 .        (. is NULL)
//   out    count 3 · min -2 · max 7 · sum 10
//
// Launch  REDUCE_THREADS threads; `scratch` holds one Reduction per thread block behind 64 bytes, of which the first 8 are zeroed
// Traffic rows·sizeof(T) + rows/8 read
// Sum     modulo 2^128
// Empty   with no valid value count and sum are 0, and min and max are not meaningful
#include "common.cuh"

struct __align__(16) Reduction {
  u64 count, pad;
  Wide min, max, sum;
};
static_assert(sizeof(Reduction) == 64, "abi.rs has the same size");

// How the values lie: abi.rs has the same numbers.
enum Kind : u32 { I8, I16, I32, I64, U8, U16, U32, U64, I128 };

// A column of integers, all brought to 128 bits; the branch is the same for every row.
struct Column {
  const void *values;
  u32 kind;

  __device__ i128 operator[](u64 row) const {
    switch (kind) {
    case I8: return ((const i8 *)values)[row];
    case I16: return ((const i16 *)values)[row];
    case I32: return ((const i32 *)values)[row];
    case I64: return ((const i64 *)values)[row];
    case U8: return ((const u8 *)values)[row];
    case U16: return ((const u16 *)values)[row];
    case U32: return ((const u32 *)values)[row];
    case U64: return ((const u64 *)values)[row];
    default: {
      Wide wide = ((const Wide *)values)[row];
      return (i128)((u128)wide.high << 64 | wide.low);
    }
    }
  }
};

__device__ inline Wide words_of(i128 value) { return Wide{(u64)value, (u64)(value >> 64)}; }

template <typename V> __device__ V from_lane(V value, u32 step) {
  u32 words[sizeof(V) / 4];
  memcpy(words, &value, sizeof(V));
  for (u32 i = 0; i < sizeof(V) / 4; i++) words[i] = __shfl_down_sync(FULL, words[i], step);
  memcpy(&value, words, sizeof(V));
  return value;
}

struct Partial {
  u64 count;
  i128 min, max, sum;

  __device__ void add(const Partial &other) {
    if (other.count == 0) return;
    min = count == 0 || other.min < min ? other.min : min;
    max = count == 0 || other.max > max ? other.max : max;
    sum += other.sum;
    count += other.count;
  }
};

// Folds the partials of a thread block in a fixed order; thread 0 has the result.
__device__ inline Partial fold_block(Partial mine) {
  __shared__ Partial of_warp[REDUCE_THREADS / 32];
#pragma unroll 1
  for (u32 step = 16; step > 0; step >>= 1) {
    Partial other = {from_lane(mine.count, step), from_lane(mine.min, step), from_lane(mine.max, step),
                     from_lane(mine.sum, step)};
    mine.add(other);
  }
  if ((threadIdx.x & 31) == 0) of_warp[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x == 0)
#pragma unroll 1
    for (u32 w = 1; w < REDUCE_THREADS / 32; w++) mine.add(of_warp[w]);
  __syncthreads();
  return mine;
}

__device__ inline void reduce_column(Column in, const u32 *validity, Reduction *out, u64 *scratch, u64 rows) {
  __shared__ bool last;
  Partial mine = {};
  u64 stride = (u64)gridDim.x * REDUCE_THREADS;
#pragma unroll 1
  for (u64 row = (u64)blockIdx.x * REDUCE_THREADS + threadIdx.x; row < rows; row += stride)
    if (bit_of(validity, row)) {
      i128 value = in[row];
      mine.add(Partial{1, value, value, value});
    }
  mine = fold_block(mine);
  // The last thread block to arrive folds what all have written.
  Partial *partials = (Partial *)(scratch + 8);
  if (threadIdx.x == 0) {
    partials[blockIdx.x] = mine;
    __threadfence();
    last = atomicAdd(scratch, 1ull) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (!last) return;
  mine = {};
#pragma unroll 1
  for (u32 b = threadIdx.x; b < gridDim.x; b += REDUCE_THREADS) mine.add(partials[b]);
  mine = fold_block(mine);
  if (threadIdx.x == 0) *out = {mine.count, 0, words_of(mine.min), words_of(mine.max), words_of(mine.sum)};
}

extern "C" __global__ void __launch_bounds__(REDUCE_THREADS)
reduce_integers(const void *in, u32 kind, const u32 *validity, Reduction *out, u64 *scratch, u64 rows, const u64 *on_device) {
  reduce_column(Column{in, kind}, validity, out, scratch, row_count(rows, on_device));
}
