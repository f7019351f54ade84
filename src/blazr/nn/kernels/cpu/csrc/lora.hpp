// What adapters of low rank add to products (see Lora in kernels.hpp): Hu et al. 2021, arXiv:2106.09685.
//
// Exactness: a row's inner products are those of matmul.hpp, and what they add is summed from the
// first to the last of the rank, one number of y by itself.
#pragma once

#include "lanes.hpp"

namespace {

// Sixteen sums and what `rank` rows of b, whose columns these are, add to them.
template <class T>
inline Lanes add_group(const float* inner, const T* b, int64_t rank, Lanes sums) {
#pragma GCC unroll 8
  for (int64_t j = 0; j < rank; j++) sums = fma16(all16(inner[j]), load16(b + j * kGroup), sums);
  return sums;
}

// Changes columns [n0, n0 + n) of the sums of row `row` of y.
template <class T>
inline void add_lora(const Lora& lora, int64_t row, int64_t n0, int64_t n, float* sums) {
  if (!lora.slots) return;
  const LoraEntry& entry = lora.entries[lora.slots[row / lora.repeat]];
  const float* inner = lora.inner + row * lora.stride;
  for (int64_t i = 0; i < n && entry.rank;) {
    const int64_t skipped = (n0 + i) % kGroup, some = smaller(kGroup - skipped, n - i);
    const T* b = (const T*)entry.b + (n0 + i - skipped) * entry.rank;
    if (some == kGroup) {
      store16(sums + i, add_group(inner, b, entry.rank, load16(sums + i)));
    } else {  // a part may begin and end within a group
      float group[kGroup] = {};
      memcpy(group + skipped, sums + i, some * sizeof(float));
      store16(group, add_group(inner, b, entry.rank, load16(group)));
      memcpy(sums + i, group + skipped, some * sizeof(float));
    }
    i += some;
  }
  if (entry.gain)
    for (int64_t i = 0; i < n; i++) sums[i] *= entry.gain[n0 + i];
}

// Product is Matmul of an instruction set.
template <class Product, class T>
struct LoraOf {
  // Rows [m0, m1) of the inner products; neighbours that take the same adapter go together.
  static void shrink(const LoraShrink& call, int64_t m0, int64_t m1) {
    const auto slot_of = [&](int64_t m) { return call.slots[m / call.repeat]; };
    for (int64_t m = m0, end; m < m1; m = end) {
      const LoraEntry& entry = call.entries[slot_of(m)];
      for (end = m + 1; end < m1 && slot_of(end) == slot_of(m); end++) {}
      float* inner = call.inner + m * call.stride;
      if (call.ids) {
        for (int64_t i = m; i < end; i++, inner += call.stride)
          for (int64_t j = 0; j < entry.rank; j++)
            inner[j] = to_float(((const T*)entry.a)[call.ids[i] * entry.rank + j]);
        continue;
      }
      Linear one{};
      one.x = (const T*)call.x + m * call.ldx, one.w = entry.a, one.y = inner;
      one.m = end - m, one.n = entry.rank, one.k = call.k;
      one.ldw = call.k, one.ldx = call.ldx, one.ldy = call.stride, one.wide = 1;
      for (int64_t n = 0; n < entry.rank; n += kFewColumns)
        Product::part(one, 0, one.m, n, smaller(n + kFewColumns, entry.rank));
    }
  }

  // Row m of y.
  static void expand(const LoraExpand& call, int64_t m) {
    constexpr int64_t kSome = 256;
    const LoraEntry& entry = call.lora.entries[call.lora.slots[m / call.lora.repeat]];
    if (!entry.rank && !entry.gain) return;
    T* y = (T*)call.y + m * call.n;
    const T* bias = (const T*)call.bias;
    for (int64_t n0 = 0; n0 < call.n; n0 += kSome) {
      const int64_t n = smaller(kSome, call.n - n0);
      float sums[kSome];
      for (int64_t i = 0; i < n; i++) sums[i] = to_float(y[n0 + i]);
      if (bias && entry.gain)  // which is not for the bias
        for (int64_t i = 0; i < n; i++) sums[i] -= to_float(bias[n0 + i]);
      add_lora<T>(call.lora, m, n0, n, sums);
      if (bias && entry.gain)
        for (int64_t i = 0; i < n; i++) sums[i] += to_float(bias[n0 + i]);
      narrow(sums, n, y + n0);
    }
  }
};

}  // namespace
