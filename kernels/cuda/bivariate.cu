// Bivariate statistics over frames: covariances, correlation, regression, over a tree of states as in window.cu.
//
//   state              number of pairs with both values; means of x and y; sums of (x - mean)^2, (y - mean)^2 and of
//                      the products of both deviations
//   bivariate_leaves   states of eight rows each
//   bivariate_nodes    states of eight states each
//   bivariate_fold     a statistic of each frame: at most 14 states of each level and row
//
// Launch  one thread a row or state, a warp for 32 rows in a row, striding
// Traffic a state is 48 bytes, 6.9 bytes a row for all levels
// Needs   rows below 2^31; x and y are doubles
// Sums    never by differences: a frame's statistic is that of its pairs
// After   Chan, Golub & LeVeque 1983, how two states become one; Leis et al. 2015, segment trees for windows
#include "window.cuh"

struct __align__(16) State {
  double mean_x, mean_y, xx, yy, xy;
  u64 count;
};
static_assert(sizeof(State) == 48, "bivariate.rs has the same size");

struct Bivariate {
  const double *x, *y;
  const u32 *x_validity, *y_validity;
};
static_assert(sizeof(Bivariate) == 32, "bivariate.rs has the same size");

// A pair counts if both values are valid.
__device__ inline State state_of_row(const Bivariate &of, u32 row) {
  State state = {0, 0, 0, 0, 0, 0};
  if (!bit_of(of.x_validity, row) || !bit_of(of.y_validity, row)) return state;
  state.mean_x = of.x[row];
  state.mean_y = of.y[row];
  state.count = 1;
  return state;
}

__device__ __noinline__ static State together(State a, State b) {
  if (a.count == 0) return b;
  if (b.count == 0) return a;
  double n = (double)a.count, m = (double)b.count, part = m / (n + m), both = n * part;
  double x = b.mean_x - a.mean_x, y = b.mean_y - a.mean_y;
  State sum;
  sum.mean_x = a.mean_x + x * part;
  sum.mean_y = a.mean_y + y * part;
  sum.xx = a.xx + b.xx + x * x * both;
  sum.yy = a.yy + b.yy + y * y * both;
  sum.xy = a.xy + b.xy + x * y * both;
  sum.count = a.count + b.count;
  return sum;
}

extern "C" __global__ void __launch_bounds__(WINDOW_THREADS)
bivariate_leaves(const __grid_constant__ Bivariate of, State *out, u64 rows, const u64 *on_device) {
  u64 nodes = row_count(rows, on_device) / WINDOW_FANOUT, stride = (u64)gridDim.x * WINDOW_THREADS;
#pragma unroll 1
  for (u64 node = (u64)blockIdx.x * WINDOW_THREADS + threadIdx.x; node < nodes; node += stride) {
    State state = {0, 0, 0, 0, 0, 0};
#pragma unroll 1
    for (u32 i = 0; i < WINDOW_FANOUT; i++) state = together(state, state_of_row(of, (u32)(node * WINDOW_FANOUT + i)));
    out[node] = state;
  }
}

// `each` rows are in a state of `in`; those that are whole alone are read.
extern "C" __global__ void __launch_bounds__(WINDOW_THREADS)
bivariate_nodes(const State *in, State *out, u64 each, u64 rows, const u64 *on_device) {
  u64 nodes = row_count(rows, on_device) / each / WINDOW_FANOUT, stride = (u64)gridDim.x * WINDOW_THREADS;
#pragma unroll 1
  for (u64 node = (u64)blockIdx.x * WINDOW_THREADS + threadIdx.x; node < nodes; node += stride) {
    State state = {0, 0, 0, 0, 0, 0};
#pragma unroll 1
    for (u32 i = 0; i < WINDOW_FANOUT; i++) state = together(state, in[node * WINDOW_FANOUT + i]);
    out[node] = state;
  }
}

