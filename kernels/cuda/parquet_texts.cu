// Turns pages of strings into offsets and bytes of a column, in three launches.
//
//   page       03 abc │ 00 │ 02 de         lengths and bytes in turn (plain), or codes of a dictionary, or lengths apart
//   measure    ends [3 3 5], begins        of each row in its page; of the page, how many bytes
//   place      [0 .. 5 .. 9]               where the bytes of each page begin in the column
//   gather     offsets, and bytes "abcde"  a NULL row has no bytes
//
// Launch    measure: a warp per page; place: a warp per column; gather: a warp per SEGMENT of rows
// Chain     each length of a plain page says where the next one lies: one warp follows it, through a window that is loaded ahead
// UTF-8     in a column of characters: texts of 4,096 rows with a byte above 127 among them are checked, each by a lane
// Traffic   the page twice, eight bytes a row between the launches, what is written
#include "parquet.cuh"

constexpr u32 WARPS = PARQUET_THREADS / 32;
__shared__ __align__(16) u32 rings[WARPS][RING_WORDS];

// Sums over the lanes up to each.
__device__ inline u64 running(u64 value) {
#pragma unroll
  for (u32 step = 1; step < 32; step *= 2) {
    u64 other = __shfl_up_sync(FULL, value, step);
    if (lane_id() >= step) value += other;
  }
  return value;
}

struct Measure {
  const Batch &batch;
  const Page &page;
  const State &state;
  u32 *error, *ends, *begins;
  const u32 *lengths;

  __device__ bool fail(Fault fault, u32 row) const {
    if (lane_id() == 0) raise(error, fault, TEXTS, row);
    return false;
  }
  // Which of 32 rows have a value.
  __device__ u32 valid(u32 row) const {
    u32 left = page.values - row, mask = left < 32 ? FULL >> (32 - left) : FULL;
    return state.nullable ? validity_of(batch, page)[row / 32] & mask : mask;
  }

  __device__ bool plain() const {
    Window window;
    u32 lane = lane_id(), skew = window.open((const u8 *)state.values, state.bytes, rings[threadIdx.x / 32]);
    u32 at = skew, end = skew + state.bytes, sum = 0;
#pragma unroll 1
    for (u32 row = 0; row < page.values; row += 32) {
      u32 present = valid(row), count = min(32u, page.values - row), own_end = 0, own_begin = 0;
#pragma unroll 1
      for (u32 k = 0; k < count; k++) {
        if (present >> k & 1) {
          if (end - at < 4) return fail(BAD_SHORT, row + k);
          window.seek(at);
          u32 length = window.word32(at);
          at += 4;
          if (length > end - at) return fail(BAD_LENGTH, row + k);
          if (lane == k) own_begin = at - skew;
          at += length;
          sum += length;
        }
        if (lane == k) own_end = sum;
      }
      if (lane < count) {
        ends[row + lane] = own_end;
        begins[row + lane] = own_begin;
      }
    }
    return true;
  }

  // Where a code lies, of any page.
  __device__ u32 code(const Run *table, u32 index) const {
    u32 first, at;
    if (state.width == 0) return 0;
    if (state.runs == 0) {
      u32 run = min(index / state.stride, state.last_run);
      first = run * state.stride;
      at = run == state.last_run ? state.last_at : state.head + run * state.run_bytes;
    } else {
      u32 low = 0, high = state.runs;
#pragma unroll 1
      while (high - low > 1) {
        u32 middle = (low + high) / 2;
        if (table[middle].first <= index) low = middle;
        else high = middle;
      }
      first = table[low].first;
      at = table[low].at;
    }
    u64 bit = at & REPEATED ? 0 : (u64)(index - first) * state.width;
    const u8 *from = (const u8 *)state.values + (at & ~REPEATED) + (bit >> 3);
    u64 word = 0;
    for (u32 b = 0; b * 8 < (bit & 7) + state.width; b++) word |= (u64)from[b] << (8 * b);
    return (u32)(word >> (bit & 7)) & FULL >> (32 - state.width);
  }

