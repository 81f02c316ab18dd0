// Texts as views, and their bytes one after the other.
//
//   view   length │ first four bytes │ bytes five to twelve, or where all of them lie
//
// Reads  whole aligned words of eight bytes, but only words that hold a byte of the text
#pragma once
#include "common.cuh"

// A text in memory: up to twelve of its bytes in the view, else the first four and where all of them lie.
struct __align__(16) View {
  u32 length;
  u8 begin[4];
  u64 rest;

  __device__ const u8 *text() const { return length <= 12 ? begin : (const u8 *)rest; }
};

// Bytes of a text one after the other, read eight at a time.
struct Bytes {
  u64 word = 0;
  __device__ u32 at(const u8 *byte, bool first) {
    u32 skew = (u32)(u64)byte & 7;
    if (skew == 0 || first) word = *(const u64 *)(byte - skew);
    return (u32)(word >> (8 * skew)) & 0xff;
  }
};
