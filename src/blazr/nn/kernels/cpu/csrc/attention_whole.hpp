// Products with keys and values in Q8_0 (stored.hpp) as whole numbers, for attention.hpp.
//
// Codes are widened to int16 and multiplied in pairs; a block's products are added as integers, without
// rounding. The other factors are rounded to 16 bits, which is finer than bfloat16 and as fine as float16
// where these are not small beside the largest of
//
//   queries   32 numbers of a query that meet one block of a key
//   weights   64 of a page for one block of channels, each times the scale that its row has there
//
// Both depend on one query alone, so what comes out does as well.
//
//   keys      a lane each, in pairs of channels   [ k0: c0 c2 | k1: c0 c2 | ... k15 ]
//   values    a lane for a channel, pairs of rows [ c0: r0 r16 | c1: r0 r16 | ... c15 ]
#pragma once

#include "lanes.hpp"
#include "registers.hpp"
#include "stored.hpp"

namespace {

// Whether an instruction set arranges codes for it.
template <class Isa>
constexpr bool kHasWhole = requires(const uint8_t* p, int32_t* out) {
  Isa::pairs_of_columns(p, 0, out);
  Isa::pairs_of_rows(p, p, out);
};

template <class Isa>
struct WholeNumbers {
  static constexpr int64_t kPairs = kStoredBlock / 2;
  static constexpr int64_t kMaxBlocks = kMaxKey / kStoredBlock + 1;  // of a key in two parts
  static constexpr int64_t kBytes = Q8_0::width(kStoredBlock);
  static constexpr float kMost = 32767;
  // Sums in registers together: kTile queries, each with kLots lots of sixteen keys, or channels.
  static constexpr int kTile = kRegister > 32 ? 8 : 6, kLots = kRegister > 32 ? 2 : 1;
  static constexpr int64_t kKeys = 16 * kLots;
  static constexpr int64_t kStride = kMaxBlocks * kPairs;  // from query to query

  // Pairs of int16, the first in the lower half. Of codes: of keys, (kLots, kPairs of channels, 16 keys); of
  // values, (kGrid / 2 pairs of rows, kStoredBlock channels).
  alignas(64) int32_t pairs[kGrid / 2 * kStoredBlock];
  alignas(64) float scales[kGrid];  // of these keys, or rows of values, in one block
  alignas(64) int32_t weights[kQueriesTogether * kGrid / 2];  // (queries, kGrid / 2 pairs of rows)
  float units[kQueriesTogether];                              // what a weight of 1 stands for
  int32_t q[kQueriesTogether * kStride];         // (queries, kMaxBlocks, kPairs of channels)
  float q_units[kQueriesTogether * kMaxBlocks];  // what a number of 1 of a query's block stands for

  // The unit in which numbers up to the largest of these magnitudes (floats as bits) fit 16 bits: a number
  // times `by`, rounded, is how many units it is. NaN where one of the magnitudes is not finite.
  static float unit_of(const IntLanes& magnitudes, float& by) {
    const float most = bits_as<float>(largest16(magnitudes));
    by = most >= 0x1p-100f ? kMost / most : 0.0f;
    return most <= __FLT_MAX__ ? most * (1 / kMost) : __builtin_nanf("");
  }
  [[gnu::always_inline]] static IntLanes magnitudes(const Lanes& x, const IntLanes& most) {
    return max16(bits_of(x) & INT32_MAX, most);
  }
  [[gnu::always_inline]] static IntLanes rounded(const Lanes& x, float by) {
    return bits_of(x * by + kRoundToInteger) - bits_as<int32_t>(kRoundToInteger);
  }
  [[gnu::always_inline]] static void store(int32_t* to, const IntLanes& x) {
    store16((float*)to, floats_of(x));
  }
  [[gnu::always_inline]] static IntLanes load(const int32_t* from) {
    return bits_of(load16((const float*)from));
  }

