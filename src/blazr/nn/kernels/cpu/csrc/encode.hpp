// Plain numbers into blocks of Q4_K, by the search of make_qkx2_quants in ggml-quants.c and a further step,
// `settle`. nn/quant/gguf/kquantize.py says the same in torch.
//
//   block, 256 numbers   [ f16 d | f16 m ][ 8 scales, 8 minima: 6 bits each ][ 256 codes: 4 bits ]
//                              4                      12                           128 bytes
//
// A number of group g, of 32, is d * scale[g] * code - m * minimum[g].
//
// Sixteen groups of 32 numbers side by side, one a lane: all sums run along a lane, in one order, and
// nothing is fused, so that a model quantized here has the same blocks on every processor.
#pragma once

#include "types.hpp"

namespace {

// Sixteen lanes in the compiler's own notation.
using Groups = float __attribute__((vector_size(64)));

inline Groups all_groups(float x) { return x - Groups{}; }

struct Q4KGroups {
  static constexpr int kSize = 32, kGroups = 16, kTries = 21, kBlockBytes = 144;
  static constexpr float kLargest = 15, kLargestScale = 63;

  Groups x[kSize], weights[kSize];

  static Groups smaller(Groups a, Groups b) { return a < b ? a : b; }
  static Groups larger(Groups a, Groups b) { return a > b ? a : b; }
  static Groups inverse(Groups a) { return a > 0 ? 1 / a : Groups{}; }
  static Groups rounded(Groups a) {
    const Groups magic = all_groups(kRoundToInteger);
    return (a + magic) - magic;
  }
  static Groups limited(Groups a, float most) {
    return rounded(smaller(larger(a, Groups{}), all_groups(most)));
  }

  // Of numbers `scale * code + low`, where codes are the nearest for `inverse` and `from`.
  Groups error(Groups from, Groups inverse, Groups scale, Groups low) const {
    Groups sum{};
    for (int i = 0; i < kSize; i++) {
      const Groups off = limited((x[i] - from) * inverse, kLargest) * scale + low - x[i];
      sum += off * off * weights[i];
    }
    return sum;
  }

  // Weighs numbers by their magnitude and their group's root mean square.
  void weigh() {
    Groups squares{};
    for (int i = 0; i < kSize; i++) squares += x[i] * x[i];
    for (int g = 0; g < kGroups; g++) squares[g] = __builtin_sqrtf(squares[g] / kSize);
    for (int i = 0; i < kSize; i++) weights[i] = (x[i] < 0 ? -x[i] : x[i]) + squares;
  }

  // The best scale, and the best lowest number, not above 0, of several ranges of codes.
  void fit(Groups& scale, Groups& low) const {
    Groups high = x[0], sum_w{}, sum_x{};
    low = Groups{};
    for (int i = 0; i < kSize; i++) {
      low = smaller(x[i], low), high = larger(x[i], high);
      sum_w += weights[i], sum_x += weights[i] * x[i];
    }
    scale = (high - low) / kLargest;
    Groups best = error(low, inverse(scale), scale, low);
    for (int step = 0; step < kTries; step++) {
      const Groups steps = (kLargest - 1 + 0.1f * float(step)) * inverse(high - low);
      Groups sum_l{}, sum_l2{}, sum_xl{};
      for (int i = 0; i < kSize; i++) {
        const Groups code = limited((x[i] - low) * steps, kLargest), weighed = weights[i] * code;
        sum_l += weighed, sum_l2 += weighed * code, sum_xl += weighed * x[i];
      }
      // least squares
      const Groups over = inverse(sum_w * sum_l2 - sum_l * sum_l);
      Groups new_low = (sum_l2 * sum_x - sum_l * sum_xl) * over;
      Groups new_scale = (sum_w * sum_xl - sum_x * sum_l) * over;
      new_scale = new_low > 0 ? sum_xl * inverse(sum_l2) : new_scale;
      new_low = smaller(new_low, Groups{});
      const Groups now = error(low, steps, new_scale, new_low);
      const auto better = (now < best) & (new_scale > 0);
      best = better ? now : best;
      scale = better ? new_scale : scale;
      low = better ? new_low : low;
    }
  }

