// Allocation inside a kernel, from a DeviceBumpArena (memory/src/bump_arena.rs): for outputs of unknown size.
//
//   cursor   bytes asked for so far             needed   3     0     200   7      what the threads of a block need
//   bytes    [ block 1's | block 0's | ... ]    offset   s     s+3   s+3   s+203  s from one atomic: 210 bytes, rounded up
//
// Atomics  one for each thread block and allocation, however many threads share it
// Aligned  to ARENA_ALIGN, so that the pieces of two thread blocks never share a sector
// Overflow the cursor moves on and ARENA_FULL comes back: the kernel writes nothing there, and the host reads from the cursor
//          how much to bring for the next run
#pragma once
#include "common.cuh"

constexpr u64 ARENA_ALIGN = 256, ARENA_FULL = ~0ull;

// Takes `needed` bytes; called by one thread for its thread block. Nothing needs no atomic.
__device__ inline u64 arena_take(u64 *cursor, u64 capacity, u64 needed) {
  if (needed == 0) return 0;
  u64 rounded = (needed + ARENA_ALIGN - 1) & ~(ARENA_ALIGN - 1);
  u64 start = atomicAdd(cursor, rounded);
  // Compared without a sum: a cursor far behind the end stays an overflow.
  return rounded <= capacity && start <= capacity - rounded ? start : ARENA_FULL;
}

// Words in shared memory that arena_take_each needs.
template <u32 THREADS> struct ArenaShared {
  u64 start;
  u32 total, warp_sums[THREADS / 32];
};

// Takes what every thread of the block needs, by one atomic, and returns where this thread's bytes begin, or ARENA_FULL for
// all of them. Called by all threads; at most 4 GiB for one block. `shared` may be used again behind the next __syncthreads().
template <u32 THREADS>
__device__ inline u64 arena_take_each(u64 *cursor, u64 capacity, u32 needed, ArenaShared<THREADS> *shared) {
  u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, inclusive = needed;
  for (u32 step = 1; step < 32; step *= 2) {
    u32 below = __shfl_up_sync(FULL, inclusive, step);
    if (lane >= step) inclusive += below;
  }
  if (lane == 31) shared->warp_sums[warp] = inclusive;
  __syncthreads();
  u32 before = 0, total = 0;
#pragma unroll 1
  for (u32 w = 0; w < THREADS / 32; w++) {
    if (w < warp) before += shared->warp_sums[w];
    total += shared->warp_sums[w];
  }
  if (threadIdx.x == 0) {
    shared->start = arena_take(cursor, capacity, total);
    shared->total = total;
  }
  __syncthreads();
  u64 start = shared->start;
  return start == ARENA_FULL ? ARENA_FULL : start + before + inclusive - needed;
}
