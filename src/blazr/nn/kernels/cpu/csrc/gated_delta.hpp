// The gated delta rule, token by token, and the gated norm behind it, head by head.
//
//   h = e h;    r = beta (v - h^T k);    h = h + k (outer) r;    y = h^T q
//
// with e = exp(a softplus(decay + dt_bias)), or exp(least sigmoid(-a (decay + dt_bias))), one for a head or
// for each key channel, and queries and keys of length one. Source: Yang, Kautz and Hatamizadeh 2024,
// arXiv:2412.06464, equation 10; with a decay for each key channel: arXiv:2510.26692.
//
// Columns of a state do not depend on each other; they are computed a few vectors at a time:
//
//              value channels ->
//   key       [ .  .  .  . | .  .  .  . ]     two ways down through a block of columns:
//   channels  [ .  .  .  . | .  .  .  . ]     what k finds, then the correction and what q finds
#pragma once

#include <math.h>

#include "gated_norm.hpp"
#include "sequences.hpp"

namespace {

template <class T>
struct GatedDeltaOf {
  static constexpr int64_t kTokens = 8;

  // One value head of one sequence; its state is advanced where it lies.
  struct Head {
    const GatedDelta& call;
    const int64_t head, key_head, keys, values;
    float* state;  // (N, P)
    float q[kTokens][kMaxStateSize], k[kTokens][kMaxStateSize], decay[kTokens][kMaxStateSize];
    float beta[kTokens], v[kTokens][kMaxStateSize], y[kTokens][kMaxStateSize];

    Head(const GatedDelta& call, const Span& span, int64_t h)
        : call(call), head(h),
          key_head(h / (call.heads / call.key_heads)), keys(call.key_dim), values(call.value_dim),
          state(brought(call.state, span, h, keys * values)) {}
    // A query or key of a token, divided by its length and times the factor; the small number is that of
    // l2norm in the flash-linear-attention library.
    void read_key(const void* from, int64_t token, float factor, float* to) const {
      widen((const T*)from + token * call.qkv_stride + key_head * keys, keys, keys, to);
      const float scale = factor / sqrtf(mean_square(to, keys) * float(keys) + 1e-6f);
      for (int64_t i = 0; i < keys; i++) to[i] *= scale;
    }
    void read(int64_t token, int64_t t) {
      read_key(call.q, token, 1.0f / sqrtf(float(keys)), q[t]);
      read_key(call.k, token, 1.0f, k[t]);
      widen((const T*)call.v + token * call.qkv_stride + head * values, values,
            round_up(values, 16), v[t]);
      const float raw_beta = to_float(((const T*)call.beta)[token * call.beta_stride + head]);
      beta[t] = call.beta_scale * sigmoid(raw_beta);
      const int64_t own = call.decays;
      const T* raw = (const T*)call.decay + token * call.decay_stride + head * own;
      const float* bias = call.dt_bias + head * own;
      for (int64_t i = 0; i < own; i++) {
        const float step = to_float(raw[i]) + bias[i];
        decay[t][i] = exp_approx(call.least < 0 ? call.least * sigmoid(-call.a[head] * step)
                                                : call.a[head] * softplus(step));
      }
      for (int64_t i = own; i < keys; i++) decay[t][i] = decay[t][0];
    }
    // Rows [first, first + count) of the packed batch, at most kTokens.
    void advance(int64_t first, int64_t count) {
      for (int64_t t = 0; t < count; t++) read(first + t, t);
      int64_t p = 0;
      for (; p + 64 <= values; p += 64)
        for (int64_t t = 0; t < count; t++) columns<4>(p, t);
      for (; p < values; p += 16)
        for (int64_t t = 0; t < count; t++) columns<1>(p, t);
      for (int64_t t = 0; t < count; t++) {
        const T* gate = (const T*)call.gate + (first + t) * call.gate_stride + head * values;
        T* out = (T*)call.out + ((first + t) * call.heads + head) * values;
        gated_norm(call.norm, 1, values, call.eps, gate, call.norm_weight, y[t], out);
      }
    }
    // Columns from p on, one token.
    template <int Vectors>
    void columns(int64_t p, int64_t t) {
      const int64_t left = Vectors > 1 ? 16 : values - p;  // of a row of one vector
      Lanes found[Vectors]{}, sums[Vectors]{};
      for (int64_t i = 0; i < keys; i++) {
        const Lanes key = all16(decay[t][i] * k[t][i]);
        const float* held = state + i * values + p;
#pragma GCC unroll 4
        for (int j = 0; j < Vectors; j++)
          found[j] = fma16(load_some(held + 16 * j, left), key, found[j]);
      }
      for (int j = 0; j < Vectors; j++) found[j] = (load16(v[t] + p + 16 * j) - found[j]) * beta[t];
      for (int64_t i = 0; i < keys; i++) {
        const Lanes key = all16(k[t][i]), query = all16(q[t][i]);
        float* held = state + i * values + p;
#pragma GCC unroll 4
        for (int j = 0; j < Vectors; j++) {
          const Lanes h = fma16(key, found[j], load_some(held + 16 * j, left) * decay[t][i]);
          store_some(held + 16 * j, left, h);
          sums[j] = fma16(h, query, sums[j]);
        }
      }
      for (int j = 0; j < Vectors; j++) store16(y[t] + p + 16 * j, sums[j]);
    }
  };

  static void recur(const GatedDelta& call, const Span& span, int64_t h, int64_t) {
    Head head(call, span, h);
    in_stretches(
        call.sequences, span, kTokens, [&](auto... rows) { head.advance(rows...); },
        [&] { round_to_kept(call.state.dtype, head.state, head.keys * head.values); },
        [&](int64_t slot) { keep(call.state, slot, h, head.state, head.keys * head.values); });
  }
};

}  // namespace
