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
  static Reg load_tail(const T* p, int n) {
    Reg reg{};
    for (int i = 0; i < n; i++) reg[i] = to_float(p[i]);
    return reg;
  }
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
  static Reg load_tail(const bf16* p, int n) {
    bf16 all[step] = {};
    memcpy(all, p, n * sizeof(bf16));
    return load(all);
  }
  static Reg dot(Reg acc, Reg a, Reg b) { return acc + a * b; }
};

// Products of int8 activations with 16 rows of packed weights, a lane each.
template <class Isa>
struct Int8;

template <>
struct Int8<Portable> {
  struct Line {
    uint8_t bytes[64];  // four of each row
  };
  struct Ints {
    int32_t of[16];
  };
  struct Floats {
    float of[16];
  };
  static constexpr int cols = 2;
  static Floats zero_floats() { return {}; }
  static Floats halves(const uint8_t* p) {
    f16 scales[16];
    memcpy(scales, p, sizeof scales);
    Floats x;
    for (int i = 0; i < 16; i++) x.of[i] = to_float(scales[i]);
    return x;
  }
  static Ints set(int value) {
    Ints x;
    for (int i = 0; i < 16; i++) x.of[i] = value;
    return x;
  }
  static Line load(const uint8_t* p) {
    Line x;
    memcpy(x.bytes, p, 64);
    return x;
  }
  static Line low_nibbles(Line x) {
    for (int i = 0; i < 64; i++) x.bytes[i] &= 15;
    return x;
  }
  static Line high_nibbles(Line x) {
    for (int i = 0; i < 64; i++) x.bytes[i] >>= 4;
    return x;
  }
  static Ints dot(Ints acc, const Line& w, const int8_t* x) {
    for (int i = 0; i < 16; i++)
      for (int j = 0; j < 4; j++) acc.of[i] += int32_t(w.bytes[4 * i + j]) * x[j];
    return acc;
  }
  static Floats add(Floats total, const Ints& acc, const Floats& scale, float x_scale) {
    for (int i = 0; i < 16; i++) total.of[i] += float(acc.of[i]) * (scale.of[i] * x_scale);
    return total;
  }
  static void store(float* p, const Floats& x) { memcpy(p, x.of, sizeof x.of); }
};

}  // namespace
