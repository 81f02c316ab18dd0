// Rows in the order of a window: where partitions and peers lie, and which rows a frame holds.
//
//   partition  a a a a b b      part_of   0 0 0 0 1 1      part_starts   0 4 6
//   order      1 1 2 5 1 3      group_of  0 0 1 2 3 4      group_starts  0 2 3 4 5 6
//
//   ROWS     1 PRECEDING        of row 2: rows 1 and 2
//   GROUPS   1 PRECEDING        of row 2: rows 0, 1 and 2
//   RANGE    3 PRECEDING        of row 3: rows 2 and 3, whose order lies within 2 and 5
//
// NULL    rows that are NULL in the order are peers; a distance from NULL reaches its peers alone
//         (where one that follows leaves the key's type before NULLS LAST, DataFusion's start stays at the end: so does this)
// Bounds  beyond the ends of the partition become these ends; a distance that leaves the key's type reaches the end, too
// Width   the SQL type says where it ends (`least`, `most`), not the bits in which its values happen to lie (`kind`)
#pragma once
#include "keys.cuh"

struct Positions {
  const u32 *part_of, *group_of, *part_starts, *group_starts;
  __device__ u32 start(u32 row) const { return part_starts[part_of[row]]; }
  __device__ u32 end(u32 row) const { return part_starts[part_of[row] + 1]; }
  __device__ u32 peers_start(u32 row) const { return group_starts[group_of[row]]; }
  __device__ u32 peers_end(u32 row) const { return group_starts[group_of[row] + 1]; }
};
static_assert(sizeof(Positions) == 32, "window.rs has the same size");

// True where a key tells rows `a` and `b` apart.
__device__ __noinline__ static bool differ(const SortKey &key, u32 a, u32 b) {
  bool valid = bit_of(key.validity, a);
  if (valid != bit_of(key.validity, b)) return true;
  if (!valid) return false;
  if (key.kind == VIEW) return compare_views(((const View *)key.values)[a], ((const View *)key.values)[b]) != 0;
  Wide left = field(key, a), right = field(key, b);
  return left.low != right.low || left.high != right.high;
}

enum Units : u32 { ROWS, GROUPS, RANGE };
enum Bound : u32 { UNBOUNDED, PRECEDING, CURRENT, FOLLOWING };

struct Frame {
  u32 units, start, end;
  u32 kind, flags;  // of the key that distances are taken from
  u32 pad;
  u64 start_by, end_by;  // rows, groups, or the distance: an integer, or the bits of a float
  const void *key;
  const u32 *key_validity;
  u64 least[2], most[2];  // of the key's SQL type: low word, high word
};
static_assert(sizeof(Frame) == 88, "window.rs has the same size");

// The first row of a frame and the row after its last.
struct Span {
  u32 start, end;
};

// A float's bits as a number in IEEE 754's total order, and back.
__device__ inline u64 ordered(u64 bits, u64 top) { return bits & top ? ~bits & (top | (top - 1)) : bits ^ top; }
__device__ inline u64 unordered(u64 number, u64 top) { return number & top ? number ^ top : ~number & (top | (top - 1)); }

__device__ inline i128 whole(Wide words) { return (i128)((u128)words.high << 64 | words.low); }

// An integer, or a float as a number in its order.
__device__ __noinline__ static Wide number_at(const void *values, u32 kind, u32 row) {
  u64 value = 0;
  switch (kind) {
  case BIT: value = ((const u32 *)values)[row >> 5] >> (row & 31) & 1; break;
  case U8: value = ((const u8 *)values)[row]; break;
  case U16: value = ((const u16 *)values)[row]; break;
  case U32: value = ((const u32 *)values)[row]; break;
  case U64: case I64: value = ((const u64 *)values)[row]; break;
  case I8: value = (u64)(i64)((const i8 *)values)[row]; break;
  case I16: value = (u64)(i64)((const i16 *)values)[row]; break;
  case I32: value = (u64)(i64)((const i32 *)values)[row]; break;
  case I128: return ((const Wide *)values)[row];
  case F32: value = ordered(((const u32 *)values)[row], 1ull << 31); break;
  case F64: value = ordered(((const u64 *)values)[row], 1ull << 63); break;
  }
  return Wide{value, kind >= I8 && kind <= I64 ? (u64)((i64)value >> 63) : 0};
}

// What a distance leads to, and whether the type holds it.
struct Reached {
  u64 low, high, fits;
};

