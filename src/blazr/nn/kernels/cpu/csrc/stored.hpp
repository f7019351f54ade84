// How keys, values and latents lie in pages where they take fewer bits than they are computed in.
// nn/operands/kv_dtype.py says the same, in torch.
//
//   Q8_0   [ f16 scale | 32 x int8 ][ f16 scale | 32 x int8 ] ... the last block may be shorter
//   fp8    [ one byte a number: sign, 4 bits of exponent, 3 of mantissa ]      E4M3 of arXiv:2209.05433
//
// Both are read and written in blocks of 32 numbers.
#pragma once

#include "lanes.hpp"

namespace {

constexpr int64_t kStoredBlock = 32;

// `size` numbers as activations are.
template <class T>
struct Plain {
  using Number = T;
  static constexpr int64_t width(int64_t size) { return size; }  // in Numbers

  // As Blocks::widen, below.
  template <class To>
  [[gnu::always_inline]] static void widen(const T* from, int64_t size, const To& to) {
    int64_t c = 0;
    for (; c + kStoredBlock <= size; c += kStoredBlock) block(from + c, c, to);
    if (__builtin_expect(c == size, 1)) return;
    if constexpr (std::is_same_v<T, float>) {
      to(c, load_some(from + c, size - c), load_some(from + c + 16, size - c - 16));
    } else if (size - c == 16) {
      to(c, load16(from + c), Lanes{});
    } else {
      T end[kStoredBlock] = {};
      memcpy(end, from + c, size_t(size - c) * sizeof(T));
      block(end, c, to);
    }
  }
  template <class To>
  [[gnu::always_inline]] static void block(const T* from, int64_t c, const To& to) {
    to(c, load16(from), load16(from + 16));
  }
};

// What Q8_0 and fp8 have in common: a row of bytes, read block by block.
template <class Kind>
struct Blocks {
  using Number = uint8_t;

  // Calls to(c, lo, hi) for each block of `size` numbers, with the sixteen first and last of those from
  // c on; there are zeros behind the last.
  template <class To>
  [[gnu::always_inline]] static void widen(const uint8_t* from, int64_t size, const To& to) {
    constexpr int64_t kBytes = Kind::width(kStoredBlock);
    int64_t c = 0;
    for (; c + kStoredBlock <= size; c += kStoredBlock, from += kBytes) block(from, c, to);
    if (__builtin_expect(c == size, 1)) return;
    uint8_t end[kBytes] = {};
    memcpy(end, from, size_t(Kind::width(size - c)));
    block(end, c, to);
  }
  template <class To>
  [[gnu::always_inline]] static void block(const uint8_t* from, int64_t c, const To& to) {
    const auto scale = Kind::scale_of(from);
    const int8_t* codes = (const int8_t*)from + Kind::kBeforeCodes;
    to(c, Kind::numbers(codes, scale), Kind::numbers(codes + 16, scale));
  }

  template <class T>
  static void narrow(const T* from, int64_t size, uint8_t* row) {
    for (int64_t c = 0; c < size; c += kStoredBlock)
      Kind::narrow_block(from + c, smaller(size - c, kStoredBlock), row + Kind::width(c));
  }
};

struct Q8_0 : Blocks<Q8_0> {
  static constexpr int64_t width(int64_t size) {
    return size + 2 * ((size + kStoredBlock - 1) / kStoredBlock);
  }

  static constexpr int64_t kBeforeCodes = 2;
  [[gnu::always_inline]] static Lanes numbers(const int8_t* codes, const Lanes& scale) {
    return floats(load_bytes(codes)) * scale;
  }
  // One conversion for every 32 numbers counts: in one step, where the processor has that.
  [[gnu::always_inline]] static Lanes scale_of(const uint8_t* from) {
#if defined(__AVX512F__)
    return {(Registers<float, 1>::Vector)_mm512_cvtph_ps(_mm256_set1_epi16(load_as<int16_t>(from)))};
#elif defined(__F16C__)
    return all16(_cvtsh_ss(load_as<uint16_t>(from)));
#elif defined(__aarch64__)
    __fp16 scale;
    memcpy(&scale, from, sizeof scale);
    return all16(scale);
#else
    return all16(to_float(load_as<f16>(from)));
#endif
  }

