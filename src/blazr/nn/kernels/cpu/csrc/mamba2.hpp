// The Mamba-2 mixer between its two projections: convolution, recurrence, gate and norm.
//
// A sequence is remembered as a state at the last grid edge and the rows since. An output is
//
//   y[t] = sum over rows r of the interval, r <= t, of  (c[t].b[r]) exp(total[t] - total[r]) dt[r] x[r]
//          + exp(total[t]) (state . c[t])                     total: running sum of dt A
//
// whether t is the one token of a decode step or one of many in prefill, and every sum runs in one
// order. So a token's output depends on its sequence alone, not on how the prompt was cut.
//
//   proj    (T, inner + conv + H)   z | x B C before the convolution | dt before softplus
//   post    (T, conv)               x B C after it
//   states  (slots, H, P, N)        float32, or bfloat16: every state at a grid edge is rounded to it
//   logs    (runs, GRID, ...)       proj's x B C; post's x B; dt in float32
#pragma once

#include "convolution.hpp"
#include "gated_norm.hpp"
#include "lanes.hpp"
#include "sequences.hpp"

namespace {

template <class T>
struct Mamba2Of {
  static constexpr int64_t kMaxP = kMaxHeadDim, kMaxN = kMaxStateSize;
  static constexpr int64_t kAhead = 1024;  // numbers of a state that memory fetches meanwhile

  // Where a sequence's row at distance t from this step's first token lies, before convolution.
  struct Before {
    const Mamba2& call;
    const Span& span;
    const T* operator()(int64_t t) const {
      if (t >= 0) return (const T*)call.proj + (span.first + t) * call.ld_proj() + call.inner();
      const int64_t at = span.log_length + t;
      if (at >= 0) return (const T*)call.log_raw + (span.run_slot * kGrid + at) * call.conv();
      return (const T*)call.conv_states + span.state_slot * call.conv_state_stride +
             (call.taps - 1 + at) * call.conv();
    }
  };

  static void multiply(const Mamba2& call, int64_t token) {
    T* row = (T*)call.proj + token * call.ld_proj();
    for (int64_t i = 0; i < call.ld_proj(); i++)
      round_to(to_float(row[i]) * call.multipliers[i], row[i]);
  }

  // Rows [t0, t1) of one sequence: convolution, SiLU, and step sizes.
  static void convolve(const Mamba2& call, const Span& span, int64_t t0, int64_t t1) {
    const int64_t conv = call.conv(), taps = call.taps;
    const Before before{call, span};
    for (int64_t t = t0; t < t1; t++) {
      const T *rows[kMaxTaps], *gates[kMaxTaps]{};
      for (int64_t j = 0; j < taps; j++) rows[j] = before(t + 1 - taps + j);
      convolve_row(rows, gates, call.conv_weight, call.conv_bias, taps, conv, true,
                   (T*)call.post + (span.first + t) * conv);
      const T* raw = (const T*)call.proj + (span.first + t + 1) * call.ld_proj() - call.heads;
      float* dt = call.dt + (span.first + t) * call.heads;
      for (int64_t h = 0; h < call.heads; h += 16) {
        const int64_t left = call.heads - h;
        const Lanes low = all16(call.dt_min), high = all16(call.dt_max);
        const Lanes step = softplus(load_some(raw + h, left) + load_some(call.dt_bias + h, left));
        store_some(dt + h, left, select(step < low, low, select(step > high, high, step)));
      }
    }
  }

  // One interval of the grid for up to kHeadsTogether heads of one group.
  struct Interval {
    const Mamba2& call;
    const Span& span;
    int64_t head;               // the first
    int64_t low = 0, rows = 0;  // distance of the first row from the checkpoint; how many
    float b[kGrid * kMaxN];     // (rows, N), padded with zeros to whole vectors, and to four rows
    float x[kGrid * kMaxP];     // (rows, P) of one head, padded
    float dt[kGrid];
    double total[kGrid];  // differences of sums of many decays need digits that float has not

