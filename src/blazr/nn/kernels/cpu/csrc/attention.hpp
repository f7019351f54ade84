// Attention of new tokens to everything in memory: grouped-query, and latent in its absorbed form.
//
// Memory lies in pages of GRID tokens, (pages, GRID, K, size); a sequence's table names its pages in
// order. A query goes through them with a running maximum and sum (Milakov and Gimelshein 2018,
// arXiv:1805.02867), always whole pages from absolute position 0, keys and channels in one order:
// what comes out depends on the query's own sequence alone, decoded or prefilled, however cut.
//
// A key may lie in two parts (latent and rotated); values may be the first part of the keys.
#pragma once

#include <math.h>

#include "kernels.hpp"
#include "lanes.hpp"
#include "types.hpp"

namespace {

template <class T>
struct AttentionOf {
  static constexpr int64_t kGrid = 64, kTile = 4;

  // Up to kQueriesTogether queries of one sequence and one key/value head. Query i is the one of token
  // i / group, head i % group of those that share the key/value head.
  struct Queries {
    const Attention& call;
    const Span& span;
    const int64_t* table;
    int64_t kv_head, first, count;
    float q[kQueriesTogether * kMaxKey];
    float k[kGrid * kMaxKey], v[kGrid * kMaxValue];
    float sums[kQueriesTogether * kMaxValue], scores[kQueriesTogether * kGrid];
    float best[kQueriesTogether], total[kQueriesTogether];

    Queries(const Attention& call, int64_t span, int64_t kv_head, int64_t first, int64_t count)
        : call(call),
          span(call.spans[span]),
          table(call.block_tables + span * call.table_stride),
          kv_head(kv_head),
          first(first),
          count(count) {}

    int64_t group() const { return call.heads / call.kv_heads; }
    int64_t key_size() const { return call.key_sizes[0] + call.key_sizes[1]; }
    int64_t wide_key() const { return round_up(key_size(), 16); }
    int64_t wide_value() const { return round_up(call.value_size, 16); }
    int64_t token(int64_t i) const { return (first + i) / group(); }
    int64_t head(int64_t i) const { return kv_head * group() + (first + i) % group(); }
    int64_t position(int64_t i) const { return span.start + token(i); }
    // The first position that query i may see.
    int64_t oldest(int64_t i) const {
      return call.window ? larger(position(i) - call.window + 1, 0) : 0;
    }

    void read_queries() {
      for (int64_t i = 0; i < count; i++) {
        const int64_t row = (span.first + token(i)) * call.heads + head(i);
        widen((const T*)call.q + row * key_size(), key_size(), wide_key(), q + i * wide_key());
        const bool has_sink = call.sinks;
        best[i] = has_sink ? call.sinks[head(i)] : -INFINITY;
        total[i] = has_sink ? 1.0f : 0.0f;
      }
      memset(sums, 0, size_t(count * wide_value()) * sizeof(float));
    }

    // Keys and values of tokens [0, rows) of a page, padded with zeros to whole vectors.
    void read_page(int64_t page, int64_t rows) {
      const int64_t size0 = call.key_sizes[0], size1 = call.key_sizes[1];
      for (int64_t r = 0; r < rows; r++) {
        const int64_t entry = r * call.kv_heads + kv_head;
        float* key = k + r * wide_key();
        widen((const T*)call.keys[0] + page * call.key_strides[0] + entry * size0, size0, size0, key);
        if (size1)
          widen((const T*)call.keys[1] + page * call.key_strides[1] + entry * size1, size1, size1,
                key + size0);
        memset(key + size0 + size1, 0, size_t(wide_key() - size0 - size1) * sizeof(float));
        widen((const T*)call.values + page * call.value_stride + entry * call.value_size,
              call.value_size, wide_value(), v + r * wide_value());
      }
      for (int64_t r = rows; r < round_up(rows, kTile); r++)
        memset(k + r * wide_key(), 0, size_t(wide_key()) * sizeof(float));
    }

