// AMX (Sapphire Rapids and later): eight tiles, each of up to 16 rows of up to 64 bytes.
//
//   bytes of k ->               16 columns, four bytes of k each ->
//   [ a a a a ... ]  16         [ b b b b ... ]  bytes of k / 4          sums[i][j] += a[i] . b[j]
//
// Instructions are written as text: compilers have no functions that take a tile's number from a template.
#pragma once

#include <utility>

#include "isa_avx512.hpp"

namespace {

struct Amx {
  static constexpr int64_t kSide = 16;  // rows of a tile, and columns of one of sums

  // Tiles are in use from here to the end of the scope. They are full, but for rows of a in tiles 4 and 5,
  // which have so many bytes, and b in tiles 6 and 7, whose columns have as many.
  struct Tiles {
    explicit Tiles(int bytes = 64) {
      struct {
        uint8_t palette = 1, start = 0, reserved[14] = {};
        uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
      } shape;
      shape.bytes[4] = shape.bytes[5] = uint16_t(bytes);
      shape.rows[6] = shape.rows[7] = uint8_t(bytes / 4);
      __asm__ volatile("ldtilecfg %0" : : "m"(shape));
    }
    ~Tiles() { __asm__ volatile("tilerelease"); }
  };

  template <int i>
  [[gnu::always_inline]] static void clear() {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(i));
  }
  template <int i>
  [[gnu::always_inline]] static void load(const void* p, int64_t bytes) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(bytes), "i"(i) : "memory");
  }
  template <int i>
  [[gnu::always_inline]] static void store(void* p, int64_t bytes) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(bytes), "i"(i) : "memory");
  }
  template <int kSum, int kA, int kB>
  [[gnu::always_inline]] static void multiply_bf16() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB));
  }
  // Signed bytes, summed in int32.
  template <int kSum, int kA, int kB>
  [[gnu::always_inline]] static void multiply_int8() {
    __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB));
  }

  // Calls body for 0 to kCount - 1, as constants.
  template <int kCount, class Body>
  [[gnu::always_inline]] static void each_of(const Body& body) {
    [&]<int... i>(std::integer_sequence<int, i...>) {
      (body(std::integral_constant<int, i>{}), ...);
    }(std::make_integer_sequence<int, kCount>());
  }
};

}  // namespace
