// Sessions, earlier rows and pairs: what functions of click streams find in rows that are sorted by their keys.
//
//   order      4 2 0 1 3 5          row numbers, sorted by key, then by time or element
//   key        a a a b b b
//   time       0 9 9 1 2 3
//   sessions   0 1 1 0 0 0          gap 8: a longer pause starts the next session of its key
//   before     (2, 2) (5, 1)        anchors at 2 and 5, within 9 and 1: (place, number of earlier rows) where there are any
//   distinct   4 2 1 3 5            of rows whose keys and time are equal, the first
//   after      (0, 1) (2, 2) (3, 1) (place, number of later rows of its key) where there are any
//
// Launch  SCAN_THREADS threads; thread blocks take tiles of SCAN_THREADS * 4 rows until none is left, so any grid works
// Traffic the keys of a row and of the one before it; 4 to 8 bytes read and up to 8 written a row. Before and after: the keys of some
//         rows more, the logarithm of what is found
// Needs   rows sorted, below 2^32; `control` zeroed (error, rows, ticket: see abi.rs), with a status word per tile behind its 64 bytes.
//         `source` is the control block of the kernel that made the order
// Order   that of the rows; sizes of keys do not matter: no thread walks through one
// After   Merrill & Garland 2016, single-pass scan with decoupled look-back
#include "keys.cuh"
#include "lookback.cuh"

constexpr u32 WARPS = SCAN_THREADS / 32, EACH = 4, TILE = SCAN_THREADS * EACH;

// The rows of a launch in their order, and where it notes how far it has come.
struct Rows {
  const u32 *order;
  u64 *control;
  u64 count;
  __device__ u64 tiles() const { return (count + TILE - 1) / TILE; }
  __device__ u64 *ticket() const { return control + 2; }
  __device__ u64 *status() const { return control + 8; }
};

// Whether two rows agree in each of `count` keys; NULL agrees with NULL.
__device__ __noinline__ static bool same_keys(const SortKey *keys, u32 count, u32 a, u32 b) {
#pragma unroll 1
  for (u32 k = 0; k < count; k++) {
    const SortKey &key = keys[k];
    bool valid = bit_of(key.validity, a);
    if (valid != bit_of(key.validity, b)) return false;
    if (!valid) continue;
    if (key.kind == VIEW) {
      if (compare_views(((const View *)key.values)[a], ((const View *)key.values)[b]) != 0) return false;
      continue;
    }
    Wide left = field(key, a), right = field(key, b);
    if (left.low != right.low || left.high != right.high) return false;
  }
  return true;
}

// The greatest of 1 to `most` for which `holds`, or 0: it holds up to some number, and for none beyond. Strides grow until one goes
// too far, and the last one is halved.
template <typename Holds> __device__ inline u32 reach(u32 most, Holds holds) {
  u32 known = 0, step = 1;
#pragma unroll 1
  while (known < most) {
    u32 next = most - known < step ? most : known + step;
    if (!holds(next)) {
#pragma unroll 1
      for (u32 beyond = next; beyond - known > 1;) {
        u32 middle = known + (beyond - known) / 2;
        if (holds(middle)) known = middle;
        else beyond = middle;
      }
      return known;
    }
    known = next;
    step *= 2;
  }
  return known;
}

__device__ inline void begin(const Rows &rows, const u64 *source) {
  if (blockIdx.x == 0 && threadIdx.x == 0 && source) rows.control[0] = source[0];
}

// The sum over all earlier tiles since the last key that begins there. A tile in which one begins needs to know nothing of those before
// it to tell the others. Called by one whole warp.
__device__ __noinline__ static u64 since_key(u64 *status, u64 tile, u64 sum, bool begins) {
  u32 lane = threadIdx.x & 31;
  if (lane == 0) store_relaxed(status + tile, (begins ? STATUS_PREFIX : STATUS_SUM) | sum);
  u64 before = 0;
#pragma unroll 1
  for (i64 newest = (i64)tile - 1; newest >= 0; newest -= 32) {
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
  if (lane == 0 && !begins) store_relaxed(status + tile, STATUS_PREFIX | (before + sum));
  return before;
}

// Writes row numbers and sessions. The last key is the time.
extern "C" __global__ void __launch_bounds__(SCAN_THREADS)
clicks_sessions(const __grid_constant__ Keys keys, u64 gap, const u32 *order, const u64 *source, u64 *control, u32 *numbers,
                u32 *sessions, u64 count, const u64 *on_device) {
  __shared__ u64 ticket, carry;
  __shared__ u32 warp_sums[WARPS];
  __shared__ u32 warp_begins[WARPS];
  Rows rows = {order, control, row_count(count, on_device)};
  const SortKey *list = keys.all(), &time = list[keys.count - 1];
  u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  begin(rows, source);
  if (blockIdx.x == 0 && threadIdx.x == 0) control[1] = rows.count;
  for (u64 tile = take_tile(rows.ticket(), &ticket); tile < rows.tiles(); tile = take_tile(rows.ticket(), &ticket)) {
    u64 first = tile * TILE + threadIdx.x * EACH;
    // 1. Breaks of this thread's rows since the last key that begins among them.
    u32 own[EACH], sum = 0, begun = 0, previous = first > 0 && first < rows.count ? order[first - 1] : 0;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
      begun |= begun << 1 & (1u << i);
      if (first + i < rows.count) {
        u32 row = order[first + i];
        if (first + i == 0 || !same_keys(list, keys.count - 1, previous, row)) {
          sum = 0;
          begun |= 1u << i;
        } else if (field(time, row).low - field(time, previous).low > gap) {
          sum++;
        }
        numbers[first + i] = row;
        previous = row;
      }
      own[i] = sum;
    }
    // 2. The same up to each thread of the warp, and of each warp.
    u32 inclusive = sum, begins = begun != 0;
    for (u32 step = 1; step < 32; step *= 2) {
      u32 below = __shfl_up_sync(FULL, inclusive, step), begins_below = __shfl_up_sync(FULL, begins, step);
      if (lane >= step) {
        if (!begins) inclusive += below;
        begins |= begins_below;
      }
    }
    if (lane == 31) {
      warp_sums[warp] = inclusive;
      warp_begins[warp] = begins;
    }
    u32 before = __shfl_up_sync(FULL, inclusive, 1), begins_before = __shfl_up_sync(FULL, begins, 1);
    if (lane == 0) before = begins_before = 0;
    __syncthreads();
    u32 of_warps = 0, begins_in_warps = 0, total = 0, begins_in_tile = 0;
#pragma unroll 1
    for (u32 w = 0; w < WARPS; w++) {
      if (w == warp) of_warps = total, begins_in_warps = begins_in_tile;
      total = warp_begins[w] ? warp_sums[w] : total + warp_sums[w];
      begins_in_tile |= warp_begins[w];
    }
    // 3. What earlier tiles leave.
    if (warp == 0) {
      u64 earlier = since_key(rows.status(), tile, total, begins_in_tile != 0);
      if (lane == 0) carry = earlier;
    }
    __syncthreads();
    if (!begins_in_warps) of_warps += (u32)carry;
    if (!begins_before) before += of_warps;
#pragma unroll
    for (u32 i = 0; i < EACH; i++)
      if (first + i < rows.count) sessions[first + i] = own[i] + (begun >> i & 1 ? 0 : before);
  }
}

