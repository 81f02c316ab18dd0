// What there is in texts, one row for each, counted first, then written: words of a lexicon with the sentences that they are in, or
// all sentences, or all words.
//
//   text      "Good. It is well-made, bad!"     lexicon  wellmade: 1, bad: 0
//   sentence  [Good] [ It is well-made, bad]    cut where the rule says
//   word      [It] [is] [wellmade] [bad]        cut at blanks, without . , ; - "
//   HITS      row 0, [ It is well-made, bad], wellmade, 1 │ row 0, [ It is well-made, bad], bad, 0
//
// Texts    UTF-8: the two bytes of è are a character of their own wherever they stand side by side
// Lexicon  `slots` of open addressing, a power of two, at most half of them taken; then the bytes of the words
// Order    hits of a row as they come, one behind the other; of a word that says several things, the lower first
// Parts    of SENTENCES and WORDS that have no bytes are none; a word's part still has the characters that it is without
// Launch   any grid; a thread takes a row. A word that is no word of the lexicon costs its hash and one slot
// Traffic  the bytes of the texts, and 28 written a hit
#include "views.cuh"

// A word of the lexicon; of length 0 where the slot is free. sentences.rs has the same.
struct Slot {
  u64 hash;
  u32 at, length;   // of its bytes, from the beginning of the lexicon
  u32 word, says;   // its number; a bit for each thing that it says
};
static_assert(sizeof(Slot) == 24, "sentences.rs has the same size");

enum Rule : u32 { ANY, SPACED, STOP, NEVER };
enum What : u32 { HITS, SENTENCES, WORDS };

constexpr u64 NO_BYTES = 0xcbf29ce484222325ull, TIMES = 0x100000001b3ull;

__device__ inline bool ends_sentence(u32 c) { return c == '.' || c == '?' || c == '!'; }
__device__ inline bool deleted(u32 c) { return c == '.' || c == ',' || c == ';' || c == '-' || c == '"'; }

// The bytes of a word that is being read.
struct Word {
  u64 hash = NO_BYTES;
  u32 length = 0;
  __device__ Word with(u32 c) const {
    Word next;
    next.hash = (hash ^ c) * TIMES, next.length = length + 1;
    return next;
  }
};

// Whether the bytes from `from` up to `to`, but for those that are deleted, are those of `slot`.
__device__ inline bool same(const u8 *lexicon, const Slot *slot, const u8 *from, const u8 *to) {
  const u8 *own = lexicon + slot->at;
  u32 found = 0;
#pragma unroll 1
  for (; from < to; from++) {
    u32 c = *from;
    if (deleted(c)) continue;
    if (found == slot->length || own[found] != c) return false;
    found++;
  }
  return found == slot->length;
}

// The slot of a word, or null.
__device__ inline const Slot *slot_of(const u8 *lexicon, u32 slots, Word word, const u8 *from, const u8 *to) {
  u32 at = (u32)(word.hash ^ word.hash >> 32);
#pragma unroll 1
  for (u32 tries = 0; tries < slots; tries++, at++) {
    const Slot *slot = (const Slot *)lexicon + (at & (slots - 1));
    if (slot->length == 0) return nullptr;
    if (slot->hash == word.hash && slot->length == word.length && same(lexicon, slot, from, to)) return slot;
  }
  return nullptr;
}

