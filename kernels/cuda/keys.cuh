// Rows as words that compare as ORDER BY wants: the keys of a row, one after the other, as one long number.
//
//   key 0 (desc, 0..=7)   2 7 . 7       NULL bit │ value          4 bits where NULL is possible, 3 where it is not
//   key 1 (5..=9)         5 9 1 3       value - 5                 3 bits
//   number                . 101 000 …   the smaller number comes first
//
// Field   at `position` bits from the number's end, `bits` wide; the bit before it says whether the row is NULL, if it can be
// Value   integers less their minimum, floats with their bits in IEEE 754's total order (-NaN, -inf, …, -0, +0, …, inf, NaN),
//         strings by their first eight bytes; inverted where the order is descending; 0 where it is NULL
// Strings never end: the keys behind one are in no number, and rows with equal numbers are compared key by key
#pragma once
#include "common.cuh"

// How the values of a key lie: sort/key.rs has the same numbers.
enum Kind : u32 { BIT, U8, U16, U32, U64, I8, I16, I32, I64, I128, F32, F64, VIEW };
enum Flag : u32 { DESCENDING = 1, NULLS_FIRST = 2 };

struct SortKey {
  const void *values;
  const u32 *validity;  // null: no row is NULL
  const u32 *ranks;     // of dictionary codes (U8, U16, U32), which sort by their rank; null: by themselves
  Wide low;             // what is taken off an integer
  u32 kind, flags;
  u32 position, bits;
};
static_assert(sizeof(SortKey) == 64, "sort/key.rs has the same size");

// A parameter of kernels, which read it where it lies (`__grid_constant__`): few keys travel in it themselves.
struct Keys {
  SortKey few[SORT_FEW_KEYS];
  const SortKey *many;  // null: they are few
  u32 count;
  u32 encoded;  // keys that are in the number
  u32 start;    // the leading word begins at this bit of the number
  u32 resume;   // the first key that is not wholly in the leading word
  __device__ const SortKey *all() const { return many ? many : few; }
};
static_assert(sizeof(Keys) == SORT_FEW_KEYS * sizeof(SortKey) + 32, "sort/key.rs has the same size");

// A string: up to 12 bytes in the view, else its first four and where it lies.
struct __align__(16) View {
  u32 length;
  u8 prefix[4];
  u64 address;
  __device__ const u8 *bytes() const { return length <= 12 ? (const u8 *)this + 4 : (const u8 *)address; }
};

__device__ __noinline__ static u64 leading_bytes(const View &view) {
  const u8 *bytes = view.bytes();
  u64 word = 0;
#pragma unroll 1
  for (u32 i = 0; i < 8; i++) word = word << 8 | (i < view.length ? bytes[i] : 0);
  return word;
}

// The value of a row that is not NULL, as an unsigned number of `key.bits` bits.
__device__ __noinline__ static Wide field(const SortKey &key, u32 row) {
  const u64 top = 1ull << 63;
  u64 value = 0;
  switch (key.kind) {
  case BIT: value = ((const u32 *)key.values)[row >> 5] >> (row & 31) & 1; break;
  case U8: value = ((const u8 *)key.values)[row]; break;
  case U16: value = ((const u16 *)key.values)[row]; break;
  case U32: value = ((const u32 *)key.values)[row]; break;
  case U64: case I64: value = ((const u64 *)key.values)[row]; break;
  case I8: value = (u64)(i64)((const i8 *)key.values)[row]; break;
  case I16: value = (u64)(i64)((const i16 *)key.values)[row]; break;
  case I32: value = (u64)(i64)((const i32 *)key.values)[row]; break;
  case I128: {
    Wide wide = ((const Wide *)key.values)[row];
    u64 low = wide.low - key.low.low, high = wide.high - key.low.high - (wide.low < key.low.low);
    if (key.flags & DESCENDING) low = ~low, high = ~high;
    u32 spare = 128 - key.bits;
    if (spare >= 64) return Wide{spare == 128 ? 0 : low << (spare - 64) >> (spare - 64), 0};
    return Wide{low, high << spare >> spare};
  }
  case F32: {
    u32 bits = ((const u32 *)key.values)[row];
    value = bits >> 31 ? ~bits : bits ^ 0x80000000u;
    break;
  }
  case F64: {
    u64 bits = ((const u64 *)key.values)[row];
    value = bits >> 63 ? ~bits : bits ^ top;
    break;
  }
  case VIEW: value = leading_bytes(((const View *)key.values)[row]); break;
  }
  if (key.ranks) value = key.ranks[value];
  value -= key.low.low;
  if (key.flags & DESCENDING) value = ~value;
  u32 spare = 64 - key.bits;
  return Wide{spare == 64 ? 0 : value << spare >> spare, 0};
}

// Bits `start` to `start + 63` of the number of a row.
__device__ __noinline__ static u64 word_at(const SortKey *keys, u32 count, u32 start, u32 row) {
  u64 word = 0;
#pragma unroll 1
  for (u32 k = 0; k < count; k++) {
    const SortKey &key = keys[k];
    i32 at = (i32)key.position - (i32)start, end = at + (i32)key.bits;
    if (at >= 64 || end < 0) continue;
    bool valid = bit_of(key.validity, row);
    if (valid) {
      Wide value = field(key, row);
      if (at >= 0) word |= value.low << at;
      else if (at > -64) word |= value.low >> -at | value.high << (64 + at);
      else if (at > -128) word |= value.high >> (-at - 64);
    }
    if (key.validity && end < 64 && valid == ((key.flags & NULLS_FIRST) != 0)) word |= 1ull << end;
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

// Whether row `a` comes before row `b`, given that their leading words are equal.
__device__ __noinline__ static bool before_by_rest(const Keys &keys, u32 a, u32 b) {
#pragma unroll 1
  for (u32 k = keys.resume; k < keys.count; k++) {
    const SortKey &key = keys.all()[k];
    bool valid_a = bit_of(key.validity, a), valid_b = bit_of(key.validity, b);
    if (valid_a != valid_b) return valid_b == ((key.flags & NULLS_FIRST) != 0);
    if (!valid_a) continue;
    if (key.kind == VIEW) {
      i32 order = compare_views(((const View *)key.values)[a], ((const View *)key.values)[b]);
      if (order != 0) return (order < 0) == ((key.flags & DESCENDING) == 0);
      continue;
    }
    Wide left = field(key, a), right = field(key, b);
    if (left.high != right.high) return left.high < right.high;
    if (left.low != right.low) return left.low < right.low;
  }
  return a < b;
}

__device__ inline bool before(const Keys &keys, u64 word_a, u32 row_a, u64 word_b, u32 row_b) {
  return word_a != word_b ? word_a < word_b : before_by_rest(keys, row_a, row_b);
}

// The control block of the sorted rows: an error of the kernel that made them is taken over, and at most `limit` are left.
__device__ inline void write_control(u64 *control, const u64 *source, u64 rows, u64 limit) {
  control[0] = source ? source[0] : 0;
  control[1] = rows < limit ? rows : limit;
}
