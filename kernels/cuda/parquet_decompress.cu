// Decompresses pages: Snappy and LZ4 as Parquet has them (no frames), a thread block of two warps per page.
//
//   input    … 04 abcd │ 1d 08 │ 00 x │ 1d 08 …     parse:  each lane decodes the two bytes at its places as if elements began
//               ^         ^       ^      ^                  there; pointers double, so that those reached from the first are known
//   elements (0, literal) (4, 8 back) (15, literal) …       32 at most, with their places in the output, into shared memory
//   output   abcd abcdabc… x                        copy:   128 bytes at a time; each byte finds its element by the rank of a bit
//
// Launch    PARQUET_PAGE_THREADS threads, two warps; a grid of any size, pages by a ticket, largest first. The first warp parses what the second copies next
// Traffic   compressed bytes read once; of the output, what copies reach back to is read again
// Copies    from bytes of the same 128 are chains within these: pointers double until each byte knows the first of its chain
// Pieces    of a page that do not reach back before themselves are decompressed apart, each by a block of its own
// Literals  of more than 64 bytes are copied by whole words; a page that is one literal is not copied at all
// After     cuDF's unsnap (warps that parse and copy), CODAG (arXiv 2307.03760)
#include "parquet.cuh"

// What one parse hands to one copy.
struct Elements {
  uint2 list[32];          // where in the output; LITERAL and where in the input, or how far back
  __align__(16) u32 starts[68]; // a bit for each byte of the output that begins an element, from begin & ~3
  u32 begin, end;          // of the output
  // Then one long element: bytes, and as above.
  u32 long_bytes, long_from;
  u32 last;                // nothing follows
};
constexpr u32 LITERAL = 0x80000000u;

__shared__ __align__(16) u32 shared_ring[RING_WORDS];
__shared__ __align__(16) Elements shared_elements[2];
__shared__ __align__(16) u8 chunk_bytes[128], chunk_from[128];
__shared__ u32 shared_ticket;

// Compressed bytes of a page, behind its levels, and where they go.
struct Piece {
  u32 page, at, bytes, out, raw; // at: 0 for a whole page, sizes in front included
};
static_assert(sizeof(Piece) == 20, "parquet/descriptors.rs has the same size");

// What both codecs know of a page while they parse it.
struct Parse {
  Window window;
  u32 at, end;      // of the input, in the window's positions
  u32 skew;         // position of the first byte
  u32 out, raw;
  u32 *error;
  // LZ4: the literal of this token is done, its match comes next.
  bool half;
  u32 token;

  __device__ void fail(Fault fault) {
    if (lane_id() == 0) raise(error, fault, DECOMPRESS, out);
    at = end;
  }
};

__device__ inline void clear_starts(Elements &to) {
  u32 lane = lane_id();
  to.starts[lane] = 0;
  to.starts[lane + 32] = 0;
  if (lane < 4) to.starts[lane + 64] = 0;
  __syncwarp();
}

__device__ inline void put_element(Elements &to, u32 rank, u32 begin, u32 start, u32 from) {
  to.list[rank] = uint2{start, from};
  u32 bit = start - (begin & ~3u);
  atomicOr(&to.starts[bit / 32], 1u << (bit & 31));
}

// An element as Snappy has it, if one began at a byte.
struct Tag {
  u32 length, size, from;
  bool literal;

  __device__ Tag(u64 word) {
    u32 tag = (u32)word & 255, argument = (u32)(word >> 8), kind = tag & 3;
    literal = kind == 0;
    if (literal) {
      u32 extra = tag >> 2 >= 60 ? (tag >> 2) - 59 : 0;
      u32 more = extra == 0 ? tag >> 2 : argument & FULL >> (32 - 8 * extra);
      length = more < 0x7fffffff ? more + 1 : 0x7fffffff;
      size = 1 + extra;
      from = 0;
    } else {
      length = kind == 1 ? 4 + (tag >> 2 & 7) : 1 + (tag >> 2);
      size = kind == 1 ? 2 : kind == 2 ? 3 : 5;
      from = kind == 1 ? tag >> 5 << 8 | (argument & 255) : kind == 2 ? argument & 0xffff : argument;
    }
  }
  // Where the next element begins, seen from this one's first byte; saturated, for additions of a few hundred.
  __device__ u32 step() const { return size + (literal ? min(length, 0x3fffffffu) : 0); }
};

