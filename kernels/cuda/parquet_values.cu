// Turns the values of pages into those of columns: codes by a table, numbers in the width that the column has, deltas into numbers.
//
//   codes      run of 8 · 63 codes of 12 bits │ run │ …     lane l takes codes 4l … 4l + 3 of each 128: two or three words of the stream
//   table      [900 901 950 …]                              in the width of the column; without one, a code is a value
//   numbers    1000 1003 .. 1001                            less the column's base, if between its bounds; NULL rows become 0
//   deltas     first · least · widths · bits                into numbers of their own width in scratch, then as numbers
//
// Launch    a warp per SEGMENT of rows (codes, numbers) or per page (deltas), any grid
// Traffic   the stream once, and what is written
// Needs     bits of columns of booleans zeroed: pages share words
#include "parquet.cuh"

// Four values of a column, one for each row of a lane; those not written for are left alone.
template <typename T> __device__ inline void store_four(T *to, const T (&values)[4], u32 written) {
  if (written == 15 && ((u64)to & (sizeof(T) * 4 > 16 ? 15 : sizeof(T) * 4 - 1)) == 0) {
    if constexpr (sizeof(T) == 1) {
      *(u32 *)to = values[0] | values[1] << 8 | values[2] << 16 | (u32)values[3] << 24;
    } else if constexpr (sizeof(T) == 2) {
      *(uint2 *)to = uint2{values[0] | (u32)values[1] << 16, values[2] | (u32)values[3] << 16};
    } else if constexpr (sizeof(T) == 4) {
      *(uint4 *)to = uint4{values[0], values[1], values[2], values[3]};
    } else if constexpr (sizeof(T) == 8) {
      ((Wide *)to)[0] = Wide{values[0], values[1]};
      ((Wide *)to)[1] = Wide{values[2], values[3]};
    } else {
      for (u32 k = 0; k < 4; k++) to[k] = values[k];
    }
    return;
  }
#pragma unroll
  for (u32 k = 0; k < 4; k++)
    if (written >> k & 1) to[k] = values[k];
}

// Registers have no addresses.
template <typename T> __device__ inline void put(T (&values)[4], u32 k, T value) {
  if (k == 0) values[0] = value;
  if (k == 1) values[1] = value;
  if (k == 2) values[2] = value;
  if (k == 3) values[3] = value;
}

template <typename T> __device__ inline T pick(const T (&values)[4], u32 k) {
  return k == 0 ? values[0] : k == 1 ? values[1] : k == 2 ? values[2] : values[3];
}

// Values in the order of the stream, to the rows that have one; the others get 0.
template <typename T> __device__ inline void spread(T (&values)[4], u32 valid) {
  if (valid == 15) return;
  T own[4] = {values[0], values[1], values[2], values[3]};
  u32 from = 0;
#pragma unroll
  for (u32 k = 0; k < 4; k++) {
    values[k] = valid >> k & 1 ? pick(own, from) : T{};
    from += valid >> k & 1;
  }
}

// Four bits to a lane, to 128 bits of a column.
__device__ inline void store_bits(u32 *bits, i64 first, u32 four) {
  u32 lane = lane_id(), word = four << (lane % 8 * 4);
#pragma unroll
  for (u32 step = 1; step < 8; step *= 2) word |= __shfl_xor_sync(FULL, word, step);
  if (lane % 8 == 0 && word) {
    // Rows before the first one have no bits, so a negative place is never written.
    i64 at = first + lane * 4;
    u64 moved = (u64)word << (at & 31);
    if ((u32)moved) atomicOr(bits + (at >> 5), (u32)moved);
    if (moved >> 32) atomicOr(bits + (at >> 5) + 1, (u32)(moved >> 32));
  }
}

// Where codes lie.
struct Codes {
  const u8 *values;
  u32 width, mask, present;
  u32 stride, magic, run_bytes, head, last_run, last_at; // runs of one length
  const Run *table;
  u32 runs, cursor; // the run with the least code of the rows that come next

