// Vectors of sixteen numbers, in as many registers as the processor needs for them: one source for
// every instruction set.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <utility>

#include "types.hpp"

namespace {

#if defined(__AVX512F__)
constexpr int kRegister = 64;  // bytes
#elif defined(__AVX2__)
constexpr int kRegister = 32;
#else
constexpr int kRegister = 16;
#endif
constexpr int kPerRegister = kRegister / 4;  // floats, or int32

// N registers as halves of halves: compilers leave arrays, and vectors wider than a register, in
// memory.
template <class T, int N, int kBytes = kRegister>
struct Registers {
  Registers<T, N / 2, kBytes> lo, hi;
};
template <class T, int kBytes>
struct Registers<T, 1, kBytes> {
  typedef T Vector __attribute__((vector_size(kBytes)));
  Vector v;
};

// Sixteen numbers, as floats and as integers.
constexpr int kPerLanes = 64 / kRegister;  // registers
using Lanes = Registers<float, kPerLanes>;
using IntLanes = Registers<int32_t, kPerLanes>;

// op(x, y, ...) of one register of each vector after the other, as a vector of T.
template <class T, class Op, int N, int kBytes, class... From>
[[gnu::always_inline]] inline Registers<T, N, kBytes> each(const Op& op,
                                                           const Registers<From, N, kBytes>&... from) {
  if constexpr (N == 1)
    return {(typename Registers<T, 1, kBytes>::Vector)op(from.v...)};
  else
    return {each<T>(op, from.lo...), each<T>(op, from.hi...)};
}

// The same number in every lane.
template <class T, int N = kPerLanes>
[[gnu::always_inline]] inline Registers<T, N> all(T x) {
  if constexpr (N == 1)
    return {x - typename Registers<T, 1>::Vector{}};
  else
    return {all<T, N / 2>(x), all<T, N / 2>(x)};
}
[[gnu::always_inline]] inline Lanes all16(float x) { return all(x); }

// A register of numbers as floats.
using FloatRegister = Registers<float, 1>;
[[gnu::always_inline]] inline FloatRegister load_register(const float* p) {
  return {load_as<FloatRegister::Vector>(p)};
}
// A bf16 is the upper half of a float.
[[gnu::always_inline]] inline FloatRegister load_register(const bf16* p) {
  using Vector = FloatRegister::Vector;
#if defined(__AVX512F__)
  return {(Vector)_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_as<__m256i>(p)), 16)};
#elif defined(__AVX2__)
  return {(Vector)_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_as<__m128i>(p)), 16)};
#elif defined(__aarch64__)
  return {(Vector)vshll_n_u16(load_as<uint16x4_t>(p), 16)};
#else
  return {Vector{to_float(p[0]), to_float(p[1]), to_float(p[2]), to_float(p[3])}};
#endif
}
[[gnu::always_inline]] inline FloatRegister load_register(const f16* p) {
  using Vector = FloatRegister::Vector;
#if defined(__AVX512F__)
  return {(Vector)_mm512_cvtph_ps(load_as<__m256i>(p))};
#elif defined(__F16C__)
  return {(Vector)_mm256_cvtph_ps(load_as<__m128i>(p))};
#elif defined(__aarch64__)
  return {(Vector)vcvt_f32_f16(vreinterpret_f16_u16(load_as<uint16x4_t>(p)))};
#else
  return {Vector{to_float(p[0]), to_float(p[1]), to_float(p[2]), to_float(p[3])}};
#endif
}
template <int N = kPerLanes, class T>
[[gnu::always_inline]] inline Registers<float, N> load16(const T* p) {
  if constexpr (N == 1)
    return load_register(p);
  else
    return {load16<N / 2>(p), load16<N / 2>(p + N / 2 * kPerRegister)};
}

