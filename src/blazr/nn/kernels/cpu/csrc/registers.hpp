// What the products of plain and of packed weights do with registers: one source, in the compiler's
// own notation of vectors, for every instruction set; what that has no words for is in isa_*.hpp.
#pragma once

#include "lanes.hpp"

// What an instruction set (the parameter Isa) says of itself in isa_*.hpp. A tile is some rows of w by
// some rows of x, whose products are columns of y's tile: hence Cols.
//
//   plain weights (matmul.hpp)
//     Acc              partial sums of one product of a row of w and a row of x
//     kNumAccs         how many Acc the registers hold
//     kTileCols        rows of x in a tile of four rows of w
//     kWideTileRows,   rows of w, and of x, in a tile that widens its 16-bit numbers of w to float32,
//     kWideTileCols    where those of x have been widened before
//     kRunCols         up to so many rows of x are one tile, beside which w is read once, in long runs
//     zero, load, fma  on Acc; fma(a, b, c) is a * b + c
//     sum4             four Acc, the lanes of each added, as four floats
//
//   packed weights (matmul_q.hpp); a vector has a lane of four bytes for each row of w
//     kWidth           bytes of such a vector
//     kPackedTileCols  rows of x in a tile, beside sixteen rows of w
//     dot              adds the products of four bytes each, unsigned of w and signed of x; kSmall says
//                      that those of w are below 128
//     kDotOffset       what dot takes off bytes of w that are not small: 128 where the processor multiplies
//                      signed bytes only, or would overflow
//     dot_pairs        adds the products of two int16 each
//     products         where there is one: products of bytes added two by two in int16
//     in_order         where there is one: keeps the compiler from moving a sum
//     halves, unsigned_bytes, signed_bytes   widen float16 to float32, and bytes to int32, a lane each
//     look_up          table[x] for each byte x
//     pairs_of_columns, pairs_of_rows        where there are any: see attention_whole.hpp
//
//   attention
//     pack_keys, score, mix                  where there are tiles: see attention_amx.hpp

namespace {

// How one step along k is loaded and multiplied: a Reg holds `step` numbers, and a tile has `cols` rows
// of x. Where numbers are widened to float32 in registers, a step is `pieces` of them, and `piece` widens
// one: an accumulator sees the pieces in order.
template <class Isa, class T>
struct Dot {
  using Reg = typename Isa::Acc;
  static constexpr int step = sizeof(Reg) / sizeof(float), cols = Isa::kTileCols, pieces = 1;
  template <int kPiece>
  static Reg piece(const T* p) { return load(p); }
  static Reg load(const T* p) { return Isa::load(p); }
  static Reg load_tail(const T* p, int n) {
    // a step of NEON fills two registers, and this is one
    if constexpr (std::is_same_v<T, float> && sizeof(Reg) == kRegister)
      return (Reg)load_some<1>(p, n).v;
    else
      return padded_load<Dot>(p, n);
  }
  static Reg dot(Reg acc, Reg a, Reg b) { return Isa::fma(a, b, acc); }
};

// Products of int8 activations with 16 rows of packed weights, a lane of 32 bits each: kCount registers of
// kLanes lanes.
template <class Isa>
struct Int8 {
  static constexpr int cols = Isa::kPackedTileCols, kDotOffset = Isa::kDotOffset;
  static constexpr int kCount = 64 / Isa::kWidth, kLanes = 16 / kCount;

  template <class T>
  using Register = typename Registers<T, 1, Isa::kWidth>::Vector;
  template <class T, int N = kCount>
  using Several = Registers<T, N, Isa::kWidth>;
  using Line = Several<uint8_t>;  // four unsigned bytes of each row
  using Ints = Several<int32_t>;  // a number for each row
  using Floats = Several<float>;

  // Several registers, filled one after the other by read(p), where p goes on by `step` bytes.
  template <class T, int N = kCount, class Read>
  static Several<T, N> row(const Read& read, const void* p, int step) {
    if constexpr (N == 1)
      return {(Register<T>)read((const uint8_t*)p)};
    else
      return {row<T, N / 2>(read, p, step),
              row<T, N / 2>(read, (const uint8_t*)p + N / 2 * step, step)};
  }

