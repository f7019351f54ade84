// Any processor: vectors as GCC and Clang spell them (SSE2, NEON, or plain code).
#pragma once

#include "registers.hpp"

namespace {

struct Portable {
  typedef float Acc __attribute__((vector_size(16)));  // four partial sums of one dot product
  static constexpr int kTileCols = 2, kWideTileRows = 4, kWideTileCols = 2, kRunCols = 2, kNumAccs = 16;
  static Acc zero() { return Acc{}; }
  template <class T>
  static Acc load(const T* p) {
    return Acc{to_float(p[0]), to_float(p[1]), to_float(p[2]), to_float(p[3])};
  }
  template <class V>
  static V fma(V a, V b, V c) {
    return c + a * b;
  }
  static void sum4(const Acc* a, float* out) {
    for (int i = 0; i < 4; i++) out[i] = (a[i][0] + a[i][2]) + (a[i][1] + a[i][3]);
  }

  // For packed weights. Loops are not inlined, which would take the compiler a minute.
  static constexpr int kWidth = 64, kPackedTileCols = 2, kDotOffset = 0;
  using Floats = float __attribute__((vector_size(kWidth)));
  using Ints = int32_t __attribute__((vector_size(kWidth)));
  [[gnu::noinline]] static Floats halves(const uint8_t* p) {
    f16 scales[16];
    memcpy(scales, p, sizeof scales);
    Floats x{};
    for (int i = 0; i < 16; i++) x[i] = to_float(scales[i]);
    return x;
  }
  static Ints unsigned_bytes(const uint8_t* p) { return widened<uint8_t>(p); }
  static Ints signed_bytes(const uint8_t* p) { return widened<int8_t>(p); }
  template <class T>
  static Ints widened(const uint8_t* p) {
    typedef T Bytes __attribute__((vector_size(16)));
    return __builtin_convertvector(load_as<Bytes>(p), Ints);
  }
  template <class V>
  [[gnu::noinline]] static V look_up(const uint8_t* table, V x) {
    for (int i = 0; i < kWidth; i++) x[i] = table[x[i]];
    return x;
  }
  template <bool kSmall, class V, class W>
  [[gnu::noinline]] static V dot(V acc, W w, V x) {
    for (int j = 0; j < 32; j += 8) acc += ((V)w >> j & 255) * (x << (24 - j) >> 24);
    return acc;
  }
  template <class V>
  static V dot_pairs(V acc, V w, V x) {
    return acc + (w & 0xffff) * (x << 16 >> 16) + (w >> 16) * (x >> 16);
  }
};

}  // namespace