// A register of floats in another format, as round_to has them; of NaN some bits may be other ones.
[[gnu::always_inline]] inline void store_register(float* p, const FloatRegister& x) {
  memcpy(p, &x.v, sizeof x.v);
}
[[gnu::always_inline]] inline void store_register(bf16* p, const FloatRegister& x) {
  using Bits = Registers<uint32_t, 1>::Vector;
  const Bits bits = (Bits)x.v, rounded = bits + 0x7fff + (bits >> 16 & 1);
  const Bits upper = (x.v == x.v ? rounded : Bits{} + 0x7fc00000) >> 16;
#if defined(__AVX512F__)
  const __m256i halves = _mm512_cvtepi32_epi16((__m512i)upper);
#elif defined(__AVX2__)
  const __m256i twice = _mm256_packus_epi32((__m256i)upper, (__m256i)upper);
  const __m128i halves = _mm256_castsi256_si128(_mm256_permute4x64_epi64(twice, 0b1000));
#elif defined(__aarch64__)
  const uint16x4_t halves = vmovn_u32((uint32x4_t)upper);
#else
  const uint16_t halves[] = {uint16_t(upper[0]), uint16_t(upper[1]), uint16_t(upper[2]), uint16_t(upper[3])};
#endif
  memcpy(p, &halves, sizeof halves);
}
[[gnu::always_inline]] inline void store_register(f16* p, const FloatRegister& x) {
#if defined(__AVX512F__)
  const __m256i halves = _mm512_cvtps_ph((__m512)x.v, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__F16C__)
  const __m128i halves = _mm256_cvtps_ph((__m256)x.v, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__aarch64__)
  const float16x4_t halves = vcvt_f16_f32((float32x4_t)x.v);
#else
  f16 halves[kPerRegister];
  for (int i = 0; i < kPerRegister; i++) round_to(x.v[i], halves[i]);
#endif
  memcpy(p, &halves, sizeof halves);
}
template <int N, class T>
[[gnu::always_inline]] inline void store16(T* p, const Registers<float, N>& x) {
  if constexpr (N == 1)
    store_register(p, x);
  else
    store16(p, x.lo), store16(p + N / 2 * kPerRegister, x.hi);
}

#define BLAZR_BETWEEN(op, From, To)                                                            \
  template <int N>                                                                             \
  [[gnu::always_inline]] inline Registers<To, N> operator op(const Registers<From, N>& a,      \
                                                             const Registers<From, N>& b) {    \
    return each<To>([](auto x, auto y) { return x op y; }, a, b);                              \
  }                                                                                            \
  template <int N>                                                                             \
  [[gnu::always_inline]] inline Registers<To, N> operator op(const Registers<From, N>& a, From b) { \
    return a op all<From, N>(b);                                                               \
  }
BLAZR_BETWEEN(+, float, float)
BLAZR_BETWEEN(-, float, float)
BLAZR_BETWEEN(*, float, float)
BLAZR_BETWEEN(/, float, float)
BLAZR_BETWEEN(<, float, int32_t)
BLAZR_BETWEEN(>, float, int32_t)
BLAZR_BETWEEN(+, int32_t, int32_t)
BLAZR_BETWEEN(-, int32_t, int32_t)
BLAZR_BETWEEN(&, int32_t, int32_t)
BLAZR_BETWEEN(^, int32_t, int32_t)
BLAZR_BETWEEN(|, int32_t, int32_t)
BLAZR_BETWEEN(>, int32_t, int32_t)
BLAZR_BETWEEN(!=, int32_t, int32_t)
#undef BLAZR_BETWEEN
template <int N>
[[gnu::always_inline]] inline Registers<float, N> operator-(const Registers<float, N>& x) {
  return each<float>([](auto x) { return -x; }, x);
}
template <int N>
[[gnu::always_inline]] inline Registers<int32_t, N> operator<<(const Registers<int32_t, N>& x, int bits) {
  return each<int32_t>([=](auto x) { return x << bits; }, x);
}

// In each lane a where the mask's bits are set, else b.
template <class T, int N>
[[gnu::always_inline]] inline Registers<T, N> select(const Registers<int32_t, N>& mask,
                                                     const Registers<T, N>& a, const Registers<T, N>& b) {
  return each<T>([](auto m, auto x, auto y) { return m ? x : y; }, mask, a, b);
}