  // Up to 32 numbers of query i, in its block `block`.
  void read_query(int64_t i, int64_t block, const float* x, int64_t n) {
    alignas(64) float numbers[kStoredBlock] = {};
    memcpy(numbers, x, size_t(n) * sizeof(float));
    const Lanes lo = load16(numbers), hi = load16(numbers + 16);
    float by;
    q_units[i * kMaxBlocks + block] = unit_of(magnitudes(hi, magnitudes(lo, IntLanes{})), by);
    alignas(64) int32_t whole[kStoredBlock];
    store(whole, rounded(lo, by)), store(whole + 16, rounded(hi, by));
    int32_t* to = q + i * kStride + block * kPairs;
    for (int64_t c = 0; c < kStoredBlock; c += 4)
      for (int64_t odd = 0; odd < 2; odd++)
        *to++ = (whole[c + odd] & 0xffff) | int32_t(uint32_t(whole[c + odd + 2]) << 16);
  }

  // Rows from `first` on, and the scales that some of them have for a block of `n` channels, at byte
  // `at`.
  struct Codes {
    const uint8_t* first;
    int64_t stride, n;
    const uint8_t* operator[](int64_t r) const { return first + r * stride + 2; }
    uint16_t scale(int64_t r) const { return load_as<uint16_t>(first + r * stride); }
  };

  // Reads nothing behind the end of a row: short blocks are copied.
  [[gnu::always_inline]] static Codes whole_blocks(Codes codes, int64_t rows, uint8_t* room) {
    if (__builtin_expect(codes.n == kStoredBlock, 1)) return codes;
    memset(room, 0, size_t(rows * kBytes));
    for (int64_t r = 0; r < rows; r++)
      memcpy(room + r * kBytes, codes.first + r * codes.stride, size_t(Q8_0::width(codes.n)));
    return {room, kBytes, kStoredBlock};
  }

  void widen_scales(const uint16_t* halves, int64_t rows) {
    for (int64_t r = 0; r < rows; r += 16)
      store16(scales + r, Int8<Isa>::halves((const uint8_t*)(halves + r)));
  }

  // Add the products of `count` queries with kKeys keys in one block, to sums[query * kGrid + key].
  void score(Codes keys, int64_t block, int64_t count, float* sums, bool is_first) {
    uint8_t room[kKeys * kBytes];
    keys = whole_blocks(keys, kKeys, room);
    uint16_t halves[kKeys];
    for (int64_t r = 0; r < kKeys; r++) halves[r] = keys.scale(r);
    for (int64_t lot = 0; lot < kLots; lot++)
      for (int64_t half = 0; half < 2; half++)
        Isa::pairs_of_columns(keys[16 * lot] + 16 * half, keys.stride,
                              pairs + (lot * kPairs + half * kPairs / 2) * 16);
    widen_scales(halves, kKeys);
    in_tiles<kTile>(count, [&](auto together, int64_t i) { add_scores<together>(i, block, sums, is_first); });
  }

  template <int Count>
  [[gnu::noinline]] void add_scores(int64_t i, int64_t block, float* sums, bool is_first) {
    IntLanes dots[Count][kLots];
#pragma GCC unroll 8
    for (int n = 0; n < Count; n++)
#pragma GCC unroll 2
      for (int lot = 0; lot < kLots; lot++) dots[n][lot] = IntLanes{};
    const int32_t* x = q + i * kStride + block * kPairs;
    for (int64_t p = 0; p < kPairs; p++) add_products<Count>(dots, pairs + 16 * p, 16 * kPairs, x + p, kStride);
#pragma GCC unroll 8
    for (int n = 0; n < Count; n++)
#pragma GCC unroll 2
      for (int lot = 0; lot < kLots; lot++) {
        float* to = sums + (i + n) * kGrid + 16 * lot;
        const Lanes unit = load16(scales + 16 * lot) * q_units[(i + n) * kMaxBlocks + block];
        store16(to, fma16(floats(dots[n][lot]), unit, is_first ? Lanes{} : load16(to)));
      }
  }

