// Number formats, and the few scalar functions every instruction set shares.
//
// This header is compiled once for each instruction set, so everything in it has internal linkage
// (an unnamed namespace): a function compiled for AVX-512 must never be the one that the linker
// keeps for a processor without it. For the same reason no kernel calls into the C++ library.
// What loops call for each number is inlined by order: only then are they turned into vector code,
// and compilers give up on that in files as large as these become.
#pragma once

#include <cstring>
#include <type_traits>

#include "kernels.hpp"

namespace {

// Storage of 16-bit floats; the bits as they lie in memory.
struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

template <class To, class From>
[[gnu::always_inline]] inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

template <class To>
[[gnu::always_inline]] inline To load_as(const void* p) {
  To to;
  memcpy(&to, p, sizeof to);
  return to;
}

inline constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline constexpr int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

[[gnu::always_inline]] inline float to_float(float x) { return x; }

[[gnu::always_inline]] inline float to_float(bf16 x) { return bits_as<float>(uint32_t(x.bits) << 16); }

[[gnu::always_inline]] inline float to_float(f16 x) {
  const uint32_t magnitude = x.bits & 0x7fff, sign = uint32_t(x.bits & 0x8000) << 16;
  // the exponent is rebiased by a product, which also normalises subnormals
  uint32_t wide = bits_as<uint32_t>(bits_as<float>(magnitude << 13) * 0x1p112f);
  if (magnitude >= 0x7c00) wide |= 0x7f800000;  // infinity and NaN
  return bits_as<float>(wide | sign);
}

// Round to the nearest, ties to even; NaN stays NaN.
[[gnu::always_inline]] inline void round_to(float x, float& out) { out = x; }

[[gnu::always_inline]] inline void round_to(float x, bf16& out) {
  const uint32_t u = bits_as<uint32_t>(x);
  const uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  out.bits = uint16_t((u & 0x7fffffff) > 0x7f800000 ? (u >> 16) | 0x40 : rounded);
}

[[gnu::always_inline]] inline void round_to(float x, f16& out) {
  const uint32_t u = bits_as<uint32_t>(x), sign = (u >> 16) & 0x8000, magnitude = u & 0x7fffffff;
  uint32_t half;
  if (magnitude > 0x7f800000) {
    half = 0x7e00;  // NaN
  } else if (magnitude >= 0x47800000) {
    half = 0x7c00;  // 2^16 and more
  } else if (magnitude < 0x38800000) {
    // subnormal: the addition puts the last bit where float32 rounds
    half = bits_as<uint32_t>(bits_as<float>(magnitude) + 0.5f) - 0x3f000000;
  } else {
    half = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  }
  out.bits = uint16_t(sign | half);
}

// Calls body(n) with n, from 1 to kMost, as a constant.
template <int kMost, class Body>
inline void with_count(int64_t n, const Body& body) {
  if (n == kMost) return body(std::integral_constant<int, kMost>{});
  if constexpr (kMost > 1) with_count<kMost - 1>(n, body);
}

// Calls body(count, first) for equal stretches of n, of up to kMost each; the count is a constant.
template <int kMost, class Body>
[[gnu::always_inline]] inline void in_tiles(int64_t n, const Body& body) {
  const int64_t tiles = (n + kMost - 1) / kMost, step = (n + tiles - 1) / tiles;
  for (int64_t first = 0; first < n; first += step)
    with_count<kMost>(smaller(step, n - first), [&](auto count) { body(count, first); });
}

// A load of n numbers with zeros behind them, for the end of a row. D is a Dot.
template <class D, class T>
inline typename D::Reg padded_load(const T* p, int n) {
  T all[D::step] = {};
  memcpy(all, p, n * sizeof(T));
  return D::load(all);
}

// Added to a float of magnitude below 2^22, 1.5 * 2^23 leaves no bits for fractions: the sum's low bits
// are the nearest integer, ties to even. Taken off again, it leaves that integer as a float.
constexpr float kRoundToInteger = 0x1.8p23f;

constexpr float kLog2E = 1.44269504f;
// ln 2 in two parts, as Cephes splits it: products of whole numbers up to 127 with the first are exact.
constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
// exp of a float is a normal number from -87.33 to 88.72.
constexpr float kLeastExponent = -87.0f, kMostExponent = 88.0f;

// exp to about 2 units in the last place, in steps a compiler turns into vector code: where it is
// inlined, which it would not be everywhere by itself.
[[gnu::always_inline]] inline float exp_approx(float x) {
  x = x < kLeastExponent ? kLeastExponent : x > kMostExponent ? kMostExponent : x;
  const float shifted = x * kLog2E + kRoundToInteger;
  const float n = shifted - kRoundToInteger;
  const float r = (x - n * kLn2High) + n * -kLn2Low;  // x - n ln 2
  float p = 1.0f / 5040;  // the series of exp on [-ln 2 / 2, ln 2 / 2]
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const uint32_t exponent = (bits_as<uint32_t>(shifted) - bits_as<uint32_t>(kRoundToInteger) + 127) << 23;
  return p * bits_as<float>(exponent);
}

// log(1 + u) = 2 artanh(u / (2 + u)), whose series is short for u up to 1; of a number, or of each lane.
template <class X>
[[gnu::always_inline]] inline X log_1_plus(const X& u) {
  const X s = u / (u + 2.0f), square = s * s;
  X p = square * (1.0f / 15) + 1.0f / 13;
  p = p * square + 1.0f / 11;
  p = p * square + 1.0f / 9;
  p = p * square + 1.0f / 7;
  p = p * square + 1.0f / 5;
  p = p * square + 1.0f / 3;
  p = p * square + 1.0f;
  return s * 2.0f * p;
}

// log(1 + exp(x)).
[[gnu::always_inline]] inline float softplus(float x) {
  return (x < 0 ? 0.0f : x) + log_1_plus(exp_approx(x < 0 ? x : -x));
}

[[gnu::always_inline]] inline float sigmoid(float x) { return 1.0f / (1.0f + exp_approx(-x)); }

[[gnu::always_inline]] inline float silu(float x) { return x / (1.0f + exp_approx(-x)); }

// Columns [n0, n0 + n) of a row y from their sums: bias, or null; gate by `ups`, or not; rounding;
// and, as the sum of what is rounded, `scale` times this on a row of the residual, or null.
template <class T, class Y>
inline void finish(const T* bias, bool gated, int64_t n0, int64_t n, float* sums, const float* ups,
                   Y* y, const Y* residual, float scale) {
  if (bias)
    for (int64_t i = 0; i < n; i++) sums[i] += to_float(bias[n0 + i]);
  if (gated)
    for (int64_t i = 0; i < n; i++) sums[i] = silu(sums[i]) * ups[i];
  for (int64_t i = 0; i < n; i++) round_to(sums[i], y[n0 + i]);
  if (residual)
    for (int64_t i = n0; i < n0 + n; i++)
      round_to(to_float(residual[i]) + to_float(y[i]) * scale, y[i]);
}

}  // namespace
