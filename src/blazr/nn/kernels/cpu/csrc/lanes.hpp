// Vectors of sixteen floats, in the compiler's own notation: one source for every instruction set.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "types.hpp"

namespace {

// Sixteen lanes; a processor with narrower registers takes several.
using Lanes = float __attribute__((vector_size(64)));
using Lane = int32_t __attribute__((vector_size(64)));

[[gnu::always_inline]] inline Lanes load16(const float* p) {
  Lanes v;
  memcpy(&v, p, sizeof v);
  return v;
}
[[gnu::always_inline]] inline void store16(float* p, Lanes v) { memcpy(p, &v, sizeof v); }

// The same of a row with `left` numbers left; there are zeros behind them.
[[gnu::always_inline]] inline Lanes load_some(const float* p, int64_t left) {
  if (left >= 16) return load16(p);
  Lanes v{};
  memcpy(&v, p, size_t(left) * sizeof(float));
  return v;
}
[[gnu::always_inline]] inline void store_some(float* p, int64_t left, Lanes v) {
  if (left >= 16) return store16(p, v);
  memcpy(p, &v, size_t(left) * sizeof(float));
}

// a * b + c. Rounded once where the processor can; never left to the compiler, which might fuse in
// one place and not in another.
[[gnu::always_inline]] inline Lanes fma16(Lanes a, Lanes b, Lanes c) {
#if defined(__AVX512F__)
  return (Lanes)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  __m256 x[2], y[2], z[2];
  memcpy(x, &a, sizeof x), memcpy(y, &b, sizeof y), memcpy(z, &c, sizeof z);
  for (int i = 0; i < 2; i++) z[i] = _mm256_fmadd_ps(x[i], y[i], z[i]);
  memcpy(&c, z, sizeof z);
  return c;
#elif defined(__aarch64__)
  float32x4_t x[4], y[4], z[4];
  memcpy(x, &a, sizeof x), memcpy(y, &b, sizeof y), memcpy(z, &c, sizeof z);
  for (int i = 0; i < 4; i++) z[i] = vfmaq_f32(z[i], x[i], y[i]);
  memcpy(&c, z, sizeof z);
  return c;
#else
  return a * b + c;
#endif
}

[[gnu::always_inline]] inline Lanes all16(float x) { return x - Lanes{}; }

// Lanes `kIndices` of a and b side by side.
template <int... kIndices, class V>
[[gnu::always_inline]] inline V pick(V a, V b) {
  return __builtin_shufflevector(a, b, kIndices...);
}

// The sums of four vectors; lanes are added at distance 8, 4, 2, 1.
[[gnu::always_inline]] inline void sum4(const Lanes* v, float* out) {
  const auto fold8 = [](Lanes a, Lanes b) {
    return pick<0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23>(a, b) +
           pick<8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31>(a, b);
  };
  const Lanes a = fold8(v[0], v[1]), b = fold8(v[2], v[3]);
  Lanes s = pick<0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27>(a, b) +
            pick<4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31>(a, b);
#if defined(__AVX512F__)
  s += (Lanes)_mm512_permute_ps((__m512)s, 0x4e);
  s += (Lanes)_mm512_permute_ps((__m512)s, 0xb1);
  const __m512i firsts = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
  _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, (__m512)s)));
#else
  float f[16];
  store16(f, s);
  for (int q = 0; q < 4; q++) out[q] = (f[4 * q] + f[4 * q + 2]) + (f[4 * q + 1] + f[4 * q + 3]);
#endif
}

[[gnu::always_inline]] inline int32_t largest16(Lane v) {
  const auto larger = [](Lane a, Lane b) { return a > b ? a : b; };
  v = larger(v, pick<8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7>(v, v));
  v = larger(v, pick<4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11>(v, v));
  v = larger(v, pick<2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13>(v, v));
  v = larger(v, pick<1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14>(v, v));
  return v[0];
}

[[gnu::always_inline]] inline float sum16(Lanes v) {
  const Lanes four[4] = {v, v, v, v};
  float out[4];
  sum4(four, out);
  return out[0];
}

