// What is true of the integers of columns: how many are NULL, the smallest and the largest, how they follow one another.
//
//   stored   3 4 4 . 9      (. is NULL: 0 is stored)
//   facts    1 NULL · keys 3, 9 · falls 1 (4 0) · rises 3
//
// Launch    PARQUET_THREADS threads; a block takes FACT_ROWS rows of a column at a time, any grid
// Keys      order as the numbers do: of signed ones the upper bit is turned. The smallest is kept as its complement, as the largest
// Order     of neighbours as they are stored, so it says something only where nothing is NULL
#include "parquet.cuh"

constexpr u32 FACT_ROWS = 16384;

__device__ inline u64 key_of(const void *values, u32 stored, u64 row) {
  switch (stored) {
  case 0: return (u64)(i64)((const i8 *)values)[row] ^ 1ull << 63;
  case 1: return (u64)(i64)((const i16 *)values)[row] ^ 1ull << 63;
  case 2: return (u64)(i64)((const i32 *)values)[row] ^ 1ull << 63;
  case 3: return ((const u64 *)values)[row] ^ 1ull << 63;
  case 4: return ((const u8 *)values)[row];
  case 5: return ((const u16 *)values)[row];
  case 6: return ((const u32 *)values)[row];
  default: return ((const u64 *)values)[row];
  }
}

// A piece of a column: the column's number and the first of FACT_ROWS rows.
struct Piece {
  u32 column, first; // first: in units of FACT_ROWS
};

extern "C" __global__ void __launch_bounds__(PARQUET_THREADS)
parquet_facts(const u8 *descriptors, const u8 *staging, u8 *scratch, u8 *results, u32 list_at, u32 count, u32 ticket) {
  Batch batch = {descriptors, staging, scratch, results};
  const Piece *list = (const Piece *)(descriptors + list_at);
#pragma unroll 1
  for (u32 i = blockIdx.x; i < count; i += gridDim.x) {
    Piece piece = list[i];
    const Column &column = batch.column(piece.column);
    const void *values = (const void *)column.values;
    const u32 *validity = (const u32 *)column.validity;
    u64 first = (u64)piece.first * FACT_ROWS, end = min(first + FACT_ROWS, column.rows), least = 0, most = 0;
    u32 present = 0, falls = 0, rises = 0, lane = lane_id();
    bool ordered = column.stored < 8;
    Facts *facts = batch.facts(piece.column);
    if (!ordered && !validity) {
      if (threadIdx.x == 0) atomicAdd(&facts->present, end - first);
      continue;
    }
#pragma unroll 2
    for (u64 row = first + threadIdx.x; row < ((end + 31) & ~31ull); row += PARQUET_THREADS) {
      bool here = row < end, valid = here && bit_of(validity, row);
      present += valid;
      if (!ordered) continue;
      u64 key = here ? key_of(values, column.stored, row) : 0;
      u64 before = __shfl_up_sync(FULL, key, 1);
      if (lane == 0) before = row > 0 && here ? key_of(values, column.stored, row - 1) : key;
      if (valid) {
        least = max(least, ~key);
        most = max(most, key);
      }
      if (here && row > 0) {
        falls += key < before;
        rises += key > before;
      }
    }
#pragma unroll
    for (u32 step = 16; step > 0; step /= 2) {
      least = max(least, __shfl_xor_sync(FULL, least, step));
      most = max(most, __shfl_xor_sync(FULL, most, step));
      present += __shfl_xor_sync(FULL, present, step);
      falls += __shfl_xor_sync(FULL, falls, step);
      rises += __shfl_xor_sync(FULL, rises, step);
    }
    if (lane == 0) {
      if (present) {
        atomicAdd(&facts->present, (u64)present);
        atomicMax(&facts->least, least);
        atomicMax(&facts->most, most);
      }
      if (falls) atomicAdd(&facts->falls, (u64)falls);
      if (rises) atomicAdd(&facts->rises, (u64)rises);
    }
  }
}
