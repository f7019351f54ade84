// What is done to each row alone: norms, and rotation with the writing of keys and values.
#pragma once

#include <math.h>

#include "stored.hpp"

namespace {

template <class T>
struct RowParts {
  // The sum of (x - mean)^2, in sixteen running sums; of x itself where kSquared is not set.
  template <bool kSquared>
  static float total(const T* x, int64_t size, float mean) {
    float sums[16]{};
    int64_t i = 0;
    for (; i + 16 <= size; i += 16)
      for (int j = 0; j < 16; j++) {
        const float v = to_float(x[i + j]) - mean;
        sums[j] += kSquared ? v * v : v;
      }
    for (int j = 0; i < size; i++, j++) {
      const float v = to_float(x[i]) - mean;
      sums[j] += kSquared ? v * v : v;
    }
    return sum16(load16(sums));
  }

  // RMSNorm (arXiv:1910.07467) and LayerNorm (arXiv:1607.06450).
  // Rows [m0, m1): x / sqrt(mean(x^2) + eps) times the weight, or one plus it; or, with a bias, the
  // same of x - mean(x), and the bias added. Rounded once.
  static void norm(const Norm& call, int64_t m0, int64_t m1) {
    const int64_t size = call.size;
    const T *weight = (const T*)call.weight, *bias = (const T*)call.bias;
    for (int64_t m = m0; m < m1; m++) {
      const T* x = (const T*)call.x + m / call.inner * call.stride + m % call.inner * size;
      T* out = (T*)call.out + m * size;
      const float mean = bias ? total<false>(x, size, 0) / float(size) : 0;
      const float scale = 1.0f / sqrtf(total<true>(x, size, mean) / float(size) + call.eps);
      const float one = call.unit_offset ? 1.0f : 0.0f;
      if (bias)
        for (int64_t i = 0; i < size; i++)
          round_to((to_float(x[i]) - mean) * scale * to_float(weight[i]) + to_float(bias[i]), out[i]);
      else
        for (int64_t i = 0; i < size; i++)
          round_to(to_float(x[i]) * scale * (one + to_float(weight[i])), out[i]);
    }
  }

  // Rotary position embedding (arXiv:2104.09864).
  // Tokens [t0, t1): queries are rotated into call.out; keys are rotated into their page, values
  // copied into theirs, as pages store them.
  //
  //   page of keys   [ head 0: token 0 | token 1 | ... 64 tokens ][ head 1: ... ]
  template <class Stored>
  static void rotate(const Rotary& call, int64_t t0, int64_t t1) {
    using Number = typename Stored::Number;
    const int64_t key_size = call.keys.size, value_size = call.values.size;
    for (int64_t t = t0; t < t1; t++) {
      const float* cos = call.cos + t * call.pairs;
      const float* sin = call.sin + t * call.pairs;
      const int64_t page = call.slots[t] / kGrid, at = call.slots[t] % kGrid;
      const T* q = (const T*)call.q + t * call.q_stride;
      T* out = (T*)call.out + t * call.out_stride;
      for (int64_t h = 0; h < call.heads; h++)
        turn(call, q + h * call.q_head, cos, sin, out + h * call.out_head);
      const T* k = (const T*)call.k + t * call.k_stride;
      const T* v = (const T*)call.v + t * call.v_stride;
      for (int64_t h = 0; h < call.kv_heads; h++) {
        const auto at_head = [&](const PagedRows& rows) {
          return (Number*)rows.first + page * rows.page + at * rows.row + h * rows.head;
        };
        if constexpr (std::is_same_v<Number, T>) {
          turn(call, k + h * key_size, cos, sin, at_head(call.keys));
          memcpy(at_head(call.values), v + h * value_size, size_t(value_size) * sizeof(T));
        } else {
          T turned[kMaxKey];
          turn(call, k + h * key_size, cos, sin, turned);
          Stored::narrow(turned, key_size, at_head(call.keys));
          Stored::narrow(v + h * value_size, value_size, at_head(call.values));
        }
      }
    }
  }

  // One head; channels behind the pairs stay.
  static void turn(const Rotary& call, const T* x, const float* cos, const float* sin, T* out) {
    const int64_t pairs = call.pairs;
    const int64_t step = call.interleaved ? 2 : 1, apart = call.interleaved ? 1 : pairs;
    for (int64_t i = 0; i < pairs; i++) {
      const float a = to_float(x[i * step]), b = to_float(x[i * step + apart]);
      const float ac = a * cos[i], bs = b * sin[i], bc = b * cos[i], as = a * sin[i];
      round_to(ac - bs, out[i * step]);
      round_to(bc + as, out[i * step + apart]);
    }
    for (int64_t i = 2 * pairs; i < call.keys.size; i++) out[i] = x[i];
  }
};

}  // namespace