  template <class T>
  static Several<T> all(T value) {
    return row<T>([=](auto) { return value - Register<T>{}; }, nullptr, 0);
  }
  static Line load(const uint8_t* p) { return row<uint8_t>(load_as<Register<uint8_t>>, p, Isa::kWidth); }
  static Floats halves(const uint8_t* p) { return row<float>(Isa::halves, p, 2 * kLanes); }
  static Ints unsigned_bytes(const uint8_t* p) { return row<int32_t>(Isa::unsigned_bytes, p, kLanes); }
  static Ints signed_bytes(const uint8_t* p) { return row<int32_t>(Isa::signed_bytes, p, kLanes); }
  // Bytes e as half of 2 ** (e - 127); the two smallest are subnormal.
  static Floats powers(const uint8_t* p) {
    return each<float>(
        [](Register<int32_t> e) {
          const auto small = (Register<int32_t>)(e < 2);
          return (small & (0x00200000 << (e & 1))) | (~small & ((e - 1) << 23));
        },
        unsigned_bytes(p));
  }
  static Floats floats(const Ints& x) {
    return each<float>([](auto x) { return __builtin_convertvector(x, Register<float>); }, x);
  }
  static Floats times(const Floats& a, const Floats& b) {
    return each<float>([](auto a, auto b) { return a * b; }, a, b);
  }
  static Line look_up(const uint8_t* table, const Line& x) {
    return each<uint8_t>([=](auto x) { return Isa::look_up(table, x); }, x);
  }
  static Line join(const Line& a, const Line& b) {
    return each<uint8_t>([](auto a, auto b) { return a | b; }, a, b);
  }
  // x shifted left by `up` bits, or right where it is negative, and what `mask` keeps of each byte.
  static Line shifted(const Line& x, int up, int mask) {
    return each<uint8_t>(
        [=](auto x) {
          const auto words = (Register<uint16_t>)x;
          return (up > 0 ? words << up : words >> -up) & uint16_t(mask * 0x0101);
        },
        x);
  }
  // A sum of a tile of several rows, added before the next products are computed.
  template <bool kOfMany, class V>
  static V in_order(V sum) {
    if constexpr (kOfMany && requires { Isa::in_order(sum); }) return (V)Isa::in_order(sum);
    return sum;
  }
  // acc + four bytes of each row times four of x. kSmall: whether bytes of w are below 128.
  template <bool kSmall, bool kOfMany>
  static Ints dot(const Ints& acc, const Line& w, const int8_t* x) {
    const auto four = load_as<int32_t>(x) - Register<int32_t>{};
    const auto op = [=](auto a, auto w) {
      return in_order<kOfMany>((Register<int32_t>)Isa::template dot<kSmall>(a, w, four));
    };
    return each<int32_t>(op, acc, w);
  }
  // How many vectors of codes up to `kLargest` have products whose sums fit 16 bits, where every product is
  // one of two and x is 127 at most. 0 where the processor adds four products in 32 bits in one step.
  template <int kLargest>
  static constexpr int kIn16Bits = [] {
    if constexpr (requires(Register<uint8_t> w) { Isa::products(w, w); })
      return 32767 / (2 * 127 * kLargest);
    else
      return 0;
  }();
  using Halves = Several<int16_t>;  // two numbers for each row
  template <bool kOfMany>
  static Halves add_products(const Halves& sums, const Line& w, const int8_t* x) {
    const auto four = load_as<int32_t>(x) - Register<int32_t>{};
    const auto op = [=](auto s, auto w) {
      return in_order<kOfMany>(s + (Register<int16_t>)Isa::products(w, four));
    };
    return each<int16_t>(op, sums, w);
  }
  // total + both numbers of each row times their scales
  static Ints add_halves(const Ints& total, const Halves& sums, const Halves& scales) {
    const auto op = [](auto t, auto s, auto by) { return Isa::dot_pairs(t, s, by); };
    return each<int32_t>(op, total, sums, scales);
  }
  // Each row's number, of 15 bits, in both its halves.
  static Halves twice(const Ints& x) {
    return each<int16_t>([](auto x) { return x | x << 16; }, x);
  }
  static Ints add(const Ints& total, const Ints& acc, const Ints& scale) {
    return each<int32_t>([](auto t, auto a, auto s) { return t + a * s; }, total, acc, scale);
  }
  // Two rows of 16 unsigned bytes, for `add_pair`: total + first * x[0] + second * x[1].
  static Ints pair(const uint8_t* p) {
    return each<int32_t>([](auto a, auto b) { return a | b << 16; }, unsigned_bytes(p),
                         unsigned_bytes(p + 16));
  }
  static Ints add_pair(const Ints& total, const Ints& pair, const int16_t* x) {
    const auto two = load_as<int32_t>(x) - Register<int32_t>{};
    return each<int32_t>([=](auto t, auto w) { return Isa::dot_pairs(t, w, two); }, total, pair);
  }
  // total + acc * scale * by
  static Floats add(const Floats& total, const Ints& acc, const Floats& scale, float by) {
    const auto op = [=](auto t, auto a, auto s) { return Isa::fma(a, s * by, t); };
    return each<float>(op, total, floats(acc), scale);
  }
  static Floats subtract(const Floats& total, const Floats& minimum, float by) {
    const auto op = [=](auto t, auto m) { return Isa::fma(-m, by - Register<float>{}, t); };
    return each<float>(op, total, minimum);
  }
};

}  // namespace
