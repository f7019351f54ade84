// Choosing tokens by their scores: the likeliest, the likeliest few, and a draw.
//
// Nothing sorts a vocabulary. Blocks of a row have their largest score found first, in parallel, and
// most are not looked at again. For a draw every score becomes a whole number, its mass: sums of
// these are exact, so that it does not matter in which order or by which thread they are made.
//
//   scores    [ 512 of a row ][ 512 ][ 512 ][ .. ]
//   peaks     [      5.1     ][ 7.3 ][ 2.0 ][ .. ]   a block whose peak is too low is passed over
//   tallies   [ 16 buckets | 16 | 16 | ... ]         mass and number of scores, by octaves from the
//                 1 to 1/2  to 1/4                   largest: which bucket a draw falls into; then
//   candidates          [ .  . ]                     scores of that bucket alone, digit by digit
#pragma once

#include <float.h>

#include "types.hpp"

namespace {

inline double fused(double a, double b, double c) {
#if defined(__FMA__) || defined(__aarch64__)
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}

struct Sampling {
  static constexpr int64_t kStep = 64;  // scores that are looked at together
  // Scores that have mass are in the first of all buckets.
  static constexpr int kHeavyBuckets = kBucketsPerOctave * (kMassBits + 1) + 1;
  static constexpr float kNever = -__builtin_inff();

  // Scores [first, first + kScoresTogether) of a row, with -inf behind the last.
  static const float* block_of(const float* row, int64_t size, int64_t first, float* room) {
    if (first + kScoresTogether <= size) return row + first;
    for (int64_t i = 0; i < kScoresTogether; i++) room[i] = first + i < size ? row[first + i] : kNever;
    return room;
  }

  // The largest score of each of blocks [b0, b1); +inf for a block with a NaN.
  static void scan(const float* row, int64_t size, int64_t b0, int64_t b1, float* peaks) {
    for (int64_t b = b0; b < b1; b++) {
      float room[kScoresTogether];
      const float* x = block_of(row, size, b * kScoresTogether, room);
      float most[kStep];
      int bad[kStep]{};
      for (int j = 0; j < kStep; j++) most[j] = kNever;
      for (int64_t i = 0; i < kScoresTogether; i += kStep)
        for (int j = 0; j < kStep; j++) {
          most[j] = x[i + j] > most[j] ? x[i + j] : most[j];
          bad[j] |= !(x[i + j] <= FLT_MAX);
        }
      for (int half = kStep / 2; half; half /= 2)
        for (int j = 0; j < half; j++) {
          most[j] = most[j + half] > most[j] ? most[j + half] : most[j];
          bad[j] |= bad[j + half];
        }
      peaks[b] = bad[0] ? -kNever : most[0];
    }
  }

  static float largest(const float* x, int64_t n) {
    float most = kNever;
    for (int64_t i = 0; i < n; i++) most = x[i] > most ? x[i] : most;
    return most;
  }

  static bool is_finite(float x) { return x >= -FLT_MAX && x <= FLT_MAX; }

  // The first of a row's largest scores, or -1 where that is no finite number.
  static int64_t likeliest(const float* row, int64_t size, const float* peaks) {
    const float top = largest(peaks, (size + kScoresTogether - 1) / kScoresTogether);
    if (!is_finite(top)) return -1;
    int64_t i = 0;
    while (peaks[i] != top) i++;
    for (i *= kScoresTogether; row[i] != top;) i++;
    return i;
  }

  // The `count` largest scores of a row in falling order, the first of equals first.
  static void best(const float* row, int64_t size, const float* peaks, int64_t count,
                   int64_t* places) {
    int64_t n = 0;
    for (int64_t first = 0; first < size; first += kScoresTogether) {
      if (n == count && peaks[first / kScoresTogether] <= row[places[n - 1]]) continue;
      for (int64_t i = first; i < smaller(first + kScoresTogether, size); i++) {
        if (n == count && row[i] <= row[places[n - 1]]) continue;
        int64_t at = n < count ? n++ : n - 1;
        for (; at && row[places[at - 1]] < row[i]; at--) places[at] = places[at - 1];
        places[at] = i;
      }
    }
  }

  // How a row is looked at: octaves between a score and the largest are (top - score) * scale. What
  // is below `least` is too light to be drawn, or is not among the top k.
  struct Frame {
    const float* row;
    const float* peaks;
    int64_t blocks;
    double top, scale;
    float least;
  };

  // (score - top) * scale, not below -kMostOctaves.
  static double octaves(float x, const Frame& frame) {
    const double y = (double(x) - frame.top) * frame.scale;
    return y < -kMostOctaves ? double(-kMostOctaves) : y;
  }

