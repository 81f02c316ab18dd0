// Running sums of a column of counts: where the rows that each row becomes end.
//
//   counts   2 0 3 1
//   ends     2 2 5 6            control: rows = 6, listed = 4
//
// Launch  SCAN_THREADS threads; thread blocks take tiles of SCAN_THREADS * 4 rows until none is left, so any grid works
// Traffic 4 bytes read and 8 written a row
// Needs   `control` zeroed (error, rows, ticket, listed: see abi.rs), then the ends; `scratch` zeroed: the ticket, then one
//         status word per tile. `source`, where set, is the control block of the kernel that made the counts
// After   Merrill & Garland 2016, single-pass scan with decoupled look-back
#include "lookback.cuh"

constexpr u32 WARPS = SCAN_THREADS / 32, EACH = 4, TILE = SCAN_THREADS * EACH;

extern "C" __global__ void __launch_bounds__(SCAN_THREADS)
scan_counts(const u32 *counts, u64 *control, u64 *ends, u64 *scratch, const u64 *source, u64 rows,
            const u64 *on_device) {
  __shared__ u64 ticket, tile_start, warp_sums[WARPS];
  rows = row_count(rows, on_device);
  u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  u64 tiles = rows == 0 ? 1 : (rows + TILE - 1) / TILE;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    control[3] = rows;
    if (source) control[0] = source[0];
  }
  for (u64 tile = take_tile(scratch, &ticket); tile < tiles; tile = take_tile(scratch, &ticket)) {
    u64 first = tile * TILE + threadIdx.x * EACH;
    u64 own[EACH], sum = 0;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
      if (first + i < rows) sum += counts[first + i];
      own[i] = sum;
    }
    u64 inclusive = sum;
    for (u32 step = 1; step < 32; step *= 2) {
      u64 below = __shfl_up_sync(FULL, inclusive, step);
      if (lane >= step) inclusive += below;
    }
    if (lane == 31) warp_sums[warp] = inclusive;
    __syncthreads();
    u64 before = 0, total = 0;
#pragma unroll 1
    for (u32 w = 0; w < WARPS; w++) {
      if (w < warp) before += warp_sums[w];
      total += warp_sums[w];
    }
    if (warp == 0) {
      u64 earlier = look_back(scratch + 1, tile, total);
      if (lane == 0) {
        tile_start = earlier;
        if (tile == tiles - 1) control[1] = earlier + total;
      }
    }
    __syncthreads();
    u64 start = tile_start + before + inclusive - sum;
#pragma unroll
    for (u32 i = 0; i < EACH; i++)
      if (first + i < rows) ends[first + i] = start + own[i];
  }
}