    Interval(const Mamba2& call, const Span& span, int64_t head)
        : call(call), span(span), head(head) {}
    int64_t wide_n() const { return round_up(call.state_size, 16); }
    int64_t wide_p() const { return round_up(call.head_dim, 16); }
    // x B C of row r after the convolution; C only where the row is new.
    const T* row(int64_t r) const {
      const int64_t at = low + r;
      if (at >= span.log_length)
        return (const T*)call.post + (span.first + at - span.log_length) * call.conv();
      return (const T*)call.log_xb + (span.run_slot * kGrid + at) * (call.inner() + call.maps());
    }
    float step(int64_t r, int64_t h) const {
      const int64_t at = low + r;
      if (at >= span.log_length)
        return call.dt[(span.first + at - span.log_length) * call.heads + h];
      return call.log_dt[(span.run_slot * kGrid + at) * call.heads + h];
    }
    void read_maps() {
      const int64_t group = head / (call.heads / call.groups);
      const int64_t first = call.inner() + group * call.state_size;
      for (int64_t r = 0; r < rows; r++) {
        fetch(row(r) + first, call.state_size);
        fetch(row(r) + head * call.head_dim, call.head_dim);
      }
      for (int64_t r = 0; r < rows; r++)
        widen(row(r) + first, call.state_size, wide_n(), b + r * wide_n());
    }
    // A few numbers of each row, which memory would not foresee.
    static void fetch(const T* from, int64_t n) {
      for (int64_t i = 0; i < n; i += 64 / int64_t(sizeof(T))) __builtin_prefetch(from + i);
    }
    void read_head(int64_t h) {
      double sum = 0;
      for (int64_t r = 0; r < rows; r++) {
        fetch(row(r) + (h + 1) * call.head_dim, call.head_dim);
        widen(row(r) + h * call.head_dim, call.head_dim, wide_p(), x + r * wide_p());
        dt[r] = step(r, h);
        total[r] = sum += double(dt[r]) * call.a[h];
      }
      for (int64_t r = rows; r < round_up(rows, 16); r++) total[r] = sum;
    }
    // The products of c at row t with b at rows 0 to t.
    void similarities(int64_t t, const float* c, float* out) const {
      const int64_t n = wide_n();
      for (int64_t r = 0; r <= t; r += 4) {
        Lanes sums[4]{};
        for (int64_t i = 0; i < n; i += 16) {
          const Lanes cs = load16(c + i);
          for (int q = 0; q < 4; q++) sums[q] = fma16(load16(b + (r + q) * n + i), cs, sums[q]);
        }
        sum4(sums, out + r);
      }
    }

    // y of `Tokens` rows from t on, of the head that was read. The rows of c and of `similar` are
    // wide_n() and kGrid numbers apart, those of y call.inner().
    template <int Tokens, class State>
    void outputs(int64_t t, const float* c, const float* similar, const State* state, float d,
                 float* y) const {
      const int64_t n = wide_n(), p = wide_p();
      float weight[Tokens][kGrid], out[Tokens][kMaxP];
      for (int k = 0; k < Tokens; k++) {
        // whole vectors: one by one, the last ones would take longest
        for (int64_t r = 0; r < round_up(t + k + 1, 16); r++)
          weight[k][r] = exp_approx(float(total[t + k] - total[r]));
        for (int64_t r = 0; r <= t + k; r++) weight[k][r] *= similar[k * kGrid + r] * dt[r];
      }
      for (int64_t i = 0; i < p; i += 4) {
        Lanes sums[Tokens][4]{};
        for (int64_t j = 0; j < n; j += 16) {
          Lanes cs[Tokens];
          for (int k = 0; k < Tokens; k++) cs[k] = load16(c + k * n + j);
#pragma GCC unroll 4
          for (int q = 0; q < 4; q++) {
            const State* at = state + (i + q) * n + j;
            if (Tokens == 1) __builtin_prefetch(at + kAhead);
            const Lanes held = load16(at);
#pragma GCC unroll 4
            for (int k = 0; k < Tokens; k++) sums[k][q] = fma16(held, cs[k], sums[k][q]);
          }
        }
        for (int k = 0; k < Tokens; k++) sum4(sums[k], out[k] + i);
      }
      for (int k = 0; k < Tokens; k++) {
        const float decay = exp_approx(float(total[t + k]));
        for (int64_t i = 0; i < p; i++) out[k][i] *= decay;
      }
      for (int64_t i = 0; i < p; i += 16) {
        Lanes sums[Tokens];
        for (int k = 0; k < Tokens; k++) sums[k] = load16(out[k] + i);
        for (int64_t r = 0; r <= t; r++) {
          const Lanes xs = load16(x + r * p + i);
#pragma GCC unroll 4
          for (int k = 0; k < Tokens; k++) sums[k] = fma16(all16(weight[k][r]), xs, sums[k]);
        }
        for (int k = 0; k < Tokens; k++) {
          for (int64_t r = t + 1; r <= t + k; r++)
            sums[k] = fma16(all16(weight[k][r]), load16(x + r * p + i), sums[k]);
          store16(out[k] + i, fma16(all16(d), load16(x + (t + k) * p + i), sums[k]));
        }
      }
      for (int k = 0; k < Tokens; k++)
        memcpy(y + k * call.inner(), out[k], size_t(call.head_dim) * sizeof(float));
    }

    // The state after the last row. Rows of x are weighed in place: they are not needed again.
    void advance(float* state) {
      const int64_t n = wide_n(), p = wide_p();
      const float decay = exp_approx(float(total[rows - 1]));
      for (int64_t r = 0; r < rows; r++) {
        const float weight = exp_approx(float(total[rows - 1] - total[r])) * dt[r];
        for (int64_t i = 0; i < p; i++) x[r * p + i] *= weight;
      }
      for (int64_t i = 0; i < p; i += 4)
        for (int64_t j = 0; j < n; j += 16) {
          Lanes sums[4];
          for (int q = 0; q < 4; q++) sums[q] = load16(state + (i + q) * n + j) * decay;
          for (int64_t r = 0; r < rows; r++) {
            const Lanes bs = load16(b + r * n + j);
#pragma GCC unroll 4
            for (int q = 0; q < 4; q++) sums[q] = fma16(all16(x[r * p + i + q]), bs, sums[q]);
          }
          for (int q = 0; q < 4; q++) store16(state + (i + q) * n + j, sums[q]);
        }
    }
  };

