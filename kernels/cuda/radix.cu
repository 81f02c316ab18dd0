// Sorts rows by their keys' numbers, eight bits at a time from the least significant: stable, and without comparing.
//
//   radix_encode   keys ──► words │ how often each digit has each value │ the last block: where each value's rows begin
//   radix_pass     words, rows ──► words, rows in the order of one digit      one launch a digit
//
//   digit 0        3 1 3 0   begins  0:0 1:1 3:2   ──►  0 1 3 3
//
// A number of more than 64 bits is several words: the least significant is sorted first, the next is then made for the rows in
// the order so far. A digit that has one value everywhere is passed over: the plan, on the device, says which, and so where
// the rows lie by now. So nothing here waits for the host, which launches as if every digit counted.
//
//   tile           4096 rows: each warp ranks its own by match; digits of the tile in shared memory, then out in runs
//   status         tile × 256 words: the tile's own count, then the count up to it (decoupled look-back, a thread per digit)
//
// Launch  RADIX_THREADS threads; encode: any grid; pass: thread blocks take tiles until none is left, so any grid works
// Traffic encode: keys read, a word a row written; pass: word and row number read and written, and 4 KiB of status a tile
// Needs   rows below 2^32 - 1; plans, and status once, zeroed; every pass over a status has a higher tag than those before
// After   Adinets & Merrill 2022, Onesweep
#include "keys.cuh"
#include "lookback.cuh"

constexpr u32 WARPS = RADIX_THREADS / 32, EACH = RADIX_TILE_ROWS / RADIX_THREADS, BINS = 256;
static_assert(RADIX_THREADS >= BINS && RADIX_THREADS % 32 == 0, "a thread per digit value");
static_assert(RADIX_TILE_ROWS * 4 >= WARPS * BINS * 4, "the counts of the warps lie where the tile is staged");

// Of one word: sort/radix.rs has the same size.
struct Plan {
  u32 begins[8][BINS];  // counts at first, then where the rows with this value of the digit begin
  u32 tickets[8];
  u32 arrived;
  u32 active;  // bit d: the digit d has more than one value
  u32 done;    // active passes of the words before
  u32 unused[5];
};
static_assert(sizeof(Plan) == 8 * BINS * 4 + 64, "radix.rs has the same size");

// Where the rows lie after `done` active passes: nowhere at first, since they are in their own order.
struct RowLists {
  u32 *first, *second;
  __device__ u32 *after(u32 done) const { return done == 0 ? nullptr : done & 1 ? first : second; }
};

// The sum over the threads before this one; of the first BINS threads, and all of the block come here.
__device__ __noinline__ static u32 sum_before(u32 value, u32 *warp_sums) {
  u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, inclusive = value;
  for (u32 step = 1; step < 32; step *= 2) {
    u32 below = __shfl_up_sync(FULL, inclusive, step);
    if (lane >= step) inclusive += below;
  }
  __syncthreads();
  if (lane == 31) warp_sums[warp] = inclusive;
  __syncthreads();
  u32 before = 0;
#pragma unroll 1
  for (u32 w = 0; w < warp && w < BINS / 32; w++) before += warp_sums[w];
  return before + inclusive - value;
}