  template <class T>
  static void narrow_block(const T* from, int64_t n, uint8_t* to) {
    uint32_t most = 0;  // as bits, where NaN is more than any number
    for (int64_t i = 0; i < n; i++) {
      const uint32_t magnitude = bits_as<uint32_t>(to_float(from[i])) & 0x7fffffff;
      most = magnitude > most ? magnitude : most;
    }
    f16 scale;
    round_to(bits_as<float>(most) / 127, scale);
    const float inverse = 1 / to_float(scale), by = inverse <= __FLT_MAX__ ? inverse : 0;
    memcpy(to, &scale, sizeof scale);
    for (int64_t i = 0; i < n; i++) {
      const float x = (to_float(from[i]) * by + kRoundToInteger) - kRoundToInteger;
      to[2 + i] = uint8_t(int8_t(x < -127 ? -127 : x < 127 ? x : 127));
    }
  }
};

struct Fp8 : Blocks<Fp8> {
  static constexpr int64_t width(int64_t size) { return size; }

  static constexpr int64_t kBeforeCodes = 0;
  [[gnu::always_inline]] static Lanes numbers(const int8_t* codes, const Lanes& = Lanes{}) {
#if defined(__AVX512F__)
    const __m128i bytes = load_as<__m128i>(codes);
    return Lanes{(FloatRegister::Vector)_mm512_cvtph_ps(halves(_mm256_cvtepi8_epi16(bytes)))} * 256.0f;
#elif defined(__F16C__)
    const auto eight = [&](int at) {
      const __m128i bytes = _mm_loadl_epi64((const __m128i*)(codes + at));
      return FloatRegister{(FloatRegister::Vector)_mm256_cvtph_ps(halves(_mm_cvtepi8_epi16(bytes)))};
    };
    return Lanes{eight(0), eight(8)} * 256.0f;
#else
    const IntLanes x = load_bytes(codes);
    const IntLanes magnitude = x & 0x7f, sign = x & INT32_MIN, nan = (magnitude > 0x7e) & 0x7fc00000;
    const IntLanes normal = (magnitude << 20) + (120 << 23);
    const IntLanes subnormal = bits_of(floats(magnitude) * 0x1p-9f);
    return floats_of((select(magnitude > 7, normal, subnormal) ^ sign) | nan);
#endif
  }
  // Codes, each with its sign in the upper half, as float16: 2 ** -8 times the numbers, subnormal or not.
  template <class Words>
  [[gnu::always_inline]] static Words halves(const Words& codes) {
    typedef uint16_t Each __attribute__((vector_size(sizeof(Words))));
    const Each moved = (Each)codes << 7, nan = (Each)((moved & 0x3fff) == 0x3f80) & 0x7e00;
    return (Words)((moved & 0xbfff) | nan);
  }
  [[gnu::always_inline]] static Lanes scale_of(const uint8_t*) { return Lanes{}; }

  // To the nearest, ties to even; what is too large becomes the largest.
  template <class T>
  static void narrow_block(const T* from, int64_t n, uint8_t* to) {
    for (int64_t i = 0; i < n; i++) {
      const uint32_t u = bits_as<uint32_t>(to_float(from[i])), sign = (u >> 24) & 0x80;
      const uint32_t magnitude = u & 0x7fffffff;
      uint32_t bits;
      if (magnitude > 0x7f800000) {
        bits = 0x7f;  // NaN
      } else if (magnitude >= 0x43e00000) {
        bits = 0x7e;  // 448
      } else if (magnitude < 0x3c800000) {
        // subnormal: the addition puts the last bit where float32 rounds
        bits = bits_as<uint32_t>(bits_as<float>(magnitude) + 0x1p14f) - 0x46800000;
      } else {
        bits = (magnitude - 0x3c000000 + 0x7ffff + ((magnitude >> 20) & 1)) >> 20;
      }
      to[i] = uint8_t(sign | bits);
    }
  }
};

}  // namespace
