// How much arithmetic an instruction set does in registers: what products are measured against.
#pragma once

#include "lanes.hpp"
#include "registers.hpp"

namespace {

// Makes the compiler believe that x has changed, so that it does not compute a product once for all rounds.
template <class V>
[[gnu::always_inline]] inline void change(V& x) {
  if constexpr (sizeof(V) > kRegister) {
    __asm__ volatile("" : "+m"(x));
  } else {
#if defined(__x86_64__)
    __asm__ volatile("" : "+x"(x));
#elif defined(__aarch64__)
    __asm__ volatile("" : "+w"(x));
#else
    __asm__ volatile("" : "+m"(x));
#endif
  }
}

// Each function adds products of `operands` to sums that do not depend on each other, until it has done
// `operations` or more, and returns how many: a multiplication and an addition are two. The sums go into
// `result`, so that the compiler keeps them. The operands, which the sums also begin with, are kPeakOperands
// bytes.
template <class Isa>
struct Peak {
  template <class Sum, bool kMany, class Step>
  static int64_t repeat(const void* operands, int64_t operations, int64_t of_sum, int64_t* result,
                        const Step& step) {
    const char* at = (const char*)operands;
    const auto next = [&] { return load_as<Sum>(at += 64); };
    Sum a = next(), b = next(), c = next(), d = next();  // an array would lie in memory
    Sum e = next(), f = next(), g = next(), h = next(), i = next(), j = next();
    const int64_t of_round = of_sum * (kMany ? 10 : 4), rounds = operations / of_round + 1;
    for (int64_t round = 0; round < rounds; round++) {
      a = step(a), b = step(b), c = step(c), d = step(d);
      // two units, and an addition takes up to five cycles: ten sums keep both busy
      if constexpr (kMany) e = step(e), f = step(f), g = step(g), h = step(h), i = step(i), j = step(j);
    }
    for (const Sum& sum : {a, b, c, d, e, f, g, h, i, j}) *result ^= load_as<int32_t>(&sum);
    return rounds * of_round;
  }

  template <class T>
  static int64_t numbers(const void* operands, int64_t operations, int64_t* result) {
    using D = Dot<Isa, T>;
    auto x = D::load((const T*)operands);
    const auto step = [&](auto sum) {
      if constexpr (sizeof x <= kRegister) change(x);
      return D::dot(sum, x, x);
    };
    constexpr bool kMany = sizeof(typename Isa::Acc) <= kRegister;
    return repeat<typename Isa::Acc, kMany>(operands, operations, 2 * D::step, result, step);
  }

  // Codes of packed weights: bytes, or up to 15, whose products may be added in 16 bits.
  template <bool kSmall>
  static int64_t codes(const void* operands, int64_t operations, int64_t* result) {
    using I = Int8<Isa>;
    using Bytes = typename I::template Register<uint8_t>;
    constexpr bool kIn16 = kSmall && I::template kIn16Bits<15> > 0;
    using Sum = typename I::template Register<std::conditional_t<kIn16, int16_t, int32_t>>;
    auto w = load_as<Bytes>(operands);
    const auto x = load_as<Sum>(operands);
    const auto step = [&](auto sum) {
      change(w);
      if constexpr (kIn16)
        return sum + (Sum)Isa::products(w, x);
      else
        return (Sum)Isa::template dot<kSmall>(sum, w, x);
    };
    return repeat<Sum, sizeof(Sum) <= kRegister>(operands, operations, 2 * sizeof(Bytes), result, step);
  }
};

}  // namespace
