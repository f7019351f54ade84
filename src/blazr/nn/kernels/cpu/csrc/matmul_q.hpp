// Products with packed weights (see packings.hpp), activations as int8.
//
// Exactness: sums within a block are integers, and blocks are added in one order, in every tile.
#pragma once

#include "lanes.hpp"
#include "packings.hpp"

namespace {

// Round a row to int8, block by block: q = x * 127 / max |x|, its scale, and the sums of its q by
// halves of a block.
template <class T>
void quantize_row(const T* x, int64_t k, int8_t* q, float* scales, int32_t* sums) {
  using Bytes16 = int8_t __attribute__((vector_size(16)));
  const float magic = 0x1.8p23f;  // adding it rounds to the nearest integer, in the low bits
  for (int64_t b = 0; b < k / kBlock; b++, x += kBlock, q += kBlock) {
    float values[kBlock];
#pragma GCC unroll 1
    for (int i = 0; i < kBlock; i++) values[i] = to_float(x[i]);
    const Lanes halves[2] = {load16(values), load16(values + 16)};
    // magnitudes of floats are ordered like their bits
    const Lane low = (Lane)halves[0] & 0x7fffffff, high = (Lane)halves[1] & 0x7fffffff;
    const float max = bits_as<float>(largest16(low > high ? low : high));
    const Lanes inverse = all16(max >= 0x1p-120f ? 127.0f / max : 0.0f);
    Lanes whole[4];
    float totals[4];
    for (int half = 0; half < 2; half++) {
      const Lanes shifted = halves[half] * inverse + magic;
      const Lane numbers = (Lane)shifted - bits_as<int32_t>(magic);
      const Bytes16 bytes = __builtin_convertvector(numbers, Bytes16);
      memcpy(q + 16 * half, &bytes, sizeof bytes);
      whole[half] = whole[half + 2] = shifted - magic;
    }
    sum4(whole, totals);
    for (int half = 0; half < 2; half++)
      sums[2 * b + half] = bits_as<int32_t>(totals[half] + magic) - bits_as<int32_t>(magic);
    scales[b] = max * (1.0f / 127);  // what is not finite makes the row's results NaN
  }
}

template <class T>
void quantize(const PackedLinear& call, int64_t row) {
  const int64_t k = call.x.k, num_blocks = k / kBlock;
  quantize_row((const T*)call.activations + row * k, k, call.x.q + row * k,
               call.x.scales + row * num_blocks, call.x.sums + 2 * row * num_blocks);
}

// I is Int8 of an instruction set.
template <class I, class P>
struct MatmulQ {
  using Scales = typename P::Scales;
  using Codes = typename P::Codes;
  static constexpr int kParts = Scales::kParts, kVectors = 8 / kParts;
  static constexpr bool kSmall = Codes::kLargest <= 127;
  // What is left of the codes' offset once I::dot has taken its part off.
  static constexpr int kOffset = Codes::kOffset - (kSmall ? 0 : I::kTakenOff);
  // 64-byte lines of a block, rounded up.
  static constexpr int kLines = (P::kBytes / P::kBlocks + 63) / 64;
  // One or two rows of x: w is read in so many runs at once, each fetched so many bytes ahead.
  // Bytes come faster in four runs; nibbles cost enough arithmetic for one.
  static constexpr int kRunCols = 2, kRuns = Codes::kBytes == 512 ? 4 : 1, kRunAhead = 4096 / kRuns;

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

  // Rows of x, and block b of one of them.
  struct Rows {
    const Activations& x;
    int64_t first;
    const int8_t* q(int c, int64_t b) const { return x.q + (first + c) * x.k + b * kBlock; }
    float scale(int c, int64_t b) const { return x.scales[(first + c) * (x.k / kBlock) + b]; }
    int32_t sum(int c, int64_t b, int part) const {
      const int32_t* halves = x.sums + 2 * ((first + c) * (x.k / kBlock) + b);
      return kParts == 1 ? halves[0] + halves[1] : halves[part];
    }
  };