    // scores[i][r] of `Count` queries with the page's first rows.
    template <int Count>
    void score(int64_t i, int64_t rows) {
      const int64_t size = wide_key();
      for (int64_t r = 0; r < rows; r += kTile) {
        Lanes dots[Count][kTile]{};
        for (int64_t c = 0; c < size; c += 16) {
          Lanes qs[Count];
          for (int n = 0; n < Count; n++) qs[n] = load16(q + (i + n) * size + c);
#pragma GCC unroll 4
          for (int m = 0; m < kTile; m++) {
            const Lanes ks = load16(k + (r + m) * size + c);
#pragma GCC unroll 4
            for (int n = 0; n < Count; n++) dots[n][m] = fma16(qs[n], ks, dots[n][m]);
          }
        }
        for (int n = 0; n < Count; n++) sum4(dots[n], scores + (i + n) * kGrid + r);
      }
    }

    // Turn the scores of query i, of which [low, high) are seen, into weights; returns the factor
    // for what was summed before.
    float weigh(int64_t i, int64_t low, int64_t high) {
      float* s = scores + i * kGrid;
      float top = -INFINITY;
      for (int64_t r = low; r < high; r++) {
        s[r] *= call.scale;
        if (call.softcap > 0) s[r] = call.softcap * tanhf(s[r] / call.softcap);
        top = s[r] > top ? s[r] : top;
      }
      for (int64_t r = 0; r < low; r++) s[r] = 0;
      for (int64_t r = high < low ? low : high; r < kGrid; r++) s[r] = 0;
      if (!(top > -INFINITY)) {
        for (int64_t r = low; r < high; r++) s[r] = 0;
        return 1;
      }
      const float now = top > best[i] ? top : best[i];
      const float factor = best[i] == -INFINITY ? 0.0f : exp_approx(best[i] - now);
      best[i] = now;
      for (int64_t r = low; r < high; r++) s[r] = exp_approx(s[r] - now);
      float sum = 0;
      for (int64_t r = low; r < high; r++) sum += s[r];
      total[i] = total[i] * factor + sum;
      return factor;
    }

    // Add the weighed values of rows [low, high) to the sums of `Count` queries.
    template <int Count>
    void mix(int64_t i, const float* factors, int64_t low, int64_t high) {
      const int64_t size = wide_value();
      for (int64_t c = 0; c < size; c += 16) {
        Lanes out[Count];
        for (int n = 0; n < Count; n++) out[n] = factors[n] * load16(sums + (i + n) * size + c);
        for (int64_t r = low; r < high; r++) {
          const Lanes vs = load16(v + r * size + c);
#pragma GCC unroll 4
          for (int n = 0; n < Count; n++) out[n] = fma16(all16(scores[(i + n) * kGrid + r]), vs, out[n]);
        }
        for (int n = 0; n < Count; n++) store16(sums + (i + n) * size + c, out[n]);
      }
    }

    template <int Count>
    void page(int64_t i, int64_t base, int64_t rows) {
      score<Count>(i, rows);
      float factors[Count];
      int64_t low = kGrid, high = 0;
      for (int n = 0; n < Count; n++) {
        const int64_t from = larger(oldest(i + n) - base, 0);
        const int64_t to = smaller(position(i + n) - base + 1, kGrid);
        factors[n] = weigh(i + n, smaller(from, kGrid), larger(to, 0));
        if (from < to) low = smaller(low, from), high = larger(high, to);
      }
      if (low < high) mix<Count>(i, factors, low, high);
    }

    void run() {
      read_queries();
      const int64_t end = position(count - 1) + 1;
      for (int64_t base = oldest(0) / kGrid * kGrid; base < end; base += kGrid) {
        const int64_t rows = smaller(end - base, kGrid);
        read_page(table[base / kGrid], rows);
        int64_t i = 0;
        for (; i + kTile <= count; i += kTile) page<kTile>(i, base, rows);
        for (; i < count; i++) page<1>(i, base, rows);
      }
      for (int64_t i = 0; i < count; i++) {
        T* out = (T*)call.out + ((span.first + token(i)) * call.heads + head(i)) * call.value_size;
        const float share = total[i] > 0 ? 1.0f / total[i] : 0.0f;
        for (int64_t c = 0; c < call.value_size; c++)
          round_to(sums[i * wide_value() + c] * share, out[c]);
      }
    }
  };

  static void attend(const Attention& call, int64_t span, int64_t kv_head, int64_t first,
                     int64_t count) {
    Queries(call, span, kv_head, first, count).run();
  }
};

}  // namespace