// Tells `hits` of every word of the lexicon in a text, and behind the last word of a sentence of the sentence; or of every part.
template <class Hits>
__device__ inline void read(const View *view, u32 what, const u8 *lexicon, u32 slots, u32 rule, Hits &hits) {
  u64 bytes = view->length;
  const u8 *text = view->text();
  const u8 *end = text + bytes, *sentence = text, *begun = text;
  Bytes reader;
  Word word, shorter;  // the latter without the last byte
  u32 before = 0;
#pragma unroll 1
  for (const u8 *at = text; at <= end; at++) {
    u32 c = at < end ? reader.at(at, at == text) : ' ';
    u32 pair = 0;  // the separator began with the byte before
    bool cut = at == end;
    if (!cut && rule < STOP) pair = c == 0xa8 && before == 0xc3;
    if (!cut && rule == SPACED && c == ' ') pair = ends_sentence(before);
    if (!cut) cut = pair || (rule == ANY ? ends_sentence(c) : rule == STOP && c == '.');
    if (cut || c == ' ') {
      Word own = pair ? shorter : word;
      if (own.length != 0 && what == WORDS) hits.part(begun, (u32)(at - pair - begun));
      if (own.length != 0 && what == HITS) {
        const Slot *slot = slot_of(lexicon, slots, own, begun, at - pair);
        if (slot) hits.word(*slot);
      }
      if (cut) {
        u32 own_bytes = (u32)(at - pair - sentence);
        if (what == HITS) hits.sentence(sentence, own_bytes);
        if (what == SENTENCES && own_bytes != 0) hits.part(sentence, own_bytes);
        sentence = at + 1;
      }
      begun = at + 1;
      word = Word();
    } else {
      shorter = word;
      if (!deleted(c)) word = word.with(c);
    }
    before = c;
  }
}

struct Counted {
  u32 hits = 0;
  __device__ void word(const Slot &slot) { hits += __popc(slot.says); }
  __device__ void sentence(const u8 *, u32) {}
  __device__ void part(const u8 *, u32) { hits++; }
};

// How many hits or parts each row has. NULL rows have a view of no bytes.
extern "C" __global__ void sentences_count(const View *views, u32 what, const u8 *lexicon, u32 slots, u32 rule,
                                           u32 *counts, u64 count, const u64 *on_device) {
  u64 rows = row_count(count, on_device), stride = (u64)gridDim.x * blockDim.x;
#pragma unroll 1
  for (u64 row = (u64)blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += stride) {
    Counted counted;
    read(views + row, what, lexicon, slots, rule, counted);
    counts[row] = counted.hits;
  }
}

// Where hits are written: those from number `first` on up to `capacity`.
struct Written {
  u64 first, capacity;
  u32 row;
  u64 next, open;  // the next hit's number, and that of the first hit of the sentence
  u32 *rows, *words, *says;
  Wide *sentences;
  __device__ void word(const Slot &slot) {
#pragma unroll 1
    for (u32 left = slot.says; left != 0; left &= left - 1, next++) {
      u64 at = next - first;
      if (at >= capacity) continue;
      rows[at] = row;
      words[at] = slot.word;
      says[at] = __ffs(left) - 1;
    }
  }
  __device__ void part(const u8 *text, u32 bytes) {
    if (next - first < capacity) rows[next - first] = row;
    next++;
    sentence(text, bytes);
  }
  __device__ void sentence(const u8 *text, u32 bytes) {
    if (open == next) return;
    u64 low = bytes, high = 0;
    u32 own = bytes <= 12 ? bytes : 4;
#pragma unroll 1
    for (u32 i = 0; i < own; i++) {
      if (i < 4)
        low |= (u64)text[i] << (32 + 8 * i);
      else
        high |= (u64)text[i] << (8 * i - 32);
    }
    Wide view = {low, bytes <= 12 ? high : (u64)text};
#pragma unroll 1
    for (; open != next; open++)
      if (open - first < capacity) sentences[open - first] = view;
  }
};

// Of each hit its row, its sentence as a view, the number of its word and what it says; of a part its row and itself. `ends` are the
// running sums of the counts.
extern "C" __global__ void sentences_write(const View *views, u32 what, const u8 *lexicon, u32 slots, u32 rule,
                                           const u64 *ends, u64 first, u64 capacity, u32 *hit_rows, Wide *sentences, u32 *words, u32 *says,
                                           u64 count, const u64 *on_device) {
  u64 rows = row_count(count, on_device), stride = (u64)gridDim.x * blockDim.x;
#pragma unroll 1
  for (u64 row = (u64)blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += stride) {
    u64 start = row == 0 ? 0 : ends[row - 1], end = ends[row];
    if (start == end || end <= first || start >= first + capacity) continue;
    Written written = {first, capacity, (u32)row, start, start, hit_rows, words, says, sentences};
    read(views + row, what, lexicon, slots, rule, written);
  }
}
