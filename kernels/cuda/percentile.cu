// Medians and percentiles of frames: the k-th smallest of any rows in a row, by a wavelet matrix.
//
//   values   30 10 . 20 40        rows of a window; the third is NULL
//   order    1 3 0 4 (2)          rows by value, NULLs last
//   ranks    2 0 1 3              of the rows that are not NULL, in the order of the window: each number below their count once
//
//   level 0  bit 1 of  2 0 1 3    bits 1 0 0 1    zeros go to the front, ones behind them, each in order:  0 1 2 3
//   level 1  bit 0 of  0 1 2 3    bits 0 1 0 1
//
//   k-th of [from, to)  of the bits between, so many are 0: where k lies below, it is one of them, else k less these of the ones; their
//                       places in the next level are the zeros or ones before. Its bits, level by level, are a rank: a row of `order`
//
// Launch  level: WINDOW_THREADS threads; thread blocks take tiles of WINDOW_THREADS * 4 rows until none is left. The others: one thread a
//         row, a warp for 32 rows in a row, striding
// Words   of a level: 32 bits (low half) and how many ones lie before them (high half); one word more than the rows fill, if they fill all
// Traffic a level: 8 bytes a row moved, a quarter of a byte written; a frame: four words a level, those of neighbours near one another
// Needs   rows below 2^31; `scratch` of a level zeroed: the ticket, then one status word per tile
// Floats  in total order; what lies between two is computed without fused steps, as DataFusion does
// After   Claude, Navarro & Ordonez 2015, the wavelet matrix; Merrill & Garland 2016, single-pass scan with decoupled look-back
#include "lookback.cuh"
#include "window.cuh"

constexpr u32 WARPS = WINDOW_THREADS / 32, EACH = 4, TILE = WINDOW_THREADS * EACH;

// How many rows are not NULL. `before` null: all are.
__device__ inline u32 valid_rows(const u32 *before, u64 rows) { return rows == 0 ? 0 : before ? before[rows] : (u32)rows; }

// Of the numbers below `count`, those without `bit`.
__device__ inline u32 zeros_below(u32 count, u32 bit) {
  return (count >> bit >> 1 << bit) + min(count & ((2u << bit) - 1), 1u << bit);
}

// The rank of each row that is not NULL, in the order of the window.
extern "C" __global__ void __launch_bounds__(WINDOW_THREADS)
percentile_ranks(const u32 *order, const u32 *before, u32 *ranks, u64 rows, const u64 *on_device) {
  rows = row_count(rows, on_device);
  u64 stride = (u64)gridDim.x * WINDOW_THREADS, count = valid_rows(before, rows);
#pragma unroll 1
  for (u64 rank = (u64)blockIdx.x * WINDOW_THREADS + threadIdx.x; rank < count; rank += stride) {
    u32 row = order[rank];
    ranks[before ? before[row] : row] = (u32)rank;
  }
}

// One level of the matrix: its words, and the order of the next. `next` null: there is none.
extern "C" __global__ void __launch_bounds__(WINDOW_THREADS)
percentile_level(const u32 *ranks, u32 bit, const u32 *before, u64 *words, u32 *next, u64 *scratch, u64 rows, const u64 *on_device) {
  rows = row_count(rows, on_device);
  __shared__ u64 ticket, tile_start;
  __shared__ u32 warp_sums[WARPS];
  u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  u32 count = valid_rows(before, rows), zeros = zeros_below(count, bit);
  // The word of the place behind the last row is written, too.
  u64 tiles = (u64)count / TILE + 1;
  for (u64 tile = take_tile(scratch, &ticket); tile < tiles; tile = take_tile(scratch, &ticket)) {
    u64 first = tile * TILE + warp * 32 * EACH;
    u32 own[EACH], bits[EACH], sum = 0;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
      u64 place = first + i * 32 + lane;
      own[i] = place < count ? ranks[place] : 0;
      bits[i] = __ballot_sync(FULL, own[i] >> bit & 1);
      sum += __popc(bits[i]);
    }
    if (lane == 0) warp_sums[warp] = sum;
    __syncthreads();
    u32 earlier = 0, total = 0;
#pragma unroll 1
    for (u32 w = 0; w < WARPS; w++) {
      if (w < warp) earlier += warp_sums[w];
      total += warp_sums[w];
    }
    if (warp == 0) {
      u64 start = look_back(scratch + 1, tile, total);
      if (lane == 0) tile_start = start;
    }
    __syncthreads();
    u32 ones = (u32)tile_start + earlier;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
      u64 place = first + i * 32 + lane;
      if (lane == 0 && place <= count) words[place >> 5] = (u64)ones << 32 | bits[i];
      u32 ones_before = ones + __popc(bits[i] & lanes_below());
      if (next && place < count) next[own[i] >> bit & 1 ? zeros + ones_before : (u32)place - ones_before] = own[i];
      ones += __popc(bits[i]);
    }
  }
}

struct Matrix {
  const u64 *words;  // of all levels, the highest bit first
  const u32 *order;  // the rows by value
  const u32 *before; // rows before each that are not NULL; null: all
  u64 each;          // words of a level
  u32 levels;
  u32 pad;
};
static_assert(sizeof(Matrix) == 40, "percentile.rs has the same size");

// Ones before a place of a level.
__device__ inline u32 ones_before(const u64 *level, u32 place) {
  u64 word = level[place >> 5];
  return (u32)(word >> 32) + __popc((u32)word & ((1u << (place & 31)) - 1));
}

