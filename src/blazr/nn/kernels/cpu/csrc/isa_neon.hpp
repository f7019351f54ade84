// Arm's NEON with the dot-product instructions (Armv8.2 and later: Graviton 2, Ampere, Apple M1).
#pragma once

#include <arm_neon.h>

#include "types.hpp"

namespace {

struct Neon {
  struct Acc {  // eight partial sums of one dot product, in two chains
    float32x4_t lo, hi;
  };
  static Acc zero() { return {vdupq_n_f32(0), vdupq_n_f32(0)}; }

  // The sums of four accumulators: the halves first, then neighbours, whatever the call.
  static void sum4(const Acc* a, float* out) {
    float32x4_t s[4];
    for (int i = 0; i < 4; i++) s[i] = vaddq_f32(a[i].lo, a[i].hi);
    vst1q_f32(out, vpaddq_f32(vpaddq_f32(s[0], s[1]), vpaddq_f32(s[2], s[3])));
  }
};

// Eight numbers. The order within does not matter, as long as it is one.
inline Neon::Acc load8(const bf16* p) {  // a bf16 is the upper half of a float32
  const uint32x4_t pairs = vreinterpretq_u32_u16(vld1q_u16((const uint16_t*)p));
  return {vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16)),
          vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff0000)))};
}
inline Neon::Acc load8(const f16* p) {
  const float16x8_t all = vreinterpretq_f16_u16(vld1q_u16((const uint16_t*)p));
  return {vcvt_f32_f16(vget_low_f16(all)), vcvt_high_f32_f16(all)};
}
inline Neon::Acc load8(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }

// How one step along K is loaded and multiplied. `step` numbers a load, `cols` rows of x a tile.
template <class Isa, class T>
struct Dot;

template <class T>
struct Dot<Neon, T> {
  using Reg = Neon::Acc;
  static constexpr int step = 8, cols = 2;
  static Reg load(const T* p) { return load8(p); }
  static Reg load_tail(const T* p, int n) { return padded_load<Dot>(p, n); }
  static Reg dot(Reg acc, Reg a, Reg b) {
    return {vfmaq_f32(acc.lo, a.lo, b.lo), vfmaq_f32(acc.hi, a.hi, b.hi)};
  }
};

// Products of int8 activations with 16 rows of packed weights, a lane each.
template <class Isa>
struct Int8;