constexpr u32 LONG_LITERAL = 64;

// Which of 32 places are reached from each, and where the last one leads. Each element takes two bytes or more, so 16 are most.
__device__ inline void follow(u32 &reached, u32 &next) {
  reached = 1u << lane_id();
#pragma unroll
  for (u32 round = 0; round < 4; round++) {
    u32 others = __shfl_sync(FULL, reached, next & 31), after = __shfl_sync(FULL, next, next & 31);
    if (next < 32) {
      reached |= others;
      next = after;
    }
  }
}

__device__ inline void parse_snappy(Parse &p, Elements &to) {
  u32 lane = lane_id(), below = lanes_below();
  p.window.seek(p.at);
  clear_starts(to);
  u32 left = p.end - p.at;
  Tag a(p.window.word(p.at + lane)), b(p.window.word(p.at + 32 + lane));
  u32 next_a = lane + a.step(), next_b = lane + b.step(), reached_a, reached_b;
  follow(reached_a, next_a);
  follow(reached_b, next_b);
  u32 here_a = __shfl_sync(FULL, reached_a, 0), exit = __shfl_sync(FULL, next_a, 0);
  u32 entry = exit - 32;
  u32 here_b = __shfl_sync(FULL, reached_b, entry & 31), exit_b = __shfl_sync(FULL, next_b, entry & 31);
  if (entry < 32) exit = 32 + exit_b;
  else here_b = 0;
  // What lies behind the input was followed, too.
  if (left < 64) {
    here_b &= left <= 32 ? 0 : FULL >> (64 - left);
    if (left < 32) here_a &= FULL >> (32 - left);
  }
  bool is_a = here_a >> lane & 1, is_b = here_b >> lane & 1;
  // A long literal is the last element, as it leaves the window.
  bool long_a = is_a && a.literal && a.length > LONG_LITERAL, long_b = is_b && b.literal && b.length > LONG_LITERAL;
  u32 lengths = (is_a && !long_a ? a.length : 0) | (is_b && !long_b ? b.length : 0) << 16, sums = lengths;
#pragma unroll
  for (u32 step = 1; step < 32; step *= 2) {
    u32 other = __shfl_up_sync(FULL, sums, step);
    if (lane >= step) sums += other;
  }
  u32 all = __shfl_sync(FULL, sums, 31), before = sums - lengths;
  u32 total_a = all & 0xffff, total = total_a + (all >> 16);
  u32 start_a = p.out + (before & 0xffff), start_b = p.out + total_a + (before >> 16);
  auto bad = [&](const Tag &tag, u32 place, u32 start) -> u32 {
    if (place + tag.step() > left) return BAD_INPUT;
    if (tag.length > p.raw - p.out || start > p.raw - tag.length) return BAD_OUTPUT;
    return !tag.literal && (tag.from == 0 || tag.from > start) ? BAD_OFFSET : NO_FAULT;
  };
  u32 fault_a = is_a ? bad(a, lane, start_a) : NO_FAULT, fault_b = is_b ? bad(b, 32 + lane, start_b) : NO_FAULT;
  u32 faults = __ballot_sync(FULL, fault_a | fault_b);
  if (faults) {
    u32 fault = __shfl_sync(FULL, fault_a ? fault_a : fault_b, __ffs(faults) - 1);
    if (lane == 0) to.begin = to.end = p.out, to.long_bytes = 0, to.last = 1;
    p.fail((Fault)fault);
    return;
  }
  u32 from = p.at - p.skew + lane;
  if (is_a && !long_a) put_element(to, __popc(here_a & below), p.out, start_a, a.literal ? LITERAL | (from + a.size) : a.from);
  if (is_b && !long_b)
    put_element(to, __popc(here_a) + __popc(here_b & below), p.out, start_b,
                b.literal ? LITERAL | (from + 32 + b.size) : b.from);
  u32 longs = __ballot_sync(FULL, long_a || long_b), long_bytes = 0, long_from = 0;
  if (longs) {
    u32 source = __ffs(longs) - 1;
    long_bytes = __shfl_sync(FULL, long_a ? a.length : b.length, source);
    long_from = LITERAL | __shfl_sync(FULL, long_a ? from + a.size : from + 32 + b.size, source);
  }
  u32 begin = p.out;
  p.out += total + long_bytes;
  p.at += min(exit, left);
  u32 last = p.at == p.end;
  if (lane == 0) {
    to.begin = begin;
    to.end = begin + total;
    to.long_bytes = long_bytes;
    to.long_from = long_from;
    to.last = last;
  }
  if (last && p.out != p.raw) p.fail(BAD_SIZE);
}

