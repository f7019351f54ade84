// Mamba-3's recurrence, token by token: each step adds this token's input and the one before.
//
//   h = e h + (1 - l) dt e x' (outer) b' + l dt x (outer) b;    y = h . c + d x
//
// with e = exp(a dt), l = sigmoid(mix), and x' and b' those of the token before. b and c are normalised, get
// a bias, and are rotated by an angle that grows by theta dt with each token. Source: Lahoti, Li, Chen et al.
// 2026, arXiv:2603.15569, section 3 (the exponential-trapezoidal rule).
//
//   state (width, N) of a head     numbers ->            four rows go together; two neighbours of b
//   p   [ h h h h h h ... ]                              and of c are turned as one
#pragma once

#include <math.h>

#include "lanes.hpp"
#include "sequences.hpp"

namespace {

template <class T>
struct Mamba3Of {
  // One head of one sequence. What it carries is advanced where it lies: the state, x and b of the
  // token before, and the angle.
  struct Head {
    const Mamba3& call;
    const int64_t head, n, width;
    float *state, *x, *b, *angle;
    float c[kMaxStateSize]{};  // zeros behind it, to whole vectors

    Head(const Mamba3& call, const Span& span, int64_t head)
        : call(call), head(head), n(call.state_size), width(call.width),
          state(brought(call.state, span, head, width * n)),
          x(brought(call.x_before, span, head, width)),
          b(brought(call.b_before, span, head, n)),
          angle(call.theta ? brought(call.angle, span, head, n / 2) : nullptr) {}
    void round_all() const {
      round_to_kept(call.state.dtype, state, width * n);
      round_to_kept(call.x_before.dtype, x, width);
      round_to_kept(call.b_before.dtype, b, n);
      if (call.theta) round_to_kept(call.angle.dtype, angle, n / 2);
    }
    void keep_all(int64_t slot) const {
      keep(call.state, slot, head, state, width * n);
      keep(call.x_before, slot, head, x, width);
      keep(call.b_before, slot, head, b, n);
      if (call.theta) keep(call.angle, slot, head, angle, n / 2);
    }
    // b or c of a token.
    void read_map(const void* maps, const float* bias, int64_t token, float* to) const {
      const int64_t group = head / (call.heads / call.groups);
      widen((const T*)maps + token * call.map_stride + group * n, n, n, to);
      const float scale = 1.0f / sqrtf(mean_square(to, n) + call.eps);
      for (int64_t i = 0; i < n; i++) to[i] = to[i] * scale * call.norm[i] + bias[head * n + i];
    }
    void advance(int64_t token) {
      const float raw = to_float(((const T*)call.dt)[token * call.dt_stride + head]);
      const float wide = softplus(raw + call.dt_bias[head]);
      const float dt = wide < call.dt_min ? call.dt_min : wide > call.dt_max ? call.dt_max : wide;
      const float decay = exp_approx(dt * call.a[head]);
      const float mix = sigmoid(to_float(((const T*)call.mix)[token * call.heads + head]));
      const float now = mix * dt, before = (1.0f - mix) * dt * decay;

      float new_x[kMaxWidth], new_b[kMaxStateSize]{};
      widen((const T*)call.x + token * call.x_stride + head * width, width, width, new_x);
      if (call.silu)
        for (int64_t p = 0; p < width; p++) new_x[p] = silu(new_x[p]);
      read_map(call.b, call.b_bias, token, new_b);
      read_map(call.c, call.c_bias, token, c);
      if (call.theta) turn((const T*)call.theta + (token * call.heads + head) * (n / 2), dt, new_b);

      float y[kMaxWidth];
      for (int64_t p = 0; p < width; p++) x[p] *= before;
      int64_t p = 0;
      for (; p + 4 <= width; p += 4) rows<4>(p, decay, now, new_x, new_b, y);
      for (; p < width; p++) rows<1>(p, decay, now, new_x, new_b, y);
      T* out = (T*)call.out + (token * call.heads + head) * width;
      for (p = 0; p < width; p++) round_to(y[p] + call.d[head] * new_x[p], out[p]);
      memcpy(x, new_x, size_t(width) * sizeof(float));
      memcpy(b, new_b, size_t(n) * sizeof(float));
    }
    // Pairs of b and c, side by side, by the angle behind this token.
    void turn(const T* theta, float dt, float* new_b) {
      float cos[kMaxStateSize / 2], sin[kMaxStateSize / 2];
      for (int64_t i = 0; i < n / 2; i++) angle[i] += to_float(theta[i]) * dt;
      for (int64_t i = 0; i < n / 2; i += 16) cos_sin16(load_some(angle + i, n / 2 - i), cos + i, sin + i);
      for (float* map : {new_b, c})
        for (int64_t i = 0; i < n / 2; i++) {
          const float real = map[2 * i], other = map[2 * i + 1];
          map[2 * i] = real * cos[i] - other * sin[i];
          map[2 * i + 1] = real * sin[i] + other * cos[i];
        }
    }
    // Some rows of the state from row p on, and what they put out; decay is e, `now` is l dt, and the
    // member x holds (1 - l) dt e x' by now.
    template <int Rows>
    void rows(int64_t p, float decay, float now, const float* new_x, const float* new_b, float* y) {
      Lanes sums[4]{};
      for (int64_t j = 0; j < n; j += 16) {
        const Lanes old_bs = load_some(b + j, n - j), bs = load16(new_b + j), cs = load16(c + j);
#pragma GCC unroll 4
        for (int q = 0; q < Rows; q++) {
          float* held = state + (p + q) * n + j;
          Lanes h = load_some(held, n - j) * decay;
          h = fma16(all16(x[p + q]), old_bs, h);
          h = fma16(all16(now * new_x[p + q]), bs, h);
          store_some(held, n - j, h);
          sums[q] = fma16(h, cs, sums[q]);
        }
      }
      float found[4];
      sum4(sums, found);
      for (int q = 0; q < Rows; q++) y[p + q] = found[q];
    }
  };

  static void recur(const Mamba3& call, const Span& span, int64_t h, int64_t) {
    Head head(call, span, h);
    in_stretches(
        call.sequences, span, 1, [&](int64_t token, int64_t) { head.advance(token); },
        [&] { head.round_all(); }, [&](int64_t slot) { head.keep_all(slot); });
  }
};

}  // namespace
