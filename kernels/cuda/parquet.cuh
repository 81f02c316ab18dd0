// What the kernels that decode Parquet pages share: descriptors, what one kernel tells the next of a page, error words, and a
// window over bytes that are read one after the other.
//
//   descriptors   header │ columns │ dictionaries │ pages │ work lists           written by the host; parquet/descriptors.rs has the same
//   staging       bytes of pages as the file has them
//   scratch       states │ bytes of decompressed pages │ validity, prefixes, runs of each page
//   results       tickets │ error words │ facts                                  zeroed before, read by the host
//
// Bytes     whatever they are, nothing is read outside a page but up to 16 bytes behind it, and nothing is written outside its room
// Errors    the first one of a page wins; its rows become zeros from there on
#pragma once
#include "common.cuh"

enum Codec : u8 { STORED, SNAPPY, LZ4_RAW };
enum Encoding : u8 { PLAIN, DICTIONARY, RLE_BOOLEAN, DELTA_BINARY, STREAM_SPLIT, DELTA_LENGTH };
enum Source : u32 { INT32, INT64, UINT32, FLOAT, DOUBLE, BOOLEAN, FIXED, INT96, TEXT };
enum Flag : u8 { V2 = 1, HAS_LEVELS = 2 };

enum Fault : u32 {
  NO_FAULT,
  BAD_SIZE,    // a stream ends before, or goes on behind, what its sizes say
  BAD_INPUT,   // an element goes on behind the compressed bytes
  BAD_OUTPUT,  // an element goes on behind the decompressed bytes
  BAD_OFFSET,  // a copy from before the first byte, or from nowhere
  BAD_LEVELS,  // definition levels are no such stream
  BAD_NULL,    // a NULL in a column that has no validity
  BAD_SHORT,   // fewer bytes than the values take
  BAD_WIDTH,   // codes of more than 32 bits
  BAD_RUNS,    // runs that end early, or more of them than there is room for
  BAD_CODE,    // a code that the dictionary does not have
  BAD_RANGE,   // a value that the statistics exclude, or that its width cannot hold
  BAD_LENGTH,  // a text that is longer than what is left
  BAD_CAPACITY, // more bytes of texts than the column has capacity for
  BAD_DELTA,   // a header of deltas that makes no sense
  BAD_UTF8,    // a text that is not UTF-8, in a column of characters
};
enum Stage : u32 { DECOMPRESS, PREPARE, UNPACK, FIXED_VALUES, TEXTS, DELTAS };

struct Header {
  u32 columns, columns_at, dictionaries, dictionaries_at, pages, pages_at, errors_at, facts_at;
};

struct Column {
  u64 values, validity; // addresses; no validity: 0
  u64 bytes, capacity;  // of texts
  i64 base, low, high;  // what is subtracted, and between what values lie before that
  u64 rows;
  u32 source, width_in, width_out, first_offset; // width_out: 0 for bits
  u32 stored, utf8, pages, pages_at;             // kind of what is stored; texts: are characters, their pages in the order of rows
};
static_assert(sizeof(Column) == 96, "parquet/descriptors.rs has the same size");

// What is true of a column's rows.
struct Facts {
  u64 present, least, most; // complement of the smallest key; the largest key
  u64 falls, rises;         // rows smaller, and larger, than the row before
  u64 text_bytes;
};
static_assert(sizeof(Facts) == 48, "parquet/descriptors.rs has the same size");

struct Dictionary {
  u64 values, bytes; // numbers: a table; texts: offsets of u32 and bytes
  u32 entries, width;
  u64 capacity;
};
static_assert(sizeof(Dictionary) == 32, "parquet/descriptors.rs has the same size");

struct Page {
  u64 source, scratch, work, first_row;
  u32 compressed, raw, values, skip, rows, level_bytes, column, dictionary, most_runs, starts;
  u8 codec, encoding, flags, spare; // starts: from `work`, where values of deltas lie, or ends of texts and where they begin
  u32 spare_words[5];
};
static_assert(sizeof(Page) == 96, "parquet/descriptors.rs has the same size");

