// AVX2 with FMA and F16C (Haswell, Zen and later), and with AVX-VNNI as well (Alder Lake and later).
#pragma once

#include <immintrin.h>

#include "registers.hpp"

namespace {

struct Avx2 {
  using Acc = __m256;  // eight partial sums of one dot product
  static constexpr int kTileCols = 3, kWideTileRows = 2, kWideTileCols = 6, kRunCols = 6, kNumAccs = 16;
  static Acc zero() { return _mm256_setzero_ps(); }
  static Acc load(const float* p) { return _mm256_loadu_ps(p); }
  static Acc load(const f16* p) { return halves((const uint8_t*)p); }
  static Acc fma(Acc a, Acc b, Acc c) { return _mm256_fmadd_ps(a, b, c); }

  // The sums of four accumulators, neighbours first, in the same order whatever the call.
  static void sum4(const Acc* a, float* out) {
    const __m256 s = _mm256_hadd_ps(_mm256_hadd_ps(a[0], a[1]), _mm256_hadd_ps(a[2], a[3]));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1)));
  }

  // For packed weights.
  static constexpr int kWidth = 32, kPackedTileCols = 4, kDotOffset = 128;
  static __m256 halves(const uint8_t* p) { return _mm256_cvtph_ps(load_as<__m128i>(p)); }
  static __m128i eight(const uint8_t* p) { return _mm_loadl_epi64((const __m128i*)p); }
  static __m256i unsigned_bytes(const uint8_t* p) { return _mm256_cvtepu8_epi32(eight(p)); }
  static __m256i signed_bytes(const uint8_t* p) { return _mm256_cvtepi8_epi32(eight(p)); }
  template <class V>
  static __m256i look_up(const uint8_t* table, V x) {
    const __m128i values = _mm_loadu_si128((const __m128i*)table);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), (__m256i)x);
  }
  // A product of bytes takes one factor unsigned: w less kDotOffset gives its magnitude, up to 128, and
  // its sign to x. Two such products, 128 * 127 * 2 at most, fit 16 bits.
  template <bool kSmall, class V, class W>
  static __m256i dot(V acc, W w, V x) {
    const __m256i ws = _mm256_xor_si256((__m256i)w, _mm256_set1_epi8(int8_t(kDotOffset)));
    const __m256i signs = _mm256_sign_epi8((__m256i)x, ws);
    return dot_pairs(acc, _mm256_maddubs_epi16(_mm256_abs_epi8(ws), signs), _mm256_set1_epi16(1));
  }
  // Bytes below 128 times those of x, summed two by two in 16 bits.
  template <class W, class V>
  static __m256i products(W w, V x) {
    return _mm256_maddubs_epi16((__m256i)w, (__m256i)x);
  }
  template <class V, class W>
  static __m256i dot_pairs(V acc, W w, W x) {
    return _mm256_add_epi32((__m256i)acc, _mm256_madd_epi16((__m256i)w, (__m256i)x));
  }
  // Returns sum, through an empty instruction that the compiler cannot move: GCC would compute all products
  // of a tile before the first sum, more than there are registers for.
  template <class V>
  static V in_order(V sum) {
    __asm__("" : "+x"(sum));
    return sum;
  }

  // For signed bytes that meet pairs of int16 (see attention_whole.hpp). Sixteen bytes of sixteen rows, a
  // lane for a row: of every four, the first and third together, then the second and fourth.
  static void pairs_of_columns(const uint8_t* rows, int64_t stride, int32_t* out) {
    for (int64_t half = 0; half < 2; half++) {
      const auto two = [=](int64_t i) {  // 16 bytes of rows i and i + 4
        const auto row = [=](int64_t r) { return load_as<__m128i>(rows + (8 * half + r) * stride); };
        return _mm256_inserti128_si256(_mm256_castsi128_si256(row(i)), row(i + 4), 1);
      };
      const __m256i a = two(0), b = two(1), c = two(2), d = two(3);
      const __m256i ab = _mm256_unpacklo_epi32(a, b), cd = _mm256_unpacklo_epi32(c, d);
      const __m256i ef = _mm256_unpackhi_epi32(a, b), gh = _mm256_unpackhi_epi32(c, d);
      const __m256i bytes[] = {_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd),
                               _mm256_unpacklo_epi64(ef, gh), _mm256_unpackhi_epi64(ef, gh)};
      for (int64_t i = 0; i < 4; i++) {
        const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(bytes[i], 8), 8);
        _mm256_storeu_si256((__m256i*)(out + 32 * i + 8 * half), even);
        _mm256_storeu_si256((__m256i*)(out + 32 * i + 16 + 8 * half), _mm256_srai_epi16(bytes[i], 8));
      }
    }
  }
  // Thirty-two bytes of two rows, byte by byte.
  static void pairs_of_rows(const uint8_t* a, const uint8_t* b, int32_t* out) {
    for (int64_t half = 0; half < 2; half++, out += 16) {
      const __m128i x = load_as<__m128i>(a + 16 * half), y = load_as<__m128i>(b + 16 * half);
      _mm256_storeu_si256((__m256i*)out, _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(x, y)));
      _mm256_storeu_si256((__m256i*)(out + 8), _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(x, y)));
    }
  }
};

template <>
struct Dot<Avx2, bf16> {
  struct Reg {
    __m256 even, odd;  // a bf16 is the upper half of a float32
  };
  // three rows of x have twelve sums: with those and the mask there is no register left to widen in
  static constexpr int step = 16, cols = 2, pieces = 2;
  template <int kPiece>
  static __m256 piece(const bf16* p) {
    const __m256i pairs = _mm256_loadu_si256((const __m256i*)p);
    const __m256i upper = _mm256_set1_epi32(int(0xffff0000));
    return _mm256_castsi256_ps(kPiece ? _mm256_and_si256(pairs, upper)
                                      : _mm256_slli_epi32(pairs, 16));
  }
  static Reg load(const bf16* p) { return {piece<0>(p), piece<1>(p)}; }
  static Reg load_tail(const bf16* p, int n) { return padded_load<Dot>(p, n); }
  static __m256 dot(__m256 acc, const Reg& a, const Reg& b) {
    return _mm256_fmadd_ps(a.odd, b.odd, _mm256_fmadd_ps(a.even, b.even, acc));
  }
};

#if defined(__AVXVNNI__)
struct AvxVnni : Avx2 {
  static constexpr int kDotOffset = 0;
  static void products() = delete;  // four products in 32 bits are one step
  template <bool kSmall, class V, class W>
  static __m256i dot(V acc, W w, V x) {
    return _mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)w, (__m256i)x);
  }
  template <class V, class W>
  static __m256i dot_pairs(V acc, W w, W x) {
    return _mm256_dpwssd_avx_epi32((__m256i)acc, (__m256i)w, (__m256i)x);
  }
};

template <>
struct Dot<AvxVnni, bf16> : Dot<Avx2, bf16> {};
#endif

}  // namespace