  // Adding a number to 2^52 rounds it, and leaves it in the low bits.
  static uint64_t rounded(double above) { return bits_as<uint64_t>(above) - bits_as<uint64_t>(0x1p52); }

  static uint64_t bucket(double y) { return rounded(y * -kBucketsPerOctave + 0x1p52); }

  // 2^(42 + y), rounded; at most 0.2 units more or less. The polynomial is that of degree 9 through
  // 2^x at the ten Chebyshev nodes of [-1/2, 1/2].
  static uint64_t mass(double y) {
    const double magic = 0x1.8p52, shifted = y + magic;
    const double f = y - (shifted - magic);
    double p = 0x1.b6571de2f2351p-24;
    p = fused(p, f, 0x1.63ef969a64d3cp-20);
    p = fused(p, f, 0x1.ffcb76789860fp-17);
    p = fused(p, f, 0x1.43088e257f341p-13);
    p = fused(p, f, 0x1.5d87fe908f88ap-10);
    p = fused(p, f, 0x1.3b2ab72b175eep-7);
    p = fused(p, f, 0x1.c6b08d7044119p-5);
    p = fused(p, f, 0x1.ebfbdff8149f2p-3);
    p = fused(p, f, 0x1.62e42fefa39f7p-1);
    p = fused(p, f, 1.0);
    const uint64_t exponent = bits_as<uint64_t>(shifted) - bits_as<uint64_t>(magic) + 1023 + kMassBits;
    return rounded(p * bits_as<double>(exponent << 52) + 0x1p52);
  }

  // Numbers in the order of the floats they stand for, and back. 0 and -0 are not told apart.
  static uint32_t rank(float x) {
    const uint32_t u = bits_as<uint32_t>(x + 0.0f);
    return u >> 31 ? ~u : u | 0x80000000;
  }
  static float of_rank(uint32_t u) { return bits_as<float>(u >> 31 ? u & 0x7fffffff : ~u); }

  // The least score in this bucket or a heavier one.
  static float least_of(uint64_t last, const Frame& frame) {
    uint32_t low = rank(-FLT_MAX), high = rank(float(frame.top));
    while (low < high) {
      const uint32_t middle = low + (high - low) / 2;
      if (bucket(octaves(of_rank(middle), frame)) <= last)
        high = middle;
      else
        low = middle + 1;
    }
    return of_rank(high);
  }

  static constexpr double kLog2E = 1.4426950408889634;
  static constexpr double kLeastTemperature = 1e-300;  // of which an inverse is finite

  static Frame frame_of(const Draw& call, int64_t r) {
    const Wish& wish = call.wishes[r];
    Frame frame{call.scores + r * call.stride, call.peaks + r * call.blocks, call.blocks, 0, 0, 0};
    frame.top = largest(frame.peaks, frame.blocks);
    frame.scale = kLog2E / (wish.temperature > kLeastTemperature ? wish.temperature : kLeastTemperature);
    uint64_t last = kHeavyBuckets - 1;
    if (wish.top_k > 0) {  // as many peaks as that are at least as likely: no need to look below
      int counts[kNumBuckets]{};
      for (int64_t b = 0; b < frame.blocks; b++) counts[bucket(octaves(frame.peaks[b], frame))]++;
      int64_t seen = 0;
      for (uint64_t at = 0; at < kHeavyBuckets && seen < wish.top_k; at++) seen += counts[last = at];
    }
    frame.least = least_of(last, frame);
    return frame;
  }

  // Calls body(scores, place of the first) for every kStep scores of blocks [b0, b1) of which any is
  // from `low` up to, but not, `high`.
  template <class Body>
  static void within(const Frame& frame, int64_t size, int64_t b0, int64_t b1, float low, float high,
                     const Body& body) {
    for (int64_t b = b0; b < b1; b++) {
      if (frame.peaks[b] < low) continue;
      float room[kScoresTogether];
      const float* block = block_of(frame.row, size, b * kScoresTogether, room);
      for (int64_t first = 0; first < kScoresTogether; first += kStep) {
        int any = 0;
        for (int j = 0; j < kStep; j++) any |= (block[first + j] >= low) & (block[first + j] < high);
        if (any) body(block + first, b * kScoresTogether + first);
      }
    }
  }

