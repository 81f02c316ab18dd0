// Regular expressions over texts, by automata over bytes that the host makes: `kernels/src/regex.rs`.
//
//   automaton   header │ class of each byte │ where to start, by the byte before │ ends here? │ next state, by state and class
//   states      0 nothing follows · 1 cannot say · 2 … a match ended before this byte · the others
//
// Match    a state says it one byte late: so `$`, which looks at that byte, is an ordinary match
// Two ways forward, to the end of the first match; where its beginning is asked for, back from there by a second automaton
// Needs    an automaton at an address that four divides
// Says     UNKNOWN where a byte is one for which the automaton cannot say: a boundary of words beyond ASCII
#pragma once

constexpr u64 UNKNOWN = NOWHERE - 1;
constexpr u32 NOTHING_FOLLOWS = 0, CANNOT_SAY = 1;
constexpr u32 NO_BYTE = 256;

struct Automaton {
  u32 classes, states, matches;
  u32 splits;  // empty matches within a character are to be left out
  u32 back;    // bytes to the automaton that goes back, or 0
  u8 class_of[256];
  u16 starts[258];
  // ends[states], then next[states][classes]
  __device__ const u16 *ends() const { return (const u16 *)(this + 1); }
  __device__ const u16 *next() const { return ends() + states; }
  __device__ const Automaton *backwards() const { return (const Automaton *)((const u8 *)this + back); }
};

// Where the first match from `from` on ends, or the first end of any.
FUNCTION u64 text_regex_end(const u8 *text, u64 bytes, u64 from, const Automaton *automaton, u32 any) {
  u32 classes = automaton->classes, first = automaton->matches + 2;
  const u16 *next = automaton->next();
#pragma unroll 1
  for (;; from++) {
    u64 found = NOWHERE;
    u32 state = automaton->starts[from == 0 ? NO_BYTE : text[from - 1]];
    if (state == CANNOT_SAY) return UNKNOWN;
#pragma unroll 1
    for (u64 at = from; at < bytes && state != NOTHING_FOLLOWS; at += 8) {
      u64 word = word_at(text + at, bytes - at);
      u64 end = bytes - at < 8 ? bytes : at + 8;
#pragma unroll 1
      for (u64 here = at; here < end; here++) {
        state = next[state * classes + automaton->class_of[word & 0xff]];
        word >>= 8;
        if (state >= first) continue;
        if (state == CANNOT_SAY) return UNKNOWN;
        if (state == NOTHING_FOLLOWS) break;
        found = here;
        if (any) break;
      }
      if (any && found != NOWHERE) break;
    }
    if (!(any && found != NOWHERE) && automaton->ends()[state]) found = bytes;
    // Within a character there is nothing to match: from there on, again.
    bool splits = automaton->splits && found < bytes && (text[found] & 0xc0) == 0x80;
    if (!splits) return found;
    if (from >= bytes) return NOWHERE;
  }
}

// Where the match begins, at `from` or later, that ends at `end`.
FUNCTION u64 text_regex_begin(const u8 *text, u64 bytes, u64 from, u64 end, const Automaton *automaton) {
  u32 classes = automaton->classes, first = automaton->matches + 2;
  const u16 *next = automaton->next();
  u64 found = NOWHERE;
  u32 state = automaton->starts[end == bytes ? NO_BYTE : text[end]];
#pragma unroll 1
  for (u64 at = end; at > from && state != NOTHING_FOLLOWS && state != CANNOT_SAY; at--) {
    state = next[state * classes + automaton->class_of[text[at - 1]]];
    if (state > CANNOT_SAY && state < first) found = at;
  }
  if (state == CANNOT_SAY) return UNKNOWN;
  if (from == 0) {
    if (automaton->ends()[state]) found = 0;
  } else {
    state = next[state * classes + automaton->class_of[text[from - 1]]];
    if (state == CANNOT_SAY) return UNKNOWN;
    if (state != NOTHING_FOLLOWS && state < first) found = from;
  }
  // The way forward has found one.
  return found == NOWHERE ? UNKNOWN : found;
}