// The rest of a length of LZ4: bytes are added until one is not 255. False at the end of the input, or for more than 2^30.
__device__ inline bool more_length(Parse &p, u32 &length) {
  u32 lane = lane_id();
#pragma unroll 1
  while (true) {
    p.window.seek(p.at);
    u32 byte = p.window.word32(p.at + lane) & 255;
    u32 ends = __ballot_sync(FULL, byte != 255 || p.at + lane >= p.end);
    if (ends == 0) {
      length += 32 * 255;
      p.at += 32;
      if (length > 1u << 30) return false;
      continue;
    }
    u32 place = __ffs(ends) - 1;
    length += place * 255 + __shfl_sync(FULL, byte, place);
    p.at += place + 1;
    return p.at <= p.end && length <= 1u << 30;
  }
}

// A sequence of LZ4 without more bytes of lengths, if one began at a byte.
struct Sequence {
  u32 literal, match;
  bool plain;

  __device__ Sequence(u32 token) : literal(token >> 4 & 15), match((token & 15) + 4) { plain = literal < 15 && match < 19; }
  __device__ u32 size() const { return 3 + literal; }
};

// So many bytes in front of the end are parsed one sequence after the other: the last has no match.
constexpr u32 LZ4_TAIL = 64;

// The sequences that begin in the next 32 bytes, up to one with more bytes of lengths; false if that is the first.
__device__ inline bool parse_lz4_together(Parse &p, Elements &to) {
  u32 lane = lane_id(), below = lanes_below();
  if (p.half || p.end - p.at < LZ4_TAIL) return false;
  p.window.seek(p.at);
  Sequence of(p.window.word32(p.at + lane) & 255);
  // Where such a one stands the others end: it leads to its own place, from 64 on.
  u32 next = of.plain ? lane + of.size() : 64 + lane, reached;
  follow(reached, next);
  u32 exit = __shfl_sync(FULL, next, 0);
  u32 here = __shfl_sync(FULL, reached, 0) & __ballot_sync(FULL, of.plain);
  if (here == 0) return false;
  if (exit >= 64) exit -= 64;
  bool is_here = here >> lane & 1;
  u32 length = is_here ? of.literal + of.match : 0, sums = length;
#pragma unroll
  for (u32 step = 1; step < 32; step *= 2) {
    u32 other = __shfl_up_sync(FULL, sums, step);
    if (lane >= step) sums += other;
  }
  u32 total = __shfl_sync(FULL, sums, 31), start = p.out + sums - length;
  u32 back = p.window.word32(p.at + lane + 1 + (of.plain ? of.literal : 0)) & 0xffff;
  u32 fault = NO_FAULT;
  if (is_here) {
    if (length > p.raw - p.out || start > p.raw - length) fault = BAD_OUTPUT;
    else if (back == 0 || back > start + of.literal) fault = BAD_OFFSET;
  }
  u32 faults = __ballot_sync(FULL, fault);
  clear_starts(to);
  if (faults) {
    fault = __shfl_sync(FULL, fault, __ffs(faults) - 1);
    if (lane == 0) to.begin = to.end = p.out, to.long_bytes = 0, to.last = 1;
    p.fail((Fault)fault);
    return true;
  }
  // A literal of no bytes is no element.
  u32 literals = __ballot_sync(FULL, is_here && of.literal > 0);
  if (is_here) {
    u32 rank = __popc(here & below) + __popc(literals & below);
    if (of.literal > 0) put_element(to, rank++, p.out, start, LITERAL | (p.at - p.skew + lane + 1));
    put_element(to, rank, p.out, start + of.literal, back);
  }
  if (lane == 0) {
    to.begin = p.out;
    to.end = p.out + total;
    to.long_bytes = 0;
    to.last = 0;
  }
  p.out += total;
  p.at += exit;
  return true;
}

