// Products of many rows of x with packed weights on tiles of AMX (see isa_amx.hpp).
//
// Columns are multiplied a panel at a time: x is copied into tiles once for all groups of a part, and a
// group's codes are unpacked once for all rows of x. A vector of codes, four columns of 16 rows, is a row of
// a tile as it is.
//
// Where scales are whole numbers, codes are multiplied by them as they are unpacked. The results have up to
// 15 bits and fill two tiles: one with the lowest seven bits, one with those above. So tiles add up a whole
// superblock, whose sum is that of the first plus 128 times that of the second.
//
// Exactness: tiles add whole numbers, and float32 is added in the order of MatmulQ: these are its bits.
#pragma once

#include "isa_amx.hpp"
#include "matmul_q.hpp"

namespace {

template <class P>
struct AmxMatmulQ : Amx {
  using I = Int8<Avx512>;
  using Plain = MatmulQ<I, P>;
  using Scales = typename P::Scales;
  using Codes = typename P::Codes;
  using Ints = typename I::Ints;
  using Floats = typename I::Floats;
  using Words = typename I::template Register<int16_t>;

  static constexpr int64_t kManyRows = 128;  // of a part: whole tiles
  static constexpr int64_t kLeastRows = 48;  // fewer do not make up for what is copied and unpacked
  static constexpr bool kWhole = Scales::kAreWhole;
  // A block, or with whole scales two, which fill a tile: steps of a superblock, columns of one, and bytes
  // of a tile of these.
  static constexpr int kSteps = kWhole ? P::kBlocks / 2 : P::kBlocks;
  static constexpr int kStep = P::kBlocks * kBlock / kSteps;
  static constexpr int64_t kTile = kSide * kStep;
  // Superblocks and blocks of a panel, and bytes of 16 of its rows.
  static constexpr int64_t kPanel = Plain::kPanel, kPanelBlocks = kPanel * P::kBlocks;
  static constexpr int64_t kPanelBytes = kPanel * kSteps * kTile;

  // Some columns of a part's rows of x, in tiles. Rows behind the last one are the same as that.
  struct Panel {
    alignas(64) int8_t tiles[kManyRows / kSide][kPanelBytes];
    // what the blocks of each row are scaled with, where scales are not whole
    float scales[kManyRows / kSide][kPanelBlocks][kSide], minima[kManyRows / kSide][kPanelBlocks][kSide];
    const Int8Block* rows[kManyRows];  // where it was copied from
  };

  // As Plain::Rows.
  struct Rows {
    const Int8Block* const* rows;
    const Int8Block& block(int c, int64_t b) const { return rows[c][b]; }
  };

  static void put(PackedKernel& kernel) {
    // with two scales a block, half of each tile would be empty, and it is no faster
    if constexpr (kWhole || Scales::kParts == 1)
      kernel.ways[2] = {kLeastRows, part, kManyRows, kManyColumns, kAnyBytes};
  }

  // As PackedWay::part.
  static void part(const PackedLinear& call, int64_t m0, int64_t m1, int64_t g0, int64_t g1) {
    const Tiles tiles(kStep);
    const int64_t rows = m1 - m0, ld = (g1 - g0) * kGroup, supers = call.k / (P::kBlocks * kBlock);
    Panel x;
    alignas(64) int8_t codes[2][kPanelBytes];
    alignas(64) float sums[2][kManyRows * kManyColumns];
    for (auto& matrix : sums) memset(matrix, 0, size_t(round_up(rows, kSide) * ld) * sizeof(float));
    for (int64_t s = 0; s < supers; s += kPanel) {
      const int64_t count = smaller(kPanel, supers - s);
      copy(call.x, m0, rows, s * P::kBlocks, count * P::kBlocks, x);
      for (int i = 0; i < (call.w2.blocks ? 2 : 1); i++)
        for (int64_t g = g0; g < g1; g++) {
          const uint8_t* w = (i ? call.w2 : call.w).blocks + (g * supers + s) * P::kBytes;
          unpack(w, count, codes[0], codes[1]);
          float* out = sums[i] + (g - g0) * kGroup;
          if constexpr (kWhole)
            in_tiles<2>((rows + kSide - 1) / kSide, [&](auto tiles_at_once, int64_t tile) {
              add_whole<tiles_at_once>(w, codes[0], codes[1], x, tile, count, out + tile * kSide * ld, ld);
            });
          else
            for (int64_t tile = 0; tile * kSide < rows; tile++)
              add_blocks(w, codes[0], x, tile, count, out + tile * kSide * ld, ld);
        }
    }
    Plain::finish_rows(call, m0, rows, g0, g1, sums[0], sums[1]);
  }

  static void copy(const Activations& x, int64_t m0, int64_t rows, int64_t b0, int64_t blocks,
                   Panel& to) {
    for (int64_t r = 0; r < round_up(rows, kSide); r++) {
      const Int8Block* from = x.blocks + (m0 + smaller(r, rows - 1)) * (x.k / kBlock) + b0;
      const int64_t tile = r / kSide, row = r % kSide;
      to.rows[r] = from;
      for (int64_t b = 0; b < blocks; b++) {
        const int64_t i = b * kBlock;
        memcpy(to.tiles[tile] + i / kStep * kTile + row * kStep + i % kStep, from[b].q, kBlock);
        if constexpr (!kWhole) to.scales[tile][b][row] = from[b].scale;
        if constexpr (!kWhole && Scales::kHasMinima) to.minima[tile][b][row] = from[b].minimum;
      }
    }
  }