// The same bits as other numbers.
template <int N>
[[gnu::always_inline]] inline Registers<int32_t, N> bits_of(const Registers<float, N>& x) {
  return each<int32_t>([](auto x) { return x; }, x);
}
template <int N>
[[gnu::always_inline]] inline Registers<float, N> floats_of(const Registers<int32_t, N>& x) {
  return each<float>([](auto x) { return x; }, x);
}

// Sixteen signed bytes as numbers. Compilers widen them one by one if they are not told how.
template <int N = kPerLanes>
[[gnu::always_inline]] inline Registers<int32_t, N> load_bytes(const int8_t* p) {
  if constexpr (N == 1) {
    using Vector = typename Registers<int32_t, 1>::Vector;
#if defined(__AVX512F__)
    return {(Vector)_mm512_cvtepi8_epi32(load_as<__m128i>(p))};
#elif defined(__AVX2__)
    return {(Vector)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p))};
#elif defined(__aarch64__)
    const int8x8_t four = vcreate_s8(load_as<uint32_t>(p));
    return {(Vector)vmovl_s16(vget_low_s16(vmovl_s8(four)))};
#else
    return {Vector{p[0], p[1], p[2], p[3]}};
#endif
  } else {
    return {load_bytes<N / 2>(p), load_bytes<N / 2>(p + N / 2 * kPerRegister)};
  }
}
template <int N>
[[gnu::always_inline]] inline Registers<float, N> floats(const Registers<int32_t, N>& x) {
  return each<float>(
      [](auto x) { return __builtin_convertvector(x, typename Registers<float, 1>::Vector); }, x);
}

// a * b + c. Rounded once where the processor can; never left to the compiler, which might fuse in
// one place and not in another.
template <int N>
[[gnu::always_inline]] inline Registers<float, N> fma16(const Registers<float, N>& a,
                                                        const Registers<float, N>& b,
                                                        const Registers<float, N>& c) {
  return each<float>(
      [](auto x, auto y, auto z) {
#if defined(__AVX512F__)
        return _mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)z);
#elif defined(__FMA__)
        return _mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)z);
#elif defined(__aarch64__)
        return vfmaq_f32((float32x4_t)z, (float32x4_t)x, (float32x4_t)y);
#else
        return x * y + z;
#endif
      },
      a, b, c);
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// All bits set in the first `left` lanes of a register.
[[gnu::always_inline]] inline __m256i first_lanes(int64_t left) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(int(left < 0 ? 0 : left)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
#endif

// load16 where a row has `left` numbers left: if these are fewer, zeros fill the other lanes, and nothing
// behind the row is read.
template <int N = kPerLanes>
[[gnu::always_inline]] inline Registers<float, N> load_some(const float* p, int64_t left) {
  constexpr int kHalf = N / 2 * kPerRegister;
  if (left >= N * kPerRegister) return load16<N>(p);
  if constexpr (N > 1) {
    return {load_some<N / 2>(p, left), load_some<N / 2>(p + kHalf, left - kHalf)};
  } else {
    using Vector = FloatRegister::Vector;
#if defined(__AVX512F__)
    return {(Vector)_mm512_maskz_loadu_ps(left < 0 ? 0 : (1u << left) - 1, p)};
#elif defined(__AVX2__)
    return {(Vector)_mm256_maskload_ps(p, first_lanes(left))};
#else
    Vector some{};
    for (int64_t i = 0; i < left; i++) some[i] = p[i];
    return {some};
#endif
  }
}
// store16 of as many lanes as a row has numbers left.
template <int N>
[[gnu::always_inline]] inline void store_some(float* p, int64_t left, const Registers<float, N>& x) {
  constexpr int kHalf = N / 2 * kPerRegister;
  if (left >= N * kPerRegister) return store16(p, x);
  if constexpr (N > 1) {
    store_some(p, left, x.lo), store_some(p + kHalf, left - kHalf, x.hi);
  } else {
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(p, left < 0 ? 0 : (1u << left) - 1, (__m512)x.v);
#elif defined(__AVX2__)
    _mm256_maskstore_ps(p, first_lanes(left), (__m256)x.v);
#else
    for (int64_t i = 0; i < left; i++) p[i] = x.v[i];
#endif
  }
}

// All bits set in lanes [low, high).
[[gnu::always_inline]] inline IntLanes between(int64_t low, int64_t high) {
  alignas(64) static constexpr int32_t kPlaces[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const IntLanes place = bits_of(load16((const float*)kPlaces));
  return (place > all(int32_t(low) - 1)) & (all(int32_t(high)) > place);
}

// values[x] for each lane x, of sixteen values.
[[gnu::always_inline]] inline Lanes look_up(const float* values, const IntLanes& x) {
#if defined(__AVX512F__)
  return {(FloatRegister::Vector)_mm512_permutexvar_ps((__m512i)x.v, _mm512_loadu_ps(values))};
#elif defined(__AVX2__)
  const __m256 low = _mm256_loadu_ps(values), high = _mm256_loadu_ps(values + 8);
  return each<float>(
      [=](auto at) {
        const __m256i places = (__m256i)at;  // of which the lowest three bits count
        const __m256 is_high = _mm256_castsi256_ps(_mm256_slli_epi32(places, 28));
        return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, places),
                                _mm256_permutevar8x32_ps(high, places), is_high);
      },
      x);
#else
  return each<float>(
      [=](auto at) {
        return FloatRegister::Vector{values[at[0]], values[at[1]], values[at[2]], values[at[3]]};
      },
      x);
#endif
}