template <typename W>
__device__ void encode(const Keys &keys, u32 start, u32 digits, W *words, RowLists lists, Plan *plan, const Plan *previous,
                       u64 total) {
  __shared__ u32 counts[8 * BINS], warp_sums[WARPS], shared_active;
  __shared__ bool last;
  u32 done = previous ? previous->done + __popc(previous->active) : 0;
  const u32 *rows = lists.after(done);
  for (u32 i = threadIdx.x; i < digits * BINS; i += RADIX_THREADS) counts[i] = 0;
  if (threadIdx.x == 0) shared_active = 0;
  __syncthreads();
  // 1. Words, and the block's counts. Equal digits of a warp, as of small or sorted numbers, count at once.
  u64 stride = (u64)gridDim.x * RADIX_THREADS;
#pragma unroll 1
  for (u64 base = (u64)blockIdx.x * RADIX_THREADS; base < total; base += stride) {
    u64 at = base + threadIdx.x;
    bool live = at < total;
    W word = 0;
    if (live) {
      word = (W)word_at(keys.all(), keys.encoded, start, rows ? rows[at] : (u32)at);
      words[at] = word;
    }
    u32 lanes = __ballot_sync(FULL, live);
#pragma unroll 1
    for (u32 d = 0; d < digits; d++) {
      u32 digit = (u32)(word >> (8 * d)) & 255, of_first = __shfl_sync(FULL, digit, 0);
      if (__all_sync(FULL, !live || digit == of_first)) {
        if ((threadIdx.x & 31) == 0 && lanes) atomicAdd(&counts[d * BINS + digit], __popc(lanes));
      } else if (live) {
        atomicAdd(&counts[d * BINS + digit], 1u);
      }
    }
  }
  __syncthreads();
  for (u32 i = threadIdx.x; i < digits * BINS; i += RADIX_THREADS)
    if (counts[i]) atomicAdd(&plan->begins[0][i], counts[i]);
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(&plan->arrived, 1u) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (!last) return;
  // 2. The last thread block to arrive makes the plan.
#pragma unroll 1
  for (u32 d = 0; d < digits; d++) {
    u32 count = threadIdx.x < BINS ? plan->begins[d][threadIdx.x] : 0;
    u32 before = sum_before(count, warp_sums);
    if (threadIdx.x < BINS) {
      plan->begins[d][threadIdx.x] = before;
      if (count != 0 && count != total) atomicOr(&shared_active, 1u << d);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    plan->active = shared_active;
    plan->done = done;
  }
}

template <typename W>
__device__ void pass(Plan *plan, u32 d, u32 tag, bool last_digit, bool last_word, W *first_words, W *second_words,
                     RowLists lists, u64 *status, u32 *out, u64 limit, u64 total) {
  __shared__ __align__(8) u8 staged[RADIX_TILE_ROWS * sizeof(W)];
  __shared__ u32 starts[BINS], bases[BINS], warp_sums[WARPS];
  __shared__ u32 ticket;
  u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  u32 active = plan->active, earlier = __popc(active & ((1u << d) - 1)), done = plan->done + earlier;
  const u32 *from_rows = lists.after(done);
  if (!(active >> d & 1)) {
    // Nothing to do in this word; the last of its launches still owes the result.
    if (last_word && last_digit && active == 0)
      for (u64 i = (u64)blockIdx.x * RADIX_THREADS + threadIdx.x; i < total && i < limit; i += (u64)gridDim.x * RADIX_THREADS)
        out[i] = from_rows ? from_rows[i] : (u32)i;
    return;
  }
  bool more = active >> d >> 1 != 0, finish = last_word && !more;
  const W *from_words = earlier & 1 ? second_words : first_words;
  W *to_words = earlier & 1 ? first_words : second_words;
  u32 *to_rows = finish ? out : lists.after(done + 1);
  u64 most = finish ? limit : total;
  u32 tiles = (u32)((total + RADIX_TILE_ROWS - 1) / RADIX_TILE_ROWS);
  u32 *counts = (u32 *)staged;
  while (true) {
    __syncthreads();
    if (threadIdx.x == 0) ticket = atomicAdd(&plan->tickets[d], 1u);
    for (u32 i = threadIdx.x; i < WARPS * BINS; i += RADIX_THREADS) counts[i] = 0;
    __syncthreads();
    u32 tile = ticket;
    if (tile >= tiles) break;
    u64 tile_start = (u64)tile * RADIX_TILE_ROWS;
    u32 length = total - tile_start < RADIX_TILE_ROWS ? (u32)(total - tile_start) : RADIX_TILE_ROWS;
    // 1. Each warp ranks its rows among those with the same digit, in order; what lies behind the last row sorts last.
    u32 own = warp * 32 * EACH + lane;
    W words[EACH];
    u32 places[EACH];
#pragma unroll
    for (u32 i = 0; i < EACH; i++) words[i] = own + 32 * i < length ? from_words[tile_start + own + 32 * i] : ~(W)0;
    u32 *mine = counts + warp * BINS;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
      u32 digit = (u32)(words[i] >> (8 * d)) & 255;
      u32 peers = __match_any_sync(FULL, digit), below = __popc(peers & lanes_below());
      u32 before = mine[digit];
      __syncwarp();
      if (below == 0) mine[digit] = before + __popc(peers);
      __syncwarp();
      places[i] = before + below;
    }
    __syncthreads();
    // 2. Counts become starts: of a digit in the tile, of a warp in the digit.
    u32 count = 0, digit_of_thread = threadIdx.x;
    if (threadIdx.x < BINS) {
#pragma unroll 1
      for (u32 w = 0; w < WARPS; w++) {
        u32 of_warp = counts[w * BINS + digit_of_thread];
        counts[w * BINS + digit_of_thread] = count;
        count += of_warp;
      }
      u64 word = (u64)(2 * tag + (tile == 0)) << 48 | count;
      store_relaxed(status + (u64)tile * BINS + digit_of_thread, word);
    }
    u32 start = sum_before(count, warp_sums);
    if (threadIdx.x < BINS) starts[digit_of_thread] = start;
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
      u32 digit = (u32)(words[i] >> (8 * d)) & 255;
      places[i] += starts[digit] + mine[digit];
    }
    // 3. Rows with this digit in the tiles before, a thread per digit.
    if (threadIdx.x < BINS) {
      u64 before = 0;
#pragma unroll 1
      for (u32 t = tile; t > 0; t--) {
        const u64 *of_tile = status + (u64)(t - 1) * BINS + digit_of_thread;
        u64 word = load_relaxed(of_tile);
        while (word >> 49 != tag) {
          __nanosleep(100);
          word = load_relaxed(of_tile);
        }
        before += word & ((1ull << 48) - 1);
        if (word >> 48 & 1) break;
      }
      if (tile > 0)
        store_relaxed(status + (u64)tile * BINS + digit_of_thread, (u64)(2 * tag + 1) << 48 | (before + count));
      bases[digit_of_thread] = plan->begins[d][digit_of_thread] + (u32)before - start;
    }
    __syncthreads();
    // 4. Through shared memory, so that neighbours write neighbours: words first, then the rows over them.
    W *staged_words = (W *)staged;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) staged_words[places[i]] = words[i];
    __syncthreads();
    u32 targets[EACH];
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
      u32 at = i * RADIX_THREADS + threadIdx.x;
      W word = staged_words[at];
      targets[i] = bases[(u32)(word >> (8 * d)) & 255] + at;
      if (more && at < length) to_words[targets[i]] = word;
    }
    __syncthreads();
    u32 *staged_rows = (u32 *)staged;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
      u64 at = tile_start + own + 32 * i;
      if (own + 32 * i < length) staged_rows[places[i]] = from_rows ? from_rows[at] : (u32)at;
    }
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
      u32 at = i * RADIX_THREADS + threadIdx.x;
      if (at < length && targets[i] < most) to_rows[targets[i]] = staged_rows[at];
    }
  }
}

