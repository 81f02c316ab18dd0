// The texts of frames, as parts of one text of all rows.
//
//   texts    -a  -bc  .  -d        in the order of the window, each behind what comes between two; NULL has no bytes
//   whole    -a-bc-d               ends 2 5 5 7
//   frame    rows 1 to 3           bytes 2 to 7 without the first "-": bc-d
//
// Launch  one thread a row, a warp for 32 rows in a row, striding
// Traffic two ends and a view a row; the bytes of texts of twelve at most, which lie in their view
// Needs   rows below 2^31, fewer bytes than 2^31
#include "window.cuh"

// `before`: how many rows before each are not NULL; null: none is. `whole` is the view of the whole.
extern "C" __global__ void __launch_bounds__(WINDOW_THREADS)
concat_parts(const __grid_constant__ Positions at, const __grid_constant__ Frame frame, const u32 *before, const u64 *ends,
             const u64 *whole, u32 between, Wide *out, u32 *out_validity, u64 rows, const u64 *on_device) {
  rows = row_count(rows, on_device);
  u64 stride = (u64)gridDim.x * WINDOW_THREADS, end = (rows + 31) / 32 * 32;
#pragma unroll 1
  for (u64 row = (u64)blockIdx.x * WINDOW_THREADS + threadIdx.x; row < end; row += stride) {
    Span span = {};
    if (row < rows) span = span_of(at, frame, (u32)row);
    bool valid = span.start < span.end && (!before || before[span.start] < before[span.end]);
    u32 bits = __ballot_sync(FULL, valid);
    if ((threadIdx.x & 31) == 0) out_validity[row >> 5] = bits;
    if (row >= rows) continue;
    Wide view = {0, 0};
    if (valid) {
      u64 first = (span.start ? ends[span.start - 1] : 0) + between, last = ends[span.end - 1];
      const u8 *bytes = (const u8 *)whole[1] + first;
      u32 length = last > first ? (u32)(last - first) : 0, inside = length <= 12 ? length : 4;
      view.low = length;
#pragma unroll 1
      for (u32 i = 0; i < inside; i++) {
        u64 byte = bytes[i];
        if (i < 4) view.low |= byte << (32 + 8 * i);
        else view.high |= byte << (8 * (i - 4));
      }
      if (length > 12) view.high = (u64)bytes;
    }
    out[row] = view;
  }
}