  // The float16 unit of eight groups' numbers, which become whole numbers of it, up to 63.
  static f16 units(Groups& numbers, Groups& unit, int first) {
    float most = 0;
    for (int g = first; g < first + 8; g++) most = numbers[g] > most ? numbers[g] : most;
    const float exact = most / kLargestScale, over = exact > 0 ? 1 / exact : 0;
    f16 half;
    round_to(exact, half);
    for (int g = first; g < first + 8; g++) numbers[g] *= over, unit[g] = to_float(half);
    return half;
  }

  // Two blocks, or one.
  void encode(uint8_t* out, int blocks) {
    weigh();
    Groups scale, minimum, units_of_scale{}, units_of_minimum{};
    fit(scale, minimum);
    minimum = -minimum;
    for (int b = 0; b < blocks; b++) {
      const f16 halves[2] = {units(scale, units_of_scale, 8 * b),
                             units(minimum, units_of_minimum, 8 * b)};
      memcpy(out + b * kBlockBytes, halves, sizeof halves);
    }
    settle(scale, minimum, units_of_scale, units_of_minimum);
    const Groups low = -minimum * units_of_minimum, over = inverse(scale * units_of_scale);
    uint8_t codes[kSize][kGroups];
    for (int i = 0; i < kSize; i++) {
      const Groups code = limited((x[i] - low) * over, kLargest);
      for (int g = 0; g < kGroups; g++) codes[i][g] = uint8_t(code[g]);
    }
    for (int b = 0; b < blocks; b++) {
      uint8_t *six = out + b * kBlockBytes + 4, *nibbles = six + 12;
      for (int g = 0; g < 4; g++) {
        const int s = int(scale[8 * b + g]), more_s = int(scale[8 * b + 4 + g]);
        const int m = int(minimum[8 * b + g]), more_m = int(minimum[8 * b + 4 + g]);
        six[g] = uint8_t(s | more_s >> 4 << 6), six[4 + g] = uint8_t(m | more_m >> 4 << 6);
        six[8 + g] = uint8_t((more_s & 15) | more_m << 4);
        for (int i = 0; i < kSize; i++)
          nibbles[32 * g + i] = uint8_t(codes[i][8 * b + 2 * g] | codes[i][8 * b + 2 * g + 1] << 4);
      }
    }
  }

  // The best whole numbers next to these.
  void settle(Groups& scale, Groups& minimum, Groups scale_unit, Groups minimum_unit) const {
    const Groups s0 = limited(scale, kLargestScale), m0 = limited(minimum, kLargestScale);
    scale = s0, minimum = m0;
    Groups best = all_groups(__builtin_inff());
    constexpr int kSteps[9][2] = {{0, 0},  {-1, -1}, {-1, 0}, {-1, 1}, {0, -1},
                                  {0, 1}, {1, -1},  {1, 0},  {1, 1}};
    for (int t = 0; t < 9; t++) {
      const Groups s = limited(s0 + float(kSteps[t][0]), kLargestScale);
      const Groups m = limited(m0 + float(kSteps[t][1]), kLargestScale);
      const Groups low = -m * minimum_unit, now = error(low, inverse(s * scale_unit), s * scale_unit, low);
      const auto better = now < best;
      best = better ? now : best;
      scale = better ? s : scale;
      minimum = better ? m : minimum;
    }
  }
};

// Blocks [first, first + 2), or the last one.
void encode_q4_k(const Encode& call, int64_t first) {
  const int blocks = int(smaller(2, call.blocks - first));
  Q4KGroups groups{};
  for (int i = 0; i < Q4KGroups::kSize; i++)
    for (int g = 0; g < 8 * blocks; g++)
      groups.x[i][g] = call.x[(first * 8 + g) * Q4KGroups::kSize + i];
  groups.encode(call.out + first * Q4KGroups::kBlockBytes, blocks);
}

}  // namespace
