// Naive Bayes over the words of texts and their adjacent pairs: what each class has of them, and of which class a text is likeliest.
//
//   text      "good good value"   ─►   good │ good, good good │ value, good value        each gram has a bucket: murmur3 mod buckets
//   classes   key of a row's class  ─►  its slot in `keys`; documents and grams of each slot
//   cells     one for each bucket; or, where few of them are used, a hash table: cell c has its counts at c·classes, one for each class
//   score     of a class: its prior, then for each gram, in the order of the text, ln(count + alpha) - total
//
// Texts    UTF-8 in lower case, cut at blanks; a row without a text has a view of no bytes
// Same     scores add in the order of the text, and ln takes the CPU's steps: so each is what the CPU's is, to the last bit
// Hot      words are in every text: a thread block adds up what it sees often by itself, and adds to what all blocks share at its end
// Launch   BAYES_THREADS threads; any grid; a thread takes a row
// Traffic  the bytes of the texts, once for every four classes; a count for each gram and class
// After    McCallum and Nigam 1998; Weinberger et al. 2009; Austin Appleby's MurmurHash3, the 32-bit variant for x86
#include "exact.cuh"
#include "views.cuh"

// The hash of bytes that come one after the other.
struct Murmur {
  u32 hash = 0, word = 0, length = 0;

  static __device__ u32 turned(u32 value, u32 by) { return value << by | value >> (32 - by); }
  static __device__ u32 scrambled(u32 word) { return turned(word * 0xcc9e2d51u, 15) * 0x1b873593u; }

  __device__ void put(u32 byte) {
    word |= byte << (8 * (length & 3));
    length++;
    if (length & 3) return;
    hash = turned(hash ^ scrambled(word), 13) * 5 + 0xe6546b64u;
    word = 0;
  }
  __device__ u32 bucket(u32 buckets) const {
    u32 mixed = hash ^ scrambled(word) ^ length;
    mixed = (mixed ^ mixed >> 16) * 0x85ebca6bu;
    mixed = (mixed ^ mixed >> 13) * 0xc2b2ae35u;
    return (mixed ^ mixed >> 16) % buckets;
  }
};

// Tells `each` of every word, and behind it of the pair with the word before.
template <class Each> __device__ inline void grams(const View *view, u32 buckets, Each each) {
  const u8 *text = view->text(), *end = text + view->length;
  Bytes reader;
  Murmur word, pair;
  bool second = false;
#pragma unroll 1
  for (const u8 *at = text; at <= end; at++) {
    u32 c = at < end ? reader.at(at, at == text) : ' ';
    if (c != ' ') {
      word.put(c);
      if (second) pair.put(c);
      continue;
    }
    if (word.length == 0) continue;
    each(word.bucket(buckets));
    if (second) each(pair.bucket(buckets));
    second = true;
    pair = word;
    pair.put(' ');
    word = Murmur();
  }
}

// Sums that a block adds up by itself, of as many indices as there is room for, before they go to those of all blocks.
constexpr u32 OWN_SUMS = 1024, NOBODY = 0xffffffffu;
struct OwnSums {
  u64 amounts[OWN_SUMS];
  u32 of[OWN_SUMS];

  __device__ void begin() {
    for (u32 i = threadIdx.x; i < OWN_SUMS; i += BAYES_THREADS) of[i] = NOBODY, amounts[i] = 0;
    __syncthreads();
  }
  __device__ void add(u32 index, u64 amount, u64 *all) {
    u32 at = index * 0x9e3779b1u >> 22;
#pragma unroll 1
    for (u32 tries = 0; tries < 4; tries++, at = (at + 1) & (OWN_SUMS - 1)) {
      u32 before = atomicCAS(of + at, NOBODY, index);
      if (before != NOBODY && before != index) continue;
      atomicAdd(amounts + at, amount);
      return;
    }
    atomicAdd(all + index, amount);
  }
  __device__ void end(u64 *all) {
    __syncthreads();
    for (u32 i = threadIdx.x; i < OWN_SUMS; i += BAYES_THREADS)
      if (of[i] != NOBODY) atomicAdd(all + of[i], amounts[i]);
  }
};

// A slot whose class is not known. A class that has this key is in the slot behind all others.
constexpr u64 NO_KEY = ~0ull;

__device__ inline u32 slot_of(u64 key, u64 *keys) {
  if (key == NO_KEY) return BAYES_SLOTS;
  u32 at = (u32)((key ^ key >> 32) * 0x9e3779b1u) & (BAYES_SLOTS - 1);
#pragma unroll 1
  for (u32 tries = 0; tries < BAYES_SLOTS; tries++, at = (at + 1) & (BAYES_SLOTS - 1)) {
    u64 known = load_relaxed(keys + at);
    if (known == NO_KEY) known = atomicCAS(keys + at, NO_KEY, key);
    if (known == NO_KEY || known == key) return at;
  }
  return NOBODY;
}

// The slot of each row's class, and of each slot the rows, those of them that have a text, and the grams of these. `*refused` becomes 1
// where there are more classes than slots.
extern "C" __global__ void __launch_bounds__(BAYES_THREADS)
bayes_classes(const View *views, const u32 *valid, const i64 *classes, u64 *keys, u64 *sums, u32 *slots, u32 *refused, u64 count, const u64 *on_device) {
  __shared__ OwnSums own;
  own.begin();
  u64 rows = row_count(count, on_device), stride = (u64)gridDim.x * BAYES_THREADS;
#pragma unroll 1
  for (u64 row = (u64)blockIdx.x * BAYES_THREADS + threadIdx.x; row < rows; row += stride) {
    u32 slot = slot_of((u64)classes[row], keys);
    slots[row] = slot;
    if (slot == NOBODY) {
      atomicOr(refused, 1u);
      continue;
    }
    own.add(3 * slot, 1, sums);
    if (!bit_of(valid, row)) continue;
    own.add(3 * slot + 1, 1, sums);
    u64 found = 0;
    grams(views + row, 1, [&](u32) { found++; });
    if (found != 0) own.add(3 * slot + 2, found, sums);
  }
  own.end(sums);
}