// Puts what is found for some of the rows next to one another: `find(place)` is 0 where there is nothing, `put(place, at, found)` writes.
template <typename Find, typename Put> __device__ inline void gather(const Rows &rows, const u64 *source, Find find, Put put) {
  __shared__ u64 ticket, tile_start;
  __shared__ u32 warp_sums[WARPS];
  u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  begin(rows, source);
  for (u64 tile = take_tile(rows.ticket(), &ticket); tile < rows.tiles(); tile = take_tile(rows.ticket(), &ticket)) {
    u64 first = tile * TILE + threadIdx.x * EACH;
    u32 found[EACH] = {}, sum = 0;
#pragma unroll 1
    for (u32 i = 0; i < EACH; i++) {
      u32 of = first + i < rows.count ? find(first + i) : 0;
      // Registers have no index: the last one in is the last one out.
      found[0] = found[1], found[1] = found[2], found[2] = found[3], found[3] = of;
      sum += of != 0;
    }
    u32 inclusive = sum;
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
    if (warp == 0) {
      u64 earlier = look_back(rows.status(), tile, total);
      if (lane == 0) {
        tile_start = earlier;
        if (tile == rows.tiles() - 1) rows.control[1] = earlier + total;
      }
    }
    __syncthreads();
    u64 at = tile_start + before + inclusive - sum;
#pragma unroll
    for (u32 i = 0; i < EACH; i++)
      if (found[i]) put(first + i, at++, found[i]);
  }
}

// The first of equal rows.
extern "C" __global__ void __launch_bounds__(SCAN_THREADS)
clicks_distinct(const __grid_constant__ Keys keys, const u32 *order, const u64 *source, u64 *control, u32 *numbers, u64 count,
                const u64 *on_device) {
  Rows rows = {order, control, row_count(count, on_device)};
  auto find = [&](u64 place) -> u32 {
    return place == 0 || !same_keys(keys.all(), keys.count, order[place - 1], order[place]);
  };
  gather(rows, source, find, [&](u64 place, u64 at, u32) { numbers[at] = order[place]; });
}

// How many of the `most` rows before each anchor are of its key, and near. Behind `key_count` keys come the time, if there is one, and
// the anchor. A row without a time is near to none.
extern "C" __global__ void __launch_bounds__(SCAN_THREADS)
clicks_before(const __grid_constant__ Keys keys, u32 key_count, u32 most, u64 within, const u32 *order, const u64 *source,
              u64 *control, u32 *places, u32 *counts, u64 count, const u64 *on_device) {
  Rows rows = {order, control, row_count(count, on_device)};
  const SortKey *list = keys.all(), &anchor = list[keys.count - 1], &time = list[key_count];
  bool timed = keys.count - key_count > 1;
  auto find = [&](u64 place) -> u32 {
    u32 row = order[place];
    if (!bit_of(anchor.validity, row) || field(anchor, row).low == 0) return 0;
    if (timed && !bit_of(time.validity, row)) return 0;
    return reach(place < most ? (u32)place : most, [&](u32 steps) {
      u32 earlier = order[place - steps];
      if (!same_keys(list, key_count, earlier, row)) return false;
      if (!timed) return true;
      return bit_of(time.validity, earlier) && field(time, row).low - field(time, earlier).low <= within;
    });
  };
  gather(rows, source, find, [&](u64 place, u64 at, u32 found) {
    places[at] = (u32)place;
    counts[at] = found;
  });
}

// How many rows after each are of its key.
extern "C" __global__ void __launch_bounds__(SCAN_THREADS)
clicks_after(const __grid_constant__ Keys keys, const u32 *order, const u64 *source, u64 *control, u32 *places, u32 *counts,
             u64 count, const u64 *on_device) {
  Rows rows = {order, control, row_count(count, on_device)};
  auto find = [&](u64 place) -> u32 {
    u32 row = order[place];
    return reach((u32)(rows.count - 1 - place),
                 [&](u32 steps) { return same_keys(keys.all(), keys.count, row, order[place + steps]); });
  };
  gather(rows, source, find, [&](u64 place, u64 at, u32 found) {
    places[at] = (u32)place;
    counts[at] = found;
  });
}