  // Heads [h0, h1) of one sequence, interval by interval.
  static void recur(const Mamba2& call, const Span& span, int64_t h0, int64_t h1) {
    Interval now(call, span, h0);
    const int64_t n = now.wide_n(), total = span.log_length + span.length;
    float states[kHeadsTogether][kMaxP * kMaxN];
    float c[kGrid * kMaxN], similar[kGrid * kGrid];
    // where no interval ends the state stays as it is, and is read where it lies
    const bool stays = total < kGrid && n == call.state_size && now.wide_p() == call.head_dim;
    for (int64_t h = h0; h < h1 && !stays; h++)
      with_state(call, span.state_slot, h, [&](const auto* from) {
        spread(from, call.head_dim, call.state_size, now.wide_p(), n, states[h - h0]);
      });
    for (; now.low < total; now.low += kGrid) {
      now.rows = smaller(kGrid, total - now.low);
      const int64_t known = larger(span.log_length - now.low, 0);
      now.read_maps();
      for (int64_t t = known; t < now.rows; t++) {
        const int64_t group = h0 / (call.heads / call.groups);
        const T* maps = now.row(t) + call.inner() + call.maps() + group * call.state_size;
        widen(maps, call.state_size, n, c + t * n);
        now.similarities(t, c + t * n, similar + t * kGrid);
      }
      const int64_t slot = wanted(call, span, now.low + now.rows - span.log_length);
      for (int64_t h = h0; h < h1; h++) {
        now.read_head(h);
        const auto y = [&](int64_t t) {
          const int64_t token = span.first + now.low + t - span.log_length;
          return call.y + (token * call.heads + h) * call.head_dim;
        };
        const auto put_out = [&](const auto* state) {
          int64_t t = known;
          for (; t + 4 <= now.rows; t += 4)
            now.template outputs<4>(t, c + t * n, similar + t * kGrid, state, call.d[h], y(t));
          for (; t + 2 <= now.rows; t += 2)
            now.template outputs<2>(t, c + t * n, similar + t * kGrid, state, call.d[h], y(t));
          for (; t < now.rows; t++)
            now.template outputs<1>(t, c + t * n, similar + t * kGrid, state, call.d[h], y(t));
        };
        if (stays)
          with_state(call, span.state_slot, h, put_out);
        else
          put_out((const float*)states[h - h0]);
        if (now.rows < kGrid) continue;
        now.advance(states[h - h0]);
        round_to_kept(call.state_dtype, states[h - h0], now.wide_p() * n);
        if (slot >= 0)
          with_state(call, slot, h, [&](auto* to) {
            gather(states[h - h0], call.head_dim, call.state_size, n, to);
          });
      }
    }
  }

  // The slot for the checkpoint at this distance from the step's first token, or -1.
  static int64_t wanted(const Mamba2& call, const Span& span, int64_t distance) {
    const Checkpoint* some = call.sequences.checkpoints + span.checkpoints;
    for (int64_t i = 0; i < span.num_checkpoints; i++)
      if (some[i].distance == distance) return some[i].slot;
    return -1;
  }

  // Calls with(numbers) for the state of a head in a slot: floats, or bf16.
  template <class With>
  static void with_state(const Mamba2& call, int64_t slot, int64_t h, const With& with) {
    const int64_t at = slot * call.state_stride + h * call.head_dim * call.state_size;
    with_numbers(call.states, call.state_dtype, at, with);
  }

  // Gate and norm of one token.
  static void finish(const Mamba2& call, int64_t token) {
    const int64_t inner = call.inner();
    gated_norm(call.norm, call.norm_groups, inner, call.eps, (const T*)call.proj + token * call.ld_proj(),
               call.norm_weight, call.y + token * inner, (T*)call.out + token * inner);
  }

  // Write the convolution's checkpoints, then log the rows after the last grid edge.
  static void remember(const Mamba2& call, const Span& span) {
    const int64_t conv = call.conv(), before_edge = call.taps - 1;
    const Before before{call, span};
    const Checkpoint* some = call.sequences.checkpoints + span.checkpoints;
    for (int64_t i = 0; i < span.num_checkpoints; i++) {
      T* to = (T*)call.conv_states + some[i].slot * call.conv_state_stride;
      for (int64_t j = 0; j < before_edge; j++)
        memcpy(to + j * conv, before(some[i].distance - before_edge + j), size_t(conv) * sizeof(T));
    }
    const int64_t xb = call.inner() + call.maps(), heads = call.heads;
    span.in_log([&](int64_t t, int64_t at) {
      const int64_t place = span.run_slot * kGrid + at, row = span.first + t;
      memcpy((T*)call.log_raw + place * conv, before(t), size_t(conv) * sizeof(T));
      memcpy((T*)call.log_xb + place * xb, (const T*)call.post + row * conv, size_t(xb) * sizeof(T));
      memcpy(call.log_dt + place * heads, call.dt + row * heads, size_t(heads) * sizeof(float));
    });
  }
};

}  // namespace
