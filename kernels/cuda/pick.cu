// Appends the selected values of one column to an arena: a run for each tile, in whatever order the tiles come.
//
//   mask   1 0 1 1 | 0 0 0 0 | 0 1 0 0      tiles of 4 rows, to fit the page
//   in     a b c d | e f g h | i j k l
//   arena  [ j ... | a c d . ]              each run begins at a multiple of 256 bytes
//   runs   {256, 3}  {0, 0}  {0, 1}         where a tile's values begin, and how many they are: read in order, they are in order
//
// Launch  SELECT_THREADS threads; thread blocks stride over tiles of SELECT_TILE_ROWS rows, so any grid works
// Traffic rows/8 read, 16 bytes per tile written, and for each selected row sizeof(T) read and written
// Needs   nothing zeroed and no scratch: no thread block waits for another, unlike `select`
// Full    where the arena is too small, {ARENA_FULL, n} is written and no value; the cursor counts on (arena.cuh)
#include "arena.cuh"

constexpr u32 TILE_WORDS = SELECT_TILE_ROWS / 32, WARPS = SELECT_THREADS / 32;
static_assert(SELECT_TILE_ROWS % 1024 == 0 && TILE_WORDS <= SELECT_THREADS, "a thread counts one word");

struct Run {
  u64 start, count;
};

// Writes `value(row)` for every selected row. Tiles beyond the rows on the device get empty runs.
template <typename T, typename Value>
__device__ void pick_tiles(const u32 *mask, u8 *bytes, u64 capacity, u64 *cursor, Run *runs, u64 rows, u64 bound,
                           Value value) {
  __shared__ ArenaShared<SELECT_THREADS> shared;
  __shared__ u32 words[TILE_WORDS];
  __shared__ u64 starts[TILE_WORDS];
  u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  u64 tiles = (bound + SELECT_TILE_ROWS - 1) / SELECT_TILE_ROWS;
  for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    // 1. Count and take: one word per thread, one atomic per tile.
    u64 first = tile * TILE_WORDS;
    u32 word = 0;
    if (threadIdx.x < TILE_WORDS && (first + threadIdx.x) * 32 < rows)
      word = mask[first + threadIdx.x] & live_bits(first + threadIdx.x, rows);
    u64 mine = arena_take_each<SELECT_THREADS>(cursor, capacity, __popc(word) * sizeof(T), &shared);
    if (threadIdx.x < TILE_WORDS) {
      words[threadIdx.x] = word;
      starts[threadIdx.x] = mine;
    }
    bool full = shared.start == ARENA_FULL;
    if (threadIdx.x == 0) runs[tile] = Run{shared.start, shared.total / sizeof(T)};
    __syncthreads();
    // 2. Move: a warp per word, a lane per row.
    if (full) continue;
#pragma unroll 2
    for (u32 w = warp; w < TILE_WORDS; w += WARPS) {
      u32 bits = words[w];
      T *out = (T *)(bytes + starts[w]);
      if (bits >> lane & 1) out[__popc(bits & lanes_below())] = value((first + w) * 32 + lane);
    }
    // The next tile writes `words`.
    __syncthreads();
  }
}

#define ENTRY(width, T)                                                                                                \
  extern "C" __global__ void __launch_bounds__(SELECT_THREADS) pick_##width(                                           \
      const T *in, const u32 *mask, u8 *bytes, u64 capacity, u64 *cursor, Run *runs, u64 rows, const u64 *on_device) { \
    pick_tiles<T>(mask, bytes, capacity, cursor, runs, row_count(rows, on_device), rows,                               \
                  [=](u64 row) { return in[row]; });                                                                   \
  }
FOR_EACH_FIXED_WIDTH(ENTRY)

extern "C" __global__ void __launch_bounds__(SELECT_THREADS)
pick_rows(const u32 *mask, u8 *bytes, u64 capacity, u64 *cursor, Run *runs, u64 rows, const u64 *on_device) {
  pick_tiles<u32>(mask, bytes, capacity, cursor, runs, row_count(rows, on_device), rows,
                  [=](u64 row) { return (u32)row; });
}
