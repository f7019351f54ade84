// Any processor: vectors of four floats as GCC and Clang spell them (SSE2, NEON, or plain code).
#pragma once

#include "types.hpp"

namespace {

struct Portable {
  typedef float Acc __attribute__((vector_size(16)));  // four partial sums of one dot product
  static Acc zero() { return Acc{}; }

  static void sum4(const Acc* a, float* out) {
    for (int i = 0; i < 4; i++) out[i] = (a[i][0] + a[i][2]) + (a[i][1] + a[i][3]);
  }
};

// How one step along K is loaded and multiplied. `step` numbers a load, `cols` rows of x a tile.
template <class Isa, class T>
struct Dot;

template <class T>
struct Dot<Portable, T> {
  using Reg = Portable::Acc;
  static constexpr int step = 4, cols = 2;
  static Reg load(const T* p) {
    return Reg{to_float(p[0]), to_float(p[1]), to_float(p[2]), to_float(p[3])};
  }
  static Reg load_tail(const T* p, int n) { return padded_load<Dot>(p, n); }
  static Reg dot(Reg acc, Reg a, Reg b) { return acc + a * b; }
};

template <>
struct Dot<Portable, bf16> {
  using Reg = Portable::Acc;
  typedef uint32_t Words __attribute__((vector_size(16)));
  typedef uint16_t Halves __attribute__((vector_size(8)));
  static constexpr int step = 4, cols = 2;
  static Reg load(const bf16* p) {
    Halves halves;
    memcpy(&halves, p, sizeof halves);
    return (Reg)(__builtin_convertvector(halves, Words) << 16);
  }
  static Reg load_tail(const bf16* p, int n) { return padded_load<Dot>(p, n); }
  static Reg dot(Reg acc, Reg a, Reg b) { return acc + a * b; }
};

// Products of int8 activations with 16 rows of packed weights, a lane each.
template <class Isa>
struct Int8;

template <>
struct Int8<Portable> {
  using Line = uint8_t __attribute__((vector_size(64)));  // four of each row
  using Ints = int32_t __attribute__((vector_size(64)));
  using Floats = float __attribute__((vector_size(64)));
  static constexpr int cols = 2, kTakenOff = 0;
  static Floats zero_floats() { return Floats{}; }
  static Floats ones() { return Floats{} + 1.0f; }
  [[gnu::noinline]] static Floats halves(const uint8_t* p) {
    f16 scales[16];
    memcpy(scales, p, sizeof scales);
    Floats x{};
    for (int i = 0; i < 16; i++) x[i] = to_float(scales[i]);
    return x;
  }
  static Floats floats(Ints x) { return __builtin_convertvector(x, Floats); }
  static Ints unsigned_bytes(const uint8_t* p) { return ints<uint8_t>(p); }
  static Ints signed_bytes(const uint8_t* p) { return ints<int8_t>(p); }
  // Bytes e as half of 2 ** (e - 127); the two smallest are subnormal.
  static Floats powers(const uint8_t* p) {
    Floats x{};
    for (int i = 0; i < 16; i++)
      x[i] = bits_as<float>(p[i] < 2 ? 0x00200000u << p[i] : uint32_t(p[i] - 1) << 23);
    return x;
  }
  static Floats times(Floats a, Floats b) { return a * b; }
  static Ints set(int value) { return Ints{} + value; }
  static Line load(const uint8_t* p) {
    Line x;
    memcpy(&x, p, 64);
    return x;
  }
  static void keep(uint8_t* p, Line x) { memcpy(p, &x, 64); }
  static Line low_nibbles(Line x) { return x & 15; }
  static Line high_nibbles(Line x) { return x >> 4; }
  [[gnu::noinline]] static Line look_up(const uint8_t* table, Line x) {
    for (int i = 0; i < 64; i++) x[i] = table[x[i]];
    return x;
  }
  static Line join(Line a, Line b) { return a | b; }
  // Bits moved up so far, or down, of which `mask` is kept in each byte.
  static Line moved(Line x, int up, int mask) {
    return (up > 0 ? x << up : x >> -up) & uint8_t(mask);
  }
  template <bool kSmall>  // not inlined, which would take the compiler a minute
  [[gnu::noinline]] static Ints dot(Ints acc, Line w, const int8_t* x) {
    const Ints four = bits_as<Ints>(w);
    for (int j = 0; j < 4; j++) acc += (four >> 8 * j & 255) * x[j];
    return acc;
  }
  static Ints add(Ints total, Ints acc, Ints scale) { return total + acc * scale; }
  // Two rows of 16 unsigned bytes, for `add_pair`: total + first * x[0] + second * x[1].
  struct Pair {
    Ints first, second;
  };
  static Pair pair(const uint8_t* p) { return {unsigned_bytes(p), unsigned_bytes(p + 16)}; }
  static Ints add_pair(Ints total, Pair pair, const int16_t* x) {
    return total + pair.first * x[0] + pair.second * x[1];
  }
  static Floats add(Floats total, Ints acc, Floats scale, float x_scale) {
    return total + __builtin_convertvector(acc, Floats) * (scale * x_scale);
  }
  static Floats subtract(Floats total, Floats minimum, float x_sum) {
    return total - minimum * x_sum;
  }
  static void store(float* p, Floats x) { memcpy(p, &x, 64); }

 private:
  template <class T>
  static Ints ints(const uint8_t* p) {
    typedef T Sixteen __attribute__((vector_size(16)));
    Sixteen bytes;
    memcpy(&bytes, p, 16);
    return __builtin_convertvector(bytes, Ints);
  }
};

}  // namespace