  // Of lengths that lie apart, or of codes.
  __device__ bool apart() const {
    bool coded = page.encoding == DICTIONARY;
    const u32 *offsets = nullptr;
    u32 lane = lane_id(), entries = 0, dense = 0;
    u64 sum = 0, most = state.bytes;
    const Run *table = runs_of(batch, page);
    if (coded) {
      const Dictionary &dictionary = batch.dictionary(page.dictionary);
      offsets = (const u32 *)dictionary.values;
      entries = dictionary.entries;
      most = FULL;
    }
#pragma unroll 1
    for (u32 row = 0; row < page.values; row += 32) {
      u32 present = valid(row), length = 0, begin = 0;
      if (present >> lane & 1) {
        u32 index = dense + __popc(present & lanes_below());
        if (!coded) {
          length = lengths[index];
        } else if (index = code(table, index), index < entries) {
          begin = offsets[index];
          length = offsets[index + 1] - begin;
        } else {
          raise(error, BAD_CODE, TEXTS, row);
        }
      }
      u64 end = sum + running(length);
      if (row + lane < page.values) {
        ends[row + lane] = (u32)end;
        begins[row + lane] = coded ? begin : (u32)end - length;
      }
      sum = __shfl_sync(FULL, end, 31);
      if (sum > most) return fail(coded ? BAD_CAPACITY : BAD_LENGTH, row);
      dense += __popc(present);
    }
    return true;
  }
};

extern "C" __global__ void __launch_bounds__(PARQUET_THREADS)
parquet_texts_measure(const u8 *descriptors, const u8 *staging, u8 *scratch, u8 *results, u32 list_at, u32 count, u32 ticket) {
  Batch batch = {descriptors, staging, scratch, results};
  const u32 *list = (const u32 *)(descriptors + list_at);
  u32 stride = gridDim.x * WARPS, lane = lane_id();
#pragma unroll 1
  for (u32 i = (blockIdx.x * PARQUET_THREADS + threadIdx.x) / 32; i < count; i += stride) {
    u32 number = list[i];
    const Page &page = batch.page(number);
    State &state = batch.state(number);
    if (!state.usable) {
      if (lane == 0) state.text_bytes = 0;
      continue;
    }
    u32 *ends = starts_of(batch, page), most = (page.values + 3) / 4 * 4;
    Measure measure = {batch, page, state, batch.error(number), ends, ends + most, ends + 2 * most};
    bool fine = page.encoding == PLAIN ? measure.plain() : measure.apart();
    __syncwarp();
    if (lane == 0) {
      u32 before = fine && page.skip ? ends[page.skip - 1] : 0;
      state.usable = fine;
      state.text_bytes = fine && page.rows ? ends[page.skip + page.rows - 1] - before : 0;
    }
  }
}

extern "C" __global__ void __launch_bounds__(PARQUET_THREADS)
parquet_texts_place(const u8 *descriptors, const u8 *staging, u8 *scratch, u8 *results, u32 list_at, u32 count, u32 ticket) {
  Batch batch = {descriptors, staging, scratch, results};
  const u32 *list = (const u32 *)(descriptors + list_at);
  u32 lane = lane_id(), warps = gridDim.x * (PARQUET_THREADS / 32);
#pragma unroll 1
  for (u32 i = (blockIdx.x * PARQUET_THREADS + threadIdx.x) / 32; i < count; i += warps) {
    const Column &column = batch.column(list[i]);
    const u32 *pages = (const u32 *)(descriptors + column.pages_at);
    u64 sum = 0, most = min(column.capacity, (u64)(FULL - column.first_offset));
#pragma unroll 1
    for (u32 first = 0; first < column.pages; first += 32) {
      u64 bytes = 0;
      u32 number = first + lane < column.pages ? pages[first + lane] : FULL;
      if (number != FULL) bytes = batch.state(number).text_bytes;
      u64 end = sum + running(bytes);
      // What finds no room has no bytes, nor has what comes behind it.
      bool full = end > most;
      if (number != FULL) {
        State &state = batch.state(number);
        if (full) {
          raise(batch.error(number), BAD_CAPACITY, TEXTS, 0);
          state.usable = 0;
        }
        state.text_base = full ? most : end - bytes;
      }
      sum = __shfl_sync(FULL, end, 31);
    }
    if (lane == 0 && column.pages) {
      *(u32 *)column.values = column.first_offset;
      batch.facts(list[i])->text_bytes = min(sum, most);
    }
  }
}

// Whether a text is UTF-8: Unicode 16, table 3-7.
__device__ inline bool is_utf8(const u8 *at, u32 bytes) {
  u32 i = 0;
#pragma unroll 1
  while (i < bytes) {
    u32 byte = at[i++], low = 0x80, high = 0xbf, more;
    if (byte < 0x80) continue;
    if (byte < 0xc2 || byte > 0xf4) return false;
    more = byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
    if (byte == 0xe0) low = 0xa0;
    if (byte == 0xed) high = 0x9f;
    if (byte == 0xf0) low = 0x90;
    if (byte == 0xf4) high = 0x8f;
    if (more > bytes - i) return false;
#pragma unroll 1
    for (; more > 0; more--) {
      u32 next = at[i++];
      if (next < low || next > high) return false;
      low = 0x80, high = 0xbf;
    }
  }
  return true;
}

// Texts of a warp whose bytes together are fewer are copied in the order of the output, so that neighbours write neighbours.
constexpr u32 SHORT_BYTES = 32 * 64;

