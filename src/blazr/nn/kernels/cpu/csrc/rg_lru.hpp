// The real-gated linear recurrent unit of Griffin, token by token.
//
//   l = a sigmoid(decay gate);    h = exp(l) h + sqrt(1 - exp(2 l)) sigmoid(input gate) x
//
// with every channel by itself; for a sequence's first token the root is one. Source: De et al. 2024,
// arXiv:2402.19427, section 2.4.
#pragma once

#include <math.h>

#include "sequences.hpp"

namespace {

template <class T>
struct RgLruOf {
  // Channels [c0, c1) of one sequence.
  static void scan(const RgLru& call, const Span& span, int64_t c0, int64_t c1) {
    const int64_t count = c1 - c0;
    float state[kChannelsTogether];
    const auto read = [&](const auto* from) { widen(from + c0, count, count, state); };
    const auto write = [&](auto* to) { narrow(state, count, to + c0); };
    if (span.log_length)
      read(working_before(call.state, span));
    else  // right after a grid edge what was kept there counts
      with_kept(call.state, span.state_slot, read);
    const auto advance = [&](int64_t first, int64_t rows) {
      for (int64_t row = first; row < first + rows; row++) {
        const int64_t at = row * call.width + c0;
        const bool is_first = span.start + row - span.first == 0;
        for (int64_t i = 0; i < count; i++) {
          const float input = to_float(((const T*)call.input_gate)[at + i]) + call.input_bias[c0 + i];
          const float decay = to_float(((const T*)call.decay_gate)[at + i]) + call.decay_bias[c0 + i];
          const float log_decay = call.a[c0 + i] * sigmoid(decay);
          const float share = is_first ? 1.0f : sqrtf(-expm1f(2.0f * log_decay));
          const float entering = share * sigmoid(input) * to_float(((const T*)call.x)[at + i]);
          state[i] = exp_approx(log_decay) * state[i] + entering;
          round_to(state[i], ((T*)call.out)[at + i]);
        }
      }
    };
    in_stretches(
        call.sequences, span, kGrid, advance,
        [&] { round_to_kept(call.state.dtype, state, count); },
        [&](int64_t slot) { with_kept(call.state, slot, write); });
    write(working_after(call.state, span));
  }
};

}  // namespace
