// Windows over rows that are in order: ranks, values of other rows, aggregates over frames.
//
//   window_heads    rows, keys ──► part_of, group_of, part_starts, group_starts        (window.cuh)
//   window_identity the order of rows that have none
//   window_valid    which rows are not NULL ──► how many lie before each row, and where they are
//   window_chosen   these as an order of rows
//   window_list     array_agg: where a frame begins, and how many rows it has
//   window_rank     row_number, rank, dense_rank, percent_rank, cume_dist, ntile
//   window_take     lag, lead, first_value, last_value, nth_value: the value of one row of the partition, or of the frame
//   window_leaves   states of eight rows each      ┐ a tree:   rows    o o o o o o o o o o o o o o o o o o o
//   window_nodes    states of eight states each    ┘                   └──── 0 ──────┘ └──── 1 ──────┘
//   window_fold     count, sum, avg, min, max, variances over a frame: at most 14 states of each level and row
//
// Launch  heads, valid: WINDOW_THREADS threads; thread blocks take tiles of WINDOW_THREADS * 4 rows until none is left. The others:
//         one thread a row, a warp for 32 rows in a row, striding
// Traffic heads: keys read, 8 bytes a row written; fold: a state is 32 bytes, 4.6 bytes a row for all levels
// Needs   rows below 2^31; `scratch` of heads and valid zeroed: the ticket, then one status word per tile
// Sums    of integers modulo their width; of floats never by differences: a frame's sum is that of its rows, in pairs
// After   Merrill & Garland 2016, single-pass scan with decoupled look-back; Leis et al. 2015, segment trees for windows
#include "lookback.cuh"
#include "window.cuh"

constexpr u32 WARPS = WINDOW_THREADS / 32, EACH = 4, TILE = WINDOW_THREADS * EACH;
constexpr u64 HALF = (1ull << 31) - 1;

// Adds up what `flag` says of each row, and hands the sum up to and with each row to `put`. Two sums of 31 bits travel in one.
template <typename Flag, typename Put> __device__ inline void scan_rows(u64 *scratch, u64 rows, Flag flag, Put put) {
  __shared__ u64 ticket, tile_start, warp_sums[WARPS];
  u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  u64 tiles = (rows + TILE - 1) / TILE;
  for (u64 tile = take_tile(scratch, &ticket); tile < tiles; tile = take_tile(scratch, &ticket)) {
    u64 first = tile * TILE + threadIdx.x * EACH;
    u64 own[EACH], sum = 0;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
      own[i] = first + i < rows ? flag((u32)(first + i)) : 0;
      sum += own[i];
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
      if (lane == 0) tile_start = earlier;
    }
    __syncthreads();
    u64 up_to = tile_start + before + inclusive - sum;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
      up_to += own[i];
      if (first + i < rows) put((u32)(first + i), own[i], up_to);
    }
  }
}

// The first `partition` keys tell partitions apart; they and the others tell peers apart. `order` has the rows' numbers, or is null.
extern "C" __global__ void __launch_bounds__(WINDOW_THREADS)
window_heads(const __grid_constant__ Keys keys, u32 partition, const u32 *order, u32 *part_of, u32 *group_of, u32 *part_starts,
             u32 *group_starts, u64 *scratch, u64 rows, const u64 *on_device) {
  rows = row_count(rows, on_device);
  auto flag = [&](u32 row) -> u64 {
    if (row == 0) return 1ull << 31 | 1;
    u32 a = order ? order[row - 1] : row - 1, b = order ? order[row] : row;
#pragma unroll 1
    for (u32 k = 0; k < keys.count; k++)
      if (differ(keys.few[k], a, b)) return k < partition ? 1ull << 31 | 1 : 1;
    return 0;
  };
  auto put = [&](u32 row, u64 own, u64 up_to) {
    u32 part = (u32)(up_to >> 31), group = (u32)(up_to & HALF);
    part_of[row] = part - 1;
    group_of[row] = group - 1;
    if (own >> 31) part_starts[part - 1] = row;
    if (own & HALF) group_starts[group - 1] = row;
    if (row == rows - 1) {
      part_starts[part] = (u32)rows;
      group_starts[group] = (u32)rows;
    }
  };
  scan_rows(scratch, rows, flag, put);
}