// Lanes `kIndices` of a and b side by side.
template <int... kIndices, class V>
[[gnu::always_inline]] inline auto pick(V a, V b) {
  return __builtin_shufflevector(a, b, kIndices...);
}

// v, each lane combined by op with the one `kDistance` away, then at half of that, down to 1.
template <int kDistance, class Op, class V>
[[gnu::always_inline]] inline V fold_lanes(const Op& op, V v) {
  if constexpr (kDistance == 0) {
    return v;
  } else {
    const auto swapped = [&]<int... i>(std::integer_sequence<int, i...>) {
      return pick<(i ^ kDistance)...>(v, v);
    };
    v = op(v, swapped(std::make_integer_sequence<int, kPerRegister>()));
    return fold_lanes<kDistance / 2>(op, v);
  }
}

// All lanes of x combined by op(register, register): first lanes 8 apart, then 4, 2 and 1.
template <class T, class Op, int N>
[[gnu::always_inline]] inline T fold(const Op& op, const Registers<T, N>& x) {
  if constexpr (N > 1)
    return fold<T>(op, each<T>(op, x.lo, x.hi));
  else
    return fold_lanes<kPerRegister / 2>(op, x.v)[0];
}

// The larger number of two; where one is NaN, b. Compilers make two instructions of the comparison.
struct Maximum {
  template <class V>
  [[gnu::always_inline]] V operator()(V a, V b) const {
#if defined(__AVX512F__)
    return (V)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (V)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return a > b ? a : b;
#endif
  }
};
[[gnu::always_inline]] inline Lanes max16(const Lanes& a, const Lanes& b) {
  return each<float>(Maximum(), a, b);
}

[[gnu::always_inline]] inline float sum16(const Lanes& v) {
  return fold<float>([](auto a, auto b) { return a + b; }, v);
}

// The first or second half of every four lanes of a and of b, in turns: number by number, or as pairs.
template <bool kPairs, int kHalf, int... i, class V>
[[gnu::always_inline]] inline V unpack(std::integer_sequence<int, i...>, V a, V b) {
  constexpr int kCount = sizeof...(i);
  return pick<(i / 4 * 4 + 2 * kHalf + (kPairs ? i % 2 : i % 4 / 2) +
               ((kPairs ? i / 2 : i) % 2 ? kCount : 0))...>(a, b);
}

// Every four lanes of four rows as columns, in steps that processors have for it.
template <int kCount, class V>
[[gnu::always_inline]] inline void transpose4(V* rows) {
  constexpr std::make_integer_sequence<int, kCount> lanes;
  const V a = unpack<false, 0>(lanes, rows[0], rows[1]), b = unpack<false, 1>(lanes, rows[0], rows[1]);
  const V c = unpack<false, 0>(lanes, rows[2], rows[3]), d = unpack<false, 1>(lanes, rows[2], rows[3]);
  rows[0] = unpack<true, 0>(lanes, a, c), rows[1] = unpack<true, 1>(lanes, a, c);
  rows[2] = unpack<true, 0>(lanes, b, d), rows[3] = unpack<true, 1>(lanes, b, d);
}

