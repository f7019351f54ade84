// Causal depthwise convolution over packed sequences, perhaps between two gates.
//
//   kept   row -5 | row -4 | row -3       the last inputs of a sequence before its checkpoint
//   log    row -2 | row -1                those since
//   x      row  0 | row  1 | ...          out[t] = bias + sum over j of weight[j] x[t + 1 - taps + j]
#pragma once

#include "sequences.hpp"
#include "types.hpp"

namespace {

// One row of output from `taps` rows; where a row has a gate, their product is rounded first.
template <class T>
inline void convolve_row(const T* const* rows, const T* const* gates, const float* weight,
                         const float* bias, int64_t taps, int64_t channels, bool with_silu, T* out) {
  for (int64_t c = 0; c < channels; c += 16) {
    const int64_t left = channels - c;
    Lanes sum = load_some(bias + c, left);
    for (int64_t j = 0; j < taps; j++) {
      Lanes x = load_some(rows[j] + c, left);
      if (gates[j]) {
        T product[16];
        store_some(product, 16, x * load_some(gates[j] + c, left));
        x = load16(product);
      }
      sum = sum + load_some(weight + j * channels + c, left) * x;
    }
    store_some(out + c, left, with_silu ? silu(sum) : sum);
  }
}

template <class T>
struct ConvolutionOf {
  // Where the row at distance t from this step's first lies, and its gate.
  static const T* row(const Convolution& call, const Span& span, int64_t t, const T** gate) {
    *gate = nullptr;
    if (t >= 0) {
      const int64_t at = (span.first + t) * call.x_stride;
      if (call.in_gate) *gate = (const T*)call.in_gate + at;
      return (const T*)call.x + at;
    }
    const Window& window = call.window;
    const int64_t at = span.log_length + t;
    if (at >= 0) return (const T*)window.log + span.run_slot * window.log_run + at * window.log_row;
    return (const T*)window.kept + span.state_slot * window.kept_slot +
           (call.taps - 1 + at) * window.kept_row;
  }

  static void convolve(const Convolution& call, const Span& span, int64_t t0, int64_t t1) {
    for (int64_t t = t0; t < t1; t++) {
      const T *rows[kMaxTaps], *gates[kMaxTaps];
      for (int64_t j = 0; j < call.taps; j++)
        rows[j] = row(call, span, t + 1 - call.taps + j, &gates[j]);
      T* out = (T*)call.out + (span.first + t) * call.out_stride;
      convolve_row(rows, gates, call.weight, call.bias, call.taps, call.channels, call.silu, out);
      if (!call.out_gate) continue;
      const T* gate = (const T*)call.out_gate + (span.first + t) * call.x_stride;
      for (int64_t c = 0; c < call.channels; c++)
        round_to(to_float(out[c]) * to_float(gate[c]), out[c]);
    }
  }

  // The row at distance t, behind its gate.
  static void copy(const Convolution& call, const Span& span, int64_t t, T* to) {
    const T *gate, *from = row(call, span, t, &gate);
    if (gate)
      for (int64_t c = 0; c < call.channels; c++)
        round_to(to_float(from[c]) * to_float(gate[c]), to[c]);
    else
      memcpy(to, from, size_t(call.channels) * sizeof(T));
  }

  // Write the checkpoints, whose rows may be in the log, and then the log.
  static void remember(const Convolution& call, const Span& span) {
    const Window& window = call.window;
    const Checkpoint* some = call.sequences.checkpoints + span.checkpoints;
    for (int64_t i = 0; i < span.num_checkpoints; i++)
      for (int64_t j = 0; j < call.taps - 1; j++)
        copy(call, span, some[i].distance + 1 - call.taps + j,
             (T*)window.kept + some[i].slot * window.kept_slot + j * window.kept_row);
    span.in_log([&](int64_t t, int64_t at) {
      copy(call, span, t, (T*)window.log + span.run_slot * window.log_run + at * window.log_row);
    });
  }
};

}  // namespace