// What kernels find out about a page.
struct State {
  u64 data;   // decompressed bytes, levels of V1 included
  u64 values; // the stream of values
  u32 bytes, present;
  u32 usable, nullable; // not usable: all rows are zeros
  u32 width, runs;      // codes; runs: 0 where all are as long as the first
  u32 stride, run_bytes, head, last_run, last_at, spare;
  u64 text_bytes, text_base;
};
static_assert(sizeof(State) == 80, "parquet/descriptors.rs has the same size");

// Rows of a page that one warp decodes, and so the rows for each of which a count of present values is kept.
constexpr u32 SEGMENT = 4096;
// Rows that a warp decodes at a time: four a lane, and four words of bits.
constexpr u32 STEP = 128;

struct Segment {
  u32 page, first; // first: a multiple of SEGMENT in the page's rows
};

struct Run {
  u32 first, at; // at: of a repeated run, REPEATED and where its value lies
};
constexpr u32 REPEATED = 0x80000000u;

struct Batch {
  const u8 *descriptors, *staging;
  u8 *scratch, *results;

  __device__ const Header &header() const { return *(const Header *)descriptors; }
  __device__ const Column &column(u32 i) const { return ((const Column *)(descriptors + header().columns_at))[i]; }
  __device__ const Dictionary &dictionary(u32 i) const {
    return ((const Dictionary *)(descriptors + header().dictionaries_at))[i];
  }
  __device__ const Page &page(u32 i) const { return ((const Page *)(descriptors + header().pages_at))[i]; }
  __device__ State &state(u32 i) const { return ((State *)scratch)[i]; }
  __device__ u32 *error(u32 page) const { return (u32 *)(results + header().errors_at) + page; }
  __device__ Facts *facts(u32 column) const { return (Facts *)(results + header().facts_at) + column; }
};

__device__ inline void raise(u32 *error, Fault fault, Stage stage, u64 position) {
  u32 at = position < 0x3fffff ? (u32)position : 0x3fffff;
  atomicCAS(error, 0u, (u32)fault | (u32)stage << 6 | at << 10);
}

// Bits, prefixes and runs of a page, in this order.
__device__ inline u32 *validity_of(const Batch &batch, const Page &page) { return (u32 *)(batch.scratch + page.work); }
__device__ inline u32 *prefixes_of(const Batch &batch, const Page &page) {
  return validity_of(batch, page) + (page.flags & HAS_LEVELS ? (page.values + 127) / 128 * 4 : 0);
}
__device__ inline Run *runs_of(const Batch &batch, const Page &page) {
  u32 prefixes = page.flags & HAS_LEVELS ? (page.values + SEGMENT - 1) / SEGMENT : 0;
  return (Run *)(prefixes_of(batch, page) + (prefixes + 3) / 4 * 4);
}
__device__ inline u32 *starts_of(const Batch &batch, const Page &page) {
  return (u32 *)(batch.scratch + page.work + page.starts);
}

__device__ inline u32 lane_id() { return threadIdx.x & 31; }

// Of STEP rows of a page, those of a lane.
struct Rows {
  u32 written, valid; // a bit each: is written; is not NULL
  u32 dense;        // number of the first one's value among the page's
};

// Goes through the rows of a segment: STEP of them at a time, four in a row to a lane.
struct Walk {
  const Page &page;
  const uint4 *bits; // null where no row is NULL
  u32 before, row, end;

