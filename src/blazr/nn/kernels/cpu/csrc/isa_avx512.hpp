// AVX-512 with BF16 and VNNI (Cooper Lake, Sapphire Rapids, Zen 4 and later).
#pragma once

#include <immintrin.h>

#include "types.hpp"

namespace {

struct Avx512 {
  using Acc = __m512;  // sixteen partial sums of one dot product
  static Acc zero() { return _mm512_setzero_ps(); }

  // The sums of four accumulators. Lanes are added at distance 8, 4, 2, 1, whatever the call.
  [[gnu::always_inline]] static inline void sum4(const Acc* a, float* out) {
    const __m512 lo = fold8(a[0], a[1]), hi = fold8(a[2], a[3]);
    // lo: a0 a0 a1 a1 in 128-bit quarters, hi: a2 a2 a3 a3
    __m512 s = _mm512_shuffle_f32x4(lo, hi, 0x88);
    s = _mm512_add_ps(s, _mm512_shuffle_f32x4(lo, hi, 0xdd));
    s = _mm512_add_ps(s, _mm512_permute_ps(s, 0x4e));
    s = _mm512_add_ps(s, _mm512_permute_ps(s, 0xb1));
    const __m512i firsts = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
    _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, s)));
  }

 private:
  static __m512 fold8(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  }
};

// How one step along K is loaded and multiplied. `step` numbers a load, `cols` rows of x a tile.
template <class Isa, class T>
struct Dot;

template <>
struct Dot<Avx512, bf16> {
  using Reg = __m512i;
  static constexpr int step = 32, cols = 6;
  static Reg load(const bf16* p) { return _mm512_loadu_si512(p); }
  static Reg load_tail(const bf16* p, int n) { return _mm512_maskz_loadu_epi16((1u << n) - 1, p); }
  static __m512 dot(__m512 acc, Reg a, Reg b) {
    return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
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

template <>
struct Dot<Avx512, f16> {
  using Reg = __m512;
  static constexpr int step = 16, cols = 6;
  static Reg load(const f16* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
  static Reg load_tail(const f16* p, int n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(__mmask16((1u << n) - 1), p));
  }
  static __m512 dot(__m512 acc, Reg a, Reg b) { return _mm512_fmadd_ps(a, b, acc); }
};

template <>
struct Dot<Avx512, float> {
  using Reg = __m512;
  static constexpr int step = 16, cols = 6;
  static Reg load(const float* p) { return _mm512_loadu_ps(p); }
  static Reg load_tail(const float* p, int n) {
    return _mm512_maskz_loadu_ps(__mmask16((1u << n) - 1), p);
  }
  static __m512 dot(__m512 acc, Reg a, Reg b) { return _mm512_fmadd_ps(a, b, acc); }
};

// Products of int8 activations with 16 rows of packed weights, a lane each.
template <class Isa>
struct Int8;

template <>
struct Int8<Avx512> {
  using Line = __m512i;   // four unsigned bytes of each row
  using Ints = __m512i;   // a sum for each row
  using Floats = __m512;  // the same
  static constexpr int cols = 8, kTakenOff = 0;
  static Floats zero_floats() { return _mm512_setzero_ps(); }
  static Floats ones() { return _mm512_set1_ps(1.0f); }
  static Floats halves(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
  }
  static Floats floats(Ints x) { return _mm512_cvtepi32_ps(x); }
  static Ints unsigned_bytes(const uint8_t* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
  }
  static Ints signed_bytes(const uint8_t* p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p));
  }
  // Bytes e as half of 2 ** (e - 127); the two smallest are subnormal.
  static Floats powers(const uint8_t* p) {
    const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    const __mmask16 is_small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
    return _mm512_castsi512_ps(_mm512_mask_blend_epi32(is_small, normal, small));
  }
  static Floats times(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Ints set(int value) { return _mm512_set1_epi32(value); }
  static Line load(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static void keep(uint8_t* p, Line x) { _mm512_storeu_si512(p, x); }
  static Line low_nibbles(Line x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
  static Line high_nibbles(Line x) { return low_nibbles(_mm512_srli_epi16(x, 4)); }
  static Line look_up(const uint8_t* table, Line x) {
    const __m128i values = _mm_loadu_si128((const __m128i*)table);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), x);
  }
  static Line join(Line a, Line b) { return _mm512_or_si512(a, b); }
  // Bits moved up so far, or down, of which `mask` is kept in each byte.
  static Line moved(Line x, int up, int mask) {
    const Words words = (Words)x;
    return _mm512_and_si512((Line)(up > 0 ? words << up : words >> -up), _mm512_set1_epi8(mask));
  }
  template <bool kSmall>  // whether bytes of w are below 128
  static Ints dot(Ints acc, Line w, const int8_t* x) {
    int four;
    memcpy(&four, x, 4);
    return _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(four));
  }
  static Ints add(Ints total, Ints acc, Ints scale) {
    return _mm512_add_epi32(total, _mm512_mullo_epi32(acc, scale));
  }
  using Pair = Ints;
  // Two rows of 16 unsigned bytes, for `add_pair`: total + first * x[0] + second * x[1].
  static Pair pair(const uint8_t* p) {
    const __m128i a = _mm_loadu_si128((const __m128i*)p), b = _mm_loadu_si128((const __m128i*)p + 1);
    const __m256i both = _mm256_set_m128i(_mm_unpackhi_epi8(a, b), _mm_unpacklo_epi8(a, b));
    return _mm512_cvtepu8_epi16(both);
  }
  static Ints add_pair(Ints total, Pair pair, const int16_t* x) {
    int two;
    memcpy(&two, x, 4);
    return _mm512_dpwssd_epi32(total, pair, _mm512_set1_epi32(two));
  }
  static Floats add(Floats total, Ints acc, Floats scale, float x_scale) {
    const Floats both = _mm512_mul_ps(scale, _mm512_set1_ps(x_scale));
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc), both, total);
  }
  static Floats subtract(Floats total, Floats minimum, float x_sum) {
    return _mm512_fnmadd_ps(minimum, _mm512_set1_ps(x_sum), total);
  }
  static void store(float* p, Floats x) { _mm512_storeu_ps(p, x); }

 private:
  using Words = uint16_t __attribute__((vector_size(64)));
};

}  // namespace
