// Sorts rows by any number of keys: gives the row numbers in sorted order. Stable.
//
//   key 0 (desc)   2 7 . 7        null bit and value of as many keys as fit: one 64-bit word per row
//   key 1          5 9 1 3        the rest is looked up only where words are equal
//   out            2 3 1 0        NULLS FIRST; 7 3 before 7 9; 2 last
//
//   sort_tile      [ 2048 rows ] [ 2048 rows ] …      each thread block sorts its tile: (word, row) pairs in shared memory
//   sort_merge     [ runs of R ] [ runs of R ] → [ runs of 2R ]      one launch a doubling, output tiles of 2048
//
// Launch  SORT_THREADS threads; one thread block per tile of SORT_TILE_ROWS rows of the upper bound
// Traffic tile: keys read, 12 bytes a row written; merge: 12 bytes a row read and written, keys again where words tie
// Needs   rows below 2^32 - 1; `words` and `rows` of a merge's two sides apart
// Order   floats by IEEE 754's total order, as DataFusion sorts them: -NaN, -inf, …, -0, +0, …, inf, NaN; strings by bytes
// After   Green, McColl & Bader 2012, merge path
#include "common.cuh"

constexpr u32 PER_THREAD = SORT_TILE_ROWS / SORT_THREADS;
static_assert(SORT_TILE_ROWS % SORT_THREADS == 0 && (PER_THREAD & (PER_THREAD - 1)) == 0, "runs double up to the tile");

// How the values of a key lie: abi.rs has the same numbers.
enum Kind : u32 { BIT, U8, U16, U32, U64, I8, I16, I32, I64, I128, F32, F64, VIEW };
enum Flag : u32 { DESCENDING = 1, NULLS_FIRST = 2 };

struct SortKey {
  const void *values;
  const u32 *validity;  // null: no row is NULL
  const u32 *ranks;     // of dictionary codes (U8, U16, U32), which sort by their rank; null: by themselves
  u32 kind, flags;
};
static_assert(sizeof(SortKey) == 32, "abi.rs has the same size");

// A string: up to 12 bytes in the view, else its first four and where it lies.
struct __align__(16) View {
  u32 length;
  u8 prefix[4];
  u64 address;
  __device__ const u8 *bytes() const { return length <= 12 ? (const u8 *)this + 4 : (const u8 *)address; }
};

struct Keys {
  const SortKey *keys;
  u32 count;
  u32 resume;  // the first key that is not wholly in the words
};

// A value as an unsigned number that compares as the key wants, in the leading bits of 128.
struct Leading {
  u64 high, low;
};

__device__ inline u32 bits_of(u32 kind) {
  switch (kind) {
  case BIT: return 1;
  case U8: case I8: return 8;
  case U16: case I16: return 16;
  case U32: case I32: case F32: return 32;
  case U64: case I64: case F64: return 64;
  default: return 128;
  }
}

__device__ __noinline__ static u64 leading_bytes(const View &view) {
  const u8 *bytes = view.bytes();
  u64 word = 0;
#pragma unroll 1
  for (u32 i = 0; i < 8; i++) word = word << 8 | (i < view.length ? bytes[i] : 0);
  return word;
}

__device__ __noinline__ static Leading leading(const SortKey &key, u32 row) {
  const u64 top = 1ull << 63;
  Leading value = {0, 0};
  switch (key.kind) {
  case BIT: value.high = (u64)(((const u32 *)key.values)[row >> 5] >> (row & 31)) << 63; break;
  case U8: case U16: case U32: {
    u32 code = key.kind == U8 ? ((const u8 *)key.values)[row] : key.kind == U16 ? ((const u16 *)key.values)[row] : ((const u32 *)key.values)[row];
    value.high = key.ranks ? (u64)key.ranks[code] << 32 : (u64)code << (64 - bits_of(key.kind));
    break;
  }
  case U64: value.high = ((const u64 *)key.values)[row]; break;
  case I8: value.high = (u64)((const u8 *)key.values)[row] << 56 ^ top; break;
  case I16: value.high = (u64)((const u16 *)key.values)[row] << 48 ^ top; break;
  case I32: value.high = (u64)((const u32 *)key.values)[row] << 32 ^ top; break;
  case I64: value.high = ((const u64 *)key.values)[row] ^ top; break;
  case I128: {
    Wide wide = ((const Wide *)key.values)[row];
    value = {wide.high ^ top, wide.low};
    break;
  }
  case F32: {
    u32 bits = ((const u32 *)key.values)[row];
    value.high = (u64)(bits >> 31 ? ~bits : bits ^ 0x80000000u) << 32;
    break;
  }
  case F64: {
    u64 bits = ((const u64 *)key.values)[row];
    value.high = bits >> 63 ? ~bits : bits ^ top;
    break;
  }
  case VIEW: value.high = leading_bytes(((const View *)key.values)[row]); break;
  }
  return key.flags & DESCENDING ? Leading{~value.high, ~value.low} : value;
}

