// Puts a chunk of a column at its place in the whole column: values in the width that all of them need, bits, offsets of texts.
//
//   chunk 0   u8  from 100   [0 3 7]  ─┐
//   chunk 1   u16 from -5    [0 900]  ─┴─►  column   u16 from -5   [105 108 112 0 900]
//   remap     codes of a chunk become codes of the whole: remap[value]
//
// Launch  STORE_THREADS threads; each strides over values, words of bits, or offsets
// Traffic a chunk's bytes read, and as many rows written; 4 bytes more a row where codes are remapped
// Needs   chunks and column apart; bits of the column zeroed, of which chunks share words
#include "common.cuh"

// How the values of a chunk lie: abi.rs has the same numbers.
enum Kind : u32 { I8, I16, I32, I64, U8, U16, U32, U64, W128 };

struct Values {
  const void *at;
  u32 kind;

  // Modulo 2^64.
  __device__ u64 operator[](u64 row) const {
    switch (kind) {
    case I8: return (u64)(i64)((const i8 *)at)[row];
    case I16: return (u64)(i64)((const i16 *)at)[row];
    case I32: return (u64)(i64)((const i32 *)at)[row];
    case U8: return ((const u8 *)at)[row];
    case U16: return ((const u16 *)at)[row];
    case U32: return ((const u32 *)at)[row];
    case W128: return ((const Wide *)at)[row].low;
    default: return ((const u64 *)at)[row];
    }
  }
};

extern "C" __global__ void __launch_bounds__(STORE_THREADS)
store_values(const void *in, u32 kind, i64 in_base, const u32 *remap, u64 codes, void *out, u32 width, i64 out_base,
             u64 rows, const u64 *on_device) {
  rows = row_count(rows, on_device);
  Values values = {in, kind};
  u64 add = (u64)in_base - (u64)out_base, stride = (u64)gridDim.x * STORE_THREADS;
#pragma unroll 1
  for (u64 row = (u64)blockIdx.x * STORE_THREADS + threadIdx.x; row < rows; row += stride) {
    if (width == 16) {
      // What is narrower in its chunk is a number of 64 bits there.
      Wide wide;
      if (kind == W128) {
        wide = ((const Wide *)in)[row];
      } else {
        u64 value = values[row] + (u64)in_base;
        wide = {value, kind == U64 ? 0 : (u64)((i64)value >> 63)};
      }
      ((Wide *)out)[row] = wide;
      continue;
    }
    u64 value = values[row];
    if (!remap) value += add;
    else value = value < codes ? remap[value] : 0;
    switch (width) {
    case 1: ((u8 *)out)[row] = (u8)value; break;
    case 2: ((u16 *)out)[row] = (u16)value; break;
    case 4: ((u32 *)out)[row] = (u32)value; break;
    default: ((u64 *)out)[row] = value;
    }
  }
}

// `in` may be null: then every bit of the chunk is set. `before` bits of its first word, fewer than 32, are of rows before the chunk's;
// `first` is the chunk's first row in the column.
extern "C" __global__ void __launch_bounds__(STORE_THREADS)
store_bits(const u32 *in, u32 before, u32 *out, u64 first, u64 rows, const u64 *on_device) {
  rows = row_count(rows, on_device);
  u64 words = (rows + 31) / 32, in_words = (before + rows + 31) / 32, stride = (u64)gridDim.x * STORE_THREADS;
  u32 shift = (u32)first & 31;
#pragma unroll 1
  for (u64 word = (u64)blockIdx.x * STORE_THREADS + threadIdx.x; word < words; word += stride) {
    u64 bits = FULL;
    if (in) {
      u64 next = word + 1 < in_words ? in[word + 1] : 0;
      bits = (u32)((in[word] | next << 32) >> before);
    }
    u64 left = rows - word * 32;
    if (left < 32) bits &= (1ull << left) - 1;
    bits <<= shift;
    u32 *at = out + (first >> 5) + word;
    if ((u32)bits) atomicOr(at, (u32)bits);
    if (bits >> 32) atomicOr(at + 1, (u32)(bits >> 32));
  }
}

// The offsets of a chunk's texts, U32 or U64, and where the last one ends; `start` is where the first one begins in the column.
extern "C" __global__ void __launch_bounds__(STORE_THREADS)
store_offsets(const void *in, u32 kind, void *out, u32 width, u64 start, u64 rows, const u64 *on_device) {
  rows = row_count(rows, on_device);
  Values offsets = {in, kind};
  u64 add = start - offsets[0], stride = (u64)gridDim.x * STORE_THREADS;
#pragma unroll 1
  for (u64 row = (u64)blockIdx.x * STORE_THREADS + threadIdx.x; row <= rows; row += stride) {
    u64 offset = offsets[row] + add;
    if (width == 4) ((u32 *)out)[row] = (u32)offset;
    else ((u64 *)out)[row] = offset;
  }
}

// Sets bit `value + shift` of each value that is not NULL, where there is such a bit; words of the bits lie at multiples of 8.
extern "C" __global__ void __launch_bounds__(STORE_THREADS)
store_mark(const void *in, u32 kind, const u32 *validity, i64 shift, u32 *bits, u64 num_bits, u64 rows, const u64 *on_device) {
  rows = row_count(rows, on_device);
  Values values = {in, kind};
  u64 stride = (u64)gridDim.x * STORE_THREADS;
#pragma unroll 1
  for (u64 row = (u64)blockIdx.x * STORE_THREADS + threadIdx.x; row < rows; row += stride) {
    u64 at = values[row] + (u64)shift;
    if (at >= num_bits || !bit_of(validity, row)) continue;
    // Nearly all are set before: looking is cheap where many rows have few values.
    if (load_relaxed((const u64 *)bits + at / 64) >> (at & 63) & 1) continue;
    atomicOr(bits + at / 32, 1u << (at & 31));
  }
}

// Adds the number of bits that are set.
extern "C" __global__ void __launch_bounds__(STORE_THREADS)
store_count(const u32 *bits, u64 *count, u64 words, const u64 *on_device) {
  words = row_count(words, on_device);
  u64 stride = (u64)gridDim.x * STORE_THREADS;
  u32 own = 0;
#pragma unroll 1
  for (u64 word = (u64)blockIdx.x * STORE_THREADS + threadIdx.x; word < words; word += stride) own += __popc(bits[word]);
#pragma unroll
  for (u32 step = 16; step > 0; step /= 2) own += __shfl_xor_sync(FULL, own, step);
  if ((threadIdx.x & 31) == 0 && own) atomicAdd(count, (u64)own);
}
