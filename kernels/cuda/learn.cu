// Sums over rows for k-means and logistic regression, and what rows get of a fitted model.
//
//   columns  x[0] … x[w-1], each of doubles, `stride` apart           chunk = LEARN_CHUNK_ROWS rows = one thread block
//
//   chunk 0 ─► partial sums ─┐
//   chunk 1 ─► partial sums ─┼─ the last block adds them, chunk after chunk ─► sums
//   chunk 2 ─► partial sums ─┘
//
// Same    every sum adds in the order of rows within a chunk, then in that of chunks; no product is fused into a sum. So each is
//         what the CPU's is, to the last bit, whatever the schedule.
// Launch  LEARN_THREADS threads. Rows are taken by all threads; then each sum is one thread's. `scratch` has a zeroed ticket in its
//         first 64 bytes and the partial sums behind it.
// Traffic rows·w·8 read, rows·12 written and read again, chunks·sums·8
// After   Arthur and Vassilvitskii 2007; Lloyd 1982; Liu and Nocedal 1989
#include "exact.cuh"

// Columns of doubles, one behind the other.
struct Numbers {
  const double *values;
  u64 stride;
  u32 columns;

  __device__ double at(u64 row, u32 column) const { return values[column * stride + row]; }
};

// The rows of this block's chunk.
struct Chunk {
  u64 first, end;

  __device__ explicit Chunk(u64 rows) {
    first = min((u64)blockIdx.x * LEARN_CHUNK_ROWS, rows);
    end = min(first + LEARN_CHUNK_ROWS, rows);
  }
};

