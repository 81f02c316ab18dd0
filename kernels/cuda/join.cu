// Gives every key of a join table its part of the list of rows, then fills the list.
//
//   counted   key a: 2 rows, key b: 1          scratch: row 0 → (a, 0), row 1 → (b, 0), row 2 → (a, 1)
//   allot     a begins at 0, b at 2            rows listed: 3
//   place     list 0 2 1                       where no key has two rows: a, b begin with their row's number, and no list
//
// Launch  JOIN_THREADS threads, any grid
// Traffic allot: 4 bytes read and up to 4 written a record; place: 8 bytes read a row, 8 written
// Needs   `table`: the control block (abi.rs: rows listed at byte 24, keys with several rows at 32), then the records, in each at
//         `offset` the count and the beginning of its key's rows; `scratch`: record and rank of each row, or NONE
#include "common.cuh"

constexpr u32 CONTROL_BYTES = 64, LISTED = 24, DUPLICATES = 32, NONE = 0xffffffffu;

__device__ inline u32 *matches_of(u8 *table, u64 record, u32 record_bytes, u32 offset) {
  return (u32 *)(table + CONTROL_BYTES + record * record_bytes + offset);
}

// A warp takes room for its 32 records at once.
extern "C" __global__ void __launch_bounds__(JOIN_THREADS)
join_allot(u8 *table, u32 records, u32 record_bytes, u32 offset) {
  u32 lane = threadIdx.x & 31;
  u64 step = (u64)gridDim.x * JOIN_THREADS;
  for (u64 first = (u64)blockIdx.x * JOIN_THREADS + threadIdx.x - lane; first < records; first += step) {
    u64 record = first + lane;
    u32 *matches = matches_of(table, record, record_bytes, offset);
    u32 count = record < records ? matches[0] : 0;
    u32 sum = count;
#pragma unroll 1
    for (u32 distance = 1; distance < 32; distance *= 2) {
      u32 below = __shfl_up_sync(FULL, sum, distance);
      if (lane >= distance) sum += below;
    }
    u32 base = 0;
    if (lane == 31 && sum != 0) base = atomicAdd((u32 *)(table + LISTED), sum);
    base = __shfl_sync(FULL, base, 31);
    if (count != 0) matches[1] = base + sum - count;
  }
}

extern "C" __global__ void __launch_bounds__(JOIN_THREADS)
join_place(u8 *table, u64 list_offset, const u32 *scratch, u32 rows, u32 record_bytes, u32 offset) {
  bool unique = *(const u32 *)(table + DUPLICATES) == 0;
  u32 *list = (u32 *)(table + list_offset);
  u64 step = (u64)gridDim.x * JOIN_THREADS;
  for (u64 row = (u64)blockIdx.x * JOIN_THREADS + threadIdx.x; row < rows; row += step) {
    u32 record = scratch[2 * row], rank = scratch[2 * row + 1];
    if (record == NONE) continue;
    u32 *matches = matches_of(table, record, record_bytes, offset);
    if (unique)
      matches[1] = (u32)row;
    else
      list[matches[1] + rank] = (u32)row;
  }
}