// Where the counts of buckets are.
struct Cells {
  u32 *keys;  // null where each bucket has a cell; else bucket + 1, or 0 where a cell is free
  u32 cells;  // a power of two where there are keys

  // A key that other blocks may be writing: never torn, and once it is set it stays.
  static __device__ u32 load_relaxed(const u32 *key) {
    u32 known;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(known) : "l"(key) : "memory");
    return known;
  }
  // The cell of a bucket; NOBODY where it has none.
  template <bool TAKES> __device__ u32 of(u32 bucket) const {
    if (!keys) return bucket;
    u32 at = bucket & (cells - 1);
#pragma unroll 1
    for (u32 tries = 0; tries < cells; tries++, at = (at + 1) & (cells - 1)) {
      u32 known = TAKES ? load_relaxed(keys + at) : keys[at];
      if (known == 0 && !TAKES) return NOBODY;
      if (known == 0) known = atomicCAS(keys + at, 0, bucket + 1);
      if (known == 0 || known == bucket + 1) return at;
    }
    return NOBODY;
  }
};

// Counts the grams of each row for its class, which is `numbers` of its slot.
extern "C" __global__ void __launch_bounds__(BAYES_THREADS)
bayes_train(const View *views, const u32 *slots, const u32 *numbers, u32 classes, u32 *keys, u64 *counts, u32 cells, u32 buckets, u64 count, const u64 *on_device) {
  __shared__ OwnSums own;
  own.begin();
  Cells table = {keys, cells};
  u64 rows = row_count(count, on_device), stride = (u64)gridDim.x * BAYES_THREADS;
#pragma unroll 1
  for (u64 row = (u64)blockIdx.x * BAYES_THREADS + threadIdx.x; row < rows; row += stride) {
    u32 number = numbers[min(slots[row], BAYES_SLOTS)];
    if (number >= classes) continue;
    grams(views + row, buckets, [&](u32 bucket) {
      u32 cell = table.of<true>(bucket);
      if (cell != NOBODY) own.add(cell * classes + number, 1, counts);
    });
  }
  own.end(counts);
}

// ln x for a positive, finite x, by the steps of the CPU's function of this name.
__device__ inline double ln_positive(double x) {
  int power = -1023;
  if (x < 2.2250738585072014e-308) x = multiply(x, 18014398509481984.0), power -= 54;
  u64 bits = (u64)__double_as_longlong(x);
  power += (int)(bits >> 52);
  double part = __longlong_as_double((long long)((bits & 0xfffffffffffffull) | 0x3ff0000000000000ull));
  if (part > 1.4142135623730951) part = multiply(part, 0.5), power++;
  double ratio = divide(subtract(part, 1.0), add(part, 1.0));
  double square = multiply(ratio, ratio);
  double sum = 1.0 / 23.0;
#pragma unroll
  for (int term = 21; term > 0; term -= 2) sum = add(1.0 / term, multiply(square, sum));
  double whole = (double)power;
  double small = add(multiply(whole, LN_2_LOW), multiply(multiply(2.0, ratio), sum));
  return add(multiply(whole, LN_2_HIGH), small);
}

// Classes whose scores a thread adds up at a time.
constexpr u32 AT_ONCE = 4;

// The likeliest class of each text: the first of several. Its value, `width` bytes of `values`, becomes that of the row.
extern "C" __global__ void __launch_bounds__(BAYES_THREADS)
bayes_predict(const View *views, u32 classes, u32 *keys, const u64 *counts, u32 cells, u32 buckets, double alpha, const double *priors, const double *totals, const u8 *values, u32 width, u8 *out, u64 count, const u64 *on_device) {
  Cells table = {keys, cells};
  u64 rows = row_count(count, on_device), stride = (u64)gridDim.x * BAYES_THREADS;
#pragma unroll 1
  for (u64 row = (u64)blockIdx.x * BAYES_THREADS + threadIdx.x; row < rows; row += stride) {
    u32 best = 0;
    double most = 0;
#pragma unroll 1
    for (u32 first = 0; first < classes; first += AT_ONCE) {
      double scores[AT_ONCE], own_totals[AT_ONCE];
#pragma unroll
      for (u32 i = 0; i < AT_ONCE; i++) {
        bool there = first + i < classes;
        scores[i] = there ? priors[first + i] : 0;
        own_totals[i] = there ? totals[first + i] : 0;
      }
      grams(views + row, buckets, [&](u32 bucket) {
        u32 cell = table.of<false>(bucket);
        const u64 *own = counts + (u64)cell * classes + first;
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
          if (first + i >= classes) continue;
          double seen = cell == NOBODY ? 0.0 : (double)own[i];
          scores[i] = add(scores[i], subtract(ln_positive(add(seen, alpha)), own_totals[i]));
        }
      });
#pragma unroll
      for (u32 i = 0; i < AT_ONCE; i++) {
        if (first + i >= classes || (first + i > 0 && !(scores[i] > most))) continue;
        best = first + i;
        most = scores[i];
      }
    }
    const u8 *value = values + (u64)best * width;
    if (width == 16) ((Wide *)out)[row] = *(const Wide *)value;
    if (width == 8) ((u64 *)out)[row] = *(const u64 *)value;
    if (width == 4) ((u32 *)out)[row] = *(const u32 *)value;
    if (width == 2) ((u16 *)out)[row] = *(const u16 *)value;
    if (width == 1) out[row] = *value;
  }
}