template <>
struct Int8<Neon> {
  template <class V>
  struct Four {  // rows 0 .. 3, 4 .. 7, 8 .. 11, 12 .. 15
    V v[4];
  };
  using Line = Four<uint8x16_t>;  // four unsigned bytes of each row
  using Ints = Four<int32x4_t>;
  using Floats = Four<float32x4_t>;
  static constexpr int cols = 4;
  // Both factors are signed, so bytes that are not small are taken less this.
  static constexpr int kTakenOff = 128;
  static Floats zero_floats() { return all(0.0f); }
  static Floats ones() { return all(1.0f); }
  static Floats halves(const uint8_t* p) {
    Floats x;
    for (int i = 0; i < 4; i++) x.v[i] = vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p + 8 * i)));
    return x;
  }
  static Floats floats(const Ints& x) {
    return {vcvtq_f32_s32(x.v[0]), vcvtq_f32_s32(x.v[1]), vcvtq_f32_s32(x.v[2]),
            vcvtq_f32_s32(x.v[3])};
  }
  static Ints unsigned_bytes(const uint8_t* p) {
    const Four<uint32x4_t> wide = words(p);
    Ints x;
    for (int i = 0; i < 4; i++) x.v[i] = vreinterpretq_s32_u32(wide.v[i]);
    return x;
  }
  static Ints signed_bytes(const uint8_t* p) {
    const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(p));
    const int16x8_t lo = vmovl_s8(vget_low_s8(bytes)), hi = vmovl_high_s8(bytes);
    return {vmovl_s16(vget_low_s16(lo)), vmovl_high_s16(lo), vmovl_s16(vget_low_s16(hi)),
            vmovl_high_s16(hi)};
  }
  // Bytes e as half of 2 ** (e - 127); the two smallest are subnormal.
  static Floats powers(const uint8_t* p) {
    const Four<uint32x4_t> e = words(p);
    Floats x;
    for (int i = 0; i < 4; i++) {
      const uint32x4_t normal = vshlq_n_u32(vsubq_u32(e.v[i], vdupq_n_u32(1)), 23);
      const uint32x4_t small = vshlq_u32(vdupq_n_u32(0x00200000), vreinterpretq_s32_u32(e.v[i]));
      const uint32x4_t is_small = vcltq_u32(e.v[i], vdupq_n_u32(2));
      x.v[i] = vreinterpretq_f32_u32(vbslq_u32(is_small, small, normal));
    }
    return x;
  }
  static Floats times(Floats a, const Floats& b) {
    for (int i = 0; i < 4; i++) a.v[i] = vmulq_f32(a.v[i], b.v[i]);
    return a;
  }
  static Ints set(int value) {
    const int32x4_t same = vdupq_n_s32(value);
    return {same, same, same, same};
  }
  static Line load(const uint8_t* p) {
    return {vld1q_u8(p), vld1q_u8(p + 16), vld1q_u8(p + 32), vld1q_u8(p + 48)};
  }
  static void keep(uint8_t* p, const Line& x) {
    for (int i = 0; i < 4; i++) vst1q_u8(p + 16 * i, x.v[i]);
  }
  static Line low_nibbles(Line x) {
    for (int i = 0; i < 4; i++) x.v[i] = vandq_u8(x.v[i], vdupq_n_u8(15));
    return x;
  }
  static Line high_nibbles(Line x) {
    for (int i = 0; i < 4; i++) x.v[i] = vshrq_n_u8(x.v[i], 4);
    return x;
  }
  static Line look_up(const uint8_t* table, Line x) {
    const uint8x16_t values = vld1q_u8(table);
    for (int i = 0; i < 4; i++) x.v[i] = vqtbl1q_u8(values, x.v[i]);
    return x;
  }
  static Line join(Line a, const Line& b) {
    for (int i = 0; i < 4; i++) a.v[i] = vorrq_u8(a.v[i], b.v[i]);
    return a;
  }
  // Bits moved up so far, or down, of which `mask` is kept in each byte.
  static Line moved(Line x, int up, int mask) {
    for (int i = 0; i < 4; i++)
      x.v[i] = vandq_u8(vshlq_u8(x.v[i], vdupq_n_s8(int8_t(up))), vdupq_n_u8(uint8_t(mask)));
    return x;
  }
  template <bool kSmall>  // whether bytes of w are below 128
  static Ints dot(Ints acc, const Line& w, const int8_t* x) {
    int four;
    memcpy(&four, x, 4);
    const int8x16_t same = vreinterpretq_s8_s32(vdupq_n_s32(four));
    for (int i = 0; i < 4; i++) {
      const uint8x16_t less = kSmall ? w.v[i] : veorq_u8(w.v[i], vdupq_n_u8(kTakenOff));
      acc.v[i] = vdotq_s32(acc.v[i], vreinterpretq_s8_u8(less), same);
    }
    return acc;
  }
  static Ints add(Ints total, const Ints& acc, const Ints& scale) {
    for (int i = 0; i < 4; i++) total.v[i] = vmlaq_s32(total.v[i], acc.v[i], scale.v[i]);
    return total;
  }
  // Two rows of 16 unsigned bytes, for `add_pair`: total + first * x[0] + second * x[1].
  struct Pair {
    Ints first, second;
  };
  static Pair pair(const uint8_t* p) { return {unsigned_bytes(p), unsigned_bytes(p + 16)}; }
  static Ints add_pair(Ints total, const Pair& pair, const int16_t* x) {
    for (int i = 0; i < 4; i++) {
      total.v[i] = vmlaq_n_s32(total.v[i], pair.first.v[i], x[0]);
      total.v[i] = vmlaq_n_s32(total.v[i], pair.second.v[i], x[1]);
    }
    return total;
  }
  static Floats add(Floats total, const Ints& acc, const Floats& scale, float x_scale) {
    const Floats products = floats(acc);
    for (int i = 0; i < 4; i++)
      total.v[i] = vfmaq_f32(total.v[i], products.v[i], vmulq_n_f32(scale.v[i], x_scale));
    return total;
  }
  static Floats subtract(Floats total, const Floats& minimum, float x_sum) {
    for (int i = 0; i < 4; i++)
      total.v[i] = vfmsq_f32(total.v[i], minimum.v[i], vdupq_n_f32(x_sum));
    return total;
  }
  static void store(float* p, const Floats& x) {
    for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, x.v[i]);
  }

 private:
  static Floats all(float x) {
    const float32x4_t same = vdupq_n_f32(x);
    return {same, same, same, same};
  }
  static Four<uint32x4_t> words(const uint8_t* p) {
    const uint8x16_t bytes = vld1q_u8(p);
    const uint16x8_t lo = vmovl_u8(vget_low_u8(bytes)), hi = vmovl_high_u8(bytes);
    return {vmovl_u16(vget_low_u16(lo)), vmovl_high_u16(lo), vmovl_u16(vget_low_u16(hi)),
            vmovl_high_u16(hi)};
  }
};

}  // namespace
