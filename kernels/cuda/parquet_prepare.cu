// Finds out where the values of a page lie: definition levels become validity, streams of codes become runs that can be addressed.
//
//   page (V1)    │ bytes of levels, u32 │ levels │ values            (V2)   │ levels │ values      lengths from the header
//   levels       05 ff │ 0c 01 │ …    bit-packed runs are copied, repeated ones written; 1 is a value, 0 a NULL
//   codes        width │ run │ run │ …      all runs as long as the first: addressed by division; else a table of runs
//
// Launch    a warp per page, any grid
// Output    validity of the column, by atomics (pages share words; its bits are zeroed before); for each page its own bits from its
//           first row on, the number of values before each 4,096 rows, its runs, its State
// Checks    all that decides an address later: the kernels behind trust the State
#include "parquet.cuh"

struct Prepare {
  const Batch &batch;
  const Page &page;
  u32 *error;
  u32 lane;

  __device__ bool fail(Fault fault, u64 position) const {
    if (lane == 0) raise(error, fault, PREPARE, position);
    return false;
  }

  // Sets bits [first, first + count) of the page to those from byte `at` on, or to ones.
  __device__ void set_bits(u32 *bits, u32 first, u32 count, const u8 *from) const {
    u32 word = first / 32, last = (first + count - 1) / 32;
#pragma unroll 1
    for (u32 i = word + lane; i <= last; i += 32) {
      u32 value = FULL;
      if (i == word) value <<= first & 31;
      u32 over = (first + count) & 31;
      if (i == last && over) value &= FULL >> (32 - over);
      if (from) {
        // Bit 0 of the word is bit 32 · i - first of the run; before the run's first byte there may be nothing.
        if (i * 32 <= first) {
          u32 own = 0, bytes = min((count + 7) / 8, 4u);
          for (u32 b = 0; b < bytes; b++) own |= (u32)from[b] << (8 * b);
          value &= own << (first - i * 32);
        } else {
          u32 bit = i * 32 - first, bytes = (count + 7) / 8;
          u64 own = 0;
          for (u32 b = 0; b < 5 && bit / 8 + b < bytes; b++) own |= (u64)from[bit / 8 + b] << (8 * b);
          value &= (u32)(own >> (bit & 7));
        }
      }
      bits[i] |= value;
    }
    __syncwarp();
  }

  // Definition levels of one bit. False where they are no such stream.
  __device__ bool levels(const u8 *from, u32 bytes, u32 *bits) const {
    u32 words = (page.values + 127) / 128 * 4;
    for (u32 i = lane; i < words; i += 32) bits[i] = 0;
    __syncwarp();
    u32 at = 0, row = 0;
#pragma unroll 1
    while (row < page.values) {
      u32 header;
      if (!varint(from, at, bytes, header)) return fail(BAD_LEVELS, row);
      u32 count = header >> 1, left = page.values - row;
      if (count == 0) return fail(BAD_LEVELS, row);
      if (header & 1) {
        u32 rows = count > left / 8 ? left : count * 8, needed = (rows + 7) / 8;
        if (needed > bytes - at) return fail(BAD_LEVELS, row);
        set_bits(bits, row, rows, from + at);
        at += count > bytes - at ? bytes - at : count;
        row += rows;
      } else {
        if (at >= bytes) return fail(BAD_LEVELS, row);
        u32 level = from[at++], rows = min(count, left);
        if (level > 1) return fail(BAD_LEVELS, row);
        if (level) set_bits(bits, row, rows, nullptr);
        row += rows;
      }
    }
    return true;
  }

  // Counts values, writes the counts before each segment; false where there is a NULL too many.
  __device__ u32 count(const u32 *bits, u32 *prefixes) const {
    u32 words = (page.values + 31) / 32, present = 0;
#pragma unroll 1
    for (u32 first = 0; first < words; first += 32) {
      if (first % (SEGMENT / 32) == 0 && lane == 0) prefixes[first / (SEGMENT / 32)] = present;
      u32 own = first + lane < words ? __popc(bits[first + lane]) : 0;
#pragma unroll
      for (u32 step = 16; step > 0; step /= 2) own += __shfl_xor_sync(FULL, own, step);
      present += own;
    }
    return present;
  }