// How many rows before each are not NULL, and of all at the end; and where they are.
extern "C" __global__ void __launch_bounds__(WINDOW_THREADS)
window_valid(const u32 *validity, u32 *before, u32 *places, u64 *scratch, u64 rows, const u64 *on_device) {
  rows = row_count(rows, on_device);
  auto flag = [&](u32 row) -> u64 { return bit_of(validity, row); };
  auto put = [&](u32 row, u64 own, u64 up_to) {
    before[row] = (u32)(up_to - own);
    if (own) places[up_to - 1] = row;
    if (row == rows - 1) before[row + 1] = (u32)up_to;
  };
  scan_rows(scratch, rows, flag, put);
}

// An order of the rows that are not NULL: how many there are; their numbers are `places`.
extern "C" __global__ void __launch_bounds__(WINDOW_THREADS)
window_chosen(u64 *control, const u64 *source, const u32 *before, u64 rows, const u64 *on_device) {
  rows = row_count(rows, on_device);
  u64 chosen = rows ? before[rows] : 0;
  if (blockIdx.x == 0 && threadIdx.x == 0) write_control(control, source, chosen, chosen);
}

// Rows in the order in which they are: their numbers, and the control block of an order.
extern "C" __global__ void __launch_bounds__(WINDOW_THREADS)
window_identity(u64 *control, const u64 *source, u32 *numbers, u64 rows, const u64 *on_device) {
  rows = row_count(rows, on_device);
  u64 stride = (u64)gridDim.x * WINDOW_THREADS;
  if (blockIdx.x == 0 && threadIdx.x == 0) write_control(control, source, rows, rows);
#pragma unroll 1
  for (u64 row = (u64)blockIdx.x * WINDOW_THREADS + threadIdx.x; row < rows; row += stride) numbers[row] = (u32)row;
}

enum Rank : u32 { ROW_NUMBER, MIN_RANK, DENSE_RANK, PERCENT_RANK, CUME_DIST, NTILE };

__device__ inline u64 bits_of(double value) { return (u64)__double_as_longlong(value); }

extern "C" __global__ void __launch_bounds__(WINDOW_THREADS)
window_rank(const __grid_constant__ Positions at, u32 kind, u64 buckets, u64 *out, u64 rows, const u64 *on_device) {
  rows = row_count(rows, on_device);
  u64 stride = (u64)gridDim.x * WINDOW_THREADS;
#pragma unroll 1
  for (u64 next = (u64)blockIdx.x * WINDOW_THREADS + threadIdx.x; next < rows; next += stride) {
    u32 row = (u32)next, first = at.start(row), number = row - first;
    u64 size = at.end(row) - first, rank = at.peers_start(row) - first, value = number + 1;
    switch (kind) {
    case MIN_RANK: value = rank + 1; break;
    case DENSE_RANK: value = at.group_of[row] - at.group_of[first] + 1; break;
    case PERCENT_RANK: value = bits_of(size > 1 ? (double)rank / (double)(size - 1) : 0.0); break;
    case CUME_DIST: value = bits_of((double)(at.peers_end(row) - first) / (double)size); break;
    case NTILE: {
      u64 base = size / buckets, rest = size % buckets, large = rest * (base + 1);
      value = number < large ? number / (base + 1) + 1 : rest + (number - large) / (base ? base : 1) + 1;
      break;
    }
    }
    out[row] = value;
  }
}

enum Taken : u32 { SHIFT, NTH };

struct Take {
  Frame frame;
  u32 taken;
  u32 bytes;  // of a value; 0: a bit
  i64 by;     // SHIFT: rows further on; NTH: from the first row of the frame, or if negative from its last; never 0
  const void *values;
  const u32 *validity;
  const u32 *before, *places;  // set: rows that are NULL do not count
  Wide otherwise;              // where there is no such row
  u64 has_otherwise;
  u64 pad;
};
static_assert(sizeof(Take) == sizeof(Frame) + 88, "window.rs has the same size");

// The row that is taken; FULL where there is none.
__device__ __noinline__ static u32 taken_row(const Positions &at, const Take &take, u32 row) {
  Span span;
  i64 place;
  if (take.taken == SHIFT) {
    span = Span{at.start(row), at.end(row)};
    if (!take.before) place = (i64)row + take.by;
    // Of the rows behind, the first is number 0; of those before, the last is number -1.
    else place = take.by > 0 ? (i64)take.before[row + 1] + take.by - 1 : (i64)take.before[row] + take.by;
  } else {
    span = span_of(at, take.frame, row);
    u32 first = take.before ? take.before[span.start] : span.start, last = take.before ? take.before[span.end] : span.end;
    place = take.by > 0 ? (i64)first + take.by - 1 : (i64)last + take.by;
  }
  i64 first = span.start, last = span.end;
  if (take.before) {
    first = take.before[span.start];
    last = take.before[span.end];
  }
  if (place < first || place >= last) return FULL;
  return take.before ? take.places[place] : (u32)place;
}