  __device__ Codes(const Batch &batch, const Page &page, const State &state) {
    values = (const u8 *)state.values;
    width = state.width;
    mask = width == 0 ? 0 : FULL >> (32 - width);
    present = state.present;
    stride = state.stride;
    magic = FULL / stride;
    run_bytes = state.run_bytes;
    head = state.head;
    last_run = state.last_run;
    last_at = state.last_at;
    runs = state.runs;
    table = runs_of(batch, page);
    cursor = FULL;
  }

  // Where the run with the code begins: its first code, one behind its last one, and its bytes.
  struct Found {
    u32 first, end, at;
  };

  // The last run from `from` on that begins at or before a code.
  __device__ u32 search(u32 from, u32 code) const {
    u32 low = from, high = runs;
#pragma unroll 1
    while (high - low > 1) {
      u32 middle = (low + high) / 2;
      if (table[middle].first <= code) low = middle;
      else high = middle;
    }
    return low;
  }
  __device__ Found run(u32 index) const {
    Run own = table[index];
    return Found{own.first, index + 1 < runs ? table[index + 1].first : present, own.at};
  }
  __device__ Found by_division(u32 code) const {
    u32 run = __umulhi(code, magic), first = run * stride;
    if (code - first >= stride) {
      run++;
      first += stride;
    }
    return run >= last_run ? Found{first, FULL, last_at} : Found{first, first + stride, head + run * run_bytes};
  }
  // For one code of each lane. All lanes come here; codes never fall from call to call.
  __device__ Found find(u32 code, u32 least, u32 most) {
    if (runs == 0) return by_division(code);
    if (cursor == FULL) cursor = search(0, least);
    // 32 runs from the one with the least code on.
    u32 index = cursor + lane_id();
    Run own = index < runs ? table[index] : Run{FULL, 0};
    u32 begun = __popc(__ballot_sync(FULL, own.first <= most));
    if (begun == 32) {
      u32 from = cursor;
      cursor = search(from, most);
      return run(search(from, code));
    }
    u32 found = 0;
#pragma unroll
    for (u32 step = 16; step > 0; step /= 2)
      if (__shfl_sync(FULL, own.first, found + step) <= code) found += step;
    u32 first = __shfl_sync(FULL, own.first, found), end = __shfl_sync(FULL, own.first, (found + 1) & 31);
    u32 at = __shfl_sync(FULL, own.at, found);
    cursor += begun - 1;
    return Found{first, min(end, present), at};
  }
  __device__ u32 repeated(u32 at) const {
    u32 value = 0;
    for (u32 b = 0; b * 8 < width; b++) value |= (u32)values[at + b] << (8 * b);
    return value & mask;
  }
  // 64 bits from a bit on; of which only 12 bytes from its own on are read.
  __device__ u64 bits(u64 bit) const {
    const u8 *at = values + (bit >> 3);
    const u32 *words = (const u32 *)((u64)at & ~3ull);
    u32 shift = ((u32)(u64)at & 3) * 8 + ((u32)bit & 7), a = words[0], b = words[1], c = words[2];
    return (u64)__funnelshift_r(b, c, shift) << 32 | __funnelshift_r(a, b, shift);
  }
  __device__ u32 one(const Found &found, u32 code) const {
    if (found.at & REPEATED) return repeated(found.at & ~REPEATED);
    return (u32)bits((u64)found.at * 8 + (u64)(code - found.first) * width) & mask;
  }
  // `count` codes from `first` on.
  __device__ void four(u32 first, u32 count, u32 least, u32 most, u32 (&codes)[4]) {
    Found found = find(count ? first : most, least, most);
    if (width == 0 || count == 0) {
      codes[0] = codes[1] = codes[2] = codes[3] = 0;
    } else if (first + count > found.end) {
#pragma unroll 1
      for (u32 k = 0; k < count; k++) {
        Found own = runs == 0 ? by_division(first + k) : run(search(0, first + k));
        put(codes, k, one(own, first + k));
      }
    } else if (found.at & REPEATED) {
      codes[0] = codes[1] = codes[2] = codes[3] = repeated(found.at & ~REPEATED);
    } else {
      u64 bit = (u64)found.at * 8 + (u64)(first - found.first) * width;
      u64 own = bits(bit);
      codes[0] = (u32)own & mask;
      codes[1] = (u32)(own >> width) & mask;
      if (width > 16 && count > 2) own = bits(bit + 2 * width);
      else own >>= 2 * width & 63;
      codes[2] = (u32)own & mask;
      codes[3] = (u32)(own >> width) & mask;
    }
  }
};

