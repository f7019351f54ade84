// AVX-512 with VNNI (Ice Lake, Tiger Lake), and with BF16 as well (Cooper Lake, Sapphire Rapids, Zen 4
// and later).
#pragma once

#include <immintrin.h>

#include "lanes.hpp"
#include "registers.hpp"

namespace {

struct Avx512 {
  using Acc = __m512;  // sixteen partial sums of one dot product
  static constexpr int kTileCols = 6, kWideTileRows = 4, kWideTileCols = 6, kRunCols = 8, kNumAccs = 32;
  static Acc zero() { return _mm512_setzero_ps(); }
  static Acc load(const float* p) { return _mm512_loadu_ps(p); }
  static Acc load(const f16* p) { return halves((const uint8_t*)p); }
  static Acc fma(Acc a, Acc b, Acc c) { return _mm512_fmadd_ps(a, b, c); }

  static void sum4(const Acc* a, float* out) { ::sum4((const Lanes*)a, out); }

  // For packed weights.
  static constexpr int kWidth = 64, kPackedTileCols = 8, kDotOffset = 0;
  static __m512 halves(const uint8_t* p) { return _mm512_cvtph_ps(load_as<__m256i>(p)); }
  static __m512i unsigned_bytes(const uint8_t* p) { return _mm512_cvtepu8_epi32(load_as<__m128i>(p)); }
  static __m512i signed_bytes(const uint8_t* p) { return _mm512_cvtepi8_epi32(load_as<__m128i>(p)); }
  template <class V>
  static __m512i look_up(const uint8_t* table, V x) {
    const __m128i values = _mm_loadu_si128((const __m128i*)table);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), (__m512i)x);
  }
  template <bool kSmall, class V, class W>
  static __m512i dot(V acc, W w, V x) {
    return _mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, (__m512i)x);
  }
  template <class V>
  static __m512i dot_pairs(V acc, V w, V x) {
    return _mm512_dpwssd_epi32((__m512i)acc, (__m512i)w, (__m512i)x);
  }

  // For signed bytes that meet pairs of int16 (see attention_whole.hpp). Sixteen bytes of sixteen rows, a
  // lane for a row: of every four, the first and third together, then the second and fourth.
  static void pairs_of_columns(const uint8_t* rows, int64_t stride, int32_t* out) {
    const auto four = [=](int64_t i) {  // 16 bytes of rows i, i + 4, i + 8, i + 12
      const auto row = [=](int64_t r) { return load_as<__m128i>(rows + r * stride); };
      __m512i x = _mm512_castsi128_si512(row(i));
      x = _mm512_inserti32x4(x, row(i + 4), 1);
      x = _mm512_inserti32x4(x, row(i + 8), 2);
      return _mm512_inserti32x4(x, row(i + 12), 3);
    };
    const __m512i a = four(0), b = four(1), c = four(2), d = four(3);
    const __m512i ab = _mm512_unpacklo_epi32(a, b), cd = _mm512_unpacklo_epi32(c, d);
    const __m512i ef = _mm512_unpackhi_epi32(a, b), gh = _mm512_unpackhi_epi32(c, d);
    const __m512i bytes[] = {_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd),
                             _mm512_unpacklo_epi64(ef, gh), _mm512_unpackhi_epi64(ef, gh)};
    for (const __m512i x : bytes) {
      _mm512_storeu_si512(out, _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8));
      _mm512_storeu_si512(out + 16, _mm512_srai_epi16(x, 8));
      out += 32;
    }
  }
  // Thirty-two bytes of two rows, byte by byte.
  static void pairs_of_rows(const uint8_t* a, const uint8_t* b, int32_t* out) {
    const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39,
                                         7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    const __m512i x = _mm512_cvtepi8_epi16(load_as<__m256i>(a));
    const __m512i y = _mm512_cvtepi8_epi16(load_as<__m256i>(b));
    _mm512_storeu_si512(out, _mm512_permutex2var_epi16(x, low, y));
    _mm512_storeu_si512(out + 16, _mm512_permutex2var_epi16(x, high, y));
  }
};

// Numbers of bf16 are widened in registers: each is the upper half of a float32.
template <>
struct Dot<Avx512, bf16> {
  struct Reg {
    __m512 even, odd;
  };
  static constexpr int step = 32, cols = 4, pieces = 2;
  template <int kPiece>
  static __m512 piece(const bf16* p) {
    const __m512i pairs = _mm512_loadu_si512(p);
    return _mm512_castsi512_ps(kPiece ? _mm512_and_si512(pairs, _mm512_set1_epi32(int(0xffff0000)))
                                      : _mm512_slli_epi32(pairs, 16));
  }
  static Reg load(const bf16* p) { return {piece<0>(p), piece<1>(p)}; }
  static Reg load_tail(const bf16* p, int n) { return padded_load<Dot>(p, n); }
  static __m512 dot(__m512 acc, const Reg& a, const Reg& b) {
    return _mm512_fmadd_ps(a.odd, b.odd, _mm512_fmadd_ps(a.even, b.even, acc));
  }
};

#if defined(__AVX512BF16__)
struct Avx512Bf16 : Avx512 {};

template <>
struct Dot<Avx512Bf16, bf16> {
  using Reg = __m512i;
  static constexpr int step = 32, cols = Avx512::kTileCols;
  static Reg load(const bf16* p) { return _mm512_loadu_si512(p); }
  static Reg load_tail(const bf16* p, int n) { return _mm512_maskz_loadu_epi16((1u << n) - 1, p); }
  static __m512 dot(__m512 acc, Reg a, Reg b) {
    return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
  }
  // Thirty-two numbers, rounded.
  static Reg rounded(const Lanes& lo, const Lanes& hi) {
    return (Reg)_mm512_cvtne2ps_pbh((__m512)hi.v, (__m512)lo.v);
  }
  // Rows a and b number by number: what `dot` takes to add both, weighed by a `pair`, in one step.
  static void interleave(Reg a, Reg b, Reg* out) {
    const Reg low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39,
                                     7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    out[0] = _mm512_permutex2var_epi16(a, low, b);
    out[1] = _mm512_permutex2var_epi16(a, _mm512_add_epi16(low, _mm512_set1_epi16(16)), b);
  }
  static Reg pair(const bf16* p) {
    int two;
    memcpy(&two, p, sizeof two);
    return _mm512_set1_epi32(two);
  }
};

#endif

}  // namespace
