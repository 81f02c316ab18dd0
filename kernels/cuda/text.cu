// Strings as an address and a number of bytes: functions that generated pipelines call, and the copy of strings that lie
// anywhere into one dense run of bytes.
//
//   text          (address, bytes)                  UTF-8 where characters are asked for; any bytes where they are not
//   pattern       LIKE's, as the host rewrote it    0xff stands for %, 0xfe for _; neither byte is ever part of UTF-8
//
// Reads    whole aligned words of eight bytes, but only words that hold a byte of the text: nothing else is there for sure
// NULL     callers hand over a text that can be read even where it is NULL, such as one of no bytes
// Launch   text_sizes, text_pack: any grid of whole warps; a warp takes 32 rows at a time
// After    Hacker's Delight 2nd ed., chapter 6 (bytes in words)
#include "common.cuh"

// What a function gives back that makes a text out of a text: a part of its bytes.
struct Text {
  const u8 *at;
  u64 bytes;
};

constexpr u64 NOWHERE = ~0ull;
constexpr u8 ANY = 0xff, ONE = 0xfe;

// The next eight bytes, the first one lowest; bytes behind the last of `left` are 0. There is at least one.
__device__ inline u64 word_at(const u8 *at, u64 left) {
  u32 skew = (u32)(u64)at & 7;
  const u64 *aligned = (const u64 *)(at - skew);
  u64 word = aligned[0] >> (8 * skew);
  u64 own = left < 8 ? left : 8;
  if (skew + own > 8) word |= aligned[1] << (64 - 8 * skew);
  return left < 8 ? word & ((1ull << (8 * left)) - 1) : word;
}

// The same bytes, the first one highest: words then compare as bytes do.
__device__ inline u64 reversed(u64 word) {
  u32 low = __byte_perm((u32)word, 0, 0x0123), high = __byte_perm((u32)(word >> 32), 0, 0x0123);
  return (u64)low << 32 | high;
}

__device__ inline bool same(const u8 *a, const u8 *b, u64 bytes) {
#pragma unroll 1
  for (u64 i = 0; i < bytes; i += 8)
    if (word_at(a + i, bytes - i) != word_at(b + i, bytes - i)) return false;
  return true;
}

// Bytes of the character that begins with `first`.
__device__ inline u32 character_bytes(u8 first) { return first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4; }

// Where `pattern` is found first, or NOWHERE. A window of eight bytes moves over the text.
__device__ inline u64 find(const u8 *text, u64 bytes, const u8 *pattern, u64 wanted) {
  if (wanted == 0) return 0;
  if (wanted > bytes) return NOWHERE;
  u64 last = bytes - wanted, head = word_at(pattern, wanted);
  u64 mask = wanted < 8 ? (1ull << (8 * wanted)) - 1 : ~0ull;
  u64 window = word_at(text, bytes);
#pragma unroll 1
  for (u64 start = 0; start <= last; start += 8) {
    u64 following = bytes - start > 8 ? word_at(text + start + 8, bytes - start - 8) : 0, rest = following;
#pragma unroll 1
    for (u64 at = start; at < start + 8; at++) {
      if (((window ^ head) & mask) == 0 && at <= last && (wanted <= 8 || same(text + at + 8, pattern + 8, wanted - 8)))
        return at;
      window = window >> 8 | rest << 56;
      rest >>= 8;
    }
    window = following;
  }
  return NOWHERE;
}

// Characters: bytes that do not continue one.
__device__ inline u64 characters(const u8 *text, u64 bytes) {
  u64 continued = 0;
#pragma unroll 1
  for (u64 i = 0; i < bytes; i += 8) {
    u64 word = word_at(text + i, bytes - i);
    continued += __popcll(word >> 7 & ~(word >> 6) & 0x0101010101010101ull);
  }
  return bytes - continued;
}

