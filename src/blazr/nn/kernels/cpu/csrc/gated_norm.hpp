// The last step of a recurrent mixer: its output is gated and normalised (RMSNorm, arXiv:1910.07467).
#pragma once

#include <math.h>

#include "lanes.hpp"

namespace {

// y (n), gated and normalised as `kind` (GatedNorm) says, to out; the mean square is taken over each of
// `groups` parts. y is overwritten.
template <class T>
inline void gated_norm(int64_t kind, int64_t groups, int64_t n, float eps, const T* gate,
                       const float* weight, float* y, T* out) {
  if (kind == kGateFirst || kind == kGateOnly)
    for (int64_t i = 0; i < n; i++) y[i] *= silu(to_float(gate[i]));
  if (kind != kGateOnly && kind != kUngated)
    for (int64_t low = 0, size = n / groups; low < n; low += size) {
      const float scale = 1.0f / sqrtf(mean_square(y + low, size) + eps);
      for (int64_t i = low; i < low + size; i++) y[i] = y[i] * scale * weight[i];
    }
  if (kind == kNormFirst)
    for (int64_t i = 0; i < n; i++) y[i] *= silu(to_float(gate[i]));
  if (kind == kNormSigmoid)
    for (int64_t i = 0; i < n; i++) y[i] *= sigmoid(to_float(gate[i]));
  narrow(y, n, out);
}

template <class T>
inline void gated_row(const GatedRows& call, int64_t m) {
  float y[kMaxGated];
  widen((const T*)call.x + m * call.n, call.n, call.n, y);
  gated_norm(call.norm, call.groups, call.n, call.eps, (const T*)call.gate + m * call.gate_stride,
             call.weight, y, (T*)call.out + m * call.n);
}

}  // namespace