// Sequences of a literal and a match, one after the other: each half is an element, if it has bytes. Ends with a long one, and before
// a sequence that can be parsed with others.
__device__ inline void parse_lz4(Parse &p, Elements &to) {
  if (parse_lz4_together(p, to)) return;
  u32 lane = lane_id(), begin = p.out, count = 0, long_bytes = 0, long_from = 0;
  Fault fault = NO_FAULT;
  clear_starts(to);
#pragma unroll 1
  while (count < 32 && long_bytes == 0 && p.at < p.end) {
    p.window.seek(p.at);
    u32 length, from;
    if (!p.half) {
      p.token = p.window.word32(p.at) & 255;
      if (count > 0 && p.end - p.at >= LZ4_TAIL && Sequence(p.token).plain) break;
      p.at++;
      length = p.token >> 4;
      if (length == 15 && !more_length(p, length)) fault = BAD_INPUT;
      else if (length > p.end - p.at) fault = BAD_INPUT;
      if (fault) break;
      from = LITERAL | (p.at - p.skew);
      p.at += length;
      // The last sequence has no match.
      p.half = p.at < p.end;
    } else {
      if (p.end - p.at < 2) {
        fault = BAD_INPUT;
        break;
      }
      from = p.window.word32(p.at) & 0xffff;
      p.at += 2;
      length = (p.token & 15) + 4;
      if (length == 19 && !more_length(p, length)) fault = BAD_INPUT;
      else if (from == 0 || from > p.out) fault = BAD_OFFSET;
      if (fault) break;
      p.half = false;
    }
    if (length > p.raw - p.out) {
      fault = BAD_OUTPUT;
      break;
    }
    if (length > LONG_LITERAL) {
      long_bytes = length;
      long_from = from;
    } else if (length > 0) {
      if (lane == 0) put_element(to, count, begin, p.out, from);
      count++;
    }
    p.out += length;
  }
  if (!fault && p.at >= p.end && (p.half || p.out != p.raw)) fault = BAD_SIZE;
  if (fault) p.fail(fault);
  if (lane == 0) {
    to.begin = begin;
    to.end = p.out - long_bytes;
    to.long_bytes = long_bytes;
    to.long_from = long_from;
    to.last = p.at >= p.end;
  }
}

// One long element: a literal, or bytes from `back` before it, as often as they are needed.
__device__ inline void copy_long(const u8 *in, u8 *out, u32 start, u32 bytes, u32 from) {
  u32 lane = lane_id();
  u8 *to = out + start;
  // What is read in words ends up to 7 bytes behind the source, which must not be what other lanes write.
  if (!(from & LITERAL) && from < bytes + 8) {
    const u8 *source = to - from;
#pragma unroll 1
    for (u32 i = lane; i < bytes; i += 32) to[i] = source[i % from];
    return;
  }
  const u8 *source = from & LITERAL ? in + (from & ~LITERAL) : to - from;
  u32 head = min((0 - (u32)(u64)to) & 15, bytes), wides = (bytes - head) / 16, skew = ((u32)(u64)(source + head) & 7) * 8;
  if (lane < head) to[lane] = source[lane];
  const u64 *words = (const u64 *)((u64)(source + head) & ~7ull);
  Wide *target = (Wide *)(to + head);
#pragma unroll 4
  for (u32 i = lane; i < wides; i += 32) {
    u64 low = words[2 * i], high = words[2 * i + 1];
    if (skew) {
      u64 next = words[2 * i + 2];
      low = low >> skew | high << (64 - skew);
      high = high >> skew | next << (64 - skew);
    }
    target[i] = Wide{low, high};
  }
  u32 done = head + wides * 16;
  if (lane < bytes - done) to[done + lane] = source[done + lane];
}