// Where character `index` begins, or the end.
__device__ inline u64 character_at(const u8 *text, u64 bytes, u64 index) {
  u64 at = 0;
#pragma unroll 1
  while (at + 8 <= bytes) {
    u64 word = word_at(text + at, 8);
    u64 begun = 8 - __popcll(word >> 7 & ~(word >> 6) & 0x0101010101010101ull);
    if (begun > index) break;
    index -= begun;
    at += 8;
  }
#pragma unroll 1
  for (; at < bytes; at++) {
    if ((text[at] & 0xc0) == 0x80) continue;
    if (index == 0) return at;
    index--;
  }
  return bytes;
}

#define FUNCTION extern "C" __device__ __noinline__

FUNCTION u32 text_equal(const u8 *a, u64 a_bytes, const u8 *b, u64 b_bytes) {
  return a_bytes == b_bytes && same(a, b, a_bytes);
}

// Below 0, 0 or above 0, as the bytes compare; a text comes before its continuations.
FUNCTION i32 text_compare(const u8 *a, u64 a_bytes, const u8 *b, u64 b_bytes) {
  u64 common = a_bytes < b_bytes ? a_bytes : b_bytes;
#pragma unroll 1
  for (u64 i = 0; i < common; i += 8) {
    u64 x = word_at(a + i, common - i), y = word_at(b + i, common - i);
    if (x != y) return reversed(x) < reversed(y) ? -1 : 1;
  }
  return a_bytes < b_bytes ? -1 : a_bytes > b_bytes;
}

FUNCTION u32 text_starts(const u8 *text, u64 bytes, const u8 *prefix, u64 wanted) {
  return wanted <= bytes && same(text, prefix, wanted);
}

FUNCTION u32 text_ends(const u8 *text, u64 bytes, const u8 *suffix, u64 wanted) {
  return wanted <= bytes && same(text + (bytes - wanted), suffix, wanted);
}

FUNCTION u32 text_contains(const u8 *text, u64 bytes, const u8 *pattern, u64 wanted) {
  return find(text, bytes, pattern, wanted) != NOWHERE;
}

FUNCTION u64 text_characters(const u8 *text, u64 bytes) { return characters(text, bytes); }

// The place of the pattern in characters from 1, or 0.
FUNCTION u64 text_position(const u8 *text, u64 bytes, const u8 *pattern, u64 wanted) {
  u64 at = find(text, bytes, pattern, wanted);
  return at == NOWHERE ? 0 : characters(text, at) + 1;
}

// Bytes of the character at `text` if it equals the ASCII character `letter` in some case, else 0. Two characters outside
// ASCII have an ASCII letter as their other case: the long s and the Kelvin sign.
__device__ inline u32 folded(const u8 *text, u64 left, u8 letter) {
  u8 first = text[0];
  if (first < 0x80) return (first >= 'A' && first <= 'Z' ? first + 32 : first) == letter;
  if (letter == 's' && left >= 2 && first == 0xc5 && text[1] == 0xbf) return 2;
  if (letter == 'k' && left >= 3 && first == 0xe2 && text[1] == 0x84 && text[2] == 0xaa) return 3;
  return 0;
}

// LIKE: on a mismatch the last % takes one character more. What follows it literally is searched for, not tried.
template <bool FOLD>
__device__ inline u32 like(const u8 *text, u64 bytes, const u8 *pattern, u64 wanted) {
  u64 at = 0, p = 0, again = NOWHERE, from = 0, run = 0;
#pragma unroll 1
  for (;;) {
    bool seek = false;
    if (p < wanted && pattern[p] == ANY) {
      do p++;
      while (p < wanted && pattern[p] == ANY);
      if (p == wanted) return 1;
      again = p;
      from = at;
      run = 0;
      if (!FOLD)
        while (p + run < wanted && pattern[p + run] < ONE) run++;
      seek = true;
    } else if (p == wanted && at == bytes) {
      return 1;
    } else {
      u32 step = 0;
      if (p < wanted && at < bytes) {
        u8 own = pattern[p];
        if (own == ONE) step = character_bytes(text[at]);
        else if (FOLD) step = folded(text + at, bytes - at, own);
        else step = text[at] == own;
      }
      if (step != 0) {
        at += step;
        p++;
        continue;
      }
      if (again == NOWHERE || from >= bytes) return 0;
      from += character_bytes(text[from]);
      seek = true;
    }
    if (seek) {
      at = from;
      p = again;
      if (!FOLD && run != 0) {
        u64 found = find(text + from, bytes - from, pattern + again, run);
        if (found == NOWHERE) return 0;
        from += found;
        at = from + run;
        p = again + run;
      }
    }
  }
}