// The number at `distance` from that of `row`.
__device__ __noinline__ static Reached reach(const Frame &frame, u32 row, u64 distance, bool up) {
  i128 number = whole(number_at(frame.key, frame.kind, row));
  if (frame.kind == F64) {
    double value = ((const double *)frame.key)[row], by = __longlong_as_double((i64)distance);
    if (value == value) number = ordered((u64)__double_as_longlong(up ? value + by : value - by), 1ull << 63);
    return Reached{(u64)number, (u64)(number >> 64), true};
  }
  if (frame.kind == F32) {
    float value = ((const float *)frame.key)[row], by = __int_as_float((i32)distance);
    if (value == value) number = ordered((u32)__float_as_int(up ? value + by : value - by), 1ull << 31);
    return Reached{(u64)number, (u64)(number >> 64), true};
  }
  i128 least = whole(Wide{frame.least[0], frame.least[1]}), most = whole(Wide{frame.most[0], frame.most[1]});
  number = up ? number + (i128)distance : number - (i128)distance;
  // Unsigned numbers end at zero, as DataFusion has it.
  if (least == 0 && number < 0) number = 0;
  return Reached{(u64)number, (u64)(number >> 64), number >= least && number <= most};
}

// The first row of `from` to `to` that does not come before `target`, or that comes after it.
__device__ __noinline__ static u32 search(const Frame &frame, u32 from, u32 to, Reached target, bool after) {
#pragma unroll 1
  while (from < to) {
    u32 middle = from + (to - from) / 2;
    i128 number = whole(number_at(frame.key, frame.kind, middle)), sought = (i128)((u128)target.high << 64 | target.low);
    bool equal = number == sought, before = frame.flags & DESCENDING ? number > sought : number < sought;
    if (before || (after && equal)) from = middle + 1;
    else to = middle;
  }
  return from;
}

// One end of a RANGE frame at a distance.
__device__ __noinline__ static u32 range_bound(const Positions &at, const Frame &frame, u32 row, bool preceding, u64 by, bool end) {
  u32 first = at.start(row), last = at.end(row);
  bool up = preceding == ((frame.flags & DESCENDING) != 0);
  if (!bit_of(frame.key_validity, row)) {
    u32 start = at.peers_start(row);
    if (!preceding && !end && start > first && !reach(frame, start - 1, by, up).fits) return last;
    return end ? at.peers_end(row) : start;
  }
  u32 from = first, to = last;
  if (!bit_of(frame.key_validity, first)) from = at.peers_end(first);
  else if (!bit_of(frame.key_validity, last - 1)) to = at.peers_start(last - 1);
  Reached target = reach(frame, row, by, up);
  if (!target.fits) return preceding ? (end ? from : first) : last;
  return search(frame, from, to, target, end);
}

// Both ends of a row's frame, each by itself: where the end comes first, there is no row between them.
__device__ __noinline__ static Span ends_of(const Positions &at, const Frame &frame, u32 row) {
  u32 first = at.start(row), last = at.end(row);
  u64 start = first, end = last;
  if (frame.units == ROWS) {
    u64 before = row - first, after = last - row;
    if (frame.start == PRECEDING) start = frame.start_by < before ? row - frame.start_by : first;
    if (frame.start == CURRENT) start = row;
    if (frame.start == FOLLOWING) start = frame.start_by < after ? row + frame.start_by : last;
    if (frame.end == PRECEDING) end = frame.end_by <= before ? row - frame.end_by + 1 : first;
    if (frame.end == CURRENT) end = row + 1;
    if (frame.end == FOLLOWING) end = frame.end_by < after ? row + frame.end_by + 1 : last;
  } else {
    u64 group = at.group_of[row], low = at.group_of[first], high = at.group_of[last - 1];
    if (frame.start == CURRENT) start = at.peers_start(row);
    if (frame.end == CURRENT) end = at.peers_end(row);
    if (frame.units == RANGE) {
      if (frame.start == PRECEDING || frame.start == FOLLOWING)
        start = range_bound(at, frame, row, frame.start == PRECEDING, frame.start_by, false);
      if (frame.end == PRECEDING || frame.end == FOLLOWING)
        end = range_bound(at, frame, row, frame.end == PRECEDING, frame.end_by, true);
    } else {
      u64 before = group - low, after = high - group;
      if (frame.start == PRECEDING) start = frame.start_by < before ? at.group_starts[group - frame.start_by] : first;
      if (frame.start == FOLLOWING) start = frame.start_by <= after ? at.group_starts[group + frame.start_by] : last;
      if (frame.end == PRECEDING) end = frame.end_by <= before ? at.group_starts[group - frame.end_by + 1] : first;
      if (frame.end == FOLLOWING) end = frame.end_by < after ? at.group_starts[group + frame.end_by + 1] : last;
    }
  }
  return Span{(u32)start, (u32)end};
}

__device__ inline Span span_of(const Positions &at, const Frame &frame, u32 row) {
  Span span = ends_of(at, frame, row);
  return Span{span.start, span.end < span.start ? span.start : span.end};
}