// Writes the bytes of the elements: four to a lane.
__device__ inline void copy_elements(const u8 *in, u8 *out, const Elements &from) {
  u32 lane = lane_id(), begin = from.begin, end = from.end, rank = 0;
  u32 *packed_bytes = (u32 *)chunk_bytes, *packed_from = (u32 *)chunk_from;
  if (begin < end) {
    u32 first = begin & ~3u;
#pragma unroll 1
    for (u32 chunk = first; chunk < end; chunk += 128) {
      // 1. Each byte's element, by the number of elements that begin up to it.
      uint4 bits = *(const uint4 *)(from.starts + (chunk - first) / 32);
      u32 word = lane / 8, shift = lane % 8 * 4;
      u32 own = word == 0 ? bits.x : word == 1 ? bits.y : word == 2 ? bits.z : bits.w;
      u32 found = rank + __popc(own & ((1u << shift) - 1));
      if (word > 0) found += __popc(bits.x);
      if (word > 1) found += __popc(bits.y);
      if (word > 2) found += __popc(bits.z);
      rank += __popc(bits.x) + __popc(bits.y) + __popc(bits.z) + __popc(bits.w);
      u32 low = max(chunk, begin), mine = chunk + lane * 4;
      // 2. What it is a copy of: a byte of this chunk by its place, or a byte that can be read now.
      const u8 *source[4];
      u32 places = 0;
      bool chained = false;
#pragma unroll
      for (u32 k = 0; k < 4; k++) {
        u32 at = mine + k, place = lane * 4 + k;
        found += own >> (shift + k) & 1;
        source[k] = nullptr;
        if (at >= begin && at < end) {
          uint2 element = from.list[found - 1];
          if (element.y & LITERAL) {
            source[k] = in + (element.y & ~LITERAL) + (at - element.x);
          } else {
            u32 back = at - element.y;
            if (back < low) {
              source[k] = out + back;
            } else {
              place = back - chunk;
              chained = true;
            }
          }
        }
        places |= place << (8 * k);
      }
      u32 bytes = 0;
#pragma unroll
      for (u32 k = 0; k < 4; k++)
        if (source[k]) bytes |= (u32)*source[k] << (8 * k);
      // 3. Along the chains.
      if (__any_sync(FULL, chained)) {
        packed_from[lane] = places;
        packed_bytes[lane] = bytes;
        __syncwarp();
        bool moved = chained;
        do {
          u32 next = places;
          if (moved)
            next = chunk_from[places & 255] | chunk_from[places >> 8 & 255] << 8 | chunk_from[places >> 16 & 255] << 16 |
                   (u32)chunk_from[places >> 24] << 24;
          moved = next != places;
          places = next;
          __syncwarp();
          if (moved) packed_from[lane] = places;
          __syncwarp();
        } while (__any_sync(FULL, moved));
        if (chained)
          bytes = chunk_bytes[places & 255] | chunk_bytes[places >> 8 & 255] << 8 | chunk_bytes[places >> 16 & 255] << 16 |
                  (u32)chunk_bytes[places >> 24] << 24;
        __syncwarp();
      }
      // 4. Whole words, but at the ends.
      if (mine >= begin && mine + 4 <= end) {
        *(u32 *)(out + mine) = bytes;
      } else {
#pragma unroll
        for (u32 k = 0; k < 4; k++)
          if (mine + k >= begin && mine + k < end) out[mine + k] = (u8)(bytes >> (8 * k));
      }
      __syncwarp();
    }
  }
  if (from.long_bytes) {
    copy_long(in, out, end, from.long_bytes, from.long_from);
    __syncwarp();
  }
}

