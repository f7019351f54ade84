// What adapters of low rank add to products (see Lora in kernels.hpp): Hu et al. 2021, arXiv:2106.09685.
//
// Exactness: a row's inner products are those of matmul.hpp, and what they add is summed from the
// first to the last of the rank, one number of y by itself.
#pragma once

#include "lanes.hpp"

namespace {

// Changes columns [n0, n0 + n) of the sums of row `row` of y, which has `columns` in all.
template <class T>
inline void add_lora(const Lora& lora, int64_t row, int64_t columns, int64_t n0, int64_t n,
                     float* sums) {
  if (!lora.slots) return;
  const LoraEntry& entry = lora.entries[lora.slots[row / lora.repeat]];
  const float* inner = lora.inner + row * lora.stride;
  const T* b = (const T*)entry.b + n0;
  int64_t j = 0;
  for (; j + 4 <= entry.rank; j += 4, b += 4 * columns) {
    const float f[4] = {inner[j], inner[j + 1], inner[j + 2], inner[j + 3]};
    for (int64_t i = 0; i < n; i++) {
      float sum = sums[i];
      sum += f[0] * to_float(b[i]);
      sum += f[1] * to_float(b[columns + i]);
      sum += f[2] * to_float(b[2 * columns + i]);
      sum += f[3] * to_float(b[3 * columns + i]);
      sums[i] = sum;
    }
  }
  for (; j < entry.rank; j++, b += columns)
    for (int64_t i = 0; i < n; i++) sums[i] += inner[j] * to_float(b[i]);
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
      add_lora<T>(call.lora, m, call.n, n0, n, sums);
      if (bias && entry.gain)
        for (int64_t i = 0; i < n; i++) sums[i] += to_float(bias[n0 + i]);
      narrow(sums, n, y + n0);
    }
  }
};

}  // namespace