  // Add pairs of codes, `gap` from one lot to the next, times a pair of each query.
  template <int Count>
  [[gnu::always_inline]] static void add_products(IntLanes (&to)[Count][kLots], const int32_t* codes,
                                                  int64_t gap, const int32_t* x, int64_t stride) {
    IntLanes lots[kLots];
#pragma GCC unroll 2
    for (int lot = 0; lot < kLots; lot++) lots[lot] = load(codes + lot * gap);
#pragma GCC unroll 8
    for (int n = 0; n < Count; n++) {
      const IntLanes both = all<int32_t>(x[n * stride]);
#pragma GCC unroll 2
      for (int lot = 0; lot < kLots; lot++)
        to[n][lot] = each<int32_t>(
            [](auto sum, auto a, auto b) { return Isa::dot_pairs((Vector)sum, (Vector)a, (Vector)b); },
            to[n][lot], lots[lot], both);
    }
  }
  using Vector = decltype(Isa::unsigned_bytes(nullptr));

  // Of 32 rows from `base` on, r and r + 16 are a pair: how many pairs have a row below `high`.
  static int64_t num_pairs(int64_t base, int64_t high) { return larger(smaller(high - base, 16), 0); }

  // Rows [low, high) of a page, in one block of channels.
  void read_values(Codes values, int64_t low, int64_t high) {
    uint8_t room[kGrid * kBytes];
    values = whole_blocks(values, kGrid, room);
    uint16_t halves[kGrid] = {};  // whatever the others have, they count for nothing
    for (int64_t r = low; r < high; r++) halves[r] = values.scale(r);
    widen_scales(halves, kGrid);
    for (int64_t base = 0; base < kGrid; base += 32)
      for (int64_t r = base; r < base + num_pairs(base, high); r++)
        Isa::pairs_of_rows(values[r], values[r + 16], pairs + (base / 2 + r - base) * kStoredBlock);
  }

  // The weights w, (kGrid), that query i gives to the rows of a page, each times its row's scale.
  void read_weights(int64_t i, const float* w) {
    Lanes scaled[kGrid / 16];
    IntLanes most{};
#pragma GCC unroll 4
    for (int64_t k = 0; k < kGrid / 16; k++) {
      scaled[k] = load16(w + 16 * k) * load16(scales + 16 * k);
      most = magnitudes(scaled[k], most);
    }
    float by;
    units[i] = unit_of(most, by);
#pragma GCC unroll 2
    for (int64_t k = 0; k < kGrid / 16; k += 2)
      store(weights + i * kGrid / 2 + 8 * k, rounded(scaled[k], by) | rounded(scaled[k + 1], by) << 16);
  }

  // Multiply sums of 32 channels of each query with its number of `left`, and add the values that were read,
  // weighed.
  void mix(int64_t count, const float* left, float* sums, int64_t ld, int64_t high) {
    in_tiles<kTile>(count, [&](auto together, int64_t i) {
      for (int64_t c = 0; c < kStoredBlock; c += 16 * kLots)
        add_values<together>(i, c, left + i, sums + i * ld + c, ld, high);
    });
  }

  template <int Count>
  [[gnu::noinline]] void add_values(int64_t i, int64_t c, const float* left, float* sums, int64_t ld,
                                    int64_t high) {
    IntLanes mixed[Count][kLots];
#pragma GCC unroll 8
    for (int n = 0; n < Count; n++)
#pragma GCC unroll 2
      for (int lot = 0; lot < kLots; lot++) mixed[n][lot] = IntLanes{};
    for (int64_t base = 0; base < kGrid; base += 32)
      for (int64_t r = base / 2; r < base / 2 + num_pairs(base, high); r++)
        add_products<Count>(mixed, pairs + r * kStoredBlock + c, 16, weights + i * kGrid / 2 + r, kGrid / 2);
#pragma GCC unroll 8
    for (int n = 0; n < Count; n++)
#pragma GCC unroll 2
      for (int lot = 0; lot < kLots; lot++) {
        float* to = sums + n * ld + 16 * lot;
        store16(to, fma16(floats(mixed[n][lot]), all16(units[i + n]), load16(to) * left[n]));
      }
  }
};

}  // namespace