// Opens a piece: true if it has to be decompressed. Warp 0 comes here.
template <Codec CODEC> __device__ inline bool open(const Batch &batch, const Page &page, const Piece &piece, Parse &p) {
  State &state = batch.state(piece.page);
  const u8 *in = batch.staging + page.source + page.level_bytes + piece.at;
  u32 bytes = piece.bytes;
  bool whole = piece.at == 0;
  p.raw = piece.raw;
  p.error = batch.error(piece.page);
  p.out = 0;
  p.half = false;
  u32 start = 0, size = p.raw;
  if (lane_id() == 0 && piece.out == 0) state.data = (u64)(batch.scratch + page.scratch);
  if (bytes == 0 && p.raw == 0) {
    // A page of NULLs need not have the compressed form of nothing.
    p.at = p.end = 0;
    return false;
  }
  if (CODEC == SNAPPY && whole && !(varint(in, start, bytes, size) && size == p.raw && (start < bytes || size == 0))) {
    p.at = p.end = 0;
    p.fail(BAD_SIZE);
    return false;
  }
  if (start >= bytes) {
    p.at = p.end = 0;
    if (p.raw != 0) p.fail(BAD_SIZE);
    return false;
  }
  if (CODEC == SNAPPY && whole) {
    u64 word = 0;
    for (u32 i = 0; i < 5 && start + i < bytes; i++) word |= (u64)in[start + i] << (8 * i);
    Tag tag(word);
    if (tag.literal && tag.length == p.raw && bytes - start >= tag.size && bytes - start - tag.size == p.raw) {
      if (lane_id() == 0) state.data = (u64)(in + start + tag.size);
      return false;
    }
  }
  p.skew = p.window.open(in, bytes, shared_ring);
  p.at = p.skew + start;
  p.end = p.skew + bytes;
  return true;
}

template <Codec CODEC> __device__ inline void decompress(const Batch &batch, u32 list_at, u32 count, u32 ticket_at) {
  const Piece *list = (const Piece *)(batch.descriptors + list_at);
  u32 *ticket = (u32 *)batch.results + ticket_at;
  u32 warp = threadIdx.x / 32, lane = lane_id();
#pragma unroll 1
  while (true) {
    __syncthreads();
    if (threadIdx.x == 0) shared_ticket = atomicAdd(ticket, 1u);
    __syncthreads();
    if (shared_ticket >= count) return;
    const Piece &piece = list[shared_ticket];
    const Page &page = batch.page(piece.page);
    const u8 *in = batch.staging + page.source + page.level_bytes + piece.at;
    u8 *out = batch.scratch + page.scratch + piece.out;
    Parse p;
    bool parsing = warp == 0 && open<CODEC>(batch, page, piece, p);
    if (warp == 0 && !parsing && lane == 0) {
      Elements &none = shared_elements[0];
      none.begin = none.end = none.long_bytes = 0;
      none.last = 1;
    }
#pragma unroll 1
    for (u32 turn = 0;; turn ^= 1) {
      Elements &elements = shared_elements[turn];
      if (parsing) {
        if (CODEC == SNAPPY) parse_snappy(p, elements);
        else parse_lz4(p, elements);
      }
      __syncthreads();
      if (warp == 1) copy_elements(in, out, elements);
      if (elements.last) break;
    }
    // Readers go a little over the end.
    if (warp == 1 && piece.out + piece.raw == page.raw - page.level_bytes) out[piece.raw + lane] = 0;
  }
}

#define ENTRY(name, codec)                                                                                             \
  extern "C" __global__ void __launch_bounds__(PARQUET_PAGE_THREADS) parquet_decompress_##name(                                          \
      const u8 *descriptors, const u8 *staging, u8 *scratch, u8 *results, u32 list_at, u32 count, u32 ticket) {        \
    decompress<codec>(Batch{descriptors, staging, scratch, results}, list_at, count, ticket);                          \
  }
ENTRY(snappy, SNAPPY)
ENTRY(lz4, LZ4_RAW)