template <typename T>
__device__ inline void unpack(const Batch &batch, u32 number, u32 first, const Column &column, const State &state) {
  const Page &page = batch.page(number);
  T *out = (T *)column.values + ((i64)page.first_row - page.skip);
  u32 lane = lane_id();
  Walk walk(batch, page, state, first);
  if (!state.usable) {
    for (u32 row = max(first, page.skip) + lane; row < walk.end; row += 32) out[row] = T{};
    return;
  }
  Codes codes(batch, page, state);
  const T *table = nullptr;
  u32 entries = FULL;
  if (page.dictionary != FULL) {
    const Dictionary &dictionary = batch.dictionary(page.dictionary);
    table = (const T *)dictionary.values;
    entries = dictionary.entries;
  }
#pragma unroll 1
  while (walk.row < walk.end) {
    u32 row = walk.row, least = walk.before;
    Rows rows = walk.next();
    u32 most = min(walk.before, state.present);
    // Values of rows behind the last one are not there.
    u32 count = rows.dense < state.present ? min((u32)__popc(rows.valid), state.present - rows.dense) : 0;
    u32 own[4];
    if (most > least) codes.four(rows.dense, count, least, most - 1, own);
    else own[0] = own[1] = own[2] = own[3] = 0;
    if constexpr (sizeof(T) == 16) {
      // One by one, as four of them take too many registers.
      u32 from = 0;
#pragma unroll 1
      for (u32 k = 0; k < 4; k++) {
        T value = {};
        if (rows.valid >> k & 1 && from < count) {
          u32 code = pick(own, from);
          if (code < entries && table) value = table[code];
          else raise(batch.error(number), BAD_CODE, UNPACK, row);
        }
        from += rows.valid >> k & 1;
        if (rows.written >> k & 1) out[row + 4 * lane + k] = value;
      }
    } else {
      T values[4];
      bool wrong = false;
#pragma unroll
      for (u32 k = 0; k < 4; k++) {
        bool here = k < count, inside = own[k] < entries;
        wrong |= here && !inside;
        values[k] = 0;
        if (here && inside) values[k] = table ? table[own[k]] : (T)own[k];
      }
      if (wrong) raise(batch.error(number), BAD_CODE, UNPACK, row);
      spread(values, rows.valid);
      store_four(out + row + 4 * lane, values, rows.written);
    }
  }
}

// Booleans by runs.
__device__ inline void unpack_bits(const Batch &batch, u32 number, u32 first, const Column &column, const State &state) {
  const Page &page = batch.page(number);
  if (!state.usable) return;
  Walk walk(batch, page, state, first);
  Codes codes(batch, page, state);
#pragma unroll 1
  while (walk.row < walk.end) {
    u32 row = walk.row, least = walk.before;
    Rows rows = walk.next();
    u32 most = min(walk.before, state.present);
    u32 count = rows.dense < state.present ? min((u32)__popc(rows.valid), state.present - rows.dense) : 0;
    u32 own[4] = {};
    if (most > least) codes.four(rows.dense, count, least, most - 1, own);
    spread(own, rows.valid);
    u32 four = (own[0] | own[1] << 1 | own[2] << 2 | own[3] << 3) & rows.written;
    store_bits((u32 *)column.values, (i64)page.first_row - page.skip + row, four);
  }
}