// As many rows as they have numbers, as columns: of each two rows at a distance, what lies at that
// distance changes places, and so at half of it, down to 4.
template <int kCount, int kDistance = kCount / 2, class V>
[[gnu::always_inline]] inline void transpose(V* rows) {
  if constexpr (kDistance >= 4) {
#pragma GCC unroll 16
    for (int r = 0; r < kCount; r++) {
      if (r & kDistance) continue;
      const auto a = rows[r], b = rows[r + kDistance];
      [&]<int... i>(std::integer_sequence<int, i...>) {
        rows[r] = pick<(i & kDistance ? kCount + i - kDistance : i)...>(a, b);
        rows[r + kDistance] = pick<(i & kDistance ? kCount + i : i + kDistance)...>(a, b);
      }(std::make_integer_sequence<int, kCount>());
    }
    transpose<kCount, kDistance / 2>(rows);
  } else {
#pragma GCC unroll 4
    for (int r = 0; r < kCount; r += 4) transpose4<kCount>(rows + r);
  }
}

// Sixteen rows of kTransposed numbers, `stride` apart, as kTransposed rows of sixteen, `ld` apart.
constexpr int kTransposed = kPerRegister < 8 ? kPerRegister : 8;
[[gnu::always_inline]] inline void transpose_some(const float* from, int64_t stride, float* to, int64_t ld) {
  using Vector = typename Registers<float, 1, 4 * kTransposed>::Vector;
#if defined(__AVX512F__)
  const auto two = [&](int64_t r) {  // r and r + 4
    return pick<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15>(
        load_as<Vector>(from + r * stride), load_as<Vector>(from + (r + 4) * stride));
  };
  FloatRegister::Vector rows[8];
#pragma GCC unroll 4
  for (int64_t r = 0; r < 4; r++) {
    const auto a = two(r), b = two(r + 8);
    rows[r] = pick<0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27>(a, b);
    rows[r + 4] = pick<4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31>(a, b);
  }
  transpose4<16>(rows), transpose4<16>(rows + 4);
#pragma GCC unroll 8
  for (int64_t i = 0; i < 8; i++) memcpy(to + i * ld, rows + i, sizeof rows[i]);
#else
  for (int64_t r = 0; r < 16; r += kTransposed) {
    Vector rows[kTransposed];
#pragma GCC unroll 8
    for (int i = 0; i < kTransposed; i++) rows[i] = load_as<Vector>(from + (r + i) * stride);
    transpose<kTransposed>(rows);
#pragma GCC unroll 8
    for (int i = 0; i < kTransposed; i++) memcpy(to + i * ld + r, rows + i, sizeof(Vector));
  }
#endif
}

// The same of sixteen rows of n numbers, a multiple of kTransposed.
inline void transpose16(const float* from, int64_t stride, int64_t n, float* to, int64_t ld) {
  for (int64_t c = 0; c < n; c += kTransposed) transpose_some(from + c, stride, to + c * ld, ld);
}

// The larger integer in each lane, and the largest of all lanes.
[[gnu::always_inline]] inline IntLanes max16(const IntLanes& a, const IntLanes& b) {
  return each<int32_t>([](auto x, auto y) { return x > y ? x : y; }, a, b);
}
[[gnu::always_inline]] inline int32_t largest16(const IntLanes& v) {
  return fold<int32_t>([](auto a, auto b) { return a > b ? a : b; }, v);
}

// fold of each of four vectors, to out[0 .. 3]: the same bits, in fewer instructions.
template <class Op>
[[gnu::always_inline]] inline void fold4(const Op& op, const Lanes* v, float* out) {
#if defined(__AVX512F__)
  const auto fold8 = [&](const Lanes& x, const Lanes& y) {
    return op(pick<0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23>(x.v, y.v),
              pick<8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31>(x.v, y.v));
  };
  const auto a = fold8(v[0], v[1]), b = fold8(v[2], v[3]);
  auto s = op(pick<0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27>(a, b),
              pick<4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31>(a, b));
  s = op(s, (decltype(s))_mm512_permute_ps((__m512)s, 0x4e));
  s = op(s, (decltype(s))_mm512_permute_ps((__m512)s, 0xb1));
  const __m512i firsts = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
  _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, (__m512)s)));