extern "C" __global__ void __launch_bounds__(WINDOW_THREADS)
window_take(const __grid_constant__ Positions at, const __grid_constant__ Take take, void *out, u32 *out_validity, u64 rows,
            const u64 *on_device) {
  rows = row_count(rows, on_device);
  u64 stride = (u64)gridDim.x * WINDOW_THREADS, end = (rows + 31) / 32 * 32;
#pragma unroll 1
  for (u64 row = (u64)blockIdx.x * WINDOW_THREADS + threadIdx.x; row < end; row += stride) {
    u32 from = row < rows ? taken_row(at, take, (u32)row) : FULL;
    bool there = from != FULL, valid = there ? bit_of(take.validity, from) : row < rows && take.has_otherwise;
    u32 bits = __ballot_sync(FULL, valid);
    if ((threadIdx.x & 31) == 0 && out_validity) out_validity[row >> 5] = bits;
    if (take.bytes == 0) {
      bool bit = there ? bit_of((const u32 *)take.values, from) : take.otherwise.low & 1;
      u32 word = __ballot_sync(FULL, valid && bit);
      if ((threadIdx.x & 31) == 0) ((u32 *)out)[row >> 5] = word;
      continue;
    }
    if (row >= rows) continue;
    switch (take.bytes) {
    case 1: ((u8 *)out)[row] = there ? ((const u8 *)take.values)[from] : (u8)take.otherwise.low; break;
    case 2: ((u16 *)out)[row] = there ? ((const u16 *)take.values)[from] : (u16)take.otherwise.low; break;
    case 4: ((u32 *)out)[row] = there ? ((const u32 *)take.values)[from] : (u32)take.otherwise.low; break;
    case 8: ((u64 *)out)[row] = there ? ((const u64 *)take.values)[from] : take.otherwise.low; break;
    default: ((Wide *)out)[row] = there ? ((const Wide *)take.values)[from] : take.otherwise; break;
    }
  }
}

// Each frame as a list: its first item and the number of its items, which are the rows, or those that are not NULL.
extern "C" __global__ void __launch_bounds__(WINDOW_THREADS)
window_list(const __grid_constant__ Positions at, const __grid_constant__ Frame frame, const u32 *before, u64 *out, u32 *out_validity,
            u64 rows, const u64 *on_device) {
  rows = row_count(rows, on_device);
  u64 stride = (u64)gridDim.x * WINDOW_THREADS, end = (rows + 31) / 32 * 32;
#pragma unroll 1
  for (u64 row = (u64)blockIdx.x * WINDOW_THREADS + threadIdx.x; row < end; row += stride) {
    Span span = {};
    if (row < rows) span = span_of(at, frame, (u32)row);
    if (row < rows && before) span = Span{before[span.start], before[span.end]};
    u32 bits = __ballot_sync(FULL, span.start < span.end);
    if ((threadIdx.x & 31) == 0) out_validity[row >> 5] = bits;
    if (row < rows) out[row] = span.start < span.end ? (u64)span.start << 32 | (span.end - span.start) : 0;
  }
}

// What is known of some rows: how many count, and of their values what the operation keeps.
//
//   SUM_INTEGERS  low and high word          MIN, MAX   low and high word of a number in the values' order; the code of a string
//   SUM_FLOATS    the sum                    MOMENTS    mean, sum of squared distances from it
struct __align__(16) State {
  u64 a, b, c, count;
};

enum Op : u32 { COUNT, SUM_INTEGERS, SUM_FLOATS, MIN, MAX, MOMENTS, BIT_AND, BIT_OR, BIT_XOR };

struct Folded {
  const void *values;  // null: there is no argument
  const u32 *validity;
  const u32 *ranks;  // of strings that are codes, which compare by rank
  u32 kind, op;
};
static_assert(sizeof(Folded) == 32, "window.rs has the same size");

__device__ inline double as_double(u64 bits) { return __longlong_as_double((i64)bits); }

__device__ __noinline__ static double float_at(const Folded &of, u32 row) {
  if (of.kind == F64) return ((const double *)of.values)[row];
  if (of.kind == F32) return ((const float *)of.values)[row];
  return (double)(i64)number_at(of.values, of.kind, row).low;
}