extern "C" __global__ void __launch_bounds__(PARQUET_THREADS, 4)
parquet_values_codes(const u8 *descriptors, const u8 *staging, u8 *scratch, u8 *results, u32 list_at, u32 count, u32 ticket) {
  Batch batch = {descriptors, staging, scratch, results};
  const Segment *list = (const Segment *)(descriptors + list_at);
  u32 stride = gridDim.x * (PARQUET_THREADS / 32);
#pragma unroll 1
  for (u32 i = (blockIdx.x * PARQUET_THREADS + threadIdx.x) / 32; i < count; i += stride) {
    Segment segment = list[i];
    const Column &column = batch.column(batch.page(segment.page).column);
    const State &state = batch.state(segment.page);
    switch (column.width_out) {
    case 0: unpack_bits(batch, segment.page, segment.first, column, state); break;
    case 1: unpack<u8>(batch, segment.page, segment.first, column, state); break;
    case 2: unpack<u16>(batch, segment.page, segment.first, column, state); break;
    case 4: unpack<u32>(batch, segment.page, segment.first, column, state); break;
    case 8: unpack<u64>(batch, segment.page, segment.first, column, state); break;
    default: unpack<Wide>(batch, segment.page, segment.first, column, state);
    }
  }
}

// 64 bits from any byte, of which the first `bytes` matter: 8 at most.
__device__ inline u64 number_from(const u8 *at, u32 bytes) {
  u32 skew = (u32)(u64)at & 7;
  const u64 *words = (const u64 *)(at - skew);
  u64 word = words[0] >> (8 * skew);
  if (skew + bytes > 8) word |= words[1] << (64 - 8 * skew);
  return bytes < 8 ? word & ((1ull << (8 * bytes)) - 1) : word;
}

__device__ inline u64 swapped(u64 word) {
  u32 low = __byte_perm((u32)word, 0, 0x0123), high = __byte_perm((u32)(word >> 32), 0, 0x0123);
  return (u64)low << 32 | high;
}

// The number of a big-endian field of up to 16 bytes, given its first eight bytes and those behind them, the first one lowest.
__device__ inline Wide big_endian(u64 first, u64 second, u32 bytes) {
  u64 high = swapped(first), low = swapped(second);
  u32 shift = 8 * (16 - bytes);
  if (shift >= 64) {
    low = (u64)((i64)high >> (shift - 64));
    high = (u64)((i64)high >> 63);
  } else if (shift > 0) {
    low = low >> shift | high << (64 - shift);
    high = (u64)((i64)high >> shift);
  }
  return Wide{low, high};
}

struct Numbers {
  const u8 *values;
  u32 source, width, present;
  bool split;

  // Bytes of a value, the first one lowest.
  __device__ void bytes(u32 index, u64 &first, u64 &second) const {
    first = second = 0;
    if (split) {
#pragma unroll 1
      for (u32 b = 0; b < width; b++) {
        u64 byte = values[(u64)b * present + index];
        if (b < 8) first |= byte << (8 * b);
        else second |= byte << (8 * (b - 8));
      }
    } else {
      const u8 *at = values + (u64)index * width;
      first = number_from(at, min(width, 8u));
      if (width > 8) second = number_from(at + 8, width - 8);
    }
  }
  // Four values of eight or of four bytes, one behind the other.
  template <typename W> __device__ void four(u32 first, W (&words)[4]) const {
    const u8 *at = values + (u64)first * sizeof(W);
    u32 skew = (u32)(u64)at & (sizeof(W) - 1);
    const W *aligned = (const W *)(at - skew);
#pragma unroll
    for (u32 k = 0; k < 4; k++) words[k] = aligned[k];
    if (skew) {
      W next = aligned[4];
#pragma unroll
      for (u32 k = 0; k < 4; k++) words[k] = words[k] >> (8 * skew) | (k < 3 ? words[k < 3 ? k + 1 : 3] : next) << (8 * (sizeof(W) - skew));
    }
  }
};

