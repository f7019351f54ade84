// AVX2 with FMA and F16C (Haswell, Zen and later).
#pragma once

#include <immintrin.h>

#include "types.hpp"

namespace {

struct Avx2 {
  using Acc = __m256;  // eight partial sums of one dot product
  static Acc zero() { return _mm256_setzero_ps(); }

  // The sums of four accumulators, neighbours first, in the same order whatever the call.
  static void sum4(const Acc* a, float* out) {
    const __m256 s = _mm256_hadd_ps(_mm256_hadd_ps(a[0], a[1]), _mm256_hadd_ps(a[2], a[3]));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1)));
  }
};

// How one step along K is loaded and multiplied. `step` numbers a load, `cols` rows of x a tile.
template <class Isa, class T>
struct Dot;

template <>
struct Dot<Avx2, bf16> {
  struct Reg {
    __m256 even, odd;  // a bf16 is the upper half of a float32
  };
  static constexpr int step = 16, cols = 2;
  static Reg load(const bf16* p) {
    const __m256i pairs = _mm256_loadu_si256((const __m256i*)p);
    const __m256i upper = _mm256_set1_epi32(int(0xffff0000));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(pairs, upper))};
  }
  static Reg load_tail(const bf16* p, int n) { return padded_load<Dot>(p, n); }
  static __m256 dot(__m256 acc, const Reg& a, const Reg& b) {
    return _mm256_fmadd_ps(a.odd, b.odd, _mm256_fmadd_ps(a.even, b.even, acc));
  }
};