// Each of `count` sums over this block's chunk, by one thread; the last block to arrive adds up those of all chunks.
template <typename Term> __device__ void sum_up(const Chunk &chunk, u32 count, Term term, double *sums, u64 *scratch) {
  __shared__ bool last;
  double *partials = (double *)(scratch + 8);
#pragma unroll 1
  for (u32 sum = threadIdx.x; sum < count; sum += LEARN_THREADS) {
    double total = 0;
#pragma unroll 4
    for (u64 row = chunk.first; row < chunk.end; row++) total = add(total, term(row, sum));
    partials[(u64)blockIdx.x * count + sum] = total;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(scratch, 1ull) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (!last) return;
#pragma unroll 1
  for (u32 sum = threadIdx.x; sum < count; sum += LEARN_THREADS) {
    double total = 0;
#pragma unroll 4
    for (u64 of = 0; of < gridDim.x; of++) total = add(total, partials[of * count + sum]);
    sums[sum] = total;
  }
}

// The squared distance of a row to centre `cluster`: the sum begins at zero, and adds column after column.
__device__ inline double squared_distance(const Numbers &rows, u64 row, const Numbers &centers, u64 cluster) {
  double sum = 0;
#pragma unroll 1
  for (u32 column = 0; column < rows.columns; column++) {
    double apart = subtract(rows.at(row, column), centers.at(cluster, column));
    sum = add(sum, multiply(apart, apart));
  }
  return sum;
}

struct Nearest {
  u32 cluster;
  double distance;
};

// The first of the centres that are nearest.
__device__ inline Nearest nearest_of(const Numbers &rows, u64 row, const Numbers &centers, u32 clusters) {
  Nearest best = {0, __longlong_as_double(0x7ff0000000000000ll)};
#pragma unroll 1
  for (u32 cluster = 0; cluster < clusters; cluster++) {
    double distance = squared_distance(rows, row, centers, cluster);
    if (distance < best.distance) best = {cluster, distance};
  }
  return best;
}

// Per column its sum, and behind those how many values are neither 0 nor 1; with `means`, its sum of squared distances to its mean,
// and how many values differ from that of the first row.
extern "C" __global__ void __launch_bounds__(LEARN_THREADS)
learn_moments(const double *values, u64 stride, u32 columns, const double *means, double *sums, u64 *scratch, u64 count, const u64 *on_device) {
  Numbers x = {values, stride, columns};
  Chunk chunk(row_count(count, on_device));
  sum_up(chunk, 2 * columns, [&](u64 row, u32 sum) {
    bool counts = sum >= columns;
    u32 column = counts ? sum - columns : sum;
    double value = x.at(row, column);
    if (counts) {
      bool counted = means ? value != x.at(0, column) : value != 0.0 && value != 1.0;
      return counted ? 1.0 : 0.0;
    }
    if (!means) return value;
    double apart = subtract(value, means[column]);
    return multiply(apart, apart);
  }, sums, scratch);
}

// Assigns each row of a chunk to its nearest centre. For each centre: the sums of its rows' columns, their number, and their squared
// distances.
extern "C" __global__ void __launch_bounds__(LEARN_THREADS)
learn_assign(const double *values, u64 stride, u32 columns, const double *centers, u32 clusters, u32 *labels, double *distances, double *sums, u64 *scratch, u64 count, const u64 *on_device) {
  Numbers x = {values, stride, columns};
  Numbers of = {centers, clusters, columns};
  Chunk chunk(row_count(count, on_device));
#pragma unroll 1
  for (u64 row = chunk.first + threadIdx.x; row < chunk.end; row += LEARN_THREADS) {
    Nearest best = nearest_of(x, row, of, clusters);
    labels[row] = best.cluster;
    distances[row] = best.distance;
  }
  __syncthreads();
  u32 width = columns + 2;
  sum_up(chunk, clusters * width, [&](u64 row, u32 sum) {
    u32 place = sum % width;
    // A sum that began at +0 stays what it is when +0 is added.
    if (labels[row] != sum / width) return 0.0;
    return place < columns ? x.at(row, place) : place == columns ? 1.0 : distances[row];
  }, sums, scratch);
}

// Takes row `*chosen` as centre `step`; each row's squared distance to the nearest centre so far, and per chunk their sum.
extern "C" __global__ void __launch_bounds__(LEARN_THREADS)
learn_nearer(const double *values, u64 stride, u32 columns, const u64 *chosen, double *centers, u32 clusters, u32 step, double *distances, double *chunk_sums, u64 count, const u64 *on_device) {
  Numbers x = {values, stride, columns};
  u64 rows = row_count(count, on_device);
  Chunk chunk(rows);
  if (rows == 0) {
    if (threadIdx.x == 0) chunk_sums[blockIdx.x] = 0;
    return;
  }
  u64 center = min(*chosen, rows - 1);
  Numbers of = {values + center, stride, columns};
  if (blockIdx.x == 0)
#pragma unroll 1
    for (u32 column = threadIdx.x; column < columns; column += LEARN_THREADS)
      centers[(u64)column * clusters + step] = of.at(0, column);
#pragma unroll 1
  for (u64 row = chunk.first + threadIdx.x; row < chunk.end; row += LEARN_THREADS) {
    double distance = squared_distance(x, row, of, 0);
    if (step == 0 || distance < distances[row]) distances[row] = distance;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  double total = 0;
#pragma unroll 4
  for (u64 row = chunk.first; row < chunk.end; row++) total = add(total, distances[row]);
  chunk_sums[blockIdx.x] = total;
}

// The first row whose prefix sum exceeds `u` times the sum of all: first the chunk, then the row in it. Row `any` where all weights
// are 0; the last row with a weight where no prefix is greater, since sums have left the range of a double.
extern "C" __global__ void __launch_bounds__(32)
learn_draw(const double *weights, const double *chunk_sums, u64 chunks, double u, u64 any, u64 *chosen, u64 count, const u64 *on_device) {
  if (threadIdx.x != 0) return;
  u64 rows = row_count(count, on_device);
  double total = 0;
#pragma unroll 4
  for (u64 chunk = 0; chunk < chunks; chunk++) total = add(total, chunk_sums[chunk]);
  *chosen = any;
  if (!(total > 0)) return;
  double goal = multiply(u, total), before = 0;
  u64 found = chunks, weighty = 0;
#pragma unroll 1
  for (u64 chunk = 0; chunk < chunks && found == chunks; chunk++) {
    double after = add(before, chunk_sums[chunk]);
    if (chunk_sums[chunk] > 0) weighty = chunk;
    if (after > goal) found = chunk;
    else before = after;
  }
  bool exceeds = found < chunks;
  u64 first = (exceeds ? found : weighty) * LEARN_CHUNK_ROWS;
  u64 end = min(first + LEARN_CHUNK_ROWS, rows);
  double within = 0;
#pragma unroll 1
  for (u64 row = first; row < end; row++) {
    within = add(within, weights[row]);
    if (exceeds ? add(before, within) > goal : weights[row] > 0) *chosen = row;
    if (exceeds && add(before, within) > goal) return;
  }
}

// The label of each row's nearest centre: its number, or what `names` has for it. `*refused` becomes 1 where a number is not finite.
extern "C" __global__ void __launch_bounds__(LEARN_THREADS)
learn_nearest(const double *values, u64 stride, u32 columns, const double *centers, u32 clusters, const i64 *names, i64 *labels, u32 *refused, u64 count, const u64 *on_device) {
  Numbers x = {values, stride, columns};
  Numbers of = {centers, clusters, columns};
  u64 rows = row_count(count, on_device);
#pragma unroll 1
  for (u64 row = (u64)blockIdx.x * LEARN_THREADS + threadIdx.x; row < rows; row += (u64)gridDim.x * LEARN_THREADS) {
    bool finite = true;
#pragma unroll 1
    for (u32 column = 0; column < columns; column++) {
      double value = x.at(row, column);
      finite &= subtract(value, value) == 0.0;
    }
    if (!finite) atomicOr(refused, 1u);
    u32 cluster = nearest_of(x, row, of, clusters).cluster;
    labels[row] = names ? names[cluster] : (i64)cluster;
  }
}

// Each value as its distance to the mean of its column, in units of its scale.
extern "C" __global__ void __launch_bounds__(LEARN_THREADS)
learn_standardise(const double *values, u64 stride, u32 columns, const double *means, const double *scales, double *out, u64 out_stride, u64 count, const u64 *on_device) {
  Numbers x = {values, stride, columns};
  u64 rows = row_count(count, on_device);
#pragma unroll 1
  for (u64 row = (u64)blockIdx.x * LEARN_THREADS + threadIdx.x; row < rows; row += (u64)gridDim.x * LEARN_THREADS)
#pragma unroll 1
    for (u32 column = 0; column < columns; column++)
      out[column * out_stride + row] = divide(subtract(x.at(row, column), means[column]), scales[column]);
}

constexpr double LOG2_E = 1.4426950408889634;
constexpr double FACTORIALS[] = {1, 1, 2, 6, 24, 120, 720, 5040, 40320, 362880, 3628800, 39916800, 479001600, 6227020800, 87178291200};

// e^x for x of at most 0, by the steps of the CPU's function of this name.
__device__ inline double exp_below(double x) {
  if (x < -746.0) return 0.0;
  int power = (int)subtract(multiply(x, LOG2_E), 0.5);
  double whole = (double)power;
  double rest = subtract(subtract(x, multiply(whole, LN_2_HIGH)), multiply(whole, LN_2_LOW));
  double sum = 1.0 / FACTORIALS[14];
#pragma unroll
  for (int term = 13; term >= 0; term--) sum = add(1.0 / FACTORIALS[term], multiply(rest, sum));
  // In two factors, since the result may be smaller than a normal number.
  int half = power / 2;
  double first = __longlong_as_double((long long)(half + 1023) << 52);
  double second = __longlong_as_double((long long)(power - half + 1023) << 52);
  return multiply(multiply(sum, first), second);
}

// ln(1 + x) for x from 0 to 1, likewise.
__device__ inline double ln_1p_unit(double x) {
  double ratio = divide(x, add(2.0, x));
  double square = multiply(ratio, ratio);
  double sum = 1.0 / 37.0;
#pragma unroll
  for (int term = 35; term > 0; term -= 2) sum = add(1.0 / term, multiply(square, sum));
  return multiply(multiply(2.0, ratio), sum);
}

__device__ inline double probability(double score) {
  double odds = exp_below(score >= 0 ? -score : score);
  return divide(score >= 0 ? 1.0 : odds, add(1.0, odds));
}

// ln(1 + exp(-margin)).
__device__ inline double margin_loss(double margin) {
  if (margin >= 0) return ln_1p_unit(exp_below(-margin));
  return subtract(ln_1p_unit(exp_below(margin)), margin);
}

// w·z + b; `at` has the weights, then b.
__device__ inline double score_of(const Numbers &z, u64 row, const double *at) {
  double sum = 0;
#pragma unroll 1
  for (u32 column = 0; column < z.columns; column++) sum = add(sum, multiply(at[column], z.at(row, column)));
  return add(sum, at[z.columns]);
}

// Sums over standardised rows: the loss' slope by each weight and by the intercept, and the loss.
extern "C" __global__ void __launch_bounds__(LEARN_THREADS)
learn_loss(const double *values, u64 stride, u32 columns, const double *truths, const double *at, double *residuals, double *losses, double *sums, u64 *scratch, u64 count, const u64 *on_device) {
  Numbers z = {values, stride, columns};
  Chunk chunk(row_count(count, on_device));
#pragma unroll 1
  for (u64 row = chunk.first + threadIdx.x; row < chunk.end; row += LEARN_THREADS) {
    double score = score_of(z, row, at);
    bool one = truths[row] == 1.0;
    residuals[row] = one ? -probability(-score) : probability(score);
    losses[row] = margin_loss(one ? score : -score);
  }
  __syncthreads();
  sum_up(chunk, columns + 2, [&](u64 row, u32 sum) {
    if (sum < columns) return multiply(residuals[row], z.at(row, sum));
    return sum == columns ? residuals[row] : losses[row];
  }, sums, scratch);
}

// What the model says of each standardised row, where there are columns for it; `counts` gets true negatives, false positives, false
// negatives and true positives.
extern "C" __global__ void __launch_bounds__(LEARN_THREADS)
learn_score(const double *values, u64 stride, u32 columns, const double *truths, const double *at, u64 *counts, i64 *labels, double *scores, double *chances, i64 *predictions, u64 count, const u64 *on_device) {
  __shared__ u32 of_block[4];
  Numbers z = {values, stride, columns};
  u64 rows = row_count(count, on_device);
  if (threadIdx.x < 4) of_block[threadIdx.x] = 0;
  __syncthreads();
#pragma unroll 1
  for (u64 row = (u64)blockIdx.x * LEARN_THREADS + threadIdx.x; row < rows; row += (u64)gridDim.x * LEARN_THREADS) {
    double score = score_of(z, row, at);
    bool one = truths[row] == 1.0, predicted = score > 0;
    atomicAdd(of_block + (one ? 2 : 0) + (predicted ? 1 : 0), 1u);
    if (labels) labels[row] = one;
    if (scores) scores[row] = score;
    if (chances) chances[row] = probability(score);
    if (predictions) predictions[row] = predicted;
  }
  __syncthreads();
  if (threadIdx.x < 4) atomicAdd(counts + threadIdx.x, (u64)of_block[threadIdx.x]);
}