// Bits of a key in the word: its value, and one more where it can be NULL. Strings never end.
__device__ inline u32 width_of(const SortKey &key) {
  u32 bits = key.ranks ? 32 : bits_of(key.kind);
  return key.kind == VIEW ? 1024 : bits + (key.validity ? 1 : 0);
}

__device__ inline u32 first_unfinished(const SortKey *keys, u32 count) {
  u32 room = 64;
  for (u32 k = 0; k < count; k++) {
    u32 width = width_of(keys[k]);
    if (width > room) return k;
    room -= width;
  }
  return count;
}

// The leading 64 bits of all keys of a row, one after the other.
__device__ __noinline__ static u64 encode(const SortKey *keys, u32 count, u32 row) {
  u64 word = 0;
  u32 room = 64;
#pragma unroll 1
  for (u32 k = 0; k < count && room > 0; k++) {
    const SortKey &key = keys[k];
    bool valid = bit_of(key.validity, row);
    u64 part = valid ? leading(key, row).high : 0;
    u32 width = width_of(key);
    // An inverted narrow value has ones behind its own bits; they must not reach the next key's.
    u32 bits = width - (key.validity && key.kind != VIEW ? 1 : 0);
    if (bits < 64) part = part >> (64 - bits) << (64 - bits);
    if (key.validity) part = part >> 1 | (u64)(valid == ((key.flags & NULLS_FIRST) != 0)) << 63;
    word |= part >> (64 - room);
    room = width < room ? room - width : 0;
  }
  return word;
}

// Negative, zero or positive, as the bytes of `a` come before, equal or follow those of `b`.
__device__ __noinline__ static i32 compare_views(const View &a, const View &b) {
  const u8 *left = a.bytes(), *right = b.bytes();
  u32 shorter = a.length < b.length ? a.length : b.length;
#pragma unroll 1
  for (u32 i = 0; i < shorter; i++)
    if (left[i] != right[i]) return left[i] < right[i] ? -1 : 1;
  return a.length < b.length ? -1 : a.length > b.length;
}

// Whether row `a` comes before row `b`, given that their words are equal.
__device__ __noinline__ static bool before_by_rest(const Keys &keys, u32 a, u32 b) {
#pragma unroll 1
  for (u32 k = keys.resume; k < keys.count; k++) {
    const SortKey &key = keys.keys[k];
    bool valid_a = bit_of(key.validity, a), valid_b = bit_of(key.validity, b);
    if (valid_a != valid_b) return valid_b == ((key.flags & NULLS_FIRST) != 0);
    if (!valid_a) continue;
    if (key.kind == VIEW) {
      i32 order = compare_views(((const View *)key.values)[a], ((const View *)key.values)[b]);
      if (order != 0) return (order < 0) == ((key.flags & DESCENDING) == 0);
      continue;
    }
    Leading left = leading(key, a), right = leading(key, b);
    if (left.high != right.high) return left.high < right.high;
    if (left.low != right.low) return left.low < right.low;
  }
  return a < b;
}

__device__ inline bool before(const Keys &keys, u64 word_a, u32 row_a, u64 word_b, u32 row_b) {
  return word_a != word_b ? word_a < word_b : before_by_rest(keys, row_a, row_b);
}

// Sorted pairs, in shared or global memory.
struct Run {
  const u64 *words;
  const u32 *rows;
  u32 length;
};

// How many of the first `diagonal` outputs of merging `a` and `b` come from `a`.
__device__ __noinline__ static u32 merge_path(const Keys &keys, const Run &a, const Run &b, u32 diagonal) {
  u32 low = diagonal > b.length ? diagonal - b.length : 0;
  u32 high = diagonal < a.length ? diagonal : a.length;
#pragma unroll 1
  while (low < high) {
    u32 middle = (low + high) / 2, other = diagonal - 1 - middle;
    if (before(keys, b.words[other], b.rows[other], a.words[middle], a.rows[middle])) high = middle;
    else low = middle + 1;
  }
  return low;
}

// Merges outputs `diagonal` and the next few of two runs into this thread's registers.
__device__ inline void merge_some(const Keys &keys, const Run &a, const Run &b, u32 diagonal, u64 *words, u32 *rows) {
  u32 i = merge_path(keys, a, b, diagonal), j = diagonal - i;
#pragma unroll 1
  for (u32 k = 0; k < PER_THREAD; k++) {
    if (i >= a.length && j >= b.length) break;
    bool left = j >= b.length || (i < a.length && before(keys, a.words[i], a.rows[i], b.words[j], b.rows[j]));
    words[k] = left ? a.words[i] : b.words[j];
    rows[k] = left ? a.rows[i] : b.rows[j];
    if (left) i++;
    else j++;
  }
}

