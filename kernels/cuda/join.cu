// Gives every key of a join table its part of the list of rows, then fills the list.
//
//   leaders   row 0 → 0, row 1 → 1, row 2 → 0, row 3 → none       one of each key's rows, the same for all of them
//   count     lists[0] = (2 rows, …)   lists[1] = (1 row, …)
//   allot     lists[0] = (2, 0)        lists[1] = (1, 2)           where each begins
//   place     lists[0] = (2, 2)        lists[1] = (1, 3)           where each ends          list 0 2 1
//
// Launch  JOIN_THREADS threads, any grid; lanes of a warp that have a leader in common ask for room once
// Traffic count: 4 bytes read and 4 updated a row; allot: 8 a row; place: 4 read, 4 updated, 4 written
// Needs   `lists`: a control block (abi.rs: rows listed at byte 24), then count and end by row, zeroed; `leaders` by row, or NONE
#include "common.cuh"

constexpr u32 CONTROL_BYTES = 64, LISTED = 24, NONE = 0xffffffffu;

struct __align__(8) List {
  u32 count, end;
};

__device__ inline List *lists_of(u8 *lists) { return (List *)(lists + CONTROL_BYTES); }

extern "C" __global__ void __launch_bounds__(JOIN_THREADS)
join_count(const u32 *leaders, u8 *lists, u32 rows) {
  u32 lane = threadIdx.x & 31;
  u64 step = (u64)gridDim.x * JOIN_THREADS;
  for (u64 first = (u64)blockIdx.x * JOIN_THREADS + threadIdx.x - lane; first < rows; first += step) {
    u64 row = first + lane;
    u32 leader = row < rows ? leaders[row] : NONE;
    u32 peers = __match_any_sync(FULL, leader);
    if (leader != NONE && (peers & lanes_below()) == 0) atomicAdd(&lists_of(lists)[leader].count, (u32)__popc(peers));
  }
}

// A warp takes room for its 32 keys at once.
extern "C" __global__ void __launch_bounds__(JOIN_THREADS) join_allot(u8 *lists, u32 rows) {
  u32 lane = threadIdx.x & 31;
  u64 step = (u64)gridDim.x * JOIN_THREADS;
  for (u64 first = (u64)blockIdx.x * JOIN_THREADS + threadIdx.x - lane; first < rows; first += step) {
    u64 row = first + lane;
    u32 count = row < rows ? lists_of(lists)[row].count : 0;
    u32 sum = count;
#pragma unroll 1
    for (u32 distance = 1; distance < 32; distance *= 2) {
      u32 below = __shfl_up_sync(FULL, sum, distance);
      if (lane >= distance) sum += below;
    }
    u32 base = 0;
    if (lane == 31 && sum != 0) base = atomicAdd((u32 *)(lists + LISTED), sum);
    base = __shfl_sync(FULL, base, 31);
    if (count != 0) lists_of(lists)[row].end = base + sum - count;
  }
}

extern "C" __global__ void __launch_bounds__(JOIN_THREADS)
join_place(const u32 *leaders, u8 *lists, u64 list_offset, u32 rows) {
  u32 *list = (u32 *)(lists + list_offset);
  u32 lane = threadIdx.x & 31;
  u64 step = (u64)gridDim.x * JOIN_THREADS;
  for (u64 first = (u64)blockIdx.x * JOIN_THREADS + threadIdx.x - lane; first < rows; first += step) {
    u64 row = first + lane;
    u32 leader = row < rows ? leaders[row] : NONE;
    u32 peers = __match_any_sync(FULL, leader), before = __popc(peers & lanes_below());
    u32 base = 0;
    if (leader != NONE && before == 0) base = atomicAdd(&lists_of(lists)[leader].end, (u32)__popc(peers));
    base = __shfl_sync(FULL, base, __ffs(peers) - 1);
    if (leader != NONE) list[base + before] = (u32)row;
  }
}
