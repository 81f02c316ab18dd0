// What every kernel here shares: short names of types, row counts that may live on the device, bits, ordered words.
//
//   Rows    {count, on_device}    `*on_device` when that is set, else `count`
//   bitmap  row r is bit r & 31 of word r >> 5, least significant first
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef __int128 i128;
typedef unsigned __int128 u128;

constexpr u32 FULL = 0xffffffffu;

// Sixteen bytes that one instruction moves.
struct __align__(16) Wide {
  u64 low, high;
};

// Two kernel parameters: the number of rows or its upper bound, and where an earlier kernel wrote the number, or null.
// What lies beyond the bound has no room anywhere: a host that assumed too few rows finds out later.
__device__ inline u64 row_count(u64 rows, const u64 *on_device) { return on_device ? min(rows, *on_device) : rows; }

// No bitmap means that every bit is set.
__device__ inline bool bit_of(const u32 *bits, u64 row) { return !bits || (bits[row >> 5] >> (row & 31) & 1); }

__device__ inline u32 lanes_below() {
  u32 mask;
  asm("mov.u32 %0, %%lanemask_lt;" : "=r"(mask));
  return mask;
}

// Words that blocks hand to one another: never torn, never cached in a register, no order beyond the word itself.
__device__ inline u64 load_relaxed(const u64 *word) {
  u64 value;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
__device__ inline void store_relaxed(u64 *word, u64 value) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