#elif defined(__AVX2__)
  const auto fold8 = [&](const Lanes& x, const Lanes& y) {
    const auto a = op(x.lo.v, x.hi.v), b = op(y.lo.v, y.hi.v);
    return op(pick<0, 1, 2, 3, 8, 9, 10, 11>(a, b), pick<4, 5, 6, 7, 12, 13, 14, 15>(a, b));
  };
  const auto a = fold8(v[0], v[1]), b = fold8(v[2], v[3]);
  const auto s = op(pick<0, 1, 8, 9, 4, 5, 12, 13>(a, b), pick<2, 3, 10, 11, 6, 7, 14, 15>(a, b));
  const auto t = op(pick<0, 2, 4, 6, 1, 3, 5, 7>(s, s), pick<1, 3, 5, 7, 0, 2, 4, 6>(s, s));
  const auto four = pick<0, 2, 1, 3>(pick<0, 1, 2, 3>(t, t), pick<0, 1, 2, 3>(t, t));
  memcpy(out, &four, sizeof four);
#else
  for (int i = 0; i < 4; i++) out[i] = fold<float>(op, v[i]);
#endif
}

// The sums of four vectors, each as sum16.
[[gnu::always_inline]] inline void sum4(const Lanes* v, float* out) {
  fold4([](auto a, auto b) { return a + b; }, v, out);
}

// A step of exp_series that is rounded once.
struct Fused {
  [[gnu::always_inline]] Lanes operator()(const Lanes& a, const Lanes& b, const Lanes& c) const {
    return fma16(a, b, c);
  }
};

// The series of exp on [-ln 2 / 2, ln 2 / 2], whose steps are step(p, r, c), about p * r + c.
template <class Step>
[[gnu::always_inline]] inline Lanes exp_series(const Lanes& r, const Step& step) {
  Lanes p = step(all16(1.0f / 5040), r, all16(1.0f / 720));
  p = step(p, r, all16(1.0f / 120));
  p = step(p, r, all16(1.0f / 24));
  p = step(p, r, all16(1.0f / 6));
  p = step(p, r, all16(0.5f));
  p = step(p, r, all16(1.0f));
  return step(p, r, all16(1.0f));
}
template <class Step>
[[gnu::always_inline]] inline Lanes exp_in_steps(Lanes x, const Step& step) {
  const Lanes magic = all16(kRoundToInteger);
  x = each<float>([](auto low, auto x) { return low > x ? low : x; }, all16(kLeastExponent), x);
  x = each<float>([](auto high, auto x) { return high < x ? high : x; }, all16(kMostExponent), x);
  const Lanes shifted = x * kLog2E + magic, n = shifted - magic;
  const Lanes r = (x - n * kLn2High) + n * -kLn2Low;
  return exp_series(r, step) * floats_of((bits_of(shifted) - bits_of(magic) + 127) << 23);
}

// exp of each lane.
[[gnu::always_inline]] inline Lanes exp16(const Lanes& x) { return exp_in_steps(x, Fused()); }

// Functions of each lane, to the last bit those of types.hpp.
[[gnu::always_inline]] inline Lanes exp_approx(const Lanes& x) {
  return exp_in_steps(x, [](const Lanes& p, const Lanes& r, const Lanes& c) { return p * r + c; });
}
[[gnu::always_inline]] inline Lanes silu(const Lanes& x) { return x / (exp_approx(-x) + 1.0f); }
[[gnu::always_inline]] inline Lanes softplus(const Lanes& x) {
  const IntLanes is_low = x < all16(0.0f);
  return select(is_low, all16(0.0f), x) + log_1_plus(exp_approx(select(is_low, x, -x)));
}