FUNCTION u32 text_like(const u8 *text, u64 bytes, const u8 *pattern, u64 wanted) {
  return like<false>(text, bytes, pattern, wanted);
}

// The pattern is ASCII, its letters small.
FUNCTION u32 text_ilike(const u8 *text, u64 bytes, const u8 *pattern, u64 wanted) {
  return like<true>(text, bytes, pattern, wanted);
}

// `count` characters from character `start` on, counted from 1; characters before the first do not exist but count.
FUNCTION Text text_substring(const u8 *text, u64 bytes, i64 start, i64 count) {
  i64 first = start - 1;
  i64 end = first > 0 && count > 0x7fffffffffffffffll - first ? 0x7fffffffffffffffll : first + count;
  if (first < 0) first = 0;
  if (end < 0) end = 0;
  u64 from = character_at(text, bytes, first);
  u64 to = from + character_at(text + from, bytes - from, end > first ? end - first : 0);
  return {text + from, to - from};
}

// The first `count` characters, or all but the last `-count`.
FUNCTION Text text_left(const u8 *text, u64 bytes, i64 count) {
  u64 wanted = count;
  if (count < 0) {
    u64 all = characters(text, bytes), less = 0 - (u64)count;
    wanted = all > less ? all - less : 0;
  }
  return {text, wanted == 0 ? 0 : character_at(text, bytes, wanted)};
}

// The last `count` characters, or all but the first `-count`. The least number gives nothing.
FUNCTION Text text_right(const u8 *text, u64 bytes, i64 count) {
  u64 skipped = 0 - (u64)count;
  if (count > 0) {
    u64 all = characters(text, bytes);
    skipped = all > (u64)count ? all - count : 0;
  }
  u64 from = count == 0 ? bytes : character_at(text, bytes, skipped);
  return {text + from, bytes - from};
}

// Whether the character of `size` bytes at `at` is one of `set`.
__device__ inline bool one_of(const u8 *at, u32 size, const u8 *set, u64 set_bytes) {
#pragma unroll 1
  for (u64 i = 0; i < set_bytes;) {
    u32 own = character_bytes(set[i]);
    if (own == size && same(at, set + i, size)) return true;
    i += own;
  }
  return false;
}

// Without the characters of `set` at the beginning (sides & 1) and at the end (sides & 2).
FUNCTION Text text_trim(const u8 *text, u64 bytes, const u8 *set, u64 set_bytes, u32 sides) {
  u64 from = 0, to = bytes;
  if (sides & 1)
#pragma unroll 1
    while (from < to) {
      u32 size = character_bytes(text[from]);
      if (!one_of(text + from, size, set, set_bytes)) break;
      from += size;
    }
  if (sides & 2)
#pragma unroll 1
    while (from < to) {
      u32 size = 1;
      while (size < 4 && to - size > from && (text[to - size] & 0xc0) == 0x80) size++;
      if (!one_of(text + (to - size), size, set, set_bytes)) break;
      to -= size;
    }
  return {text + from, to - from};
}

// The eight bytes from `8 * index` on as a number that orders as they do; 0 behind the end.
FUNCTION u64 text_word(const u8 *text, u64 bytes, u64 index) {
  u64 from = index * 8;
  return from < bytes ? reversed(word_at(text + from, bytes - from)) : 0;
}

FUNCTION u64 text_hash(const u8 *text, u64 bytes) {
  u64 hash = bytes * 0x9e3779b97f4a7c15ull;
#pragma unroll 1
  for (u64 i = 0; i < bytes; i += 8) {
    hash = (hash ^ word_at(text + i, bytes - i)) * 0xff51afd7ed558ccdull;
    hash ^= hash >> 29;
  }
  hash *= 0xc4ceb9fe1a85ec53ull;
  return hash ^ hash >> 32;
}

