// Gives each tile the sum over all tiles before it, in one pass over the data.
//
//   tile            0         1         2         3
//   own sum         5         3         4         .
//   status          P 5       A 3       A 4       ← tile 3 reads back: 4 + 3 + 5 = 12, then writes P 12 + own
//
// Status  one word a tile: the two top bits say nothing / own sum (A) / sum up to here (P), the rest is the value; so one
//         relaxed store publishes both. All words and the ticket start at 0
// Order   tile numbers come from the ticket, so every earlier tile is already running and the wait ends
// After   Merrill & Garland 2016, single-pass scan with decoupled look-back
#pragma once
#include "common.cuh"

constexpr u64 STATUS_SUM = 1ull << 62, STATUS_PREFIX = 2ull << 62, STATUS_VALUE = (1ull << 62) - 1;

// Takes the next tile number, for the whole thread block. `shared` is one word in shared memory.
__device__ inline u64 take_tile(u64 *ticket, u64 *shared) {
  __syncthreads();
  if (threadIdx.x == 0) *shared = atomicAdd(ticket, 1ull);
  __syncthreads();
  return *shared;
}

// Called by one whole warp of the tile's thread block: publishes `sum`, returns the sum over all earlier tiles.
__device__ __noinline__ static u64 look_back(u64 *status, u64 tile, u64 sum) {
  u32 lane = threadIdx.x & 31;
  if (tile == 0) {
    if (lane == 0) store_relaxed(status, STATUS_PREFIX | sum);
    return 0;
  }
  if (lane == 0) store_relaxed(status + tile, STATUS_SUM | sum);
  u64 before = 0;
#pragma unroll 1
  for (i64 newest = tile - 1;; newest -= 32) {
    // Lane 0 reads the newest of 32 earlier tiles; those before tile 0 count as prefixes of 0.
    i64 mine = newest - lane;
    u64 word = mine < 0 ? STATUS_PREFIX : load_relaxed(status + mine);
    while (__any_sync(FULL, (word & ~STATUS_VALUE) == 0)) {
      __nanosleep(300);
      word = mine < 0 ? STATUS_PREFIX : load_relaxed(status + mine);
    }
    u32 prefixes = __ballot_sync(FULL, (word & STATUS_PREFIX) != 0);
    u32 last = prefixes ? __ffs(prefixes) - 1 : 31;
    u64 part = lane <= last ? word & STATUS_VALUE : 0;
    for (u32 step = 16; step > 0; step >>= 1) part += __shfl_xor_sync(FULL, part, step);
    before += part;
    if (prefixes) break;
  }
  if (lane == 0) store_relaxed(status + tile, STATUS_PREFIX | (before + sum));
  return before;
}
