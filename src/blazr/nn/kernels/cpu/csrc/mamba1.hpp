// Mamba-1's recurrence, token by token, and the gate behind it.
//
//   h = exp(dt a) h + dt u (outer) b;    y = h . c + d u;    out = y silu(gate)
//
// with a decay of its own for each channel and each number of its state. Source: Gu and Dao 2023,
// arXiv:2312.00752, section 3.2.
//
//   state    numbers ->                sixteen channels are a part; their tokens follow each other,
//   channel  [ h h h h h h ... ]       and y of a token is summed along its channel's row
#pragma once

#include "lanes.hpp"
#include "sequences.hpp"

namespace {

template <class T>
struct Mamba1Of {
  static constexpr int64_t kTogether = kChannelsTogether, kTokens = 32;

  // Some channels of one sequence; rows of state and maps are padded with zeros to whole vectors.
  struct Channels {
    const Mamba1& call;
    int64_t low, count, wide;
    float state[kTogether * kMaxStateSize], a[kTogether * kMaxStateSize];
    float b[kTokens * kMaxStateSize], c[kTokens * kMaxStateSize];
    float u[kTokens][kTogether]{}, dt[kTokens][kTogether]{}, y[kTokens][kTogether];

    Channels(const Mamba1& call, int64_t c0, int64_t c1)
        : call(call), low(c0), count(c1 - c0), wide(round_up(call.state_size, 16)) {
      spread(call.a + low * call.state_size, count, call.state_size, kTogether, wide, a);
    }
    template <class From>
    void read(const From* from) {
      spread(from + low * call.state_size, count, call.state_size, kTogether, wide, state);
    }
    template <class To>
    void write(To* to) const {
      gather(state, count, call.state_size, wide, to + low * call.state_size);
    }
    // Rows [first, first + rows) of the packed batch, at most kTokens.
    void advance(int64_t first, int64_t rows) {
      for (int64_t t = 0; t < rows; t++) {
        const int64_t at = (first + t) * call.inner + low;
        widen((const T*)call.b + (first + t) * call.b_stride, call.state_size, wide, b + t * wide);
        widen((const T*)call.c + (first + t) * call.c_stride, call.state_size, wide, c + t * wide);
        for (int64_t i = 0; i < count; i++) u[t][i] = to_float(((const T*)call.u)[at + i]);
        for (int64_t i = 0; i < count; i++) dt[t][i] = softplus(to_float(((const T*)call.dt)[at + i]));
      }
      for (int64_t i = 0; i < kTogether; i += 4)
        for (int64_t t = 0; t < rows; t++) step(i, t);
      for (int64_t t = 0; t < rows; t++) {
        const T* gate = (const T*)call.gate + (first + t) * call.gate_stride + low;
        T* out = (T*)call.out + (first + t) * call.inner + low;
        for (int64_t i = 0; i < count; i++)
          round_to((y[t][i] + call.d[low + i] * u[t][i]) * silu(to_float(gate[i])), out[i]);
      }
    }
    // Four channels, one token.
    void step(int64_t i, int64_t t) {
      const Lanes most = all16(call.limit), least = -most;
      Lanes sums[4]{};
      for (int64_t j = 0; j < wide; j += 16) {
        const Lanes bs = load16(b + t * wide + j), cs = load16(c + t * wide + j);
#pragma GCC unroll 4
        for (int q = 0; q < 4; q++) {
          float* held = state + (i + q) * wide + j;
          const float size = dt[t][i + q];
          const Lanes decay = exp16(load16(a + (i + q) * wide + j) * size);
          Lanes h = fma16(load16(held), decay, bs * (size * u[t][i + q]));
          if (call.limit > 0) {
            h = select(h < least, least, h);
            h = select(h > most, most, h);
          }
          store16(held, h);
          sums[q] = fma16(h, cs, sums[q]);
        }
      }
      sum4(sums, y[t] + i);
    }
  };

  static void scan(const Mamba1& call, const Span& span, int64_t c0, int64_t c1) {
    Channels some(call, c0, c1);
    const auto read = [&](const auto* from) { some.read(from); };
    const auto write = [&](auto* to) { some.write(to); };
    if (span.log_length)
      read(working_before(call.state, span));
    else  // right after a grid edge what was kept there counts
      with_kept(call.state, span.state_slot, read);
    in_stretches(
        call.sequences, span, kTokens, [&](auto... rows) { some.advance(rows...); },
        [&] { round_to_kept(call.state.dtype, some.state, some.count * some.wide); },
        [&](int64_t slot) { with_kept(call.state, slot, write); });
    write(working_after(call.state, span));
  }
};

}  // namespace