// A text in memory, sixteen bytes: up to twelve of its bytes in the view, else the first four and where all of them lie.
struct __align__(16) View {
  u32 length;
  u8 begin[4];
  u64 rest;
  __device__ const u8 *at() const { return length <= 12 ? begin : (const u8 *)rest; }
};

// The view of a text, as its two words.
FUNCTION Wide text_view(const u8 *text, u64 bytes) {
  u64 first = bytes ? word_at(text, bytes) : 0;
  Wide view = {bytes | first << 32, (u64)text};
  if (bytes <= 12) view.high = first >> 32 | (bytes > 8 ? word_at(text + 8, bytes - 8) << 32 : 0);
  return view;
}

// Bytes of each row's text. NULL rows have a view of no bytes.
extern "C" __global__ void text_sizes(const View *views, u32 *sizes, u64 count, const u64 *on_device) {
  u64 rows = row_count(count, on_device), stride = (u64)gridDim.x * blockDim.x;
  for (u64 row = (u64)blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += stride)
    sizes[row] = views[row].length;
}

constexpr u64 SHORT_BYTES = 32 * 32;

// Copies each row's text to where it belongs: row r fills out[ends[r - 1] .. ends[r]]. A warp copies 32 rows: short texts
// byte by byte in the order of the output, so that neighbours write neighbours; long ones row by row, eight bytes a lane.
extern "C" __global__ void text_pack(const View *views, const u64 *ends, u8 *out, u64 count, const u64 *on_device) {
  u64 rows = row_count(count, on_device), stride = (u64)gridDim.x * blockDim.x;
  u32 lane = threadIdx.x & 31;
  for (u64 first = ((u64)blockIdx.x * blockDim.x + threadIdx.x) & ~31ull; first < rows; first += stride) {
    u64 row = first + lane;
    bool here = row < rows;
    u64 begin = first == 0 ? 0 : ends[first - 1];
    u64 end = here ? ends[row] : ends[rows - 1];
    u64 start = __shfl_up_sync(FULL, end, 1);
    if (lane == 0) start = begin;
    u64 from = here && end > start ? (u64)views[row].at() : 0;
    u64 last = __shfl_sync(FULL, end, 31);
    if (last - begin <= SHORT_BYTES) {
      u32 own = (u32)(start - begin), all = (u32)(last - begin);
      for (u32 base = 0; base < all; base += 32) {
        // The last row that begins at or before the byte, empty rows before it passed over.
        u32 wanted = base + lane, found = 0;
#pragma unroll
        for (u32 step = 16; step != 0; step /= 2)
          if (__shfl_sync(FULL, own, found + step) <= wanted) found += step;
        u64 source = __shfl_sync(FULL, from, found);
        u32 skipped = __shfl_sync(FULL, own, found);
        if (wanted < all) out[begin + wanted] = ((const u8 *)source)[wanted - skipped];
      }
      continue;
    }
#pragma unroll 1
    for (u32 r = 0; r < 32; r++) {
      const u8 *source = (const u8 *)__shfl_sync(FULL, from, r);
      u64 to = __shfl_sync(FULL, start, r), bytes = __shfl_sync(FULL, end, r) - to;
      u8 *target = out + to;
      // Bytes up to the first word of the output, whole words, the bytes behind the last one.
      u64 head = (0 - (u64)target) & 7;
      if (head > bytes) head = bytes;
      if (lane < head) target[lane] = source[lane];
      u64 words = (bytes - head) / 8;
#pragma unroll 1
      for (u64 word = lane; word < words; word += 32) {
        u64 at = head + word * 8;
        *(u64 *)(target + at) = word_at(source + at, bytes - at);
      }
      u64 tail = head + words * 8;
      if (lane < bytes - tail) target[tail + lane] = source[tail + lane];
    }
  }
}