  __device__ Walk(const Batch &batch, const Page &page, const State &state, u32 first)
      : page(page), bits(nullptr), before(first), row(first) {
    end = min(first + SEGMENT, page.skip + page.rows);
    if (state.usable && state.nullable) {
      bits = (const uint4 *)validity_of(batch, page);
      before = prefixes_of(batch, page)[first / SEGMENT];
    }
  }
  __device__ Rows next() {
    u32 lane = threadIdx.x & 31, own = row + 4 * lane;
    Rows rows = {0, 15, before + 4 * lane};
#pragma unroll
    for (u32 k = 0; k < 4; k++) rows.written |= (u32)(own + k >= page.skip && own + k < end) << k;
    if (bits) {
      uint4 words = bits[row / STEP];
      u32 word = lane / 8, shift = lane % 8 * 4, a = __popc(words.x), b = __popc(words.y), c = __popc(words.z);
      u32 mine = word == 0 ? words.x : word == 1 ? words.y : word == 2 ? words.z : words.w;
      rows.valid = mine >> shift & 15;
      rows.dense = before + __popc(mine & ((1u << shift) - 1)) + (word > 0 ? a : 0) + (word > 1 ? b : 0) + (word > 2 ? c : 0);
      before += a + b + c + __popc(words.w);
    } else {
      before += STEP;
    }
    row += STEP;
    return rows;
  }
};

// The 32 bits that begin at any byte.
__device__ inline u32 word_from(const u8 *at) {
  const u32 *aligned = (const u32 *)((u64)at & ~3ull);
  u32 skew = ((u32)(u64)at & 3) * 8;
  u32 word = aligned[0];
  return skew ? __funnelshift_r(word, aligned[1], skew) : word;
}

// A number of seven bits a byte, of at most 32 bits. `at` moves on; false where it does not end before `end`, or is larger.
__device__ inline bool varint(const u8 *bytes, u32 &at, u32 end, u32 &value) {
  value = 0;
#pragma unroll 1
  for (u32 shift = 0; shift < 35 && at < end; shift += 7) {
    u32 byte = bytes[at++];
    if (shift == 28 && byte > 15) return false;
    value |= (byte & 127) << shift;
    if (byte < 128) return true;
  }
  return false;
}

constexpr u32 BLOCK_BYTES = 512, RING_WORDS = 2 * BLOCK_BYTES / 4;

// Two blocks of a stream of bytes in shared memory, and the one behind them on its way in registers. One warp moves it; lanes
// read anywhere from its position to BLOCK_BYTES behind it.
struct Window {
  const u8 *base; // a multiple of 16
  u32 limit;      // bytes of the stream, counted from `base`
  u32 *ring;
  u32 block;
  uint4 ahead;

  __device__ uint4 load(u32 number) const {
    u64 at = (u64)number * BLOCK_BYTES + lane_id() * 16;
    return at < limit ? *(const uint4 *)(base + at) : uint4{0, 0, 0, 0};
  }
  __device__ void put(u32 number, uint4 words) const {
    *(uint4 *)(ring + (number & 1) * (BLOCK_BYTES / 4) + lane_id() * 4) = words;
  }
  __device__ void jump(u32 number) {
    block = number;
    put(block, load(block));
    put(block + 1, load(block + 1));
    ahead = load(block + 2);
    __syncwarp();
  }
  // Opens it over `bytes` bytes; position 0 is `base`, so the first byte of the stream is at the return value.
  __device__ u32 open(const u8 *from, u32 bytes, u32 *shared) {
    u32 skew = (u32)(u64)from & 15;
    base = from - skew;
    limit = bytes + skew;
    ring = shared;
    __syncwarp();
    jump(0);
    return skew;
  }
  __device__ void seek(u32 at) {
    u32 number = at / BLOCK_BYTES;
    if (number == block) return;
    __syncwarp();
    if (number == block + 1) {
      put(block + 2, ahead);
      block = number;
      ahead = load(block + 2);
      __syncwarp();
    } else {
      jump(number);
    }
  }
  // Eight bytes of which the first five or more are those at `at`.
  __device__ u64 word(u32 at) const {
    u32 index = at / 4, low = ring[index & (RING_WORDS - 1)], high = ring[(index + 1) & (RING_WORDS - 1)];
    return ((u64)high << 32 | low) >> ((at & 3) * 8);
  }
  __device__ u32 word32(u32 at) const {
    u32 index = at / 4;
    return __funnelshift_r(ring[index & (RING_WORDS - 1)], ring[(index + 1) & (RING_WORDS - 1)], (at & 3) * 8);
  }
};