// The row whose value is number `k` from the least of those at the places `from` to `to`, of `count` in all.
__device__ __noinline__ static u32 smallest(const Matrix &in, u32 count, u32 from, u32 to, u32 k) {
  const u64 *level = in.words;
  u32 rank = 0;
#pragma unroll 1
  for (u32 bit = in.levels; bit-- > 0; level += in.each) {
    u32 first = ones_before(level, from), last = ones_before(level, to), zeros = (to - from) - (last - first);
    if (k < zeros) {
      from -= first;
      to -= last;
    } else {
      k -= zeros;
      rank |= 1u << bit;
      u32 all = zeros_below(count, bit);
      from = all + first;
      to = all + last;
    }
  }
  return in.order[rank];
}

enum Place : u32 { MEDIAN, PERCENTILE };

struct Pick {
  Frame frame;
  Matrix matrix;
  const void *values;
  u32 kind;
  u32 bytes;   // of a result
  u32 place;
  u32 pad;
  double share;  // PERCENTILE: which part of the values lies below, from 0 to 1
};
static_assert(sizeof(Pick) == sizeof(Frame) + 40 + 32, "percentile.rs has the same size");

// A value as it lies there: the bits of floats, integers in 128 bits.
__device__ __noinline__ static Wide value_at(const Pick &pick, u32 row) {
  if (pick.kind == F32) return Wide{((const u32 *)pick.values)[row], 0};
  if (pick.kind == F64) return Wide{((const u64 *)pick.values)[row], 0};
  return number_at(pick.values, pick.kind, row);
}

// Half of the sum of two values, of integers towards zero.
__device__ __noinline__ static Wide middle(u32 kind, Wide a, Wide b) {
  if (kind == F32) {
    float sum = __fadd_rn(__int_as_float((i32)a.low), __int_as_float((i32)b.low));
    return Wide{(u32)__float_as_int(__fmul_rn(sum, 0.5f)), 0};
  }
  if (kind == F64) {
    double sum = __dadd_rn(__longlong_as_double((i64)a.low), __longlong_as_double((i64)b.low));
    return Wide{(u64)__double_as_longlong(__dmul_rn(sum, 0.5)), 0};
  }
  // What both have, and half of what one has: the sum itself may leave 128 bits.
  i128 x = whole(a), y = whole(b), apart = x ^ y, half = (x & y) + (apart >> 1);
  if (half < 0 && (apart & 1)) half += 1;
  return Wide{(u64)half, (u64)(half >> 64)};
}

// What lies between two floats, by a weight.
__device__ __noinline__ static Wide between(u32 kind, Wide a, Wide b, double weight) {
  bool narrow = kind == F32;
  double low = narrow ? (double)__int_as_float((i32)a.low) : __longlong_as_double((i64)a.low);
  double high = narrow ? (double)__int_as_float((i32)b.low) : __longlong_as_double((i64)b.low);
  double value = __dadd_rn(low, __dmul_rn(__dsub_rn(high, low), weight));
  if (narrow) return Wide{(u32)__float_as_int(__double2float_rn(value)), 0};
  return Wide{(u64)__double_as_longlong(value), 0};
}

// The median or percentile of the values at the places `from` to `to`, of which there are some.
__device__ __noinline__ static Wide picked(const Pick &pick, u32 count, u32 from, u32 to) {
  u32 values = to - from, low = (values - 1) / 2, high = values / 2;
  double place = 0;
  if (pick.place == PERCENTILE) {
    place = __dmul_rn(pick.share, (double)(values - 1));
    low = min((u32)floor(place), values - 1);
    high = min((u32)ceil(place), values - 1);
  }
  Wide lower = value_at(pick, smallest(pick.matrix, count, from, to, low));
  if (low == high) return lower;
  Wide upper = value_at(pick, smallest(pick.matrix, count, from, to, high));
  if (pick.place == MEDIAN) return middle(pick.kind, lower, upper);
  // Weights are cut to six digits, as DataFusion's.
  double weight = __ddiv_rn(trunc(__dmul_rn(__dsub_rn(place, (double)low), 1e6)), 1e6);
  return between(pick.kind, lower, upper, weight);
}

// The median or percentile of each frame; NULL where it has no value.
extern "C" __global__ void __launch_bounds__(WINDOW_THREADS)
percentile_pick(const __grid_constant__ Positions at, const __grid_constant__ Pick pick, void *out, u32 *out_validity, u64 rows,
                const u64 *on_device) {
  rows = row_count(rows, on_device);
  u64 stride = (u64)gridDim.x * WINDOW_THREADS, end = (rows + 31) / 32 * 32;
  const u32 *before = pick.matrix.before;
  u32 count = valid_rows(before, rows);
#pragma unroll 1
  for (u64 row = (u64)blockIdx.x * WINDOW_THREADS + threadIdx.x; row < end; row += stride) {
    Span span = {};
    if (row < rows) span = span_of(at, pick.frame, (u32)row);
    if (row < rows && before) span = Span{before[span.start], before[span.end]};
    bool valid = span.start < span.end;
    u32 bits = __ballot_sync(FULL, valid);
    if ((threadIdx.x & 31) == 0) out_validity[row >> 5] = bits;
    if (row >= rows) continue;
    Wide value = valid ? picked(pick, count, span.start, span.end) : Wide{0, 0};
    switch (pick.bytes) {
    case 1: ((u8 *)out)[row] = (u8)value.low; break;
    case 2: ((u16 *)out)[row] = (u16)value.low; break;
    case 4: ((u32 *)out)[row] = (u32)value.low; break;
    case 8: ((u64 *)out)[row] = value.low; break;
    default: ((Wide *)out)[row] = value; break;
    }
  }
}