enum Statistic : u32 {
  COVAR_POP, COVAR_SAMP, CORR, REGR_SLOPE, REGR_INTERCEPT, REGR_COUNT, REGR_R2, REGR_AVGX, REGR_AVGY, REGR_SXX, REGR_SYY, REGR_SXY
};

struct Fold {
  Frame frame;
  Bivariate of;
  const State *levels[WINDOW_LEVELS];
  u32 statistic;
  u32 pad;
};
static_assert(sizeof(Fold) == sizeof(Frame) + 32 + 8 * WINDOW_LEVELS + 8, "bivariate.rs has the same size");

__device__ __noinline__ static State fold(const Fold &with, Span span) {
  u32 start = span.start, end = span.end;
  State total = {0, 0, 0, 0, 0, 0};
#pragma unroll 1
  while (start < end && start % WINDOW_FANOUT) total = together(total, state_of_row(with.of, start++));
#pragma unroll 1
  while (start < end && end % WINDOW_FANOUT) total = together(total, state_of_row(with.of, --end));
#pragma unroll 1
  for (u32 level = 0; start < end; level++) {
    start /= WINDOW_FANOUT;
    end /= WINDOW_FANOUT;
    const State *states = with.levels[level];
#pragma unroll 1
    while (start < end && start % WINDOW_FANOUT) total = together(total, states[start++]);
#pragma unroll 1
    while (start < end && end % WINDOW_FANOUT) total = together(total, states[--end]);
  }
  return total;
}

// A statistic as DataFusion has it, and whether there is one.
__device__ __noinline__ static bool statistic(u32 which, const State &of, u64 *bits) {
  double n = (double)of.count, value = 0;
  bool several = of.count > 1, there = of.count > 0;
  switch (which) {
  case REGR_COUNT: *bits = of.count; return true;
  case COVAR_POP: value = of.xy / n; break;
  case COVAR_SAMP: value = of.xy / (n - 1); there = several; break;
  case CORR: {
    bool no_x = of.mean_x != of.mean_x, no_y = of.mean_y != of.mean_y;
    double x = sqrt(of.xx / n), y = sqrt(of.yy / n);
    value = of.xy / n / x / y;
    there = several && !no_x && !no_y && x != 0 && y != 0;
    // Of values that are no numbers on both sides: none, but no NULL.
    if (of.count > 0 && no_x && no_y) value = of.mean_x, there = true;
    break;
  }
  case REGR_SLOPE:
  case REGR_INTERCEPT: {
    double slope = of.xy / of.xx;
    value = which == REGR_SLOPE ? slope : of.mean_y - slope * of.mean_x;
    there = several && of.xx != 0;
    break;
  }
  case REGR_R2: value = of.xy / of.xx * (of.xy / of.yy); there = several && of.xx != 0 && of.yy != 0; break;
  case REGR_AVGX: value = of.mean_x; break;
  case REGR_AVGY: value = of.mean_y; break;
  case REGR_SXX: value = of.xx; break;
  case REGR_SYY: value = of.yy; break;
  case REGR_SXY: value = of.xy; break;
  }
  *bits = (u64)__double_as_longlong(value);
  return there;
}

extern "C" __global__ void __launch_bounds__(WINDOW_THREADS)
bivariate_fold(const __grid_constant__ Positions at, const __grid_constant__ Fold with, u64 *out, u32 *out_validity, u64 rows,
               const u64 *on_device) {
  rows = row_count(rows, on_device);
  u64 stride = (u64)gridDim.x * WINDOW_THREADS, end = (rows + 31) / 32 * 32;
#pragma unroll 1
  for (u64 row = (u64)blockIdx.x * WINDOW_THREADS + threadIdx.x; row < end; row += stride) {
    u64 value = 0;
    bool valid = false;
    if (row < rows) valid = statistic(with.statistic, fold(with, span_of(at, with.frame, (u32)row)), &value);
    u32 bits = __ballot_sync(FULL, valid);
    if ((threadIdx.x & 31) == 0 && out_validity) out_validity[row >> 5] = bits;
    if (row < rows) out[row] = valid ? value : 0;
  }
}
