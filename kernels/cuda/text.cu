// Strings as an address and a number of bytes: functions that generated pipelines call, and the copy of strings that lie
// anywhere into one dense run of bytes.
//
//   text          (address, bytes)                  UTF-8 where characters are asked for; any bytes where they are not
//   pattern       LIKE's, as the host rewrote it    0xff stands for %, 0xfe for _; neither byte is ever part of UTF-8
//
// Reads    whole aligned words of eight bytes, but only words that hold a byte of the text: nothing else is there for sure
// NULL     callers hand over a text that can be read even where it is NULL, such as one of no bytes
// Made     texts lie in an arena: the bytes asked for so far (u64) in its first 256, then whole words, 0 where nothing was
//          written. A text at FULL had no room, one at REFUSED cannot be made; both have no bytes
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
constexpr u64 FULL_ARENA = 0, REFUSED = 1;
constexpr u64 MOST_BYTES = 0x7fffffff;

#define FUNCTION extern "C" __device__ __noinline__

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
FUNCTION u64 text_find(const u8 *text, u64 bytes, const u8 *pattern, u64 wanted) {
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
FUNCTION u64 text_characters(const u8 *text, u64 bytes) {
  u64 continued = 0;
#pragma unroll 1
  for (u64 i = 0; i < bytes; i += 8) {
    u64 word = word_at(text + i, bytes - i);
    continued += __popcll(word >> 7 & ~(word >> 6) & 0x0101010101010101ull);
  }
  return bytes - continued;
}

// Where character `index` begins, or the end.
FUNCTION u64 text_character_at(const u8 *text, u64 bytes, u64 index) {
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
  return text_find(text, bytes, pattern, wanted) != NOWHERE;
}

// The place of the pattern in characters from 1, or 0.
FUNCTION u64 text_position(const u8 *text, u64 bytes, const u8 *pattern, u64 wanted) {
  u64 at = text_find(text, bytes, pattern, wanted);
  return at == NOWHERE ? 0 : text_characters(text, at) + 1;
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
        u64 found = text_find(text + from, bytes - from, pattern + again, run);
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
  u64 from = text_character_at(text, bytes, first);
  u64 to = from + text_character_at(text + from, bytes - from, end > first ? end - first : 0);
  return {text + from, to - from};
}

// The first `count` characters, or all but the last `-count`.
FUNCTION Text text_left(const u8 *text, u64 bytes, i64 count) {
  u64 wanted = count;
  if (count < 0) {
    u64 all = text_characters(text, bytes), less = 0 - (u64)count;
    wanted = all > less ? all - less : 0;
  }
  return {text, wanted == 0 ? 0 : text_character_at(text, bytes, wanted)};
}

// The last `count` characters, or all but the first `-count`. The least number gives nothing.
FUNCTION Text text_right(const u8 *text, u64 bytes, i64 count) {
  u64 skipped = 0 - (u64)count;
  if (count > 0) {
    u64 all = text_characters(text, bytes);
    skipped = all > (u64)count ? all - count : 0;
  }
  u64 from = count == 0 ? bytes : text_character_at(text, bytes, skipped);
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

// The `wanted`-th part of a text that is split at `delimiter`, from 1, or from the end where it is negative; no bytes if there
// are fewer. Parts are those between places that do not overlap, found from that end.
FUNCTION Text text_split_part(const u8 *text, u64 bytes, const u8 *delimiter, u64 own, i64 wanted) {
  if (wanted == 0 || own == 0) return {(const u8 *)REFUSED, 0};
  if (wanted > 0) {
#pragma unroll 1
    for (;;) {
      u64 at = text_find(text, bytes, delimiter, own);
      if (wanted == 1) return {text, at == NOWHERE ? bytes : at};
      if (at == NOWHERE) return {text, 0};
      text += at + own;
      bytes -= at + own;
      wanted--;
    }
  }
#pragma unroll 1
  for (u64 from = bytes; ; from--) {
    bool last = from < own;
    bool here = !last && same(text + (from - own), delimiter, own);
    if (!last && !here) continue;
    if (wanted == -1) return {last ? text : text + from, last ? bytes : bytes - from};
    if (last) return {text, 0};
    wanted++;
    bytes = from - own;
    from = bytes + 1;
  }
}

// Where so many bytes begin in the arena, at a whole word, or FULL_ARENA.
FUNCTION u8 *text_room(u64 bytes, u8 *arena, u64 capacity) {
  if (bytes > MOST_BYTES) return (u8 *)FULL_ARENA;
  u64 wanted = (bytes + 7) & ~7ull;
  u64 from = wanted ? atomicAdd((unsigned long long *)arena, (unsigned long long)wanted) : 0;
  return from + wanted <= capacity ? arena + 256 + from : (u8 *)FULL_ARENA;
}

// Writes a text behind what was written of another, and says where that ends. Nothing where there was no room.
FUNCTION u8 *text_append(u8 *to, const u8 *text, u64 bytes) {
  if (to == (u8 *)FULL_ARENA) return to;
#pragma unroll 1
  while (bytes != 0) {
    if (((u64)to & 7) == 0 && bytes >= 8) {
      *(u64 *)to = word_at(text, bytes);
      to += 8, text += 8, bytes -= 8;
    } else {
      *to++ = *text++, bytes--;
    }
  }
  return to;
}

// The text in capitals or in small letters. Of characters beyond ASCII `table` knows: the two bytes that those of two bytes
// become, the second 0 where there is one, both where it is neither; a bit for each of three, set where letters have cases.
FUNCTION Text text_case(const u8 *text, u64 bytes, const u8 *table, u64, i64 upper, u8 *arena, u64 capacity) {
  u8 *out = text_room(bytes, arena, capacity);
  if (out == (u8 *)FULL_ARENA) return {out, 0};
  const u64 every = 0x0101010101010101ull;
  u64 i = 0;
#pragma unroll 1
  for (; i < bytes; i += 8) {
    u64 word = word_at(text + i, bytes - i);
    if (word & every * 0x80) break;
    u64 from = word + every * (upper ? 0x80 - 'a' : 0x80 - 'A'), beyond = word + every * (upper ? 0x7f - 'z' : 0x7f - 'Z');
    *(u64 *)(out + i) = word ^ (from & ~beyond & every * 0x80) >> 2;
  }
  u64 end = i < bytes ? i : bytes;
#pragma unroll 1
  while (i < bytes) {
    u8 first = text[i];
    u32 size = character_bytes(first);
    if (size == 1) {
      u8 from = upper ? 'a' : 'A';
      out[end++] = first >= from && first < from + 26 ? first ^ 32 : first;
    } else {
      u32 code = first & (0x7f >> size);
#pragma unroll 1
      for (u32 k = 1; k < size; k++) code = code << 6 | (text[i + k] & 0x3f);
      bool known = true;
      u8 a = 0, b = 0;
      if (size == 2) {
        a = table[(code - 0x80) * 2], b = table[(code - 0x80) * 2 + 1];
        known = a != 0;
      } else {
        known = size == 3 ? (table[3840 + (code - 0x800) / 8] >> (code & 7) & 1) == 0 : code >= 0x1f000;
      }
      if (!known) return {(const u8 *)REFUSED, 0};
      if (size == 2) {
        out[end++] = a;
        if (b != 0) out[end++] = b;
      } else {
#pragma unroll 1
        for (u32 k = 0; k < size; k++) out[end++] = text[i + k];
      }
    }
    i += size;
  }
  return {out, end};
}

// Each word with a capital first, of ASCII alone.
FUNCTION Text text_capitals(const u8 *text, u64 bytes, u8 *arena, u64 capacity) {
  u8 *out = text_room(bytes, arena, capacity);
  if (out == (u8 *)FULL_ARENA) return {out, 0};
  bool inside = false;
#pragma unroll 1
  for (u64 i = 0; i < bytes; i++) {
    u8 own = text[i], small = own | 32;
    if (own >= 0x80) return {(const u8 *)REFUSED, 0};
    bool letter = small >= 'a' && small <= 'z';
    out[i] = letter ? (inside ? small : small ^ 32) : own;
    inside = letter || (own >= '0' && own <= '9');
  }
  return {out, bytes};
}

FUNCTION Text text_reverse(const u8 *text, u64 bytes, u8 *arena, u64 capacity) {
  u8 *out = text_room(bytes, arena, capacity);
  if (out == (u8 *)FULL_ARENA) return {out, 0};
#pragma unroll 1
  for (u64 i = 0; i < bytes;) {
    u32 size = character_bytes(text[i]);
#pragma unroll 1
    for (u32 k = 0; k < size; k++) out[bytes - i - size + k] = text[i + k];
    i += size;
  }
  return {out, bytes};
}

// With `to` instead of `from` wherever that is found, from the left. Without any it is the text itself.
FUNCTION Text text_replace(const u8 *text, u64 bytes, const u8 *from, u64 own, const u8 *to, u64 other, u8 *arena, u64 capacity) {
  u64 found = 0, left = bytes;
  const u8 *at = text;
  if (own == 0) return {text, bytes};
#pragma unroll 1
  for (;;) {
    u64 next = text_find(at, left, from, own);
    if (next == NOWHERE) break;
    found++;
    at += next + own;
    left -= next + own;
  }
  if (found == 0) return {text, bytes};
  u64 size = bytes - found * own + found * other;
  u8 *out = text_room(size, arena, capacity), *end = out;
  if (out == (u8 *)FULL_ARENA) return {out, 0};
#pragma unroll 1
  for (left = bytes; ; found--) {
    u64 next = found == 0 ? left : text_find(text, left, from, own);
    end = text_append(end, text, next);
    if (found == 0) break;
    end = text_append(end, to, other);
    text += next + own;
    left -= next + own;
  }
  return {out, size};
}

// Its characters that are in `from` become those at the same place in `to`, or go where there is none.
FUNCTION Text text_translate(const u8 *text, u64 bytes, const u8 *from, u64 own, const u8 *to, u64 other, u8 *arena, u64 capacity) {
  u8 *out = nullptr;
#pragma unroll 1
  for (u32 turn = 0; ; turn++) {
    u64 end = 0;
#pragma unroll 1
    for (u64 i = 0; i < bytes;) {
      u32 size = character_bytes(text[i]), kept = size;
      const u8 *as = text + i;
      u64 place = 0;
#pragma unroll 1
      for (u64 k = 0; k < own; place++) {
        u32 wanted = character_bytes(from[k]);
        if (wanted == size && same(from + k, text + i, size)) {
          u64 at = text_character_at(to, other, place);
          as = to + at;
          kept = at < other ? character_bytes(to[at]) : 0;
          break;
        }
        k += wanted;
      }
      if (turn == 1)
#pragma unroll 1
        for (u32 k = 0; k < kept; k++) out[end + k] = as[k];
      end += kept;
      i += size;
    }
    if (turn == 1) return {out, end};
    out = text_room(end, arena, capacity);
    if (out == (u8 *)FULL_ARENA) return {out, 0};
  }
}

// Filled up to so many characters, at the beginning or (end) the end; cut at the end where it has more.
FUNCTION Text text_pad(const u8 *text, u64 bytes, i64 wanted, const u8 *fill, u64 own, u64 end, u8 *arena, u64 capacity) {
  if (wanted > (i64)MOST_BYTES) return {(const u8 *)REFUSED, 0};
  if (wanted <= 0) return {text, 0};
  u64 all = text_characters(text, bytes);
  if (all >= (u64)wanted) return {text, text_character_at(text, bytes, wanted)};
  if (own == 0) return {text, bytes};
  u64 missing = wanted - all, set = text_characters(fill, own), times = missing / set;
  u64 rest = text_character_at(fill, own, missing % set);
  u8 *out = text_room(bytes + times * own + rest, arena, capacity), *at = out;
  if (out == (u8 *)FULL_ARENA) return {out, 0};
#pragma unroll 1
  for (u64 turn = 0; turn < 2; turn++) {
    if (turn == end) {
#pragma unroll 1
      for (u64 i = 0; i <= times; i++) at = text_append(at, fill, i < times ? own : rest);
    } else {
      at = text_append(at, text, bytes);
    }
  }
  return {out, (u64)(at - out)};
}

// They call what is above: words, characters, and room for what they make.
#include "regex.cuh"

FUNCTION Text text_repeat(const u8 *text, u64 bytes, i64 times, u8 *arena, u64 capacity) {
  if (times <= 0 || bytes == 0) return {text, 0};
  if ((u64)times > MOST_BYTES / bytes) return {(const u8 *)REFUSED, 0};
  u8 *out = text_room(bytes * times, arena, capacity), *at = out;
  if (out == (u8 *)FULL_ARENA) return {out, 0};
#pragma unroll 1
  for (i64 i = 0; i < times; i++) at = text_append(at, text, bytes);
  return {out, bytes * times};
}

// The first character as a number; 0 if there is none.
FUNCTION u64 text_code(const u8 *text, u64 bytes) {
  if (bytes == 0) return 0;
  u32 size = character_bytes(text[0]), code = size == 1 ? text[0] : text[0] & (0x7f >> size);
#pragma unroll 1
  for (u32 k = 1; k < size; k++) code = code << 6 | (text[k] & 0x3f);
  return code;
}

// The character with this number.
FUNCTION Text text_of_code(i64 code, u8 *arena, u64 capacity) {
  if (code < 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return {(const u8 *)REFUSED, 0};
  u8 *out = text_room(4, arena, capacity);
  if (out == (u8 *)FULL_ARENA) return {out, 0};
  u32 size = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  if (size == 1) {
    out[0] = (u8)code;
  } else {
#pragma unroll 1
    for (u32 k = size - 1; k > 0; k--) out[k] = 0x80 | (code & 0x3f), code >>= 6;
    out[0] = (u8)(0xf00 >> size) | (u8)code;
  }
  return {out, size};
}

// An integer in decimal digits, the last `scale` of them behind a point.
FUNCTION Text text_of_integer(i64 number, u64 scale, u8 *arena, u64 capacity) {
  u64 digits = 0, left = number < 0 ? 0 - (u64)number : number, rest = left;
#pragma unroll 1
  do digits++, rest /= 10;
  while (rest != 0);
  if (digits <= scale) digits = scale + 1;
  u64 size = digits + (number < 0) + (scale != 0);
  u8 *out = text_room(size, arena, capacity);
  if (out == (u8 *)FULL_ARENA) return {out, 0};
  if (number < 0) out[0] = '-';
  u64 at = size;
#pragma unroll 1
  for (u64 digit = 0; digit < digits; digit++) {
    if (digit == scale && scale != 0) out[--at] = '.';
    out[--at] = '0' + left % 10;
    left /= 10;
  }
  return {out, size};
}

// A day since 1970-01-01 as year, month and day, of years with four digits.
FUNCTION Text text_of_date(i64 day, u8 *arena, u64 capacity) {
  if (day < -719528 || day > 2932896) return {(const u8 *)REFUSED, 0};
  u8 *out = text_room(10, arena, capacity);
  if (out == (u8 *)FULL_ARENA) return {out, 0};
  // Days from the first of March of a year that is divisible by 400 (Howard Hinnant, "chrono-compatible low-level date algorithms").
  u32 from = (u32)(day + 719468 + 146097), of_era = from % 146097;
  u32 of_years = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
  u32 of_year = of_era - (365 * of_years + of_years / 4 - of_years / 100), shifted = (5 * of_year + 2) / 153;
  u32 month = shifted < 10 ? shifted + 3 : shifted - 9, year = of_years + from / 146097 * 400 - 400 + (month <= 2);
  u32 number = year * 10000 + month * 100 + (of_year - (153 * shifted + 2) / 5 + 1);
#pragma unroll 1
  for (u32 at = 10; at-- > 0;) {
    if (at == 4 || at == 7) {
      out[at] = '-';
      continue;
    }
    out[at] = '0' + number % 10;
    number /= 10;
  }
  return {out, 10};
}

// The number that decimal digits with or without a sign are, in `text`, and in `bytes` whether they are one that fits.
FUNCTION Wide text_to_integer(const u8 *text, u64 bytes) {
  u64 i = 0, size = 0;
#pragma unroll 1
  while (i < bytes && (text[i] == ' ' || (text[i] >= 9 && text[i] <= 13 && text[i] != 11))) i++;
#pragma unroll 1
  while (bytes > i && (text[bytes - 1] == ' ' || (text[bytes - 1] >= 9 && text[bytes - 1] <= 13 && text[bytes - 1] != 11))) bytes--;
  bool minus = i < bytes && text[i] == '-';
  if (minus || (i < bytes && text[i] == '+')) i++;
  bool fits = i < bytes;
#pragma unroll 1
  for (; i < bytes; i++) {
    u32 digit = text[i] - '0';
    fits = fits && digit <= 9 && (size < 922337203685477580ull || (size == 922337203685477580ull && digit <= 7 + minus));
    size = size * 10 + digit;
  }
  return {minus ? 0 - size : size, fits};
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

// Whether two texts are equal whose views both begin with the word `first`: their second words are `a` and `b`.
FUNCTION u32 text_same(u64 first, u64 a, u64 b) {
  u32 length = (u32)first;
  return a == b || (length > 12 && same((const u8 *)a, (const u8 *)b, length));
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