// A value of any kind; not fine where 64 bits of a timestamp are too few.
struct Any {
  Wide value;
  u32 fine;
};
__device__ __noinline__ static Any any(const u8 *values, u32 source, u32 width, u32 present, u32 split, u32 index) {
  Numbers numbers = {values, source, width, present, split != 0};
  u64 first, second;
  Wide value;
  numbers.bytes(index, first, second);
  switch (numbers.source) {
  case INT32: asm("cvt.s64.s32 %0, %1;" : "=l"(value.low) : "r"((u32)first)); break;
  case FIXED: value = big_endian(first, second, numbers.width); return {value, 1};
  case INT96: {
    // In 64 bits: NVRTC 12.2 extends a difference of days without its sign where it is multiplied in 128.
    constexpr i64 DAY = 86400000000000ll;
    i64 days = (i64)(second & 0xffffffff) - 2440588;
    if (first >= (u64)DAY || days < -106752 || days > 106751) return {value, 0};
    // Days before 1970 from their ends, so that the first and the last day, which are not whole, do not wrap.
    i64 whole = days < 0 ? (days + 1) * DAY : days * DAY, rest = days < 0 ? (i64)first - DAY : (i64)first;
    value.low = (u64)whole + (u64)rest;
    value.high = (u64)((i64)value.low >> 63);
    return {value, ((i64)value.low < 0) == (days < 0)};
  }
  default: value.low = first;
  }
  value.high = (u64)((i64)value.low >> 63);
  return {value, 1};
}

template <typename T>
__device__ inline void store_numbers(const Batch &batch, u32 number, u32 first, const Column &column, const State &state) {
  const Page &page = batch.page(number);
  T *out = (T *)column.values + ((i64)page.first_row - page.skip);
  u32 lane = lane_id(), present = state.usable ? state.present : 0;
  Walk walk(batch, page, state, first);
  Numbers numbers = {(const u8 *)state.values, column.source, column.width_in, state.present, page.encoding == STREAM_SPLIT};
  i64 base = column.base, low = column.low, high = column.high;
  bool quick = !numbers.split && column.source <= DOUBLE;
#pragma unroll 1
  while (walk.row < walk.end) {
    u32 row = walk.row;
    Rows rows = walk.next();
    u32 count = rows.dense < present ? min((u32)__popc(rows.valid), present - rows.dense) : 0;
    // Four values are read where the page has them, wanted or not.
    bool together = quick && count != 0 && rows.dense + 4 <= present;
    if (sizeof(T) == 16 || !(together || count == 0)) {
      bool wrong = false;
      u32 from = 0;
#pragma unroll 1
      for (u32 k = 0; k < 4; k++) {
        T value = {};
        if (rows.valid >> k & 1 && from < count) {
          Any own = any(numbers.values, numbers.source, numbers.width, numbers.present, numbers.split, rows.dense + from);
          bool inside = own.fine;
          if constexpr (sizeof(T) == 16) {
            if (inside) value = own.value;
          } else {
            i64 narrow = (i64)own.value.low;
            inside &= own.value.high == (u64)(narrow >> 63) && narrow >= low && narrow <= high;
            if (inside) value = (T)((u64)narrow - (u64)base);
          }
          wrong |= !inside;
        }
        from += rows.valid >> k & 1;
        if (rows.written >> k & 1) out[row + 4 * lane + k] = value;
      }
      if (wrong) raise(batch.error(number), BAD_RANGE, FIXED_VALUES, row);
    } else if constexpr (sizeof(T) < 16) {
      bool wrong = false;
      T values[4] = {};
      if (together) {
        i64 own[4];
        if (numbers.width == 8) {
          u64 words[4];
          numbers.four(rows.dense, words);
#pragma unroll
          for (u32 k = 0; k < 4; k++) own[k] = (i64)words[k];
        } else {
          u32 words[4];
          numbers.four(rows.dense, words);
#pragma unroll
          for (u32 k = 0; k < 4; k++) own[k] = numbers.source == INT32 ? (i64)(i32)words[k] : (i64)words[k];
        }
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
          bool inside = own[k] >= low && own[k] <= high;
          wrong |= !inside && k < count;
          values[k] = inside ? (T)((u64)own[k] - (u64)base) : 0;
        }
      }
      if (wrong) raise(batch.error(number), BAD_RANGE, FIXED_VALUES, row);
      spread(values, rows.valid);
      store_four(out + row + 4 * lane, values, rows.written);
    }
  }
}