extern "C" __global__ void __launch_bounds__(PARQUET_THREADS)
parquet_texts_gather(const u8 *descriptors, const u8 *staging, u8 *scratch, u8 *results, u32 list_at, u32 count, u32 ticket) {
  Batch batch = {descriptors, staging, scratch, results};
  const Segment *list = (const Segment *)(descriptors + list_at);
  u32 stride = gridDim.x * WARPS, lane = lane_id();
#pragma unroll 1
  for (u32 i = (blockIdx.x * PARQUET_THREADS + threadIdx.x) / 32; i < count; i += stride) {
    Segment segment = list[i];
    const Page &page = batch.page(segment.page);
    const State &state = batch.state(segment.page);
    const Column &column = batch.column(page.column);
    const u32 *ends = starts_of(batch, page), *begins = ends + (page.values + 3) / 4 * 4;
    const u8 *from = (const u8 *)(page.encoding == DICTIONARY && page.dictionary != FULL ? batch.dictionary(page.dictionary).bytes : state.values);
    u32 *offsets = (u32 *)column.values + page.first_row + 1;
    u8 *bytes = (u8 *)column.bytes;
    bool usable = state.usable;
    u32 first = max(segment.first, page.skip), last = min(segment.first + SEGMENT, page.skip + page.rows);
    u32 before = usable && page.skip ? ends[page.skip - 1] : 0, base = (u32)state.text_base - before;
    u64 seen = 0; // all bytes, one over the other
#pragma unroll 1
    for (u32 row = first; row < last; row += 32) {
      bool here = row + lane < last;
      if (!usable) {
        if (here) offsets[row + lane - page.skip] = column.first_offset + (u32)state.text_base;
        continue;
      }
      u32 left = min(last - row, 32u);
      u32 end = ends[row + (here ? lane : left - 1)], start = __shfl_up_sync(FULL, end, 1);
      if (lane == 0) start = row > 0 ? ends[row - 1] : 0;
      u32 begin = here && end > start ? begins[row + lane] : 0;
      if (here) offsets[row + lane - page.skip] = column.first_offset + base + end;
      u32 all_from = __shfl_sync(FULL, start, 0), all = __shfl_sync(FULL, end, 31) - all_from;
      u8 *to = bytes + (base + all_from);
      if (all <= SHORT_BYTES) {
        u32 own = start - all_from;
#pragma unroll 2
        for (u32 at = lane; at < ((all + 31) & ~31u); at += 32) {
          // The last row that begins at or before the byte, empty rows before it passed over.
          u32 found = 0;
#pragma unroll
          for (u32 step = 16; step > 0; step /= 2)
            if (__shfl_sync(FULL, own, found + step) <= at) found += step;
          u32 source = __shfl_sync(FULL, begin, found), skipped = __shfl_sync(FULL, own, found);
          if (at < all) {
            u8 byte = from[source + (at - skipped)];
            to[at] = byte, seen |= byte;
          }
        }
        continue;
      }
#pragma unroll 1
      for (u32 r = 0; r < left; r++) {
        u32 own_start = __shfl_sync(FULL, start, r), length = __shfl_sync(FULL, end, r) - own_start;
        const u8 *source = from + __shfl_sync(FULL, begin, r);
        u8 *target = bytes + (base + own_start);
        // Bytes up to the first word of the output, whole words, the bytes behind the last one.
        u32 head = min((0 - (u32)(u64)target) & 7, length), words = (length - head) / 8;
        if (lane < head) target[lane] = source[lane], seen |= source[lane];
        u32 skew = ((u32)(u64)(source + head) & 7) * 8;
        const u64 *aligned = (const u64 *)((u64)(source + head) & ~7ull);
#pragma unroll 2
        for (u32 word = lane; word < words; word += 32) {
          u64 value = aligned[word] >> skew;
          if (skew) value |= aligned[word + 1] << (64 - skew);
          *(u64 *)(target + head + 8 * word) = value;
          seen |= value;
        }
        u32 tail = head + words * 8;
        if (lane < length - tail) target[tail + lane] = source[tail + lane], seen |= source[tail + lane];
      }
    }
    // Of a dictionary the host has checked each entry.
    bool is_ascii = (seen & 0x8080808080808080ull) == 0, checked = !column.utf8 || page.encoding == DICTIONARY;
    if (checked || __all_sync(FULL, is_ascii)) continue;
#pragma unroll 1
    for (u32 row = first + lane; row < last; row += 32) {
      u32 start = row > 0 ? ends[row - 1] : 0;
      if (!is_utf8(from + begins[row], ends[row] - start)) raise(batch.error(segment.page), BAD_UTF8, TEXTS, row);
    }
  }
}