__device__ __noinline__ static State state_of_row(const Folded &of, u32 row) {
  bool counts = bit_of(of.validity, row);
  State state = {0, 0, 0, counts};
  if (!counts || of.op == COUNT) return state;
  if (of.op == SUM_FLOATS || of.op == MOMENTS) {
    state.a = bits_of(float_at(of, row));
    return state;
  }
  Wide number = number_at(of.values, of.kind, row);
  state.a = of.ranks ? of.ranks[number.low] : number.low;
  state.b = number.high;
  state.c = number.low;
  return state;
}

__device__ __noinline__ static State together(u32 op, State x, State y) {
  if (x.count == 0) return y;
  if (y.count == 0) return x;
  State both = x;
  both.count = x.count + y.count;
  i128 left = (i128)((u128)x.b << 64 | x.a), right = (i128)((u128)y.b << 64 | y.a);
  switch (op) {
  case SUM_INTEGERS: {
    i128 sum = (i128)((u128)left + (u128)right);
    both.a = (u64)sum;
    both.b = (u64)(sum >> 64);
    break;
  }
  case SUM_FLOATS: both.a = bits_of(as_double(x.a) + as_double(y.a)); break;
  case MIN:
  case MAX:
    if (op == MIN ? right < left : left < right) both.a = y.a, both.b = y.b, both.c = y.c;
    break;
  case MOMENTS: {
    double n = (double)x.count, m = (double)y.count, apart = as_double(y.a) - as_double(x.a);
    both.a = bits_of(as_double(x.a) + apart * (m / (n + m)));
    both.b = bits_of(as_double(x.b) + as_double(y.b) + apart * apart * (n * (m / (n + m))));
    break;
  }
  case BIT_AND: both.a = x.a & y.a, both.b = x.b & y.b; break;
  case BIT_OR: both.a = x.a | y.a, both.b = x.b | y.b; break;
  case BIT_XOR: both.a = x.a ^ y.a, both.b = x.b ^ y.b; break;
  }
  return both;
}

extern "C" __global__ void __launch_bounds__(WINDOW_THREADS)
window_leaves(const __grid_constant__ Folded of, State *out, u64 rows, const u64 *on_device) {
  u64 nodes = row_count(rows, on_device) / WINDOW_FANOUT, stride = (u64)gridDim.x * WINDOW_THREADS;
#pragma unroll 1
  for (u64 node = (u64)blockIdx.x * WINDOW_THREADS + threadIdx.x; node < nodes; node += stride) {
    State state = {};
#pragma unroll 1
    for (u32 i = 0; i < WINDOW_FANOUT; i++) state = together(of.op, state, state_of_row(of, (u32)(node * WINDOW_FANOUT + i)));
    out[node] = state;
  }
}

// `each` rows are in a state of `in`; those that are whole alone are read.
extern "C" __global__ void __launch_bounds__(WINDOW_THREADS)
window_nodes(const State *in, State *out, u32 op, u64 each, u64 rows, const u64 *on_device) {
  u64 nodes = row_count(rows, on_device) / each / WINDOW_FANOUT, stride = (u64)gridDim.x * WINDOW_THREADS;
#pragma unroll 1
  for (u64 node = (u64)blockIdx.x * WINDOW_THREADS + threadIdx.x; node < nodes; node += stride) {
    State state = {};
#pragma unroll 1
    for (u32 i = 0; i < WINDOW_FANOUT; i++) state = together(op, state, in[node * WINDOW_FANOUT + i]);
    out[node] = state;
  }
}

enum Given : u32 { AS_COUNT, AS_INTEGER, AS_FLOAT, AS_NUMBER, AS_CODE, AS_MEAN, AS_DECIMAL_MEAN, AS_VARIANCE, AS_DEVIATION };

struct Fold {
  Frame frame;
  Folded of;
  const State *levels[WINDOW_LEVELS];
  u32 given;
  u32 bytes;   // of a result; 0: a bit
  u64 factor;  // AS_DECIMAL_MEAN: what the sum is multiplied by; AS_VARIANCE, AS_DEVIATION: what is taken off the count
};
static_assert(sizeof(Fold) == sizeof(Frame) + 32 + 8 * WINDOW_LEVELS + 16, "window.rs has the same size");

