// Mixture of experts: the choice, and what lies between the experts' products.
//
// Rows are a token and one of its experts each, ordered by expert, so that an expert's rows are a
// product like any other (matmul.hpp, matmul_q.hpp):
//
//   token   0      1      2            expert 0: rows 0 1    expert 2: rows 2 3 4   ...
//   chosen  2 0    2 5    0 2    ->      token  0 2            token  0 1 2
//
// hidden = act(x gate.T) * (x up.T), rounded; shares = hidden down.T stay float32, and a token's are
// added in the order of its choice, weighed, and rounded once.
#pragma once

#include "lanes.hpp"
#include "pointwise.hpp"

namespace {

// The `count` largest of n numbers and which they are (or null), ties to the lower index, best
// first; NaN is the largest.
inline void largest(const float* from, int64_t n, int64_t count, float* values, int64_t* ids) {
  int64_t found = 0;
  for (int64_t i = 0; i < n; i++) {
    const float value = from[i] == from[i] ? from[i] : __builtin_inff();
    if (found == count && !(count && value > values[count - 1])) continue;
    int64_t at = found < count ? found++ : count - 1;
    for (; at > 0 && value > values[at - 1]; at--) {
      values[at] = values[at - 1];
      if (ids) ids[at] = ids[at - 1];
    }
    values[at] = value;
    if (ids) ids[at] = i;
  }
}

// exp(x - max x), and one over its sum.
inline float exponentials(const float* x, int64_t n, float* out) {
  float highest = x[0], sum = 0;
  for (int64_t i = 1; i < n; i++) highest = x[i] > highest ? x[i] : highest;
  for (int64_t i = 0; i < n; i++) out[i] = exp_approx(x[i] - highest);
  for (int64_t i = 0; i < n; i++) sum += out[i];
  return 1.0f / sum;
}

// Leaves the numbers of the best groups, each as good as the sum of its best few (arXiv:2405.04434,
// section 2.2.2).
inline void best_groups_only(const Route& call, float* choice, float* room) {
  const int64_t size = call.experts / call.groups, judged = smaller(call.judged_by, size);
  for (int64_t group = 0; group < call.groups; group++) {
    float* best = room + call.groups;
    largest(choice + group * size, size, judged, best, nullptr);
    room[group] = 0;
    for (int64_t i = 0; i < judged; i++) room[group] += best[i];
  }
  for (int64_t group = 0; group < call.groups; group++) {
    int64_t better = 0;
    for (int64_t other = 0; other < call.groups; other++)
      better += room[other] > room[group] || (room[other] == room[group] && other < group);
    if (better >= call.kept)
      for (int64_t i = 0; i < size; i++) choice[group * size + i] = -__builtin_inff();
  }
}

inline void route_token(const Route& call, int64_t token) {
  const int64_t n = call.experts, top = call.top;
  const float* logits = call.logits + token * n;
  float* weights = call.weights + token * top;
  int64_t* ids = call.ids + token * top;
  float *scores = call.room + token * (3 * n + 1), *choice = scores + n;
  if (call.scoring == kSoftmaxOfChosen) {
    largest(logits, n, top, scores, ids);
    const float inverse = exponentials(scores, top, weights);
    for (int64_t i = 0; i < top; i++) weights[i] *= inverse;
    return;
  }
  if (call.scoring == kSoftmaxOfAll) {
    const float inverse = exponentials(logits, n, scores);
    for (int64_t i = 0; i < n; i++) scores[i] *= inverse;
  } else {
    for (int64_t i = 0; i < n; i++) scores[i] = activated<kSigmoid>(logits[i]);
  }
  for (int64_t i = 0; i < n; i++) choice[i] = call.bias ? scores[i] + call.bias[i] : scores[i];
  if (call.groups) best_groups_only(call, choice, choice + n);
  largest(choice, n, top, weights, ids);
  float sum = 1e-20f;  // so that weights are finite where all scores are 0
  for (int64_t i = 0; i < top; i++) sum += weights[i] = scores[ids[i]];
  for (int64_t i = 0; i < top; i++)
    weights[i] = (call.normalize ? weights[i] / sum : weights[i]) * call.scale;
}

template <class T>
struct ExpertsOf {
  static constexpr int64_t kSome = 64;  // numbers at once

  // A row between the products, from its sums.
  static void hidden(const Experts& call, int64_t row) {
    const int64_t inner = call.inner, expert = call.ids[call.order()[row]];
    const float* up = call.sums + (call.gate.w ? call.rows() * inner : 0) + row * inner;
    const float* gate = call.gate.w ? call.sums + row * inner : nullptr;
    const T *up_bias = bias_of(call.up, expert), *gate_bias = bias_of(call.gate, expert);
    T* out = (T*)call.hidden + row * inner;
    for (int64_t i0 = 0; i0 < inner; i0 += kSome) {
      const int64_t n = smaller(kSome, inner - i0);
      float u[kSome], g[kSome];
      take(up + i0, up_bias ? up_bias + i0 : nullptr, n, u);
      if (gate) take(gate + i0, gate_bias ? gate_bias + i0 : nullptr, n, g);
      if (call.limit > 0)
        clamped(call, n, g, u);
      else
        with_count<kNumPointwise>(call.activation + 1, [&](auto kind) {
          float* x = gate ? g : u;
          for (int64_t i = 0; i < n; i++) x[i] = activated<kind - 1>(x[i]);
        });
      if (gate && !(call.limit > 0))
        for (int64_t i = 0; i < n; i++) u[i] *= g[i];
      narrow(u, n, out + i0);
    }
  }

  // A token's row of y.
  static void combine(const Experts& call, int64_t token) {
    const int64_t k = call.k, at = token * call.top;
    T* y = (T*)call.y + token * k;
    for (int64_t i0 = 0; i0 < k; i0 += kSome) {
      const int64_t n = smaller(kSome, k - i0);
      float total[kSome]{}, share[kSome];
      for (int64_t j = at; j < at + call.top; j++) {
        const T* bias = bias_of(call.down, call.ids[j]);
        take(call.sums + call.place()[j] * k + i0, bias ? bias + i0 : nullptr, n, share);
        for (int64_t i = 0; i < n; i++) total[i] += share[i] * call.weights[j];
      }
      narrow(total, n, y + i0);
    }
  }

 private:
  static const T* bias_of(const ExpertStack& stack, int64_t expert) {
    return stack.bias ? (const T*)stack.bias + expert * stack.n : nullptr;
  }

  // Numbers, with their bias.
  static void take(const float* from, const T* bias, int64_t n, float* to) {
    for (int64_t i = 0; i < n; i++) to[i] = from[i];
    if (bias)
      for (int64_t i = 0; i < n; i++) to[i] += to_float(bias[i]);
  }

  // gate * sigmoid(alpha * gate) * (up + 1), both clamped before: the SwiGLU of gpt-oss.
  static void clamped(const Experts& call, int64_t n, const float* gate, float* up) {
    const float limit = call.limit, alpha = call.alpha;
    for (int64_t i = 0; i < n; i++) {
      const float g = gate[i] > limit ? limit : gate[i];
      const float u = up[i] > limit ? limit : up[i] < -limit ? -limit : up[i];
      up[i] = g * activated<kSigmoid>(alpha * g) * (u + 1.0f);
    }
  }
};

}  // namespace