  // Adds block b of C rows of x, which is block i of a superblock, to their totals.
  template <int C>
  [[gnu::always_inline]] static inline void block(const uint8_t* super, int i,
                                                  const typename Scales::Shared& shared, Rows x,
                                                  int64_t b, typename I::Floats* total) {
    const uint8_t* codes = super + Scales::kBytes + i * Codes::kBytes;
#pragma GCC unroll 2
    for (int part = 0; part < kParts; part++) {
      typename I::Ints acc[C];
#pragma GCC unroll 8
      for (int c = 0; c < C; c++) acc[c] = I::set(-kOffset * x.sum(c, b, part));
#pragma GCC unroll 8
      for (int v = part * kVectors; v < (part + 1) * kVectors; v++) {
        const typename I::Line vector = Codes::vector(codes, v);
#pragma GCC unroll 8
        for (int c = 0; c < C; c++)
          acc[c] = I::template dot<kSmall>(acc[c], vector, x.q(c, b) + 4 * v);
      }
      const typename I::Floats scale = Scales::scale(shared, super, i * kParts + part);
#pragma GCC unroll 8
      for (int c = 0; c < C; c++) total[c] = I::add(total[c], acc[c], scale, x.scale(c, b));
      if constexpr (Scales::kHasMinima) {
        const typename I::Floats minimum = Scales::minimum(shared, super, i * kParts + part);
#pragma GCC unroll 8
        for (int c = 0; c < C; c++)
          total[c] = I::subtract(total[c], minimum, x.scale(c, b) * float(x.sum(c, b, part)));
      }
    }
  }

  // G groups of w with C rows of x, into out[c * ld + g * gap + 0 .. 15].
  template <int G, int C>
  [[gnu::always_inline]] static inline void tile(Groups w, Rows x, float* out, int64_t ld,
                                                 int64_t gap, Ahead ahead) {
    const int64_t supers = x.x.k / (kBlock * P::kBlocks);
    typename I::Floats total[G][C];
    for (int g = 0; g < G; g++)
      for (int c = 0; c < C; c++) total[g][c] = I::zero_floats();
    for (int64_t s = 0; s < supers; s++) {
      const uint8_t* super = w.first + s * P::kBytes;
      typename Scales::Shared shared[G];
      for (int g = 0; g < G; g++) shared[g] = Scales::shared(super + g * w.stride);
      for (int i = 0; i < P::kBlocks; i++) {
        const int64_t b = s * P::kBlocks + i;
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) {
          const uint8_t* next = w.first + g * w.stride + ahead.bytes + b * ahead.lines * 64;
          for (int line = 0; line < ahead.lines; line++) __builtin_prefetch(next + 64 * line, 0, 2);
          block<C>(super + g * w.stride, i, shared[g], x, b, total[g]);
        }
      }
    }
    for (int g = 0; g < G; g++)
      for (int c = 0; c < C; c++) I::store(out + c * ld + g * gap, total[g][c]);
  }

  template <int G, int C = G == 1 ? I::cols : kRunCols>
  static void tile_of(int64_t num_cols, Groups w, Rows x, float* out, int64_t ld, int64_t gap,
                      Ahead ahead) {
    if (num_cols == C) return tile<G, C>(w, x, out, ld, gap, ahead);
    if constexpr (C > 1) tile_of<G, C - 1>(num_cols, w, x, out, ld, gap, ahead);
  }

