// Products with packed weights (see packings.hpp), activations as int8.
//
// Exactness: sums within a block, or a superblock with whole scales, are integers, and these are added
// in one order, in every tile.
#pragma once

#include "lanes.hpp"
#include "lora.hpp"
#include "pack.hpp"

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

// Sixteen numbers from -128 to 127 as bytes.
template <int N>
[[gnu::always_inline]] inline void narrow16(const Registers<int32_t, N>& x, int8_t* out) {
#if defined(__AVX512F__)
  _mm_storeu_si128((__m128i*)out, _mm512_cvtepi32_epi8((__m512i)x.v));
#elif defined(__AVX2__)
  const __m256i words = _mm256_packs_epi32((__m256i)x.lo.v, (__m256i)x.hi.v);
  const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
  const auto low = _mm256_castsi256_si128(ordered), high = _mm256_extracti128_si256(ordered, 1);
  _mm_storeu_si128((__m128i*)out, _mm_packs_epi16(low, high));
#else
  int32_t wide[16];
  memcpy(wide, &x, sizeof wide);
  for (int i = 0; i < 16; i++) out[i] = int8_t(wide[i]);
#endif
}

// Round a row to int8: q = x * 127 / max |x|, over so many blocks as the packing rounds together.
template <class T>
void quantize(const PackedLinear& call, const PackedKernel& kernel, int64_t row) {
  const int64_t num_blocks = call.k / kBlock;
  const T* x = (const T*)call.activations + row * call.k;
  Int8Block* out = call.x.blocks + row * num_blocks;
  for (int64_t first = 0; first < num_blocks; first += kernel.together) {
    float values[kMaxSuperblock * kBlock];
    IntLanes high{};
    for (int64_t i = 0; i < kernel.together * kBlock; i += 16, x += 16) {
      const Lanes numbers = load16(x);
      store16(values + i, numbers);
      // magnitudes of floats are ordered like their bits
      high = max16(bits_of(numbers) & 0x7fffffff, high);
    }
    const float max = bits_as<float>(largest16(high));
    // of much smaller ones the inverse is not finite; their codes are 0
    const Lanes inverse = all16(max >= 0x1p-120f ? 127.0f / max : 0.0f);
    const float scale = max * (1.0f / 127);  // not finite: the row's results are NaN
    for (int64_t i = 0; i < kernel.together; i++, out++) {
      for (int half = 0; half < 2; half++) {
        const Lanes shifted = load16(values + kBlock * i + 16 * half) * inverse + kRoundToInteger;
        narrow16(bits_of(shifted) - bits_as<int32_t>(kRoundToInteger), out->q + 16 * half);
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

// I is Int8<Isa> of registers.hpp, P a PackingOf of packings.hpp.
template <class I, class P>
struct MatmulQ {
  using Scales = typename P::Scales;
  using Codes = typename P::Codes;
  using Ints = typename I::Ints;
  using Floats = typename I::Floats;
  static constexpr int kParts = Scales::kParts, kVectors = 8 / kParts;  // of a block; of a part
  static constexpr bool kSmall = Codes::kLargest <= 127;
  // Vectors whose products are added in 16 bits before they are widened: a power of two, or 0 where products
  // are added in 32 bits at once.
  static constexpr int kIn16Bits = [] {
    const int room = I::template kIn16Bits<Codes::kLargest>;
    return room >= kVectors ? kVectors : room >= 4 ? 4 : room >= 2 ? 2 : room;
  }();
  // What is left of the codes' offset once I::dot has taken its part off.
  static constexpr int kOffset = Codes::kOffset - (kSmall ? 0 : I::kDotOffset);
  // 64-byte lines of a block, rounded up.
  static constexpr int kLines = (P::kBytes / P::kBlocks + 63) / 64;
  // How many bytes ahead of the products w is prefetched while it is read in one run.
  static constexpr int64_t kRunAhead = 4096;

  // What a tile prefetches: with every block `lines` lines of 64 bytes, from `from` on, into the second
  // cache. Where several tiles share these lines, also the block after the next, into the first cache: the
  // processor itself does so only where w is read in a single run.
  struct Ahead {
    const uint8_t* from;
    int lines;
    [[gnu::always_inline]] void prefetch(int64_t b, const uint8_t* block) const {
      if (0 < lines && lines < kLines)
#pragma GCC unroll 16
        for (int line = 0; line < kLines; line++)
          __builtin_prefetch(block + 2 * (P::kBytes / P::kBlocks) + 64 * line);
      const uint8_t* next = from + b * lines * 64;
      for (int line = 0; line < lines; line++) __builtin_prefetch(next + 64 * line, 0, 2);
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

  // Codes that were unpacked to a byte each: eight vectors of 64 bytes a block. They are as small as before.
  struct Unpacked : Codes {
    static constexpr int kBytes = 512;
    static typename I::Line vector(const uint8_t* block, int v) { return I::load(block + 64 * v); }
  };
  // Bytes of a superblock whose codes are unpacked: its scales, then these.
  static constexpr int kUnpackedBytes = Scales::kBytes + P::kBlocks * Unpacked::kBytes;
  // Columns that are unpacked together: with a few rows of x they fit the first cache.
  static constexpr int kPanelColumns = 512, kPanel = kPanelColumns / (P::kBlocks * kBlock);
  // Whether codes are unpacked for many rows of x. Where a tile has many rows, unpacking takes little of it.
  static constexpr bool kUnpacks = Codes::kBytes < Unpacked::kBytes && I::cols <= 4;
  // Whether 16-bit sums are multiplied by whole scales as they are widened.
  static constexpr bool kScalesHalves = kIn16Bits > 0 && Scales::kAreWhole && Scales::kHasMinima;

  // Adds to acc a part of block i of a superblock times C rows of x, which have it at block b; 16-bit
  // sums are multiplied by `scale`.
  template <class As, int C>
  [[gnu::always_inline]] static inline void add_products(const uint8_t* super, int i, int part, Rows x,
                                                         int64_t b, const typename I::Halves& scale,
                                                         Ints* acc) {
    const uint8_t* codes = super + Scales::kBytes + i * As::kBytes;
    if constexpr (kIn16Bits > 0) {
#pragma GCC unroll 8
      for (int first = part * kVectors; first < (part + 1) * kVectors; first += kIn16Bits) {
        typename I::Halves sums[C];
        for (int c = 0; c < C; c++) sums[c] = typename I::Halves{};
#pragma GCC unroll 8
        for (int v = first; v < first + kIn16Bits; v++) {
          const typename I::Line vector = As::vector(codes, v);
          for (int c = 0; c < C; c++)
            sums[c] = I::template add_products<(C > 1)>(sums[c], vector, x.block(c, b).q + 4 * v);
        }
        for (int c = 0; c < C; c++) acc[c] = I::add_halves(acc[c], sums[c], scale);
      }
      return;
    }
#pragma GCC unroll 8
    for (int v = part * kVectors; v < (part + 1) * kVectors; v++) {
      const typename I::Line vector = As::vector(codes, v);
      for (int c = 0; c < C; c++)
        acc[c] = I::template dot<kSmall, (C > 1)>(acc[c], vector, x.block(c, b).q + 4 * v);
    }
  }

  // Sums of a part, without the codes' offset.
  template <class As, int C>
  [[gnu::always_inline]] static inline void dots(const uint8_t* super, int i, int part, Rows x,
                                                 int64_t b, Ints* acc) {
    for (int c = 0; c < C; c++) acc[c] = I::all(Scales::kHasMinima ? 0 : x.block(c, b).offset[part]);
    add_products<As, C>(super, i, part, x, b, I::all(int16_t(1)), acc);
  }

  // Adds a superblock, from block b on, whose parts have scales of their own or one together.
  template <class As, int C>
  [[gnu::always_inline]] static inline void add_blocks(const uint8_t* super, Rows x, int64_t b,
                                                       Ahead ahead, Floats* total) {
    Floats minimum;
    if constexpr (Scales::kHasMinima) minimum = Scales::minimum(super, Scales::scale(super, 0));
    for (int i = 0; i < P::kBlocks; i++) {
      ahead.prefetch(b + i, super + i * (P::kBytes / P::kBlocks));
#pragma GCC unroll 2
      for (int part = 0; part < kParts; part++) {
        Ints acc[C];
        dots<As, C>(super, i, part, x, b + i, acc);
        const Floats scale = Scales::scale(super, i * kParts + part);
        for (int c = 0; c < C; c++)
          total[c] = I::add(total[c], acc[c], scale, x.block(c, b + i).scale);
      }
      if constexpr (Scales::kHasMinima)
        for (int c = 0; c < C; c++)
          total[c] = I::subtract(total[c], minimum, x.block(c, b + i).minimum);
    }
  }

  // The same where the scales of its parts are whole numbers.
  template <class As, int C>
  [[gnu::always_inline]] static inline void add_whole(const uint8_t* super, Rows x, int64_t b,
                                                      Ahead ahead, Floats* total) {
    Ints sums[C];
    for (int c = 0; c < C; c++) sums[c] = Ints{};
    for (int i = 0; i < P::kBlocks; i++) {
      ahead.prefetch(b + i, super + i * (P::kBytes / P::kBlocks));
#pragma GCC unroll 2
      for (int part = 0; part < kParts; part++) {
        if constexpr (kScalesHalves) {
          const auto scale = I::twice(Scales::whole(super, i * kParts + part));
          add_products<As, C>(super, i, part, x, b + i, scale, sums);
        } else {
          Ints acc[C];
          dots<As, C>(super, i, part, x, b + i, acc);
          const Ints scale = Scales::whole(super, i * kParts + part);
          for (int c = 0; c < C; c++) sums[c] = I::add(sums[c], acc[c], scale);
        }
      }
    }
    finish_whole<C>(super, x, b, sums, total);
  }

  // Adds a superblock of such scales from its sums of products.
  template <int C, class RowsOfX>
  [[gnu::always_inline]] static inline void finish_whole(const uint8_t* super, const RowsOfX& x, int64_t b,
                                                         Ints* sums, Floats* total) {
    const Floats d = Scales::together(super);
    for (int c = 0; c < C; c++) total[c] = I::add(total[c], sums[c], d, x.block(c, b).scale);
    if constexpr (Scales::kHasMinima) {
      for (int c = 0; c < C; c++) sums[c] = Ints{};
#pragma GCC unroll 1
      for (int part = 0; part < P::kBlocks * kParts; part += 2) {
        const Ints minima = I::pair(Scales::minima(super, part));
        for (int c = 0; c < C; c++)
          sums[c] = I::add_pair(sums[c], minima, x.block(c, b + part / 2).sums);
      }
      const Floats m = I::halves(super + kHalves);
      for (int c = 0; c < C; c++) total[c] = I::add(total[c], sums[c], m, -x.block(c, b).scale);
    }
  }

  // Superblocks of a group of w with C rows of x, which have them from block `first` to block `end`:
  // added to out[c * ld + 0 .. 15], or written there where they are the group's first ones.
  template <class As, int C>
  [[gnu::always_inline]] static inline void tile(const uint8_t* w, Rows x, int64_t first, int64_t end,
                                                 float* out, int64_t ld, Ahead ahead) {
    Floats total[C];
    for (int c = 0; c < C; c++) total[c] = first ? load_as<Floats>(out + c * ld) : Floats{};
    for (int64_t b = first; b < end; b += P::kBlocks) {
      if constexpr (Scales::kAreWhole)
        add_whole<As, C>(w, x, b, ahead, total);
      else
        add_blocks<As, C>(w, x, b, ahead, total);
      w += Scales::kBytes + P::kBlocks * As::kBytes;
    }
    for (int c = 0; c < C; c++) memcpy(out + c * ld, &total[c], sizeof total[c]);
  }

  // As PackedWay::part.
  static void few(const PackedLinear& call, int64_t m0, int64_t m1, int64_t g0, int64_t g1) {
    in_strips<kFewRows>(call, m0, m1, g0, g1);
  }

  static void many(const PackedLinear& call, int64_t m0, int64_t m1, int64_t g0, int64_t g1) {
    if constexpr (kUnpacks)
      unpacked_part(call, m0, m1, g0, g1);
    else
      in_strips<I::cols>(call, m0, m1, g0, g1);
  }

  // So many rows of x at a time meet w.
  template <int64_t kRows>
  static void in_strips(const PackedLinear& call, int64_t m0, int64_t m1, int64_t g0, int64_t g1) {
    float sums[2][kFewRows * kFewColumns];
    static_assert(I::cols * kManyColumns <= kFewRows * kFewColumns);
    for (int64_t m = m0; m < m1; m += kRows) {
      const int64_t rows = smaller(kRows, m1 - m);
      const bool is_far = m == m0;  // later rows find w in the second cache
      strip(call.w, {call.x, m}, rows, g0, g1, sums[0], is_far);
      if (call.w2.blocks) strip(call.w2, {call.x, m}, rows, g0, g1, sums[1], is_far);
      finish_rows(call, m, rows, g0, g1, sums[0], sums[1]);
    }
  }

  static void strip(const PackedMatrix& matrix, Rows x, int64_t rows, int64_t g0, int64_t g1,
                    float* sums, bool is_far) {
    const int64_t num_blocks = x.x.k / kBlock, group_bytes = num_blocks / P::kBlocks * P::kBytes;
    const int64_t ld = (g1 - g0) * kGroup, num_tiles = (rows + I::cols - 1) / I::cols;
    // several tiles of a group fetch the next one together, a share each
    const int lines = is_far ? int((kLines + num_tiles - 1) / num_tiles) : 0;
    const uint8_t* w = matrix.blocks + g0 * group_bytes;
    for (int64_t g = g0; g < g1; g++, w += group_bytes, sums += kGroup) {
      const uint8_t* next = w + (num_tiles == 1 ? kRunAhead : group_bytes);
      in_tiles<I::cols>(rows, [&](auto count, int64_t c) {
        tile<Codes, count>(w, {x.x, x.first + c}, 0, num_blocks, sums + c * ld, ld,
                           {next + c * group_bytes / rows, lines});
      });
    }
  }

  // Many rows of x: codes are unpacked once for all of them.
  static void unpacked_part(const PackedLinear& call, int64_t m0, int64_t m1, int64_t g0, int64_t g1) {
    float sums[2][kManyRows * kManyColumns];
    unpacked_strip(call.w, {call.x, m0}, m1 - m0, g0, g1, sums[0]);
    if (call.w2.blocks) unpacked_strip(call.w2, {call.x, m0}, m1 - m0, g0, g1, sums[1]);
    finish_rows(call, m0, m1 - m0, g0, g1, sums[0], sums[1]);
  }

  static void unpacked_strip(const PackedMatrix& matrix, Rows x, int64_t rows, int64_t g0, int64_t g1,
                             float* sums) {
    alignas(64) uint8_t panel[kPanel * kUnpackedBytes];
    const int64_t num_supers = x.x.k / (kBlock * P::kBlocks), ld = (g1 - g0) * kGroup;
    const uint8_t* w = matrix.blocks + g0 * num_supers * P::kBytes;
    for (int64_t g = g0; g < g1; g++, sums += kGroup)
      for (int64_t first = 0; first < larger(num_supers, 1); first += kPanel) {
        const int64_t end = smaller(first + kPanel, num_supers);
        for (int64_t s = first; s < end; s++, w += P::kBytes)
          unpack_codes(w, panel + (s - first) * kUnpackedBytes);
        in_tiles<I::cols>(rows, [&](auto count, int64_t c) {
          tile<Unpacked, count>(panel, {x.x, x.first + c}, first * P::kBlocks, end * P::kBlocks,
                                sums + c * ld, ld, {panel, 0});
        });
      }
  }

  static void unpack_codes(const uint8_t* super, uint8_t* out) {
    memcpy(out, super, Scales::kBytes);
    super += Scales::kBytes, out += Scales::kBytes;
    for (int i = 0; i < P::kBlocks; i++, super += Codes::kBytes, out += Unpacked::kBytes) {
#pragma GCC unroll 8
      for (int v = 0; v < 8; v++) {
        const typename I::Line vector = Codes::vector(super, v);
        memcpy(out + 64 * v, &vector, sizeof vector);
      }
    }
  }

  // Rows [m, m + rows) of y, columns of groups [g0, g1), from their sums.
  static void finish_rows(const PackedLinear& call, int64_t m, int64_t rows, int64_t g0, int64_t g1,
                          float* sums, float* ups) {
    const int64_t ld = (g1 - g0) * kGroup;
    for (int64_t row = 0; row < rows; row++)
      call.finish(call, m + row, g0 * kGroup, smaller(g1 * kGroup, call.n), sums + row * ld,
                  ups + row * ld);
  }

  // Row `lane` of a superblock as plain numbers.
  static void unpack(const uint8_t* super, int lane, float* out) {
    for (int i = 0; i < P::kBlocks; i++)
      for (int v = 0; v < 8; v++, out += 4) {
        float scale[kGroup], minimum[kGroup]{};
        uint8_t codes[64];
        numbers_of(super, i * kParts + v / kVectors, scale, minimum);
        const auto vector = Codes::vector(super + Scales::kBytes + i * Codes::kBytes, v);
        memcpy(codes, &vector, sizeof codes);
        for (int j = 0; j < 4; j++)
          out[j] = scale[lane] * float(codes[4 * lane + j] - Codes::kOffset) - minimum[lane];
      }
  }

  // Scales and minima of a part.
  static void numbers_of(const uint8_t* super, int part, float* scale, float* minimum) {
    Floats scales, minima{};
    if constexpr (Scales::kAreWhole) {
      scales = I::times(Scales::together(super), I::floats(Scales::whole(super, part)));
      if constexpr (Scales::kHasMinima)
        minima = I::times(I::halves(super + kHalves),
                          I::floats(I::unsigned_bytes(Scales::minima(super, part))));
    } else {
      scales = Scales::scale(super, part);
      if constexpr (Scales::kHasMinima) minima = Scales::minimum(super, scales);
    }
    memcpy(scale, &scales, sizeof scales), memcpy(minimum, &minima, sizeof minima);
  }
};

// Row scales, bias, gate and rounding of one row's columns [n0, n1).
template <class T, class Y = T>
void finish_packed(const PackedLinear& call, int64_t row, int64_t n0, int64_t n1, float* sums,
                   float* ups) {
  const int64_t n = n1 - n0, at = row * call.n;
  const Y* residual = (const Y*)call.residual;
  if (call.w.row_scales)
    for (int64_t i = 0; i < n; i++) sums[i] *= call.w.row_scales[n0 + i];
  if (call.w2.row_scales)
    for (int64_t i = 0; i < n; i++) ups[i] *= call.w2.row_scales[n0 + i];
  add_lora<T>(call.lora, row, n0, n, sums);
  add_lora<T>(call.lora2, row, n0, n, ups);
  finish((const T*)call.bias, call.w2.blocks != nullptr, n0, n, sums, ups, (Y*)call.y + at,
         residual ? residual + at : nullptr, call.scale);
}

template <class I, int kPacking>
constexpr PackedKernel packed_kernel() {
  using P = std::tuple_element_t<kPacking, Packings<I>>;
  using Product = MatmulQ<I, P>;
  return {.ways = {{1, Product::few, kFewRows, kFewColumns, kAnyBytes},
                   {kFewRows + 1, Product::many, kManyRows, kManyColumns, kManyBytes}},
          .pack = pack_group<I, kPacking>,
          .unpack = Product::unpack,
          .bytes = P::kBytes,
          .columns = P::kBlocks * kBlock,
          .together = P::Scales::kAreWhole ? P::kBlocks : 1,
          .parts = Product::kParts,
          .has_minima = P::Scales::kHasMinima,
          .offset = Product::kOffset};
}

}  // namespace