  // Adds the rows that are asked for to the column's validity.
  __device__ void store_validity(const u32 *bits, u32 *validity) const {
    u64 first = page.first_row;
    u32 words = (page.rows + 31) / 32, from_words = (page.values + 31) / 32, from_shift = page.skip & 31, to_shift = (u32)first & 31;
#pragma unroll 1
    for (u32 i = lane; i < words; i += 32) {
      u64 own = FULL;
      if (bits) {
        u32 word = page.skip / 32 + i;
        u64 low = bits[word], high = word + 1 < from_words ? bits[word + 1] : 0;
        own = (u32)((low | high << 32) >> from_shift);
      }
      u32 left = page.rows - i * 32;
      if (left < 32) own &= FULL >> (32 - left);
      own <<= to_shift;
      u32 *to = validity + first / 32 + i;
      if ((u32)own) atomicOr(to, (u32)own);
      if (own >> 32) atomicOr(to + 1, (u32)(own >> 32));
    }
  }

  // Runs of codes of `width` bits at `values`, from byte `at` on.
  __device__ bool runs(const u8 *values, u32 at, u32 bytes, u32 width, u32 present, State &state) const {
    u32 header, first = at;
    state.width = width;
    state.runs = 0;
    state.stride = 0x80000000u;
    state.run_bytes = state.last_run = 0;
    state.head = state.last_at = at;
    // Codes of no bits are all 0, and there is nothing to read.
    if (present == 0 || width == 0) return true;
    if (!varint(values, at, bytes, header)) return fail(BAD_RUNS, 0);
    u32 head = at - first;
    // 1. All bit-packed, and as long as the first but for the last one?
    u64 stride = (u64)(header >> 1) * 8, run_bytes = head + stride / 8 * width;
    if ((header & 1) && stride != 0) {
      u32 last_run = (u32)((present - 1) / stride);
      u64 last_first = last_run * stride, last_head = first + last_run * run_bytes;
      bool same = last_head < bytes;
#pragma unroll 1
      for (u32 run = 1; run < last_run && same; run += 32) {
        bool mine = true;
        if (run + lane < last_run)
          for (u32 b = 0; b < head; b++) mine &= values[first + (run + lane) * run_bytes + b] == values[first + b];
        same = __all_sync(FULL, mine);
      }
      if (same) {
        u32 last_at = (u32)last_head, last_header;
        same = varint(values, last_at, bytes, last_header) && (last_header & 1) &&
               (u64)(last_header >> 1) * 8 >= present - last_first &&
               ((present - last_first) * width + 7) / 8 <= bytes - last_at;
        if (same) {
          state.stride = stride < 0x80000000u ? (u32)stride : 0x80000000u;
          state.run_bytes = (u32)run_bytes;
          state.head = first + head;
          state.last_run = last_run;
          state.last_at = last_at;
          return true;
        }
      }
    }
    // 2. A table.
    Run *table = runs_of(batch, page);
    u32 value = 0, count = 0, value_bytes = (width + 7) / 8;
    at = first;
#pragma unroll 1
    while (value < present) {
      if (!varint(values, at, bytes, header)) return fail(BAD_RUNS, value);
      if (count == page.most_runs || header < 2) return fail(BAD_RUNS, value);
      u32 length = header >> 1, left = present - value, repeated = 0, begin = at;
      if (header & 1) {
        u64 all = (u64)length * width;
        length = length > left / 8 ? left : length * 8;
        if (((u64)length * width + 7) / 8 > bytes - at) return fail(BAD_RUNS, value);
        at += (u32)min(all, (u64)(bytes - at));
      } else {
        length = min(length, left);
        repeated = REPEATED;
        if (value_bytes > bytes - at) return fail(BAD_RUNS, value);
        at += value_bytes;
      }
      if (lane == 0) table[count] = Run{value, begin | repeated};
      value += length;
      count++;
    }
    state.runs = count;
    return true;
  }