  // Codes without their offset; or times their scales: the seven lowest bits, and those above.
  static void unpack(const uint8_t* super, int64_t supers, int8_t* low, int8_t* high) {
    const Words offset = Codes::kOffset - Words{}, byte = 255 - Words{}, seven = 127 - Words{};
    for (int64_t s = 0; s < supers; s++, super += P::kBytes)
      for (int i = 0; i < P::kBlocks; i++)
#pragma GCC unroll 8
        for (int v = 0; v < 8; v++, low += 64, high += 64) {
          const auto line = Codes::vector(super + Scales::kBytes + i * Codes::kBytes, v).v;
          if constexpr (kWhole) {
            const auto s32 = Scales::whole(super, i * Scales::kParts + v / Plain::kVectors).v;
            const Words scale = (Words)((s32 & 0xffff) | s32 << 16);
            const Words even = (((Words)line & byte) - offset) * scale;
            const Words odd = (((Words)line >> 8 & byte) - offset) * scale;
            const Words lows = (even & seven) | (odd & seven) << 8;
            const Words highs = (even >> 7 & byte) | odd >> 7 << 8;
            memcpy(low, &lows, sizeof lows), memcpy(high, &highs, sizeof highs);
          } else {
            const auto bytes = line - uint8_t(Codes::kOffset);
            memcpy(low, &bytes, sizeof bytes);
          }
        }
  }

  // Adds superblocks to out[c * ld + 0 .. 15] of the 16 rows c of a tile.
  static void add_blocks(const uint8_t* w, const int8_t* codes, const Panel& x, int64_t tile,
                         int64_t supers, float* out, int64_t ld) {
    alignas(64) int32_t sums[2][kSide * kSide];
    const int64_t steps = supers * kSteps;
    Floats total[kSide];
#pragma GCC unroll 16
    for (int c = 0; c < kSide; c++) total[c] = load_as<Floats>(out + c * ld);
    const auto multiply = [&](auto place, int64_t step) __attribute__((always_inline)) {
      if (step >= steps) return;
      clear<place>();
      load<4 + place>(x.tiles[tile] + step * kTile, kStep);
      load<6 + place>(codes + step * kTile, 64);
      multiply_int8<place, 4 + place, 6 + place>();
      store<place>(sums[place], 64);
    };
    const auto add = [&](auto place, int64_t step) __attribute__((always_inline)) {
      if (step >= steps) return;
      const uint8_t* super = w + step / kSteps * P::kBytes;
      const Floats scale = Scales::scale(super, int(step % kSteps));
#pragma GCC unroll 16
      for (int c = 0; c < kSide; c++)
        total[c] = I::add(total[c], load_as<Ints>(sums[place] + c * kSide), scale, x.scales[tile][step][c]);
      if constexpr (Scales::kHasMinima) {
        const Floats minimum = Scales::minimum(super, scale);
#pragma GCC unroll 16
        for (int c = 0; c < kSide; c++)
          total[c] = I::subtract(total[c], minimum, x.minima[tile][step][c]);
      }
    };
    // one product is computed while the one before is added
    each_of<1>([&](auto first) { multiply(first, 0); });
    for (int64_t step = 0; step < steps; step += 2)
      each_of<2>([&](auto i) {
        multiply(std::integral_constant<int, 1 - i>{}, step + i + 1);
        add(i, step + i);
      });
#pragma GCC unroll 16
    for (int c = 0; c < kSide; c++) memcpy(out + c * ld, &total[c], sizeof total[c]);
  }

  // The same of kTiles tiles, where scales are whole.
  template <int kTiles>
  static void add_whole(const uint8_t* w, const int8_t* low, const int8_t* high, const Panel& x,
                        int64_t tile, int64_t supers, float* out, int64_t ld) {
    constexpr int kRows = 8;  // that are added together, from registers
    alignas(64) int32_t sums[kTiles][2][kSide][kSide];
    for (int64_t s = 0; s < supers; s++, w += P::kBytes) {
      each_of<2 * kTiles>([](auto i) { clear<i>(); });
      for (int64_t at = s * kSteps * kTile; at < (s + 1) * kSteps * kTile; at += kTile) {
        load<6>(low + at, 64);
        load<7>(high + at, 64);
        each_of<kTiles>([&](auto i) {
          load<4 + i>(x.tiles[tile + i] + at, kStep);
          multiply_int8<2 * i, 4 + i, 6>();
          multiply_int8<2 * i + 1, 4 + i, 7>();
        });
      }
      each_of<2 * kTiles>([&](auto i) { store<i>(sums[i / 2][i % 2], 64); });
      for (int64_t c0 = 0; c0 < kTiles * kSide; c0 += kRows) {
        const auto& both = sums[c0 / kSide];
        Ints found[kRows];
        Floats total[kRows];
#pragma GCC unroll 8
        for (int c = 0; c < kRows; c++) {
          const int64_t row = c0 % kSide + c;
          const auto join = [](auto lows, auto highs) { return lows + (highs << 7); };
          found[c] = each<int32_t>(join, load_as<Ints>(both[0][row]), load_as<Ints>(both[1][row]));
          total[c] = load_as<Floats>(out + (c0 + c) * ld);
        }
        const Rows rows{x.rows + tile * kSide + c0};
        Plain::template finish_whole<kRows>(w, rows, s * P::kBlocks, found, total);
#pragma GCC unroll 8
        for (int c = 0; c < kRows; c++) memcpy(out + (c0 + c) * ld, &total[c], sizeof total[c]);
      }
    }
  }
};

}  // namespace
