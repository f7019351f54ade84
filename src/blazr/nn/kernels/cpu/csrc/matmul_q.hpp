// Products with packed weights: blocks of 32 numbers that share a scale, activations as int8.
//
// A group is 16 rows of w, interleaved so that a vector lane is a row and nothing is added across
// lanes. A block of a group, 32 columns of its 16 rows:
//
//   bytes 0:32     16 scales, float16, one per row
//   Q8_0, 512 more: 8 lines of 64; line j holds, row after row, columns 4j .. 4j+3 as q + 128
//   Q4_0, 256 more: 4 lines of 64; line j holds columns 8j .. 8j+3 in the low nibbles and
//                   8j+4 .. 8j+7 in the high ones, as q + 8
//
//   [ scales r0 .. r15 ][ r0: 4 columns | r1: 4 columns | ... | r15 ] line 1 | line 2 | ...
//
// The blocks of a group follow each other, and so do the groups. The instructions multiply unsigned
// with signed bytes, hence the offset; it is taken off again with the sum of the activations.
//
// Exactness: sums within a block are integers, and blocks are added in one order, in every tile.
#pragma once

#include "kernels.hpp"
#include "types.hpp"

namespace {

constexpr int kBlock = 32, kGroup = 16, kScaleBytes = 2 * kGroup;

// Round a row to int8, block by block: q = x * 127 / max |x|, its scale, and the sum of its q.
template <class T>
void quantize_row(const T* x, int64_t k, int8_t* q, float* scales, int32_t* sums) {
  for (int64_t b = 0; b < k / kBlock; b++, x += kBlock, q += kBlock) {
    float values[kBlock];
    uint32_t largest = 0;  // magnitudes of floats are ordered like their bits
    for (int i = 0; i < kBlock; i++) {
      values[i] = to_float(x[i]);
      const uint32_t magnitude = bits_as<uint32_t>(values[i]) & 0x7fffffff;
      largest = magnitude > largest ? magnitude : largest;
    }
    const float max = bits_as<float>(largest);
    const float inverse = max >= 0x1p-120f ? 127.0f / max : 0.0f;
    const float magic = 0x1.8p23f;  // adding it rounds to the nearest integer, in the low bits
    int32_t sum = 0;
    for (int i = 0; i < kBlock; i++) {
      const uint32_t shifted = bits_as<uint32_t>(values[i] * inverse + magic);
      q[i] = int8_t(shifted - bits_as<uint32_t>(magic));
      sum += q[i];
    }
    scales[b] = max * (1.0f / 127);  // what is not finite makes the row's results NaN
    sums[b] = sum;
  }
}

template <class Isa, class T, int kBits>
struct MatmulQ {
  using I = Int8<Isa>;
  static constexpr int kLines = kBits * kBlock * kGroup / 8 / 64;
  static constexpr int64_t kBlockBytes = kScaleBytes + 64 * kLines;
  static constexpr int kOffset = 1 << (kBits - 1);
  // One or two rows of x: w is read in so many runs at once, each fetched so many bytes ahead.
  // Bytes come faster in four runs; nibbles cost enough arithmetic for one.
  static constexpr int kRunCols = 2, kRuns = kBits == 8 ? 4 : 1, kRunAhead = 4096 / kRuns;

  // Groups of w: the first, and how far apart in bytes the others are.
  struct Groups {
    const uint8_t* first;
    int64_t stride;
  };

  // What memory should fetch during a tile: so many lines of 64 bytes a block, this far on.
  struct Ahead {
    int64_t bytes;
    int lines;
  };

  // G groups of w with C rows of x, into out[c * ld + g * gap + 0 .. 15].
  template <int G, int C>
  [[gnu::always_inline]] static inline void tile(Groups w, const Activations& x, int64_t row,
                                                 float* out, int64_t ld, int64_t gap,
                                                 Ahead ahead) {
    const int64_t num_blocks = x.k / kBlock;
    typename I::Floats total[G][C];
    for (int g = 0; g < G; g++)
      for (int c = 0; c < C; c++) total[g][c] = I::zero_floats();
    for (int64_t b = 0; b < num_blocks; b++) {
#pragma GCC unroll 4
      for (int g = 0; g < G; g++) {
        const uint8_t* block = w.first + g * w.stride + b * kBlockBytes;
        const uint8_t* next = w.first + g * w.stride + ahead.bytes + b * ahead.lines * 64;
        for (int line = 0; line < ahead.lines; line++) __builtin_prefetch(next + 64 * line, 0, 2);
        const typename I::Floats scale = I::halves(block);
        typename I::Ints acc[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) acc[c] = I::set(-kOffset * x.sums[(row + c) * num_blocks + b]);
#pragma GCC unroll 8
        for (int line = 0; line < kLines; line++) {
          const typename I::Line bytes = I::load(block + kScaleBytes + 64 * line);
          const int8_t* q = x.q + row * x.k + b * kBlock + line * 32 / kBits;
          const typename I::Line low = kBits == 8 ? bytes : I::low_nibbles(bytes);
#pragma GCC unroll 8
          for (int c = 0; c < C; c++) acc[c] = I::dot(acc[c], low, q + c * x.k);
          if (kBits == 8) continue;
          const typename I::Line high = I::high_nibbles(bytes);
#pragma GCC unroll 8
          for (int c = 0; c < C; c++) acc[c] = I::dot(acc[c], high, q + c * x.k + 4);
        }
#pragma GCC unroll 8
        for (int c = 0; c < C; c++)
          total[g][c] = I::add(total[g][c], acc[c], scale, x.scales[(row + c) * num_blocks + b]);
      }
    }
    for (int g = 0; g < G; g++)
      for (int c = 0; c < C; c++) I::store(out + c * ld + g * gap, total[g][c]);
  }

