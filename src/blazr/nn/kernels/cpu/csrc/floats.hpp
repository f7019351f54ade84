// Matrices of floats of eight or four bits with scales for their blocks, as safetensors files have them.
// Source: arXiv:2209.05433 (E4M3, E5M2); OCP Microscaling Formats 1.0 (E8M0).
//
//   scales    [ s ][ s ][ s ] ...        one for so many rows and columns
//   numbers   [ x x x x ][ x x x x ] ... a row of bytes, or of pairs of which the first is the lower half
#pragma once

#include "stored.hpp"

namespace {

// Sixteen numbers of each format, before they are scaled.

struct E4M3 {
  static constexpr int kPerByte = 1;
  [[gnu::always_inline]] static Lanes load(const uint8_t* p) {
    return Fp8::numbers((const int8_t*)p);
  }
};

struct E5M2 {  // the upper half of a float16
  static constexpr int kPerByte = 1;
  [[gnu::always_inline]] static Lanes load(const uint8_t* p) {
    uint16_t halves[16];
    for (int i = 0; i < 16; i++) halves[i] = uint16_t(p[i] << 8);
    return load16((const f16*)halves);
  }
};

struct FourBits {  // of which each table makes its own numbers
  static constexpr int kPerByte = 2;
  const float* table;
  [[gnu::always_inline]] Lanes load(const uint8_t* p) const {
    typedef uint64_t Two __attribute__((vector_size(16)));
    const Two codes = {spread(load_as<uint32_t>(p)), spread(load_as<uint32_t>(p + 4))};
    return look_up(table, load_bytes((const int8_t*)&codes));
  }
  // Each half of four bytes in a byte of its own, the lower one first.
  static uint64_t spread(uint64_t bytes) {
    bytes = (bytes | bytes << 16) & 0x0000ffff0000ffff;
    bytes = (bytes | bytes << 8) & 0x00ff00ff00ff00ff;
    return (bytes | bytes << 4) & 0x0f0f0f0f0f0f0f0f;
  }
};

template <class T>
struct FloatsOf {
  // Row `row` of those that are wanted, rounded to T.
  static void decode(const DecodeFloats& call, int64_t row) {
    switch (call.format) {
      case kE4M3: return decode_row<E4M3>(call, row);
      case kE5M2: return decode_row<E5M2>(call, row);
      default: return decode_row(call, row, FourBits{call.table});
    }
  }

 private:
  template <class Format>
  static void decode_row(const DecodeFloats& call, int64_t row, const Format& format = {}) {
    constexpr int kPerByte = Format::kPerByte;
    const uint8_t* from = call.numbers + row * (call.k / kPerByte);
    T* to = (T*)call.out + row * call.k;
    const int64_t blocks = (call.k + call.width - 1) / call.width;
    const int64_t first = (call.first + row) / call.height * blocks;
    float scales[16];
    for (int64_t b = 0; b < blocks; b++) {
      if (b % 16 == 0) store16(scales, scales_of(call, first + b, smaller(blocks - b, 16)));
      const Lanes scale = all16(scales[b % 16]);
      const int64_t end = smaller((b + 1) * call.width, call.k);
      int64_t c = b * call.width;
      for (; c + 16 <= end; c += 16) store_some(to + c, 16, format.load(from + c / kPerByte) * scale);
      if (c == end) continue;
      uint8_t some[16] = {};
      memcpy(some, from + c / kPerByte, size_t(end - c + kPerByte - 1) / kPerByte);
      store_some(to + c, end - c, format.load(some) * scale);
    }
  }

  // The scales of up to sixteen blocks.
  static Lanes scales_of(const DecodeFloats& call, int64_t first, int64_t count) {
    const int format = int(call.scale_format), size = format == kFloat32 ? 4 : format <= kFloat16 ? 2 : 1;
    alignas(64) uint8_t some[64] = {};
    memcpy(some, (const uint8_t*)call.scales + first * size, size_t(count * size));
    Lanes scales;
    switch (format) {
      case kFloat32: scales = load16((const float*)some); break;
      case kBFloat16: scales = load16((const bf16*)some); break;
      case kFloat16: scales = load16((const f16*)some); break;
      case kE8M0: scales = powers(load_bytes((const int8_t*)some) & 255); break;
      default: scales = E4M3::load(some); break;
    }
    if (!call.whole) return scales;
    return call.is_divided ? scales / all16(*call.whole) : scales * *call.whole;
  }

  // 2 ** (exponent - 127), of which the least is subnormal; 255 is NaN.
  static Lanes powers(const IntLanes& exponent) {
    const IntLanes none = (exponent > 0) ^ -1, nan = (exponent > 254) & 0x7fc00000;
    return floats_of((exponent << 23) | (none & 0x00400000) | nan);
  }
};

}  // namespace