__device__ inline void store_booleans(const Batch &batch, u32 number, u32 first, const Column &column, const State &state) {
  const Page &page = batch.page(number);
  if (!state.usable) return;
  const u8 *values = (const u8 *)state.values;
  Walk walk(batch, page, state, first);
#pragma unroll 1
  while (walk.row < walk.end) {
    u32 row = walk.row;
    Rows rows = walk.next();
    u32 own[4] = {};
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
      u32 index = rows.dense + k;
      if (k < __popc(rows.valid) && index < state.present) own[k] = values[index / 8] >> (index % 8) & 1;
    }
    spread(own, rows.valid);
    u32 four = (own[0] | own[1] << 1 | own[2] << 2 | own[3] << 3) & rows.written;
    store_bits((u32 *)column.values, (i64)page.first_row - page.skip + row, four);
  }
}

extern "C" __global__ void __launch_bounds__(PARQUET_THREADS, 4)
parquet_values_numbers(const u8 *descriptors, const u8 *staging, u8 *scratch, u8 *results, u32 list_at, u32 count, u32 ticket) {
  Batch batch = {descriptors, staging, scratch, results};
  const Segment *list = (const Segment *)(descriptors + list_at);
  u32 stride = gridDim.x * (PARQUET_THREADS / 32);
#pragma unroll 1
  for (u32 i = (blockIdx.x * PARQUET_THREADS + threadIdx.x) / 32; i < count; i += stride) {
    Segment segment = list[i];
    const Column &column = batch.column(batch.page(segment.page).column);
    const State &state = batch.state(segment.page);
    switch (column.width_out) {
    case 0: store_booleans(batch, segment.page, segment.first, column, state); break;
    case 1: store_numbers<u8>(batch, segment.page, segment.first, column, state); break;
    case 2: store_numbers<u16>(batch, segment.page, segment.first, column, state); break;
    case 4: store_numbers<u32>(batch, segment.page, segment.first, column, state); break;
    case 8: store_numbers<u64>(batch, segment.page, segment.first, column, state); break;
    default: store_numbers<Wide>(batch, segment.page, segment.first, column, state);
    }
  }
}

// A number of seven bits a byte, of at most 64 bits.
__device__ inline bool varint64(const u8 *bytes, u32 &at, u32 end, u64 &value) {
  value = 0;
#pragma unroll 1
  for (u32 shift = 0; shift < 70 && at < end; shift += 7) {
    u64 byte = bytes[at++];
    if (shift == 63 && byte > 1) return false;
    value |= (byte & 127) << shift;
    if (byte < 128) return true;
  }
  return false;
}

__device__ inline u64 unzigzag(u64 value) { return value >> 1 ^ (0 - (value & 1)); }

// A signed number of 64 bits has no more than W has.
template <typename W> __device__ inline bool fits(u64 value) { return sizeof(W) == 8 || (u64)(i64)(i32)value == value; }