// exp of numbers up to 0, whose results are up to 1, in fewer steps than exp16; for -88 and less it is 0.
[[gnu::always_inline]] inline Lanes exp16_to_one(Lanes x) {
  x = max16(all16(-88.0f), x);
  // the low bits of the sum are the exponent of 2^n with its bias of 127, which for x = -88 is 0
  const Lanes magic = all16(kRoundToInteger + 127);
  const Lanes shifted = fma16(x, all16(kLog2E), magic), n = shifted - magic;
  const Lanes r = fma16(n, all16(-kLn2Low), fma16(n, all16(-kLn2High), x));
  return exp_series(r, Fused()) * floats_of(bits_of(shifted) << 23);
}

// Cosine and sine, to about 2 units in the last place of the angle: that less its nearest multiple of
// pi / 2, in three parts, goes into the polynomials of Moshier's Cephes.
inline void cos_sin16(const Lanes& x, float* cos, float* sin) {
  constexpr float kTwoOverPi = 0.636619772f;
  const Lanes magic = all16(kRoundToInteger), shifted = x * kTwoOverPi + magic, turns = magic - shifted;
  Lanes r = fma16(turns, all16(1.5703125f), x);
  r = fma16(turns, all16(4.837512969970703125e-4f), r);
  r = fma16(turns, all16(7.54978995489188216e-8f), r);
  const Lanes far = all16(0.8f);  // more than pi / 4: angles that float32 cannot tell apart
  r = select(r > far, far, r);
  r = select(r < -far, -far, r);
  const Lanes z = r * r;
  Lanes s = fma16(all16(-1.9515295891e-4f), z, all16(8.3321608736e-3f));
  s = fma16(s, z, all16(-1.6666654611e-1f));
  s = fma16(s * z, r, r);
  Lanes c = fma16(all16(2.443315711809948e-5f), z, all16(-1.388731625493765e-3f));
  c = fma16(c, z, all16(4.166664568298827e-2f));
  c = fma16(c * z, z, fma16(all16(-0.5f), z, all16(1.0f)));
  const IntLanes quarter = bits_of(shifted);  // its low bits are the multiple's
  const IntLanes swap = (quarter & 1) != 0;
  const IntLanes sine = bits_of(select(swap, c, s)), cosine = bits_of(select(swap, s, c));
  store16(sin, floats_of(sine ^ ((quarter & 2) << 30)));
  store16(cos, floats_of(cosine ^ (((quarter + 1) & 2) << 30)));
}

// n numbers of any format to floats, and zeros behind them up to `room`.
template <class T>
[[gnu::always_inline]] inline void widen(const T* from, int64_t n, int64_t room, float* to) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store16(to + i, load16(from + i));
  for (; i < n; i++) to[i] = to_float(from[i]);
  for (; i < room; i++) to[i] = 0;
}

// Floats rounded to any format.
template <class T>
[[gnu::always_inline]] inline void narrow(const float* from, int64_t n, T* to) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store16(to + i, load16(from + i));
  for (; i < n; i++) round_to(from[i], to[i]);
}

// load_some and store_some of other formats.
template <class T>
  requires(!std::is_same_v<T, float>)
[[gnu::always_inline]] inline Lanes load_some(const T* p, int64_t left) {
  if (left >= 16) return load16(p);
  float some[16];
  widen(p, left, 16, some);
  return load16(some);
}
template <class T>
  requires(!std::is_same_v<T, float>)
[[gnu::always_inline]] inline void store_some(T* p, int64_t left, const Lanes& x) {
  if (left >= 16) return store16(p, x);
  float some[16];
  store16(some, x);
  narrow(some, left, p);
}

// `rows` rows of n numbers into `room` rows of `wide` floats, padded with zeros; and back.
template <class T>
inline void spread(const T* from, int64_t rows, int64_t n, int64_t room, int64_t wide, float* to) {
  memset(to, 0, size_t(room * wide) * sizeof(float));
  for (int64_t i = 0; i < rows; i++) widen(from + i * n, n, n, to + i * wide);
}
template <class T>
inline void gather(const float* from, int64_t rows, int64_t n, int64_t wide, T* to) {
  for (int64_t i = 0; i < rows; i++) narrow(from + i * wide, n, to + i * n);
}

// The mean of x[i] ** 2, from sixteen running sums.
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
