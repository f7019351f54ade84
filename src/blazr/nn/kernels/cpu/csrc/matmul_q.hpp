// Products with packed weights (see packings.hpp), activations as int8.
//
// Exactness: sums within a block, or a superblock with whole scales, are integers, and these are added
// in one order, in every tile.
#pragma once

#include "lanes.hpp"
#include "packings.hpp"

namespace {

// The sum of sixteen bytes: as unsigned ones, in four fields of sixteen bits.
[[gnu::always_inline]] inline int32_t sum16(const int8_t* q) {
  const uint64_t even = 0x00ff00ff00ff00ff;
  uint64_t words[2], fields = 0;
  memcpy(words, q, sizeof words);
  for (uint64_t word : words) {
    word ^= 0x8080808080808080;
    fields += (word & even) + (word >> 8 & even);
  }
  return int32_t(fields * 0x0001000100010001 >> 48) - 16 * 128;
}

// Round a row to int8: q = x * 127 / max |x|, over so many blocks as the packing rounds together.
template <class T>
void quantize(const PackedLinear& call, const PackedKernel& kernel, int64_t row) {
  using Bytes16 = int8_t __attribute__((vector_size(16)));
  const float magic = 0x1.8p23f;  // adding it rounds to the nearest integer, in the low bits
  const int64_t num_blocks = call.k / kBlock;
  const T* x = (const T*)call.activations + row * call.k;
  Int8Block* out = call.x.blocks + row * num_blocks;
  for (int64_t first = 0; first < num_blocks; first += kernel.together) {
    float values[8 * kBlock];
    Lane high{};
    for (int64_t i = 0; i < kernel.together * kBlock; i += 16, x += 16) {
#pragma GCC unroll 1
      for (int j = 0; j < 16; j++) values[i + j] = to_float(x[j]);
      // magnitudes of floats are ordered like their bits
      const Lane size = (Lane)load16(values + i) & 0x7fffffff;
      high = size > high ? size : high;
    }
    const float max = bits_as<float>(largest16(high));
    const Lanes inverse = all16(max >= 0x1p-120f ? 127.0f / max : 0.0f);
    const float scale = max * (1.0f / 127);  // not finite: the row's results are NaN
    for (int64_t i = 0; i < kernel.together; i++, out++) {
      for (int half = 0; half < 2; half++) {
        const Lanes shifted = load16(values + kBlock * i + 16 * half) * inverse + magic;
        const Lane numbers = (Lane)shifted - bits_as<int32_t>(magic);
        const Bytes16 bytes = __builtin_convertvector(numbers, Bytes16);
        memcpy(out->q + 16 * half, &bytes, sizeof bytes);
      }
      int32_t sums[2] = {sum16(out->q), sum16(out->q + 16)};
      if (kernel.parts == 1) sums[0] += sums[1];
      out->scale = scale;
      if (kernel.has_minima && kernel.together == 1)
        out->minimum = scale * float(sums[0]);
      else if (kernel.has_minima)
        for (int64_t part = 0; part < kernel.parts; part++) {
          const int64_t at = i * kernel.parts + part;
          (out - i + at / 2)->sums[at % 2] = int16_t(sums[part]);
        }
      else
        for (int part = 0; part < 2; part++)
          out->offset[part] = -int32_t(kernel.offset) * sums[part];
    }
  }
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
    const uint8_t* operator[](int g) const { return first + g * stride; }
  };

  // What memory should fetch during a tile: so many lines of 64 bytes a block, this far on.
  struct Ahead {
    int64_t bytes;
    int lines;
  };

  // Fetches it for block b of so many groups.
  struct Fetch {
    Groups w;
    Ahead ahead;
    int groups;
    [[gnu::always_inline]] void operator()(int64_t b) const {
      for (int g = 0; g < groups; g++) {
        const uint8_t* next = w[g] + ahead.bytes + b * ahead.lines * 64;
        for (int line = 0; line < ahead.lines; line++) __builtin_prefetch(next + 64 * line, 0, 2);
      }
    }
  };

  // Rows of x, and block b of one of them.
  struct Rows {
    const Activations& x;
    int64_t first;
    const Int8Block& block(int c, int64_t b) const {
      return x.blocks[(first + c) * (x.k / kBlock) + b];
    }
  };