template <>
struct Dot<Avx2, f16> {
  using Reg = __m256;
  static constexpr int step = 8, cols = 3;
  static Reg load(const f16* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
  static Reg load_tail(const f16* p, int n) { return padded_load<Dot>(p, n); }
  static __m256 dot(__m256 acc, Reg a, Reg b) { return _mm256_fmadd_ps(a, b, acc); }
};

template <>
struct Dot<Avx2, float> {
  using Reg = __m256;
  static constexpr int step = 8, cols = 3;
  static Reg load(const float* p) { return _mm256_loadu_ps(p); }
  static Reg load_tail(const float* p, int n) { return padded_load<Dot>(p, n); }
  static __m256 dot(__m256 acc, Reg a, Reg b) { return _mm256_fmadd_ps(a, b, acc); }
};

// Products of int8 activations with 16 rows of packed weights, a lane each.
template <class Isa>
struct Int8;

template <>
struct Int8<Avx2> {
  struct Line {  // four unsigned bytes of rows 0 .. 7 and 8 .. 15
    __m256i lo, hi;
  };
  using Ints = Line;
  struct Floats {
    __m256 lo, hi;
  };
  static constexpr int cols = 2, kTakenOff = 0;
  static Floats zero_floats() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static Floats ones() { return {_mm256_set1_ps(1.0f), _mm256_set1_ps(1.0f)}; }
  static Floats halves(const uint8_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)),
            _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 16)))};
  }
  static Floats floats(Ints x) { return {_mm256_cvtepi32_ps(x.lo), _mm256_cvtepi32_ps(x.hi)}; }
  static Ints unsigned_bytes(const uint8_t* p) {
    return {_mm256_cvtepu8_epi32(eight(p)), _mm256_cvtepu8_epi32(eight(p + 8))};
  }
  static Ints signed_bytes(const uint8_t* p) {
    return {_mm256_cvtepi8_epi32(eight(p)), _mm256_cvtepi8_epi32(eight(p + 8))};
  }
  // Bytes e as half of 2 ** (e - 127).
  static Floats powers(const uint8_t* p) {
    return {powers_of(_mm256_cvtepu8_epi32(eight(p))),
            powers_of(_mm256_cvtepu8_epi32(eight(p + 8)))};
  }
  static Floats times(Floats a, Floats b) {
    return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
  }
  static Ints set(int value) { return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)}; }
  static Line load(const uint8_t* p) {
    return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 32))};
  }
  static void keep(uint8_t* p, Line x) {
    _mm256_storeu_si256((__m256i*)p, x.lo);
    _mm256_storeu_si256((__m256i*)(p + 32), x.hi);
  }
  static Line low_nibbles(Line x) { return kept(x, 15); }
  static Line high_nibbles(Line x) {
    return kept({_mm256_srli_epi16(x.lo, 4), _mm256_srli_epi16(x.hi, 4)}, 15);
  }
  static Line look_up(const uint8_t* table, Line x) {
    const __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table));
    return {_mm256_shuffle_epi8(values, x.lo), _mm256_shuffle_epi8(values, x.hi)};
  }
  static Line join(Line a, Line b) {
    return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
  }
  // Bits moved up so far, or down, of which `mask` is kept in each byte.
  static Line moved(Line x, int up, int mask) {
    const Words lo = (Words)x.lo, hi = (Words)x.hi;
    return up > 0 ? kept({(__m256i)(lo << up), (__m256i)(hi << up)}, mask)
                  : kept({(__m256i)(lo >> -up), (__m256i)(hi >> -up)}, mask);
  }
  template <bool kSmall>  // whether bytes of w are below 128
  static Ints dot(Ints acc, Line w, const int8_t* x) {
    int four;
    memcpy(&four, x, 4);
    const __m256i both = _mm256_set1_epi32(four);
    return {_mm256_add_epi32(acc.lo, products<kSmall>(w.lo, both)),
            _mm256_add_epi32(acc.hi, products<kSmall>(w.hi, both))};
  }
  static Ints add(Ints total, Ints acc, Ints scale) {
    return {_mm256_add_epi32(total.lo, _mm256_mullo_epi32(acc.lo, scale.lo)),
            _mm256_add_epi32(total.hi, _mm256_mullo_epi32(acc.hi, scale.hi))};
  }
  using Pair = Ints;
  // Two rows of 16 unsigned bytes, for `add_pair`: total + first * x[0] + second * x[1].
  static Pair pair(const uint8_t* p) {
    const __m128i a = _mm_loadu_si128((const __m128i*)p), b = _mm_loadu_si128((const __m128i*)p + 1);
    return {_mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b)),
            _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b))};
  }
  static Ints add_pair(Ints total, Pair pair, const int16_t* x) {
    int two;
    memcpy(&two, x, 4);
    const __m256i both = _mm256_set1_epi32(two);
    return {_mm256_add_epi32(total.lo, _mm256_madd_epi16(pair.lo, both)),
            _mm256_add_epi32(total.hi, _mm256_madd_epi16(pair.hi, both))};
  }
  static Floats add(Floats total, Ints acc, Floats scale, float x_scale) {
    const __m256 by = _mm256_set1_ps(x_scale);
    return {_mm256_fmadd_ps(_mm256_cvtepi32_ps(acc.lo), _mm256_mul_ps(scale.lo, by), total.lo),
            _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc.hi), _mm256_mul_ps(scale.hi, by), total.hi)};
  }
  static Floats subtract(Floats total, Floats minimum, float x_sum) {
    const __m256 by = _mm256_set1_ps(x_sum);
    return {_mm256_fnmadd_ps(minimum.lo, by, total.lo), _mm256_fnmadd_ps(minimum.hi, by, total.hi)};
  }
  static void store(float* p, Floats x) {
    _mm256_storeu_ps(p, x.lo);
    _mm256_storeu_ps(p + 8, x.hi);
  }

 private:
  using Words = uint16_t __attribute__((vector_size(32)));
  static __m128i eight(const uint8_t* p) { return _mm_loadl_epi64((const __m128i*)p); }
  static Line kept(Line x, int mask) {
    const __m256i bits = _mm256_set1_epi8(mask);
    return {_mm256_and_si256(x.lo, bits), _mm256_and_si256(x.hi, bits)};
  }
  static __m256 powers_of(__m256i e) {  // the two smallest are subnormal
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, small, is_small));
  }
  // Sums of four products, in 16-bit steps that cannot overflow: of neighbours where bytes of w are
  // small, else of even and of odd bytes.
  template <bool kSmall>
  static __m256i products(__m256i w, __m256i x) {
    if (kSmall) return _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1));
    const __m256i low = _mm256_set1_epi16(255);
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(w, low),
                                           _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8));
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(w, 8), _mm256_srai_epi16(x, 8));
    return _mm256_add_epi32(even, odd);
  }
};

}  // namespace