  // The scores of a row from `low` up to, but not, `high`, in order; how many these are.
  static int64_t gather(const Frame& frame, int64_t size, float low, float high, Candidate* to) {
    int64_t n = 0;
    within(frame, size, 0, frame.blocks, low, high, [&](const float* x, int64_t first) {
      for (int j = 0; j < kStep; j++)
        if (x[j] >= low && x[j] < high)
          to[n++] = {mass(octaves(x[j], frame)), ~rank(x[j]), uint32_t(first + j)};
    });
    return n;
  }

  // Part `part` of a row: masses and numbers of scores by bucket, of light ones not all, and behind
  // these the mass of what min_p leaves.
  static void weigh(const Draw& call, int64_t r, int64_t part) {
    const Frame frame = frame_of(call, r);
    Tally* tallies = call.tallies + (r * call.parts + part) * (kNumBuckets + 1);
    memset(tallies, 0, (kNumBuckets + 1) * sizeof(Tally));
    const double share = call.wishes[r].min_p * double(kMassOfLargest);
    const uint64_t floor = uint64_t(share) + (double(uint64_t(share)) < share);
    uint64_t left = 0;
    const int64_t b0 = call.blocks * part / call.parts, b1 = call.blocks * (part + 1) / call.parts;
    within(frame, call.size, b0, b1, frame.least, -kNever, [&](const float* x, int64_t) {
      uint64_t masses[kStep], buckets[kStep];
      for (int j = 0; j < kStep; j++) {
        const double y = octaves(x[j], frame);
        masses[j] = mass(y), buckets[j] = bucket(y);
      }
      for (int j = 0; j < kStep; j++) tallies[buckets[j]] += Tally{masses[j], 1};
      if (floor)
        for (int j = 0; j < kStep; j++) left += masses[j] >= floor ? masses[j] : 0;
    });
    tallies[kNumBuckets] = Tally{left, 0};
  }

  struct Found {
    int64_t place;
    Tally sum;  // of the scores up to it
  };

  // In falling order, the first of equals first: the first score with which the running sum of
  // `field` reaches `need`, which all of them do.
  static Found find(const Draw& call, int64_t r, const Frame& frame, int field, uint64_t need) {
    const Tally* tallies = call.tallies + r * call.parts * (kNumBuckets + 1);
    Tally sum{};
    uint64_t at = 0;
    for (; sum[field] + tallies[at][field] < need; at++) sum += tallies[at];
    Candidate* found = call.candidates + r * call.size;
    const float high = at ? least_of(at - 1, frame) : -kNever;
    int64_t n = gather(frame, call.size, least_of(at, frame), high, found);
    // digit by digit of the score, until equals are left, which are in order
    for (int shift = 24; shift >= 0; shift -= 8) {
      Tally digits[256]{};
      for (int64_t i = 0; i < n; i++) digits[found[i].key >> shift & 255] += Tally{found[i].mass, 1};
      uint32_t digit = 0;
      for (; sum[field] + digits[digit][field] < need; digit++) sum += digits[digit];
      int64_t kept = 0;
      for (int64_t i = 0; i < n; i++)
        if ((found[i].key >> shift & 255) == digit) found[kept++] = found[i];
      n = kept;
    }
    for (int64_t i = 0;; i++) {
      sum += Tally{found[i].mass, 1};
      if (sum[field] >= need) return {found[i].index, sum};
    }
  }

  static int64_t draw(const Draw& call, int64_t r) {
    const Wish& wish = call.wishes[r];
    const Frame frame = frame_of(call, r);
    Tally* tallies = call.tallies + r * call.parts * (kNumBuckets + 1);
    for (int64_t part = 1; part < call.parts; part++)
      for (int i = 0; i <= kNumBuckets; i++) tallies[i] += tallies[part * (kNumBuckets + 1) + i];
    Tally total{};
    for (int i = 0; i < kHeavyBuckets; i++) total += tallies[i];
    const bool some = wish.top_k > 0 && wish.top_k < double(total[1]);
    uint64_t kept = some ? find(call, r, frame, 1, uint64_t(wish.top_k)).sum[0] : total[0];
    if (wish.top_p < 1) {
      const uint64_t need = uint64_t(wish.top_p * double(kept));
      kept = find(call, r, frame, 0, need < 1 ? 1 : need < kept ? need : kept).sum[0];
    }
    const uint64_t left = tallies[kNumBuckets][0];
    if (wish.min_p > 0 && left < kept) kept = left;
    // kept * uniform, rounded down
    const uint64_t uniform = uint64_t(wish.uniform * 0x1p53);
    const uint64_t target = uint64_t((unsigned __int128)kept * uniform >> 53);
    return find(call, r, frame, 0, target < kept ? target + 1 : kept).place;
  }
};

}  // namespace
