// What is done to each number alone: sums, scales, activations; rounded once, at the end.
#pragma once

#include "types.hpp"

namespace {

// Both in terms of exp, in steps a compiler turns into vector code; absolute error below 2e-7.
inline float tanh_approx(float x) { return 1.0f - 2.0f / (exp_approx(2.0f * x) + 1.0f); }

// Abramowitz and Stegun 1964, 7.1.26.
inline float erf_approx(float x) {
  const float size = x < 0 ? -x : x, t = 1.0f / (1.0f + 0.3275911f * size);
  float p = 1.061405429f;
  p = p * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const float y = 1.0f - p * t * exp_approx(-size * size);
  return x < 0 ? -y : y;
}

// GELU in terms of erf and of tanh: Hendrycks and Gimpel 2016, arXiv:1606.08415.
template <int kKind>
inline float activated(float x) {
  constexpr float kRootHalf = 0.70710678f, kRootTwoOverPi = 0.79788456f;  // roots of 1 / 2 and 2 / pi
  if constexpr (kKind == kSilu) return silu(x);
  if constexpr (kKind == kGelu) return 0.5f * x * (1.0f + erf_approx(x * kRootHalf));
  if constexpr (kKind == kGeluTanh)
    return 0.5f * x * (1.0f + tanh_approx(kRootTwoOverPi * (x + 0.044715f * x * x * x)));
  if constexpr (kKind == kRelu) return x < 0 ? 0.0f : x;
  if constexpr (kKind == kRelu2) return x < 0 ? 0.0f : x * x;
  return sigmoid(x);  // kSigmoid
}

template <class T>
struct PointwiseOf {
  template <int kKind>
  static void run(const Pointwise& call, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
    for (int64_t m = m0; m < m1; m++) {
      const T* a = (const T*)call.a + m * call.a_stride;
      const T* b = call.b ? (const T*)call.b + m * call.b_stride : nullptr;
      T* out = (T*)call.out + m * call.n;
      const float scale = call.scale;
      if constexpr (kKind == kAdd) {
        for (int64_t i = n0; i < n1; i++)
          round_to(to_float(a[i]) + to_float(b[i]) * scale, out[i]);
      } else if constexpr (kKind == kScale) {
        for (int64_t i = n0; i < n1; i++) round_to(to_float(a[i]) * scale, out[i]);
      } else if constexpr (kKind == kWiden) {
        float* wide = (float*)call.out + m * call.n;
        const float cap = call.cap;
        for (int64_t i = n0; i < n1; i++) wide[i] = to_float(a[i]);
        if (scale != 1)
          for (int64_t i = n0; i < n1; i++) wide[i] /= scale;
        if (cap > 0)
          for (int64_t i = n0; i < n1; i++) wide[i] = tanh_approx(wide[i] / cap) * cap;
      } else if (kKind == kSigmoid && !call.b_step) {
        const float gate = activated<kSigmoid>(to_float(b[0]));
        for (int64_t i = n0; i < n1; i++) round_to(to_float(a[i]) * gate, out[i]);
      } else if constexpr (kKind == kSigmoid) {
        for (int64_t i = n0; i < n1; i++)
          round_to(to_float(a[i]) * activated<kKind>(to_float(b[i])), out[i]);
      } else if (b) {
        for (int64_t i = n0; i < n1; i++)
          round_to(activated<kKind>(to_float(a[i])) * to_float(b[i]), out[i]);
      } else {
        for (int64_t i = n0; i < n1; i++) round_to(activated<kKind>(to_float(a[i])), out[i]);
      }
    }
  }

  static void part(const Pointwise& call, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
    with_count<kNumPointwise>(call.kind + 1, [&](auto n) { run<n - 1>(call, m0, m1, n0, n1); });
  }
};

}  // namespace