// Matches of a text one after the other. After an empty one the next is sought one byte further.
struct Matches {
  const u8 *text;
  u64 bytes;
  const Automaton *automaton;
  u64 from, end;  // where the last one was sought, and where it ended
  // Whether there is one more: its end, else NOWHERE or UNKNOWN.
  __device__ inline u64 next() {
    u64 last = end;
    from = last == NOWHERE ? 0 : last;
    end = text_regex_end(text, bytes, from, automaton, 0);
    if (end == from && end == last) {
      if (++from > bytes) return end = NOWHERE;
      end = text_regex_end(text, bytes, from, automaton, 0);
    }
    return end;
  }
  __device__ inline u64 begin() const {
    return end == from ? end : text_regex_begin(text, bytes, from, end, automaton->backwards());
  }
};

// Whether there is a match: 1 or 0, and 2 where the automaton cannot say.
FUNCTION u32 text_regex_match(const u8 *text, u64 bytes, const Automaton *automaton, u64) {
  u64 end = text_regex_end(text, bytes, 0, automaton, 1);
  return end == UNKNOWN ? 2 : end != NOWHERE;
}

// Where character `start` begins, from 1, one more than there are being the end; NOWHERE beyond it.
__device__ inline u64 begin_at(const u8 *text, u64 bytes, i64 start) {
  u64 skipped = text_character_at(text, bytes, start - 1);
  return skipped == bytes && (u64)(start - 1) > text_characters(text, bytes) ? NOWHERE : skipped;
}

// How many matches there are in what begins with character `start`; below 0 where that is none, or the automaton cannot say.
FUNCTION i64 text_regex_count(const u8 *text, u64 bytes, const Automaton *automaton, u64, i64 start) {
  if (start < 1) return -1;
  u64 skipped = begin_at(text, bytes, start);
  if (skipped == NOWHERE) return 0;
  Matches matches = {text + skipped, bytes - skipped, automaton, 0, NOWHERE};
#pragma unroll 1
  for (i64 count = 0; ; count++) {
    u64 end = matches.next();
    if (end == NOWHERE) return count;
    if (end == UNKNOWN) return -1;
  }
}

// The character at which match `wanted` of what begins with character `start` begins, each from 1; 0 if there are fewer.
FUNCTION i64 text_regex_place(const u8 *text, u64 bytes, const Automaton *automaton, u64, i64 start, i64 wanted) {
  if (start < 1 || wanted < 1) return -1;
  u64 skipped = begin_at(text, bytes, start);
  if (skipped == NOWHERE) return 0;
  Matches matches = {text + skipped, bytes - skipped, automaton, 0, NOWHERE};
#pragma unroll 1
  for (;;) {
    u64 end = matches.next();
    if (end == NOWHERE) return 0;
    if (end == UNKNOWN) return -1;
    if (--wanted == 0) break;
  }
  u64 begin = matches.begin();
  return begin == UNKNOWN ? -1 : start + (i64)text_characters(text + skipped, begin);
}

// With `to` instead of the first match, or (all) of each. Without any it is the text itself.
FUNCTION Text text_regex_replace(const u8 *text, u64 bytes, const Automaton *automaton, u64, const u8 *to, u64 other, u64 all, u8 *arena, u64 capacity) {
  u8 *out = nullptr;
#pragma unroll 1
  for (;;) {
    Matches matches = {text, bytes, automaton, 0, NOWHERE};
    u64 size = 0, done = 0, found = 0;
    u8 *at = out;
#pragma unroll 1
    do {
      u64 end = matches.next();
      if (end == NOWHERE) break;
      u64 begin = end == UNKNOWN ? UNKNOWN : matches.begin();
      if (begin == UNKNOWN) return {(const u8 *)REFUSED, 0};
      found++;
      size += begin - done + other;
      if (out != nullptr) at = text_append(text_append(at, text + done, begin - done), to, other);
      done = end;
    } while (all);
    if (found == 0) return {text, bytes};
    size += bytes - done;
    if (out != nullptr) {
      text_append(at, text + done, bytes - done);
      return {out, size};
    }
    out = text_room(size, arena, capacity);
    if (out == (u8 *)FULL_ARENA) return {out, 0};
  }
}
