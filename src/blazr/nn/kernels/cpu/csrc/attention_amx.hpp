// What attention multiplies on tiles of AMX (see isa_amx.hpp): in pairs of bfloat16, whole pages.
//
//   scores   [ query ... 32 numbers ]  16        [ pairs of numbers of 16 keys ]         16
//   sums     [ weights of 32 keys ]    16        [ pairs of keys, 16 channels ]          16
//
// Exactness: a number of a tile is the sum of its own row and column, in one order (see matmul_amx.hpp),
// and rows that a query does not see weigh nothing: so one query alone, in a tile with anything beside it,
// gets the same bits.
#pragma once

#include "attention.hpp"
#include "matmul_amx.hpp"

namespace {

struct AmxBf16 : Avx512Bf16 {
  static constexpr int64_t kSide = Amx::kSide;

  // Sixteen keys as `score` takes them: of so many numbers, rounded up to 32.
  static void pack_keys(RowsOf<bf16> keys, int64_t size, bf16* to) {
    AmxProduct::pack(keys, kSide, size, to);
  }

  // Products of queries with the first rows of a page, whose keys are packed: to[i * kGrid + r]. What lies
  // behind the last query is multiplied, too, up to a whole tile.
  static void score(RowsOf<bf16> queries, int64_t count, const bf16* keys, int64_t rows, int64_t size,
                    float* to) {
    const int64_t panel = round_up(size, AmxProduct::kStep) * kSide;
    in_tiles<2>((count + kSide - 1) / kSide, [&](auto down, int64_t i) {
      in_tiles<2>((rows + kSide - 1) / kSide, [&](auto across, int64_t j) {
        AmxProduct::block<down, across>({queries[i * kSide], queries.stride}, keys + j * panel, size,
                                        {to + i * kSide * kGrid + j * kSide, kGrid});
      });
    });
  }

  // Takes what is left of sums[i * ld + 0 .. 31] of query i, and adds the values of a page, weighed by
  // weights[i * kGrid + r]. `pairs` are two rows each, interleaved.
  static void mix(int64_t count, const float* factors, const bf16* weights, const bf16* pairs, float* sums,
                  int64_t ld) {
    constexpr int64_t kRow = 4 * kSide;  // numbers of a pair of rows
    for (int64_t i = 0; i < count; i += kSide, sums += kSide * ld, weights += kSide * kGrid) {
      for (int64_t r = 0; r < kSide; r++)
        for (int64_t at = r * ld; at <= r * ld + kSide; at += kSide)
          store16(sums + at, load16(sums + at) * factors[i + r]);
      Amx::load<0>(sums, ld * 4);
      Amx::load<1>(sums + kSide, ld * 4);
      for (int64_t r = 0; r < kGrid; r += 2 * kSide) {
        Amx::load<4>(weights + r, kGrid * 2);
        Amx::load<6>(pairs + r / 2 * kRow, kRow * 2);
        Amx::load<7>(pairs + r / 2 * kRow + kRow / 2, kRow * 2);
        Amx::multiply_bf16<0, 4, 6>();
        Amx::multiply_bf16<1, 4, 7>();
      }
      Amx::store<0>(sums, ld * 4);
      Amx::store<1>(sums + kSide, ld * 4);
    }
  }
};

template <>
struct Dot<AmxBf16, bf16> : Dot<Avx512Bf16, bf16> {};

// As AttentionOf.
struct AmxAttention {
  static void attend(const Attention& call, int64_t span, int64_t kv_head, int64_t first, int64_t count) {
    const Amx::Tiles tiles;
    AttentionOf<AmxBf16, bf16, Plain<bf16>>::attend(call, span, kv_head, first, count);
  }
};

}  // namespace