  // Rows [m0, m1) of x with groups [g0, g1) of w, ordered as in matmul.hpp.
  static void part(const PackedLinear& call, int64_t m0, int64_t m1, int64_t g0, int64_t g1) {
    const bool few = call.x.m <= kFewRows;  // as in matmul.hpp
    const int64_t group = few ? kFewRows : I::cols, ld = (g1 - g0) * kGroup;
    float sums[2][kFewRows * kFewColumns];
    static_assert(I::cols * kManyColumns <= kFewRows * kFewColumns);
    for (int64_t m = m0; m < m1; m += group) {
      const int64_t rows = smaller(group, m1 - m);
      strip(call.w, {call.x, m}, rows, g0, g1, sums[0], few);
      if (call.w2.blocks) strip(call.w2, {call.x, m}, rows, g0, g1, sums[1], few);
      for (int64_t row = 0; row < rows; row++)
        call.finish(call, m + row, g0 * kGroup, smaller(g1 * kGroup, call.n), sums[0] + row * ld,
                    sums[1] + row * ld);
    }
  }

  static void strip(const PackedMatrix& matrix, Rows x, int64_t rows, int64_t g0, int64_t g1,
                    float* sums, bool few) {
    const int64_t group_bytes = x.x.k / (kBlock * P::kBlocks) * P::kBytes;
    const int64_t ld = (g1 - g0) * kGroup;
    const uint8_t* w = matrix.blocks + g0 * group_bytes;
    int64_t g = 0;
    if (few && rows <= kRunCols) {
      const int64_t run = (g1 - g0) / kRuns;
      for (; g < run; g++)
        tile_of<kRuns>(rows, {w + g * group_bytes, run * group_bytes}, x, sums + g * kGroup, ld,
                       run * kGroup, {kRunAhead, kLines});
      g = run * kRuns;
    }
    const int64_t num_tiles = (rows + I::cols - 1) / I::cols;
    const int64_t step = (rows + num_tiles - 1) / num_tiles;
    for (; g < g1 - g0; g++)
      for (int64_t c = 0; c < rows; c += step) {
        // the tiles of a group fetch the next one together, a share each
        const Ahead ahead{group_bytes + c / step * group_bytes / num_tiles,
                          few ? int((kLines + num_tiles - 1) / num_tiles) : 0};
        tile_of<1>(smaller(step, rows - c), {w + g * group_bytes, 0}, {x.x, x.first + c},
                   sums + c * ld + g * kGroup, ld, 0, ahead);
      }
  }

  // Row `lane` of a superblock as plain numbers.
  static void unpack(const uint8_t* super, int lane, float* out) {
    const typename Scales::Shared shared = Scales::shared(super);
    for (int i = 0; i < P::kBlocks; i++)
      for (int v = 0; v < 8; v++, out += 4) {
        const int part = i * kParts + v / kVectors;
        float scale[kGroup], minimum[kGroup]{};
        uint8_t codes[64];
        I::store(scale, Scales::scale(shared, super, part));
        if constexpr (Scales::kHasMinima) I::store(minimum, Scales::minimum(shared, super, part));
        I::keep(codes, Codes::vector(super + Scales::kBytes + i * Codes::kBytes, v));
        for (int j = 0; j < 4; j++)
          out[j] = scale[lane] * float(codes[4 * lane + j] - Codes::kOffset) - minimum[lane];
      }
  }
};

// Row scales, bias, gate and rounding of one row's columns [n0, n1).
template <class T>
void finish_packed(const PackedLinear& call, int64_t row, int64_t n0, int64_t n1, float* sums,
                   float* ups) {
  const int64_t n = n1 - n0;
  if (call.w.row_scales)
    for (int64_t i = 0; i < n; i++) sums[i] *= call.w.row_scales[n0 + i];
  if (call.w2.row_scales)
    for (int64_t i = 0; i < n; i++) ups[i] *= call.w2.row_scales[n0 + i];
  finish((const T*)call.bias, call.w2.blocks != nullptr, n0, n, sums, ups,
         (T*)call.y + row * call.n);
}

template <class I, int kPacking>
constexpr PackedKernel packed_kernel() {
  using P = decltype(packing_of<I, kPacking>());
  using Of = MatmulQ<I, P>;
  return {Of::part, Of::unpack, P::kBytes, P::kBlocks * kBlock};
}

}  // namespace