extern "C" __global__ void __launch_bounds__(SORT_THREADS)
sort_tile(const SortKey *keys, u32 num_keys, u64 *words, u32 *rows, u64 count, const u64 *on_device) {
  __shared__ u64 shared_words[SORT_TILE_ROWS];
  __shared__ u32 shared_rows[SORT_TILE_ROWS];
  u64 total = row_count(count, on_device), start = (u64)blockIdx.x * SORT_TILE_ROWS;
  if (start >= total) return;
  u32 length = total - start < SORT_TILE_ROWS ? (u32)(total - start) : SORT_TILE_ROWS;
  Keys order = {keys, num_keys, first_unfinished(keys, num_keys)};
  for (u32 i = threadIdx.x; i < length; i += SORT_THREADS) {
    shared_words[i] = encode(keys, num_keys, (u32)start + i);
    shared_rows[i] = (u32)start + i;
  }
  u32 first = threadIdx.x * PER_THREAD;
  u64 my_words[PER_THREAD];
  u32 my_rows[PER_THREAD];
#pragma unroll 1
  for (u32 run = 1; run < SORT_TILE_ROWS; run *= 2) {
    __syncthreads();
    // A run shorter than a thread's share is merged by the thread on its own, pair by pair.
    u32 share = 2 * run < PER_THREAD ? 2 * run : PER_THREAD;
#pragma unroll 1
    for (u32 at = first; at < first + PER_THREAD && at < length; at += share) {
      u32 base = at / (2 * run) * (2 * run), middle = base + run < length ? base + run : length;
      u32 end = base + 2 * run < length ? base + 2 * run : length;
      Run a = {shared_words + base, shared_rows + base, middle - base};
      Run b = {shared_words + middle, shared_rows + middle, end - middle};
      u32 i = merge_path(order, a, b, at - base), j = at - base - i;
#pragma unroll 1
      for (u32 k = at - first; k < at - first + share && (i < a.length || j < b.length); k++) {
        bool left = j >= b.length || (i < a.length && before(order, a.words[i], a.rows[i], b.words[j], b.rows[j]));
        my_words[k] = left ? a.words[i] : b.words[j];
        my_rows[k] = left ? a.rows[i] : b.rows[j];
        if (left) i++;
        else j++;
      }
    }
    __syncthreads();
    for (u32 k = 0; k < PER_THREAD && first + k < length; k++) {
      shared_words[first + k] = my_words[k];
      shared_rows[first + k] = my_rows[k];
    }
  }
  __syncthreads();
  for (u32 i = threadIdx.x; i < length; i += SORT_THREADS) {
    if (words) words[start + i] = shared_words[i];
    rows[start + i] = shared_rows[i];
  }
}

extern "C" __global__ void __launch_bounds__(SORT_THREADS)
sort_merge(const SortKey *keys, u32 num_keys, u64 run, const u64 *words_in, const u32 *rows_in, u64 *words_out,
           u32 *rows_out, u64 count, const u64 *on_device) {
  __shared__ u64 shared_words[SORT_TILE_ROWS];
  __shared__ u32 shared_rows[SORT_TILE_ROWS];
  __shared__ u32 borders[2];
  u64 total = row_count(count, on_device), start = (u64)blockIdx.x * SORT_TILE_ROWS;
  if (start >= total) return;
  u32 length = total - start < SORT_TILE_ROWS ? (u32)(total - start) : SORT_TILE_ROWS;
  Keys order = {keys, num_keys, first_unfinished(keys, num_keys)};
  // 1. Which parts of the two runs this tile of the output comes from.
  u64 base = start / (2 * run) * (2 * run), middle = base + run < total ? base + run : total;
  u64 end = base + 2 * run < total ? base + 2 * run : total;
  Run a = {words_in + base, rows_in + base, (u32)(middle - base)};
  Run b = {words_in + middle, rows_in + middle, (u32)(end - middle)};
  u32 diagonal = (u32)(start - base);
  if (threadIdx.x < 2) borders[threadIdx.x] = merge_path(order, a, b, diagonal + threadIdx.x * length);
  __syncthreads();
  u32 from_a = borders[0], num_a = borders[1] - from_a, from_b = diagonal - from_a, num_b = length - num_a;
  for (u32 i = threadIdx.x; i < length; i += SORT_THREADS) {
    bool left = i < num_a;
    u32 at = left ? from_a + i : from_b + i - num_a;
    shared_words[i] = left ? a.words[at] : b.words[at];
    shared_rows[i] = left ? a.rows[at] : b.rows[at];
  }
  __syncthreads();
  // 2. Each thread merges a few outputs.
  u32 first = threadIdx.x * PER_THREAD;
  u64 my_words[PER_THREAD];
  u32 my_rows[PER_THREAD];
  Run near_a = {shared_words, shared_rows, num_a}, near_b = {shared_words + num_a, shared_rows + num_a, num_b};
  if (first < length) merge_some(order, near_a, near_b, first, my_words, my_rows);
  __syncthreads();
  for (u32 k = 0; k < PER_THREAD && first + k < length; k++) {
    shared_words[first + k] = my_words[k];
    shared_rows[first + k] = my_rows[k];
  }
  __syncthreads();
  for (u32 i = threadIdx.x; i < length; i += SORT_THREADS) {
    words_out[start + i] = shared_words[i];
    rows_out[start + i] = shared_rows[i];
  }
}