// exp_approx of each lane.
[[gnu::always_inline]] inline Lanes exp16(Lanes x) {
  const Lanes low = all16(-87.0f), high = all16(88.0f), magic = all16(0x1.8p23f);
  x = x < low ? low : x;
  x = x > high ? high : x;
  const Lanes shifted = x * 1.44269504f + magic, n = shifted - magic;
  const Lanes r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Lanes p = fma16(all16(1.0f / 5040), r, all16(1.0f / 720));
  p = fma16(p, r, all16(1.0f / 120));
  p = fma16(p, r, all16(1.0f / 24));
  p = fma16(p, r, all16(1.0f / 6));
  p = fma16(p, r, all16(0.5f));
  p = fma16(p, r, all16(1.0f));
  p = fma16(p, r, all16(1.0f));
  return p * (Lanes)(((Lane)shifted - (Lane)magic + 127) << 23);
}

// Cosine and sine, to about 2 units in the last place of the angle: that less its nearest multiple of
// pi / 2, in three parts, goes into the polynomials of Moshier's Cephes.
inline void cos_sin16(Lanes x, float* cos, float* sin) {
  const Lanes magic = all16(0x1.8p23f), shifted = x * 0.636619772f + magic, turns = magic - shifted;
  Lanes r = fma16(turns, all16(1.5703125f), x);
  r = fma16(turns, all16(4.837512969970703125e-4f), r);
  r = fma16(turns, all16(7.54978995489188216e-8f), r);
  const Lanes far = all16(0.8f);  // more than pi / 4: angles that float32 cannot tell apart
  r = r > far ? far : r;
  r = r < -far ? -far : r;
  const Lanes z = r * r;
  Lanes s = fma16(all16(-1.9515295891e-4f), z, all16(8.3321608736e-3f));
  s = fma16(s, z, all16(-1.6666654611e-1f));
  s = fma16(s * z, r, r);
  Lanes c = fma16(all16(2.443315711809948e-5f), z, all16(-1.388731625493765e-3f));
  c = fma16(c, z, all16(4.166664568298827e-2f));
  c = fma16(c * z, z, fma16(all16(-0.5f), z, all16(1.0f)));
  const Lane quarter = (Lane)shifted;  // its low bits are the multiple's
  const auto swap = (quarter & 1) != 0;
  const Lane sine = swap ? (Lane)c : (Lane)s, cosine = swap ? (Lane)s : (Lane)c;
  store16(sin, (Lanes)(sine ^ ((quarter & 2) << 30)));
  store16(cos, (Lanes)(cosine ^ (((quarter + 1) & 2) << 30)));
}

// Numbers of any format to floats, with zeros up to `room`.
template <class T>
[[gnu::always_inline]] inline void widen(const T* from, int64_t n, int64_t room, float* to) {
  for (int64_t i = 0; i < n; i++) to[i] = to_float(from[i]);
  for (int64_t i = n; i < room; i++) to[i] = 0;
}

// `rows` rows of n numbers into `room` rows of `wide`, with zeros behind them; and back.
inline void spread(const float* from, int64_t rows, int64_t n, int64_t room, int64_t wide, float* to) {
  memset(to, 0, size_t(room * wide) * sizeof(float));
  for (int64_t i = 0; i < rows; i++) memcpy(to + i * wide, from + i * n, size_t(n) * sizeof(float));
}
inline void gather(const float* from, int64_t rows, int64_t n, int64_t wide, float* to) {
  for (int64_t i = 0; i < rows; i++) memcpy(to + i * n, from + i * wide, size_t(n) * sizeof(float));
}

// Sixteen running sums, then one.
inline float mean_square(const float* x, int64_t n) {
  float sums[16]{};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const Lanes some = load16(x + i);
    store16(sums, fma16(some, some, load16(sums)));
  }
  for (int j = 0; i < n; i++, j++) sums[j] += x[i] * x[i];
  return sum16(load16(sums)) / float(n);
}

}  // namespace
