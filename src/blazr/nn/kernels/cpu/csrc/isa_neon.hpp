// Arm's NEON with the dot-product instructions (Armv8.2 and later: Graviton 2, Ampere, Apple M1).
#pragma once

#include <arm_neon.h>

#include "registers.hpp"

namespace {

struct Neon {
  struct Acc {  // eight partial sums of one dot product, in two chains
    float32x4_t lo, hi;
  };
  static constexpr int kTileCols = 2, kWideTileRows = 4, kWideTileCols = 2, kRunCols = 2, kNumAccs = 16;
  static Acc zero() { return {vdupq_n_f32(0), vdupq_n_f32(0)}; }
  // Eight numbers. The order within does not matter, as long as it is one.
  static Acc load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
  static Acc load(const f16* p) { return {halves((const uint8_t*)p), halves((const uint8_t*)(p + 4))}; }
  static Acc load(const bf16* p) {  // a bf16 is the upper half of a float32
    const uint32x4_t pairs = vreinterpretq_u32_u16(vld1q_u16((const uint16_t*)p));
    return {vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16)),
            vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff0000)))};
  }
  static Acc fma(Acc a, Acc b, Acc c) {
    return {vfmaq_f32(c.lo, a.lo, b.lo), vfmaq_f32(c.hi, a.hi, b.hi)};
  }

  // The sums of four accumulators: the halves first, then neighbours, whatever the call.
  static void sum4(const Acc* a, float* out) {
    float32x4_t s[4];
    for (int i = 0; i < 4; i++) s[i] = vaddq_f32(a[i].lo, a[i].hi);
    vst1q_f32(out, vpaddq_f32(vpaddq_f32(s[0], s[1]), vpaddq_f32(s[2], s[3])));
  }

  // For packed weights. Both factors of a product are signed, so bytes that are not small are taken
  // less kDotOffset.
  static constexpr int kWidth = 16, kPackedTileCols = 4, kDotOffset = 128;
  static float32x4_t halves(const uint8_t* p) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))); }
  static uint32x4_t unsigned_bytes(const uint8_t* p) {
    return vmovl_u16(vget_low_u16(vmovl_u8(four_bytes(p))));
  }
  static int32x4_t signed_bytes(const uint8_t* p) {
    return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(four_bytes(p)))));
  }
  static uint8x8_t four_bytes(const uint8_t* p) { return vcreate_u8(load_as<uint32_t>(p)); }
  template <class V>
  static V fma(V a, V b, V c) {
    return (V)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
  }
  template <class V>
  static V look_up(const uint8_t* table, V x) {
    return (V)vqtbl1q_u8(vld1q_u8(table), (uint8x16_t)x);
  }
  template <bool kSmall, class V, class W>
  static V dot(V acc, W w, V x) {
    return (V)vdotq_s32((int32x4_t)acc, (int8x16_t)(kSmall ? w : w ^ kDotOffset), (int8x16_t)x);
  }
  template <class V>
  static V dot_pairs(V acc, V w, V x) {
    return acc + (w & 0xffff) * (x << 16 >> 16) + (w >> 16) * (x >> 16);
  }
};

}  // namespace