__device__ __noinline__ static State fold(const Fold &with, Span span) {
  u32 start = span.start, end = span.end;
  State total = {};
  if (!with.of.values) {
    total.count = end - start;
    return total;
  }
#pragma unroll 1
  while (start < end && start % WINDOW_FANOUT) total = together(with.of.op, total, state_of_row(with.of, start++));
#pragma unroll 1
  while (start < end && end % WINDOW_FANOUT) total = together(with.of.op, total, state_of_row(with.of, --end));
#pragma unroll 1
  for (u32 level = 0; start < end; level++) {
    start /= WINDOW_FANOUT;
    end /= WINDOW_FANOUT;
    const State *states = with.levels[level];
#pragma unroll 1
    while (start < end && start % WINDOW_FANOUT) total = together(with.of.op, total, states[start++]);
#pragma unroll 1
    while (start < end && end % WINDOW_FANOUT) total = together(with.of.op, total, states[--end]);
  }
  return total;
}

// A 128-bit integer by a count, towards zero.
__device__ __noinline__ static Wide divided(u64 low, u64 high, u64 by) {
  bool negative = high >> 63;
  if (negative) {
    low = ~low + 1;
    high = ~high + (low == 0);
  }
  u32 limbs[4] = {(u32)low, (u32)(low >> 32), (u32)high, (u32)(high >> 32)};
  u64 rest = 0;
#pragma unroll
  for (i32 i = 3; i >= 0; i--) {
    u64 part = rest << 32 | limbs[i];
    limbs[i] = (u32)(part / by);
    rest = part % by;
  }
  low = (u64)limbs[1] << 32 | limbs[0];
  high = (u64)limbs[3] << 32 | limbs[2];
  if (negative) {
    low = ~low + 1;
    high = ~high + (low == 0);
  }
  return Wide{low, high};
}

__device__ __noinline__ static Wide result(const Fold &with, State state) {
  switch (with.given) {
  case AS_COUNT: return Wide{state.count, 0};
  case AS_CODE: return Wide{state.c, 0};
  case AS_NUMBER:
    if (with.of.kind == F64) return Wide{unordered(state.a, 1ull << 63), 0};
    if (with.of.kind == F32) return Wide{unordered(state.a, 1ull << 31), 0};
    return Wide{state.a, state.b};
  case AS_MEAN: return Wide{bits_of(as_double(state.a) / (double)state.count), 0};
  case AS_DECIMAL_MEAN: {
    u128 sum = ((u128)state.b << 64 | state.a) * with.factor;
    return divided((u64)sum, (u64)(sum >> 64), state.count);
  }
  case AS_VARIANCE: return Wide{bits_of(as_double(state.b) / (double)(state.count - with.factor)), 0};
  case AS_DEVIATION: return Wide{bits_of(sqrt(as_double(state.b) / (double)(state.count - with.factor))), 0};
  default: return Wide{state.a, state.b};
  }
}

extern "C" __global__ void __launch_bounds__(WINDOW_THREADS)
window_fold(const __grid_constant__ Positions at, const __grid_constant__ Fold with, void *out, u32 *out_validity, u64 rows,
            const u64 *on_device) {
  rows = row_count(rows, on_device);
  bool varies = with.given == AS_VARIANCE || with.given == AS_DEVIATION;
  u64 stride = (u64)gridDim.x * WINDOW_THREADS, end = (rows + 31) / 32 * 32, least = varies ? with.factor : 0;
#pragma unroll 1
  for (u64 row = (u64)blockIdx.x * WINDOW_THREADS + threadIdx.x; row < end; row += stride) {
    State state = {};
    if (row < rows) state = fold(with, span_of(at, with.frame, (u32)row));
    bool valid = row < rows && (with.given == AS_COUNT || state.count > least);
    u32 bits = __ballot_sync(FULL, valid);
    if ((threadIdx.x & 31) == 0 && out_validity) out_validity[row >> 5] = bits;
    Wide value = valid ? result(with, state) : Wide{0, 0};
    if (with.bytes == 0) {
      u32 word = __ballot_sync(FULL, valid && (value.low & 1));
      if ((threadIdx.x & 31) == 0) ((u32 *)out)[row >> 5] = word;
      continue;
    }
    if (row >= rows) continue;
    switch (with.bytes) {
    case 1: ((u8 *)out)[row] = (u8)value.low; break;
    case 2: ((u16 *)out)[row] = (u16)value.low; break;
    case 4: ((u32 *)out)[row] = (u32)value.low; break;
    case 8: ((u64 *)out)[row] = value.low; break;
    default: ((Wide *)out)[row] = value; break;
    }
  }
}
