// Moves the selected values of one column to the front, keeping their order.
//
//   mask   1 0 1 1 0 0 1        one bit per row, least significant first
//   in     a b c d e f g
//   out    a c d g              selected = 4
//   rows   0 2 3 6              what select_rows writes: the selected row numbers
//
// Launch  SELECT_THREADS threads; thread blocks take tiles of SELECT_TILE_ROWS rows until none is left, so any grid works
// Traffic rows/8 read, and for each selected row sizeof(T) read and written
// Needs   `in` and `out` apart; `scratch` zeroed: the ticket, then one status word per tile
// After   Merrill & Garland 2016, single-pass scan with decoupled look-back
#include "lookback.cuh"

constexpr u32 TILE_WORDS = SELECT_TILE_ROWS / 32, WARPS = SELECT_THREADS / 32;
static_assert(SELECT_TILE_ROWS % 1024 == 0 && TILE_WORDS <= SELECT_THREADS, "a thread counts one word");

// Calls `move(row, position)` for every selected row.
template <typename Move>
__device__ void select_tiles(const u32 *mask, u64 rows, u64 *scratch, u64 *selected, Move move) {
  __shared__ u64 ticket, tile_start;
  __shared__ u32 words[TILE_WORDS], starts[TILE_WORDS], warp_sums[WARPS];
  u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  u64 tiles = rows == 0 ? 1 : (rows + SELECT_TILE_ROWS - 1) / SELECT_TILE_ROWS;
  for (u64 tile = take_tile(scratch, &ticket); tile < tiles; tile = take_tile(scratch, &ticket)) {
    // 1. Count: one word per thread, scanned over the thread block.
    u64 first = tile * TILE_WORDS;
    u32 word = 0;
    if (threadIdx.x < TILE_WORDS && (first + threadIdx.x) * 32 < rows)
      word = mask[first + threadIdx.x] & live_bits(first + threadIdx.x, rows);
    u32 inclusive = __popc(word);
    for (u32 step = 1; step < 32; step *= 2) {
      u32 below = __shfl_up_sync(FULL, inclusive, step);
      if (lane >= step) inclusive += below;
    }
    if (lane == 31) warp_sums[warp] = inclusive;
    __syncthreads();
    u32 before = 0, total = 0;
#pragma unroll 1
    for (u32 w = 0; w < WARPS; w++) {
      if (w < warp) before += warp_sums[w];
      total += warp_sums[w];
    }
    if (threadIdx.x < TILE_WORDS) {
      words[threadIdx.x] = word;
      starts[threadIdx.x] = before + inclusive - __popc(word);
    }
    // 2. Where the tile starts in the output.
    if (warp == 0) {
      u64 earlier = look_back(scratch + 1, tile, total);
      if (lane == 0) {
        tile_start = earlier;
        if (tile == tiles - 1) *selected = earlier + total;
      }
    }
    __syncthreads();
    // 3. Move: a warp per word, a lane per row.
#pragma unroll 2
    for (u32 w = warp; w < TILE_WORDS; w += WARPS) {
      u32 bits = words[w];
      if (bits >> lane & 1) move((first + w) * 32 + lane, tile_start + starts[w] + __popc(bits & lanes_below()));
    }
  }
}

#define ENTRY(width, T)                                                                                                \
  extern "C" __global__ void __launch_bounds__(SELECT_THREADS) select_##width(                                         \
      const T *in, const u32 *mask, T *out, u64 *selected, u64 *scratch, u64 rows, const u64 *on_device) {            \
    select_tiles(mask, row_count(rows, on_device), scratch, selected, [=](u64 row, u64 at) { out[at] = in[row]; });   \
  }
FOR_EACH_FIXED_WIDTH(ENTRY)

extern "C" __global__ void __launch_bounds__(SELECT_THREADS)
select_rows(const u32 *mask, u32 *out, u64 *selected, u64 *scratch, u64 rows, const u64 *on_device) {
  select_tiles(mask, row_count(rows, on_device), scratch, selected, [=](u64 row, u64 at) { out[at] = (u32)row; });
}

// The rows that OFFSET and LIMIT leave, when the number of rows is known on the device only.
extern "C" __global__ void limit_count(u64 skip, u64 fetch, u64 *out, u64 rows, const u64 *on_device) {
  u64 count = row_count(rows, on_device);
  u64 left = count > skip ? count - skip : 0;
  if (blockIdx.x == 0 && threadIdx.x == 0) *out = left < fetch ? left : fetch;
}