  __device__ bool prepare(State &state, u64 data) const {
    const Column &column = batch.column(page.column);
    const u8 *from = (const u8 *)data;
    u32 bytes = page.raw - page.level_bytes, present = page.values;
    u32 *validity = (u32 *)column.validity;
    state.nullable = 0;
    if (page.flags & HAS_LEVELS) {
      const u8 *at = from;
      u32 of_levels = page.level_bytes;
      if (page.flags & V2) {
        at = batch.staging + page.source;
      } else {
        if (bytes < 4) return fail(BAD_LEVELS, 0);
        of_levels = from[0] | from[1] << 8 | from[2] << 16 | (u32)from[3] << 24;
        if (of_levels > bytes - 4) return fail(BAD_LEVELS, 0);
        at += 4;
        from += 4 + of_levels;
        bytes -= 4 + of_levels;
      }
      u32 *bits = validity_of(batch, page);
      if (!levels(at, of_levels, bits)) return false;
      present = count(bits, prefixes_of(batch, page));
      if (present != page.values && !validity) return fail(BAD_NULL, 0);
      state.nullable = present != page.values;
      if (validity) store_validity(state.nullable ? bits : nullptr, validity);
    } else if (validity) {
      store_validity(nullptr, validity);
    }
    state.values = (u64)from;
    state.bytes = bytes;
    state.present = present;
    switch (page.encoding) {
    case DICTIONARY: {
      if (present == 0) return runs(from, 0, 0, 0, 0, state);
      if (bytes == 0) return fail(BAD_SHORT, 0);
      u32 width = from[0];
      if (width > 32) return fail(BAD_WIDTH, width);
      return runs(from, 1, bytes, width, present, state);
    }
    case RLE_BOOLEAN: {
      if (present == 0) return runs(from, 0, 0, 0, 0, state);
      if (bytes < 4) return fail(BAD_SHORT, 0);
      u32 of_runs = from[0] | from[1] << 8 | from[2] << 16 | (u32)from[3] << 24;
      if (of_runs > bytes - 4) return fail(BAD_SHORT, 0);
      return runs(from, 4, 4 + of_runs, 1, present, state);
    }
    case PLAIN:
    case STREAM_SPLIT: {
      if (column.source == TEXT) return true;
      u64 needed = column.source == BOOLEAN ? ((u64)present + 7) / 8 : (u64)present * column.width_in;
      return needed <= bytes || fail(BAD_SHORT, 0);
    }
    default: return true;
    }
  }
};

extern "C" __global__ void __launch_bounds__(PARQUET_THREADS)
parquet_prepare(const u8 *descriptors, const u8 *staging, u8 *scratch, u8 *results, u32 list_at, u32 count, u32 ticket) {
  Batch batch = {descriptors, staging, scratch, results};
  u32 stride = gridDim.x * PARQUET_THREADS / 32;
#pragma unroll 1
  for (u32 number = (blockIdx.x * PARQUET_THREADS + threadIdx.x) / 32; number < count; number += stride) {
    const Page &page = batch.page(number);
    State &state = batch.state(number);
    Prepare prepare = {batch, page, batch.error(number), lane_id()};
    u64 data = page.codec == STORED ? (u64)(staging + page.source + page.level_bytes) : state.data;
    State own = {};
    bool fine = *prepare.error == 0;
    __syncwarp(); // all have read the error before lane 0 may write one
    own.usable = fine && prepare.prepare(own, data);
    own.data = data;
    __syncwarp(); // all have read the state
    if (lane_id() == 0) state = own;
  }
}