#define ENTRY(width, W)                                                                                                \
  extern "C" __global__ void __launch_bounds__(RADIX_THREADS) radix_encode_##width(                                    \
      const __grid_constant__ Keys keys, u32 start, u32 digits, W *words, u32 *first_rows, u32 *second_rows,           \
      Plan *plan, const Plan *previous, u64 *control, const u64 *source, u64 limit, u64 rows, const u64 *on_device) {  \
    u64 total = row_count(rows, on_device);                                                                            \
    if (control && blockIdx.x == 0 && threadIdx.x == 0) write_control(control, source, total, limit);                  \
    encode<W>(keys, start, digits, words, RowLists{first_rows, second_rows}, plan, previous, total);                   \
  }                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(RADIX_THREADS, 2) radix_pass_##width(                                      \
      Plan *plan, u32 digit, u32 tag, u32 last_digit, u32 last_word, W *first_words, W *second_words, u32 *first_rows, \
      u32 *second_rows, u64 *status, u32 *out, u64 limit, u64 rows, const u64 *on_device) {                            \
    pass<W>(plan, digit, tag, last_digit != 0, last_word != 0, first_words, second_words,                              \
            RowLists{first_rows, second_rows}, status, out, limit, row_count(rows, on_device));                        \
  }
ENTRY(4, u32)
ENTRY(8, u64)