// The numbers of a stream of deltas, in their own width; `at` is behind the stream then. False where it makes no sense.
template <typename W>
__device__ inline bool deltas(const u8 *bytes, u32 &at, u32 end, u32 present, W *out) {
  u32 lane = lane_id(), block, parts, total;
  u64 value;
  if (!varint(bytes, at, end, block) || !varint(bytes, at, end, parts) || !varint(bytes, at, end, total) ||
      !varint64(bytes, at, end, value))
    return false;
  if (block == 0 || block % 128 || block > 1u << 24 || parts == 0 || block % parts || block / parts % 32) return false;
  if (total != present) return false;
  u32 part = block / parts, done = 1;
  u64 last = unzigzag(value);
  if (!fits<W>(last)) return false;
  if (lane == 0 && present) out[0] = (W)last;
#pragma unroll 1
  while (done < total) {
    u64 least;
    if (!varint64(bytes, at, end, least) || parts > end - at) return false;
    least = unzigzag(least);
    if (!fits<W>(least)) return false;
    u32 widths = at;
    at += parts;
#pragma unroll 1
    for (u32 p = 0; p < parts && done < total; p++) {
      u32 width = bytes[widths + p];
      if (width > 8 * sizeof(W)) return false;
      u32 left = min(part, total - done);
      // The last part may end where its values do.
      if (((u64)left * width + 7) / 8 > end - at) return false;
#pragma unroll 1
      for (u32 first = 0; first < left; first += 32) {
        u32 index = first + lane;
        u64 delta = 0;
        if (index < left) {
          if (width) {
            u64 bit = (u64)index * width;
            const u8 *from = bytes + at + (bit >> 3);
            u32 skew = (u32)(u64)from & 7, shift = skew * 8 + ((u32)bit & 7);
            const u64 *words = (const u64 *)(from - skew);
            delta = words[0];
            delta >>= shift;
            if (shift + width > 64) delta |= words[1] << (64 - shift);
            if (width < 64) delta &= (1ull << width) - 1;
          }
          delta += least;
        }
#pragma unroll
        for (u32 step = 1; step < 32; step *= 2) {
          u64 other = __shfl_up_sync(FULL, delta, step);
          if (lane >= step) delta += other;
        }
        if (index < left) out[done + index] = (W)(last + delta);
        last += __shfl_sync(FULL, delta, 31);
      }
      done += left;
      at += (u32)min((u64)part * width / 8, (u64)(end - at));
    }
  }
  return true;
}

extern "C" __global__ void __launch_bounds__(PARQUET_THREADS)
parquet_values_deltas(const u8 *descriptors, const u8 *staging, u8 *scratch, u8 *results, u32 list_at, u32 count, u32 ticket) {
  Batch batch = {descriptors, staging, scratch, results};
  const u32 *list = (const u32 *)(descriptors + list_at);
  u32 stride = gridDim.x * (PARQUET_THREADS / 32), lane = lane_id();
#pragma unroll 1
  for (u32 i = (blockIdx.x * PARQUET_THREADS + threadIdx.x) / 32; i < count; i += stride) {
    u32 number = list[i];
    const Page &page = batch.page(number);
    State &state = batch.state(number);
    if (!state.usable) continue;
    const Column &column = batch.column(page.column);
    const u8 *bytes = (const u8 *)state.values;
    u32 at = 0, end = state.bytes, present = state.present;
    u32 *out = starts_of(batch, page);
    // Lengths of texts lie behind where they end and begin.
    if (page.encoding == DELTA_LENGTH) out += (page.values + 3) / 4 * 8;
    bool narrow = page.encoding == DELTA_LENGTH || column.width_in == 4;
    bool fine = narrow ? deltas<u32>(bytes, at, end, present, out) : deltas<u64>(bytes, at, end, present, (u64 *)out);
    // A page of NULLs may have no stream at all.
    fine |= present == 0;
    __syncwarp();
    if (lane == 0) {
      if (!fine) raise(batch.error(number), BAD_DELTA, DELTAS, at);
      state.usable = fine;
      if (page.encoding == DELTA_LENGTH) state.values += at, state.bytes -= at;
      else state.values = (u64)out;
    }
  }
}