  // Sums of part i of a superblock of G groups with C rows of x, which have it at block b.
  template <int G, int C>
  [[gnu::always_inline]] static inline void dots(Groups super, int i, Rows x, int64_t b,
                                                 typename I::Ints (*acc)[C]) {
    const int part = i % kParts;
    const int64_t codes = Scales::kBytes + i / kParts * Codes::kBytes;
#pragma GCC unroll 8
    for (int c = 0; c < C; c++)
#pragma GCC unroll 4
      for (int g = 0; g < G; g++)
        acc[g][c] = I::set(Scales::kHasMinima ? 0 : x.block(c, b).offset[part]);
#pragma GCC unroll 8
    for (int v = part * kVectors; v < (part + 1) * kVectors; v++) {
      typename I::Line vector[G];
#pragma GCC unroll 4
      for (int g = 0; g < G; g++) vector[g] = Codes::vector(super[g] + codes, v);
#pragma GCC unroll 8
      for (int c = 0; c < C; c++)
#pragma GCC unroll 4
        for (int g = 0; g < G; g++)
          acc[g][c] = I::template dot<kSmall>(acc[g][c], vector[g], x.block(c, b).q + 4 * v);
    }
  }

  // Adds a superblock, from block b on, whose parts have whole scales.
  template <int G, int C>
  [[gnu::always_inline]] static inline void add_whole(Groups super, Rows x, int64_t b,
                                                      const Fetch& fetch,
                                                      typename I::Floats (*total)[C]) {
    typename I::Ints sums[G][C], acc[G][C];
    for (int g = 0; g < G; g++)
      for (int c = 0; c < C; c++) sums[g][c] = I::set(0);
    for (int i = 0; i < P::kBlocks; i++) {
      fetch(b + i);
#pragma GCC unroll 2
      for (int part = 0; part < kParts; part++) {
        dots<G, C>(super, i * kParts + part, x, b + i, acc);
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) {
          const typename I::Ints scale = Scales::whole(super[g], i * kParts + part);
#pragma GCC unroll 8
          for (int c = 0; c < C; c++) sums[g][c] = I::add(sums[g][c], acc[g][c], scale);
        }
      }
    }
    add_all<G, C>(sums, super, 0, 1.0f, x, b, total);
    if constexpr (Scales::kHasMinima) {
      for (int g = 0; g < G; g++)
        for (int c = 0; c < C; c++) sums[g][c] = I::set(0);
#pragma GCC unroll 1
      for (int i = 0; i < P::kBlocks * kParts; i += 2) {
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) {
          const typename I::Pair minima = I::pair(Scales::minima(super[g], i));
#pragma GCC unroll 8
          for (int c = 0; c < C; c++)
            sums[g][c] = I::add_pair(sums[g][c], minima, x.block(c, b + i / 2).sums);
        }
      }
      add_all<G, C>(sums, super, kHalves, -1.0f, x, b, total);
    }
  }

  // Adds sums, times the float16 numbers `at` in a superblock, to the totals.
  template <int G, int C>
  [[gnu::always_inline]] static inline void add_all(typename I::Ints (*sums)[C], Groups super,
                                                    int at, float sign, Rows x, int64_t b,
                                                    typename I::Floats (*total)[C]) {
#pragma GCC unroll 4
    for (int g = 0; g < G; g++) {
      const typename I::Floats scale = I::halves(super[g] + at);
#pragma GCC unroll 8
      for (int c = 0; c < C; c++)
        total[g][c] = I::add(total[g][c], sums[g][c], scale, sign * x.block(c, b).scale);
    }
  }

  // Adds a superblock, from block b on, whose blocks have scales of their own or one together.
  template <int G, int C>
  [[gnu::always_inline]] static inline void add_blocks(Groups super, Rows x, int64_t b,
                                                       const Fetch& fetch,
                                                       typename I::Floats (*total)[C]) {
    typename I::Ints acc[G][C];
    typename Scales::Shared shared[G];
    for (int g = 0; g < G; g++) shared[g] = Scales::shared(super[g]);
    for (int i = 0; i < P::kBlocks; i++) {
      fetch(b + i);
      dots<G, C>(super, i, x, b + i, acc);
#pragma GCC unroll 4
      for (int g = 0; g < G; g++) {
        const typename I::Floats scale = Scales::scale(shared[g], super[g]);
#pragma GCC unroll 8
        for (int c = 0; c < C; c++)
          total[g][c] = I::add(total[g][c], acc[g][c], scale, x.block(c, b + i).scale);
        if constexpr (Scales::kHasMinima) {
          const typename I::Floats minimum = Scales::minimum(shared[g], super[g]);
#pragma GCC unroll 8
          for (int c = 0; c < C; c++)
            total[g][c] = I::subtract(total[g][c], minimum, x.block(c, b + i).minimum);
        }
      }
    }
  }

  // G groups of w with C rows of x, into out[c * ld + g * gap + 0 .. 15].
  template <int G, int C>
  [[gnu::always_inline]] static inline void tile(Groups w, Rows x, float* out, int64_t ld,
                                                 int64_t gap, Ahead ahead) {
    typename I::Floats total[G][C];
    for (int g = 0; g < G; g++)
      for (int c = 0; c < C; c++) total[g][c] = I::zero_floats();
    const Fetch fetch{w, ahead, G};
    const int64_t num_blocks = x.x.k / kBlock;
    Groups super = w;
    for (int64_t b = 0; b < num_blocks; b += P::kBlocks, super.first += P::kBytes) {
      if constexpr (Scales::kAreWhole)
        add_whole<G, C>(super, x, b, fetch, total);
      else
        add_blocks<G, C>(super, x, b, fetch, total);
    }
    for (int g = 0; g < G; g++)
      for (int c = 0; c < C; c++) I::store(out + c * ld + g * gap, total[g][c]);
  }

  template <int G, int C>
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
        tile_of<kRuns, kRunCols>(rows, {w + g * group_bytes, run * group_bytes}, x,
                                 sums + g * kGroup, ld, run * kGroup, {kRunAhead, kLines});
      g = run * kRuns;
    }
    const int64_t num_tiles = (rows + I::cols - 1) / I::cols;
    const int64_t step = (rows + num_tiles - 1) / num_tiles;
    for (; g < g1 - g0; g++)
      for (int64_t c = 0; c < rows; c += step) {
        // the tiles of a group fetch the next one together, a share each
        const Ahead ahead{group_bytes + c / step * group_bytes / num_tiles,
                          few ? int((kLines + num_tiles - 1) / num_tiles) : 0};
        tile_of<1, I::cols>(smaller(step, rows - c), {w + g * group_bytes, 0}, {x.x, x.first + c},
                            sums + c * ld + g * kGroup, ld, 0, ahead);
      }
  }

  // Row `lane` of a superblock as plain numbers.
  static void unpack(const uint8_t* super, int lane, float* out) {
    for (int i = 0; i < P::kBlocks; i++)
      for (int v = 0; v < 8; v++, out += 4) {
        float scale[kGroup], minimum[kGroup]{};
        uint8_t codes[64];
        numbers_of(super, i * kParts + v / kVectors, scale, minimum);
        I::keep(codes, Codes::vector(super + Scales::kBytes + i * Codes::kBytes, v));
        for (int j = 0; j < 4; j++)
          out[j] = scale[lane] * float(codes[4 * lane + j] - Codes::kOffset) - minimum[lane];
      }
  }

  // Scales and minima of a part.
  static void numbers_of(const uint8_t* super, int part, float* scale, float* minimum) {
    if constexpr (Scales::kAreWhole) {
      I::store(scale, I::times(I::halves(super), I::floats(Scales::whole(super, part))));
      if constexpr (Scales::kHasMinima)
        I::store(minimum, I::times(I::halves(super + kHalves),
                                   I::floats(I::unsigned_bytes(Scales::minima(super, part)))));
    } else {
      const typename Scales::Shared shared = Scales::shared(super);
      I::store(scale, Scales::scale(shared, super));
      if constexpr (Scales::kHasMinima) I::store(minimum, Scales::minimum(shared, super));
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
  return {.part = Of::part,
          .unpack = Of::unpack,
          .bytes = P::kBytes,
          .columns = P::kBlocks * kBlock,
          .together = P::Scales::kAreWhole ? P::kBlocks : 1,
          .parts = Of::kParts,
          .has_minima = P::Scales::kHasMinima,
          .offset = Of::kOffset};
}

}  // namespace