  template <int G, int C = G == 1 ? I::cols : kRunCols>
  static void tile_of(int64_t num_cols, Groups w, const Activations& x, int64_t row, float* out,
                      int64_t ld, int64_t gap, Ahead ahead) {
    if (num_cols == C) return tile<G, C>(w, x, row, out, ld, gap, ahead);
    if constexpr (C > 1) tile_of<G, C - 1>(num_cols, w, x, row, out, ld, gap, ahead);
  }

  // Rows [m0, m1) of x with groups [g0, g1) of w, ordered as in matmul.hpp.
  static void part(const PackedLinear& call, int64_t m0, int64_t m1, int64_t g0, int64_t g1) {
    const bool few = call.x.m <= kFewRows;  // as in matmul.hpp
    const int64_t group = few ? kFewRows : I::cols, ld = (g1 - g0) * kGroup;
    float sums[kFewRows * kFewColumns];
    static_assert(I::cols * kManyColumns <= kFewRows * kFewColumns);
    for (int64_t m = m0; m < m1; m += group) {
      const int64_t rows = smaller(group, m1 - m);
      strip(call, m, rows, g0, g1, sums, few);
      for (int64_t row = 0; row < rows; row++) finish(call, m + row, g0, g1, sums + row * ld);
    }
  }

  static void strip(const PackedLinear& call, int64_t m, int64_t rows, int64_t g0, int64_t g1,
                    float* sums, bool few) {
    const int64_t group_bytes = call.x.k / kBlock * kBlockBytes, ld = (g1 - g0) * kGroup;
    const uint8_t* w = call.w + g0 * group_bytes;
    int64_t g = 0;
    if (few && rows <= kRunCols) {
      const int64_t run = (g1 - g0) / kRuns;
      for (; g < run; g++)
        tile_of<kRuns>(rows, {w + g * group_bytes, run * group_bytes}, call.x, m,
                       sums + g * kGroup, ld, run * kGroup, {kRunAhead, kLines + 1});
      g = run * kRuns;
    }
    const int64_t num_tiles = (rows + I::cols - 1) / I::cols;
    const int64_t step = (rows + num_tiles - 1) / num_tiles;
    for (; g < g1 - g0; g++)
      for (int64_t c = 0; c < rows; c += step) {
        // the tiles of a group fetch the next one together, a share each
        const Ahead ahead{group_bytes + c / step * group_bytes / num_tiles,
                          few ? int((kLines + num_tiles) / num_tiles) : 0};
        tile_of<1>(smaller(step, rows - c), {w + g * group_bytes, 0}, call.x, m + c,
                   sums + c * ld + g * kGroup, ld, 0, ahead);
      }
  }

  static void finish(const PackedLinear& call, int64_t row, int64_t g0, int64_t g1,
                     const float* sums) {
    const int64_t n0 = g0 * kGroup, n = smaller(g1 * kGroup, call.n) - n0;
    const T* bias = (const T*)call.bias + n0;
    T* y = (T*)call.y + row * call.n + n0;
    if (call.bias)
      for (int64_t i = 0; i < n; i++) round_to(sums[i] + to_float(bias[i]), y[i]);
    else
      for (int64_t i = 0; i < n; i++) round_to(sums[i], y[i]);
  }
};

template <class T>
void quantize(const PackedLinear& call, int64_t row) {
  const int64_t k = call.x.k, num_blocks = k / kBlock;
  quantize_row((const T*)call.activations + row * k, k, call.x.q + row * k,
               call.x.scales + row * num_blocks, call.x.sums + row * num_blocks);
}

}  // namespace
