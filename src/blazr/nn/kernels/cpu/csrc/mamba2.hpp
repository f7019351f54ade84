// The Mamba-2 mixer between its two projections: convolution, recurrence, gate and norm. Without taps there
// is no convolution: linear attention of one decay for each head, whose values, keys and queries are x, B and C.
//
// A sequence is remembered as a state at the last grid edge and the rows since. An output is
//
//   y[t] = sum over rows r of the interval, r <= t, of  (c[t].b[r]) exp(total[t] - total[r]) dt[r] x[r]
//          + exp(total[t]) (state . c[t])                     total: running sum of dt A
//
// whether t is the one token of a decode step or one of many in prefill, and every sum runs in one
// order. So a token's output depends on its sequence alone, not on how the prompt was cut. Source: Dao and
// Gu 2024, arXiv:2405.21060, section 6 (where H, P and N are heads, head_dim and state_size).
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
  static constexpr int64_t kAhead = 1024;  // numbers of a state between what is read and what is prefetched
  static constexpr int64_t kPlaces = kGrid + 16;  // of an interval's rows, and of the state before them

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

  // Rows [t0, t1) of one sequence: convolution and SiLU, if any, and step sizes.
  static void convolve(const Mamba2& call, const Span& span, int64_t t0, int64_t t1) {
    const int64_t conv = call.conv(), taps = call.taps;
    const Before before{call, span};
    for (int64_t t = t0; t < t1; t++) {
      T* post = (T*)call.post + (span.first + t) * conv;
      const T *rows[kMaxTaps], *gates[kMaxTaps]{};
      for (int64_t j = 0; j < taps; j++) rows[j] = before(t + 1 - taps + j);
      if (taps)
        convolve_row(rows, gates, call.conv_weight, call.conv_bias, taps, conv, true, post);
      else
        memcpy(post, before(t), size_t(conv) * sizeof(T));
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

  // One interval of the grid for heads of one group.
  struct Interval {
    const Mamba2& call;
    const Span& span;
    int64_t low = 0;                       // distance of the first row from the checkpoint
    int64_t num_logged = 0, num_rows = 0;  // rows that are in the log, and rows in all: those behind are new
    float b[kGrid * kMaxN];                // (num_rows, N), padded with zeros to whole vectors
    // Step sizes of some heads and the running sums of dt A, row r's at r + 1. At 0 is the state, which
    // counts as a row before the first, with a step of 1.
    float dt[kHeadsTogether][kPlaces];
    double total[kHeadsTogether][kPlaces];  // differences of sums need digits that float has not
    // The rows of x of one head, in the log and new: where they lie, or in `x`.
    const float *old_x, *new_x;
    int64_t old_stride, new_stride;  // numbers from one to the next
    float x[kGrid * kMaxP];          // (num_rows, P), padded with zeros to whole vectors

    Interval(const Mamba2& call, const Span& span) : call(call), span(span) {}
    int64_t wide_n() const { return round_up(call.state_size, 16); }
    int64_t wide_p() const { return round_up(call.head_dim, 16); }
    int64_t log_stride() const { return call.inner() + call.maps(); }
    // x B of row r < num_logged, and x B C of one that is new, after the convolution.
    const T* old_row(int64_t r) const {
      return (const T*)call.log_xb + (span.run_slot * kGrid + low + r) * log_stride();
    }
    const T* new_row(int64_t r) const {
      return (const T*)call.post + (span.first + low + r - span.log_length) * call.conv();
    }
    // Calls each(r, row) for the rows in the log, or for all.
    template <class Each>
    void each_old(const Each& each) const {
      const T* row = old_row(0);
      for (int64_t r = 0; r < num_logged; r++, row += log_stride()) each(r, row);
    }
    template <class Each>
    void each_row(const Each& each) const {
      each_old(each);
      const T* row = new_row(num_logged);
      for (int64_t r = num_logged; r < num_rows; r++, row += call.conv()) each(r, row);
    }
    void read_maps(int64_t head) {
      const int64_t group = head / (call.heads / call.groups), n = wide_n();
      const int64_t first = call.inner() + group * call.state_size;
      each_old([&](int64_t, const T* row) {
        prefetch(row + first, call.state_size);
        prefetch(row + head * call.head_dim, call.head_dim);
      });
      each_row([&](int64_t r, const T* row) { widen(row + first, call.state_size, n, b + r * n); });
    }
    // Prefetches a few numbers of a row: too few, and rows too far apart, for the processor to foresee.
    static void prefetch(const T* from, int64_t n) {
      for (int64_t i = 0; i < n; i += 64 / int64_t(sizeof(T))) __builtin_prefetch(from + i);
    }
    // The steps of heads [h0, h1), side by side: each is a chain of sums.
    void read_steps(int64_t h0, int64_t h1) {
      double sums[kHeadsTogether]{}, a[kHeadsTogether]{};
      for (int64_t h = h0; h < h1; h++) a[h - h0] = call.a[h];
      for (int i = 0; i < kHeadsTogether; i++) dt[i][0] = 1, total[i][0] = 0;
      const auto read = [&](int64_t place, const float* from, auto count) {
        for (int64_t i = 0; i < count; i++) {
          dt[i][place] = from[i];
          total[i][place] = sums[i] += double(from[i]) * a[i];
        }
      };
      const auto read_all = [&](auto count) {
        const float* from = call.log_dt + (span.run_slot * kGrid + low) * call.heads + h0;
        for (int64_t r = 0; r < num_logged; r++, from += call.heads) read(r + 1, from, count);
        from = call.dt + (span.first + low + num_logged - span.log_length) * call.heads + h0;
        for (int64_t r = num_logged; r < num_rows; r++, from += call.heads) read(r + 1, from, count);
      };
      with_count<kHeadsTogether>(h1 - h0, read_all);
      for (int i = 0; i < h1 - h0; i++)
        for (int64_t place = num_rows + 1; place < round_up(num_rows + 1, 16); place++)
          dt[i][place] = 0, total[i][place] = sums[i];
    }
    void read_head(int64_t h) {
      const int64_t first = h * call.head_dim, p = wide_p();
      each_old([&](int64_t, const T* row) { prefetch(row + first + call.head_dim, call.head_dim); });
      if constexpr (std::is_same_v<T, float>) {
        if (p == call.head_dim) {
          old_x = old_row(0) + first, old_stride = log_stride();
          new_x = new_row(num_logged) + first, new_stride = call.conv();
          return;
        }
      }
      each_row([&](int64_t r, const T* row) { widen(row + first, call.head_dim, p, x + r * p); });
      old_x = x, new_x = x + num_logged * p, old_stride = new_stride = p;
    }
    // The products of c at row t with b at rows 0 to t.
    void similarities(int64_t t, const float* c, float* out) const {
      const int64_t n = wide_n();
      out[0] = 1;
      for (int64_t r = 0; r <= t; r += 4) {
        Lanes sums[4]{};
        for (int64_t i = 0; i < n; i += 16) {
          const Lanes cs = load16(c + i);
          for (int q = 0; q < 4; q++) sums[q] = fma16(load16(b + (r + q) * n + i), cs, sums[q]);
        }
        sum4(sums, out + 1 + r);
      }
    }

    // y of `Tokens` rows from t on, of the head that was read, which is the h-th of those whose steps were.
    // The rows of c and of `similar` are wide_n() and kPlaces numbers apart, those of y call.inner().
    template <int Tokens, class State>
    void outputs(int64_t t, int64_t h, const float* c, const float* similar, const State* state, float d,
                 float* y) const {
      const int64_t n = wide_n(), p = wide_p();
      float weight[Tokens][kPlaces], out[Tokens][kMaxP];
      constexpr int kSome = kRegister == 64 ? Tokens : 1;  // as many as registers have room for
      for (int64_t row = 0; row < p; row += 4)
        for (int some = 0; some < Tokens; some += kSome) {
          Lanes sums[kSome][4]{};
          for (int64_t j = 0; j < n; j += 16) {
            Lanes cs[kSome];
            for (int k = 0; k < kSome; k++) cs[k] = load16(c + (some + k) * n + j);
#pragma GCC unroll 4
            for (int q = 0; q < 4; q++) {
              const State* at = state + (row + q) * n + j;
              if (Tokens == 1) __builtin_prefetch(at + kAhead);
              const Lanes held = load16(at);
#pragma GCC unroll 4
              for (int k = 0; k < kSome; k++) sums[k][q] = fma16(held, cs[k], sums[k][q]);
            }
          }
          for (int k = 0; k < kSome; k++) sum4(sums[k], out[some + k] + row);
        }
      // first all differences, then what is made of them: a vector is not read while its parts are written
      for (int k = 0; k < Tokens; k++) {
        const double now = total[h][t + k + 1];
        for (int64_t i = 0; i < round_up(t + k + 2, 16); i++) weight[k][i] = float(now - total[h][i]);
      }
      for (int k = 0; k < Tokens; k++)
        for (int64_t i = 0; i < t + k + 2; i += 16) {
          const Lanes scale = load16(similar + k * kPlaces + i) * load16(dt[h] + i);
          store16(weight[k] + i, exp_approx(load16(weight[k] + i)) * scale);
        }
      // as many vectors of x together as registers have room for
      constexpr int kMost = smaller(larger((kRegister == 64 ? 8 : 4) / Tokens, 1), 4);
      in_tiles<kMost>(p / 16, [&](auto count, int64_t vector) {
        constexpr int kVectors = count;
        const int64_t first = vector * 16;
        Lanes sums[Tokens][kVectors];
#pragma GCC unroll 4
        for (int k = 0; k < Tokens; k++)
          for (int v = 0; v < kVectors; v++)
            sums[k][v] = load16(out[k] + first + v * 16) * weight[k][0];
        // adds row r, for the tokens from `from` on
        const auto add = [&](int64_t r, const float* row, int from) {
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; v++) {
            const Lanes xs = load16(row + first + v * 16);
#pragma GCC unroll 4
            for (int k = 0; k < Tokens; k++)
              if (k >= from) sums[k][v] = fma16(all16(weight[k][r + 1]), xs, sums[k][v]);
          }
        };
        const float* row = old_x;
        for (int64_t r = 0; r < num_logged; r++, row += old_stride) add(r, row, 0);
        row = new_x;
        for (int64_t r = num_logged; r <= t; r++, row += new_stride) add(r, row, 0);
#pragma GCC unroll 4
        for (int k = 0; k < Tokens; k++) {
          row = new_x + (t + k - num_logged) * new_stride;
          if (k) add(t + k, row, k);
          for (int v = 0; v < kVectors; v++) {
            const int64_t at = first + v * 16;
            store_some(y + k * call.inner() + at, call.head_dim - at,
                       fma16(all16(d), load16(row + at), sums[k][v]));
          }
        }
      });
    }

    // The state of the same head after the last row. The rows of x are weighed: they are not needed again.
    void advance(int64_t h, float* state) {
      const int64_t n = wide_n(), p = wide_p();
      const double now = total[h][num_rows];
      const float decay = exp_approx(float(now));
      const auto weigh = [&](int64_t r, const float* from) {
        const float weight = exp_approx(float(now - total[h][r + 1])) * dt[h][r + 1];
        for (int64_t j = 0; j < p; j++) x[r * p + j] = from[j] * weight;
      };
      for (int64_t r = 0; r < num_logged; r++) weigh(r, old_x + r * old_stride);
      for (int64_t r = num_logged; r < num_rows; r++) weigh(r, new_x + (r - num_logged) * new_stride);
      for (int64_t i = 0; i < p; i += 4)
        for (int64_t j = 0; j < n; j += 16) {
          Lanes sums[4];
          for (int q = 0; q < 4; q++) sums[q] = load16(state + (i + q) * n + j) * decay;
          for (int64_t r = 0; r < num_rows; r++) {
            const Lanes bs = load16(b + r * n + j);
#pragma GCC unroll 4
            for (int q = 0; q < 4; q++) sums[q] = fma16(all16(x[r * p + i + q]), bs, sums[q]);
          }
          for (int q = 0; q < 4; q++) store16(state + (i + q) * n + j, sums[q]);
        }
    }
  };

  // Heads [h0, h1) of one group and sequence. Where no interval ends the state stays as it is, and is read
  // where it lies; there is room for the others of a few heads.
  static void recur(const Mamba2& call, const Span& span, int64_t h0, int64_t h1) {
    if (!span.length) return;
    const bool stays = span.log_length + span.length < kGrid && call.state_size % 16 == 0 &&
                       call.head_dim % 16 == 0;
    const int64_t step = stays ? h1 - h0 : kHeadsTogether;
    for (int64_t h = h0; h < h1; h += step) recur_some(call, span, h, smaller(h + step, h1), stays);
  }

  // The same of so many heads, interval by interval.
  static void recur_some(const Mamba2& call, const Span& span, int64_t h0, int64_t h1, bool stays) {
    Interval interval(call, span);
    const int64_t n = interval.wide_n(), total = span.log_length + span.length;
    float states[kHeadsTogether][kMaxP * kMaxN];
    float c[kGrid * kMaxN], similar[kGrid * kPlaces];
    for (int64_t h = h0; h < h1 && !stays; h++)
      with_state(call, span.state_slot, h, [&](const auto* from) {
        spread(from, call.head_dim, call.state_size, interval.wide_p(), n, states[h - h0]);
      });
    for (; interval.low < total; interval.low += kGrid) {
      interval.num_rows = smaller(kGrid, total - interval.low);
      interval.num_logged = larger(span.log_length - interval.low, 0);
      interval.read_maps(h0);
      for (int64_t t = interval.num_logged; t < interval.num_rows; t++) {
        const int64_t group = h0 / (call.heads / call.groups);
        const T* maps = interval.new_row(t) + call.inner() + call.maps() + group * call.state_size;
        widen(maps, call.state_size, n, c + t * n);
        interval.similarities(t, c + t * n, similar + t * kPlaces);
      }
      const int64_t slot = checkpoint_slot(call, span, interval.low + interval.num_rows - span.log_length);
      for (int64_t h = h0; h < h1; h++) {
        const int64_t i = (h - h0) % kHeadsTogether;
        if (i == 0) interval.read_steps(h, smaller(h + kHeadsTogether, h1));
        interval.read_head(h);
        const auto put_out = [&](const auto* state) {
          in_tiles<4>(interval.num_rows - interval.num_logged, [&](auto count, int64_t first) {
            const int64_t t = interval.num_logged + first;
            const int64_t token = span.first + interval.low + t - span.log_length;
            interval.template outputs<count>(t, i, c + t * n, similar + t * kPlaces, state, call.d[h],
                                             call.y + (token * call.heads + h) * call.head_dim);
          });
        };
        if (stays)
          with_state(call, span.state_slot, h, put_out);
        else
          put_out((const float*)states[h - h0]);
        if (interval.num_rows < kGrid) continue;
        interval.advance(i, states[h - h0]);
        round_to_kept(call.state_dtype, states[h - h0], interval.wide_p() * n);
        if (slot >= 0)
          with_state(call, slot, h, [&](auto* to) {
            gather(states[h - h0], call.head_dim, call.state_size, n, to);
          });
      }
    }
  }

  // The slot for the checkpoint at this distance from the step's first token, or -1.
  static int64_t checkpoint_slot(const Mamba2& call, const Span& span, int64_t distance) {
    const Checkpoint* some = call.sequences.checkpoints + span.checkpoints;
    for (int64_t i = 0; i < span.num_checkpoints; i++)
      if (some[i].distance == distance) return some[i].slot;
    return -1;
  }

  // Calls with(pointer) for the state of a head in a slot: a float* or a bf16*.
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
    for (int64_t i = 0; i < span.num_checkpoints && call.taps; i++) {
      T* to = (T*)call.conv_states + some[i].slot * call.conv_state_stride;
      for (int64_t j = 0; j < before_edge; j++)
        memcpy(to + j * conv, before(some[i].distance - before_edge + j), size_t(conv) * sizeof(T));
    }
    const int64_t xb = call.inner() + call.maps(), heads = call.heads;
    span.in_log([&](int64_t t, int64_t at) {
      const int64_t place = span.run_slot * kGrid + at, row = span.first + t;
      if (call.taps) memcpy((T*)call.log_raw + place * conv, before(t), size_t(conv) * sizeof(T));
      memcpy((T*)call.log_xb + place * xb, (const T*)call.post + row * conv, size_t(xb) * sizeof(T));
      memcpy(call.log_dt + place * heads, call.dt + row * heads, size_t(heads) * sizeof(float));
    });
  }
};

}  // namespace
