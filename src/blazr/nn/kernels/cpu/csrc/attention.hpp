// Attention of new tokens to everything in memory: grouped-query (arXiv:2305.13245), and latent in its
// absorbed form (arXiv:2405.04434, section 2.1).
//
// Memory lies in pages of GRID tokens; a sequence's table names its pages in order. A query goes through
// them with a running maximum and sum (Milakov and Gimelshein 2018, arXiv:1805.02867), always whole pages
// from absolute position 0, keys and channels in one order: what comes out depends on the query's own
// sequence alone, decoded or prefilled, however cut.
//
//   page of 64 tokens        keys            values, 32 channels at a time
//                        [ = = = = = ]        [ = = ][     ][     ]
//   queries together     [ = = = = = ]  scores, weights   [ sums              ]
//
// A key may lie in two parts (latent and rotated); values may be the first part of the keys.
//
// Where a processor adds the products of two pairs of bfloat16 in one step, keys are read where they lie,
// as weights are in matmul.hpp, weights are rounded, and values are taken two rows at a time; or, where there
// are tiles, keys are packed for all queries together, and a page's values are taken whole. Everywhere
// else all is float32, and a lane is a key: some keys at a time are transposed, once for all queries
// together, so that nothing has to be added across lanes.
//
// Numbers that pages store in fewer bits (stored.hpp) are widened a few rows at a time, also once.
#pragma once

#include <math.h>

#include "attention_whole.hpp"
#include "lanes.hpp"
#include "matmul.hpp"
#include "stored.hpp"

namespace {

// Whether pairs of numbers are multiplied and added in one step.
template <class D>
constexpr bool kHasPairs = requires(typename D::Reg r) { D::interleave(r, r, &r); };

template <class Isa, class T, class Stored>
struct AttentionOf {
  using Number = typename Stored::Number;  // of a page
  // Whether products with what is stored are whole numbers.
  static constexpr bool kInWhole = std::is_same_v<Stored, Q8_0> && sizeof(T) == 2 && kHasWhole<Isa>;
  // The format that is computed in.
  using Compute = std::conditional_t<kHasPairs<Dot<Isa, T>> && !kInWhole, T, float>;
  static constexpr bool kWidens = !std::is_same_v<Number, Compute>;
  using Products = Matmul<Isa, Compute>;
  using D = Dot<Isa, Compute>;
  using Rows = typename Products::Rows;
  // The scores of kKeys keys, or the sums of as many channels, of kTile queries fit the registers together:
  // kVectors vectors of sixteen for each. Of values that fill one register at most, kNarrowTile queries' do.
  static constexpr int kTile = kRegister > 32 ? 8 : kRegister > 16 ? 6 : 4;
  static constexpr int kVectors = kRegister > 32 ? 2 : 1;
  static constexpr int kNarrowTile = kRegister > 16 ? 12 : kTile;
  static constexpr int64_t kChannels = 32, kKeys = 16 * kVectors;
  static constexpr bool kInPairs = kHasPairs<D>;
  // Whether there are tiles that multiply these pairs (attention_amx.hpp).
  static constexpr bool kInTiles = kInPairs && !kWidens && requires { Isa::pack_keys; };

  // Up to kQueriesTogether queries of one sequence and one key/value head. Query i is the one of token
  // i / group, head i % group of those that share the key/value head.
  struct Queries {
    const Attention& call;
    const Span& span;
    const int64_t* table;
    int64_t kv_head, first, count;
    Compute q[kQueriesTogether * kMaxKey];  // (count, kMaxKey)
    // Of the values of a page some channels: (kGrid, kChannels), or pairs of rows as D::interleave has them.
    alignas(64) float v[kGrid * kChannels];
    alignas(64) float k[kInPairs ? 1 : kKeys * (kMaxKey + kStoredBlock)];  // (key_size(), kKeys)
    Compute rounded_weights[kQueriesTogether * kGrid];  // weights, where rows are taken in pairs
    float sums[kQueriesTogether * kMaxValue];           // (count, wide_value()): of values, weighed
    float weights[kQueriesTogether * kGrid];  // (count, kGrid): products, then scores, then weights
    // Of each query: the sum of its weights, and what its products are multiplied with.
    float total[kQueriesTogether], scales[kQueriesTogether];
    // Its highest score so far; the highest of a page; exp of what the former rises by, negated: the factor
    // that total and sums so far are multiplied with.
    alignas(64) float best[kQueriesTogether], tops[kQueriesTogether], factors[kQueriesTogether];
    Lanes folded[kQueriesTogether];  // of a page: the highest score, or the sum of weights, of sixteen lanes
    int64_t positions[kQueriesTogether];
    struct Nothing {};
    std::conditional_t<kInWhole, WholeNumbers<Isa>, Nothing> whole;

    Queries(const Attention& call, int64_t span, int64_t kv_head, int64_t first, int64_t count)
        : call(call),
          span(call.spans[span]),
          table(call.block_tables + span * call.table_stride),
          kv_head(kv_head),
          first(first),
          count(count) {}

    int64_t group() const { return call.heads / call.kv_heads; }
    int64_t key_size() const { return call.keys[0].size + call.keys[1].size; }
    int64_t wide_value() const { return round_up(call.values.size, kChannels); }
    // The first position that query i may see.
    int64_t oldest(int64_t i) const {
      return call.window ? larger(positions[i] - call.window + 1, 0) : 0;
    }

    // body(query, its token, its head) for all queries.
    template <class Body>
    void in_queries(const Body& body) const {
      int64_t token = first / group(), place = first % group();
      for (int64_t i = 0; i < count; i++, place++) {
        if (place == group()) place = 0, token++;
        body(i, token, kv_head * group() + place);
      }
    }

    void read_queries() {
      const bool has_sink = call.sinks;
      in_queries([&](int64_t i, int64_t token, int64_t head) {
        const T* from = (const T*)call.q + ((span.first + token) * call.heads + head) * key_size();
        if constexpr (std::is_same_v<T, float>)
          for (int64_t c = 0; c < key_size(); c += 16)
            store16(q + i * kMaxKey + c, load_some(from + c, key_size() - c));
        else if constexpr (std::is_same_v<Compute, T>)
          memcpy(q + i * kMaxKey, from, key_size() * sizeof(T));
        else
          widen(from, key_size(), key_size(), q + i * kMaxKey);
        if constexpr (kInWhole)
          in_blocks([&](int64_t block, int part, int64_t c, int64_t n) {
            whole.read_query(i, block, q + i * kMaxKey + part * call.keys[0].size + c, n);
          });
        positions[i] = span.start + token;
        scales[i] = call.scale;
        if (call.temperature != 0) {
          const float periods = float(1 + positions[i] / call.temperature_length);
          scales[i] *= 1.0f + call.temperature * logf(periods);
        }
        best[i] = has_sink ? call.sinks[head] : -INFINITY;
        total[i] = has_sink ? 1.0f : 0.0f;
      });
      memset(sums, 0, size_t(count * wide_value()) * sizeof(float));
    }

    // body(number of the block, part of the key, first channel, channels) for the blocks of a key.
    template <class Body>
    void in_blocks(const Body& body) const {
      int64_t block = 0;
      for (int part = 0; part < 2; part++)
        for (int64_t c = 0, size = call.keys[part].size; c < size; c += kStoredBlock)
          body(block++, part, c, smaller(size - c, kStoredBlock));
    }

    // What this head has in a page.
    RowsOf<Number> rows_of(const PagedRows& rows, int64_t page) const {
      return {(const Number*)rows.first + page * rows.page + kv_head * rows.head, rows.row};
    }

    // Prefetch rows [first, last) of a page. A few of them between one tile and the next: more would be
    // dropped. Values are prefetched while keys are read, the next page's keys while values are.
    void prefetch(const PagedRows& rows, int64_t page, int64_t first, int64_t last) const {
      const auto stored = rows_of(rows, page);
      const int64_t bytes = Stored::width(rows.size) * int64_t(sizeof(Number));
      for (int64_t r = first; r < last; r++)
        for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch((const char*)stored[r] + at, 0, 2);
    }
    void prefetch_values(int64_t page, int64_t first, int64_t last) const {
      if (!reads_twice()) prefetch(call.values, page, first, last);
    }
    // Whether values are the keys again.
    bool reads_twice() const { return call.values.first == call.keys[0].first; }

    // What a loop prefetches besides its work: in every turn two lines of the next `step` bytes.
    struct Ahead {
      const char* at;
      int64_t step;
      [[gnu::always_inline]] void prefetch() {
        __builtin_prefetch(at, 0, 2);
        __builtin_prefetch(at + step / 2, 0, 2);
        at += step;
      }
    };
    // Rows [first, last) of a page in so many turns; where `wanted` is null, a line that is near already.
    Ahead ahead_of(const PagedRows* wanted, int64_t page, int64_t first, int64_t last, int64_t turns) const {
      if (!wanted) return {(const char*)q, 0};
      const auto rows = rows_of(*wanted, page);
      return {(const char*)rows[first], ((const char*)rows[last] - (const char*)rows[first]) / turns};
    }

    // Products of all queries with the first rows of a page. Tiles are whole: the last rows may be
    // unseen ones.
    void multiply_all(int64_t page, int64_t rows) {
      if constexpr (kInWhole)
        multiply_whole(page, rows, weights);
      else if constexpr (kInPairs)
        multiply_pairs(page, rows);
      else
        multiply(page, rows);
    }

    // Products of all queries with the first rows of a page, as pairs of numbers.
    void multiply_pairs(int64_t page, int64_t rows) {
      constexpr int64_t kRows = Products::kRows;
      alignas(64) Compute wide[kWidens ? kRows * kMaxKey : 1], packed[kInTiles ? kGrid * kMaxKey : 1];
      float second[kQueriesTogether * kGrid];
      for (int part = 0; part < (call.keys[1].size ? 2 : 1); part++) {
        const int64_t size = call.keys[part].size;
        const auto keys = rows_of(call.keys[part], page);
        const Rows queries{q + part * call.keys[0].size, kMaxKey};
        if constexpr (kInTiles) {
          for (int64_t first = 0; first < rows; first += Isa::kSide) {
            if (part == 0) prefetch_values(page, first, first + Isa::kSide);
            Isa::pack_keys({keys[first], keys.stride}, size, packed + first * round_up(size, D::step));
          }
          Isa::score(queries, count, packed, rows, size, part ? second : weights);
          continue;
        }
        for (int64_t first = 0; first < rows; first += kRows) {
          if (part == 0) prefetch_values(page, first, first + kRows);
          Rows tile;
          if constexpr (kWidens) {
            tile = {wide, round_up(size, kStoredBlock)};
            for (int64_t r = 0; r < kRows; r++)
              Stored::widen(keys[first + r], size, [&](int64_t c, const Lanes& lo, const Lanes& hi) {
                put(lo, hi, wide + r * tile.stride + c);
              });
          } else {
            tile = {keys[first], keys.stride};
          }
          Products::template tiles<kRows>(count, tile, queries, size,
                                          {(part ? second : weights) + first, kGrid, 1, false}, nullptr);
        }
      }
      if (call.keys[1].size)
        for (int64_t i = 0; i < count * kGrid; i++) weights[i] += second[i];
    }

    // The same of float32: some keys at a time, a lane each.
    void multiply(int64_t page, int64_t rows) {
      const PagedRows* values = reads_twice() ? nullptr : &call.values;
      for (int64_t first = 0; first < rows; first += kKeys) {
        read_keys(page, first);
        in_tiles<kTile>(count, [&](auto together, int64_t i) {
          const Ahead ahead = ahead_of(i ? nullptr : values, page, first, first + kKeys, key_size());
          dots<together>(i, weights + first, ahead);
        });
      }
    }

    // kKeys keys from row `first` on, both parts of each, as `dots` takes them.
    void read_keys(int64_t page, int64_t first) {
      alignas(64) float wide[16 * (kMaxKey + kStoredBlock)];
      for (int64_t lot = 0; lot < kKeys; lot += 16)
        for (int part = 0; part < 2; part++) {
          // what a row's last block has behind its numbers gives way to the next row
          const int64_t size = call.keys[part].size, stride = round_up(size, 16);
          const auto keys = rows_of(call.keys[part], page);
          float* to = k + kKeys * (part ? call.keys[0].size : 0) + lot;
          if constexpr (!kWidens)
            if (size % kTransposed == 0) {
              transpose16(keys[first + lot], keys.stride, size, to, kKeys);
              continue;
            }
          for (int64_t r = 0; r < 16; r++)
            Stored::widen(keys[first + lot + r], size, [&](int64_t c, const Lanes& lo, const Lanes& hi) {
              put(lo, hi, wide + r * stride + c);
            });
          transpose16(wide, stride, stride, to, kKeys);
        }
    }

    // Products of `Count` queries, from query i on, with the keys of k.
    template <int Count>
    [[gnu::noinline]] void dots(int64_t i, float* to, Ahead ahead) {
      Lanes out[Count][kVectors];
#pragma GCC unroll 8
      for (int n = 0; n < Count; n++)
#pragma GCC unroll 2
        for (int h = 0; h < kVectors; h++) out[n][h] = Lanes{};
      const float *key = k, *query = (const float*)q + i * kMaxKey;
      for (int64_t c = key_size(); c > 0; c--, key += kKeys, query++) {
        ahead.prefetch();
#pragma GCC unroll 8
        for (int n = 0; n < Count; n++)
#pragma GCC unroll 2
          for (int h = 0; h < kVectors; h++)
            out[n][h] = fma16(all16(query[n * kMaxKey]), load16(key + 16 * h), out[n][h]);
      }
#pragma GCC unroll 8
      for (int n = 0; n < Count; n++)
#pragma GCC unroll 2
        for (int h = 0; h < kVectors; h++) store16(to + (i + n) * kGrid + 16 * h, out[n][h]);
    }

    // The same of both parts together, as whole numbers.
    void multiply_whole(int64_t page, int64_t rows, float* dots) {
      constexpr int64_t kKeys = WholeNumbers<Isa>::kKeys;
      for (int64_t first = 0; first < rows; first += kKeys) {
        prefetch_values(page, first, first + kKeys);
        in_blocks([&](int64_t block, int part, int64_t c, int64_t n) {
          const auto keys = rows_of(call.keys[part], page);
          whole.score({keys[first] + Stored::width(c), keys.stride, n}, block, count, dots + first,
                      block == 0);
        });
      }
    }

    // A block of numbers as they are computed with.
    [[gnu::always_inline]] static void put(const Lanes& lo, const Lanes& hi, float* to) {
      store16(to, lo), store16(to + 16, hi);
    }
    [[gnu::always_inline]] static void put(const Lanes& lo, const Lanes& hi, bf16* to) {
      const auto numbers = D::rounded(lo, hi);
      memcpy(to, &numbers, sizeof numbers);
    }

    // Turn the products of a page that begins at position `base` into weights. Every step is done for
    // all queries before the next, which would wait for it. Rows [low, high) are seen by any of them.
    void weigh_all(int64_t base, int64_t& low, int64_t& high) {
      int64_t from[kQueriesTogether], to[kQueriesTogether];
      low = kGrid, high = 0;
      for (int64_t i = 0; i < count; i++) {
        from[i] = smaller(larger(oldest(i) - base, 0), kGrid);
        to[i] = smaller(larger(positions[i] - base + 1, 0), kGrid);
        if (from[i] < to[i]) low = smaller(low, from[i]), high = larger(high, to[i]);
        score(i, from[i], to[i]);
      }
      for (int64_t i = 0; i < count; i += 4) fold4(Maximum(), folded + i, tops + i);
      for (int64_t i = 0; i < count; i += 16) {
        const Lanes old = load16(best + i), top = load16(tops + i), now = max16(top, old);
        store16(best + i, now);
        store16(factors + i, select(now > old, exp16_to_one(old - now), all16(1.0f)));
      }
      for (int64_t i = 0; i < count; i++) weigh(i, from[i], to[i]);
      float added[kQueriesTogether];
      for (int64_t i = 0; i < count; i += 4) sum4(folded + i, added + i);
      for (int64_t i = 0; i < count; i++) total[i] = total[i] * factors[i] + added[i];
    }

    // The scores of query i, which sees rows [low, high): -inf for the others; and the highest, to be
    // folded.
    void score(int64_t i, int64_t low, int64_t high) {
      float* s = weights + i * kGrid;
      float scale = scales[i];
      if (call.softcap > 0) {
        for (int64_t r = low; r < high; r++) s[r] = call.softcap * tanhf(s[r] * scale / call.softcap);
        scale = 1;
      }
      const bool sees_all = low == 0 && high == kGrid;
      Lanes scores[kGrid / 16], top = all16(-INFINITY);
#pragma GCC unroll 4
      for (int64_t n = 0; n < kGrid / 16; n++) {
        scores[n] = all16(-INFINITY);
        if (sees_all)
          scores[n] = load16(s + 16 * n) * scale;
        else if (16 * n < high)
          scores[n] = select(between(low - 16 * n, high - 16 * n), load16(s + 16 * n) * scale, scores[n]);
        top = max16(scores[n], top);
      }
#pragma GCC unroll 4
      for (int64_t n = 0; n < kGrid / 16; n++) store16(s + 16 * n, scores[n]);
      folded[i] = top;
    }

    // Its weights, and their sum, to be folded. Of 32 rows of which it sees none they are zeros.
    void weigh(int64_t i, int64_t low, int64_t high) {
      float* s = weights + i * kGrid;
      const float highest = best[i] == -INFINITY ? 0.0f : best[i];  // nothing was seen, and all of it is -inf
      Lanes parts{};
      for (int64_t r = 0; r < kGrid; r += 32) {
        Lanes lo{}, hi{};
        if (low < r + 32 && r < high)
          lo = exp16_to_one(load16(s + r) - highest), hi = exp16_to_one(load16(s + r + 16) - highest);
        if constexpr (kInPairs) {
          Compute* rounded = rounded_weights + i * kGrid + r;
          put(lo, hi, rounded);
          lo = load16(rounded), hi = load16(rounded + 16);
        } else {
          put(lo, hi, s + r);
        }
        parts = (parts + lo) + hi;
      }
      folded[i] = parts;
    }

    // Channels [c, c + channels) of rows [low, high) of the values, as `mix` takes them: in v, or where
    // they lie if it can read them there.
    RowsOf<float> read_values(RowsOf<Number> values, int64_t c, int64_t channels, int64_t low, int64_t high) {
      const int64_t at = Stored::width(c);
      if constexpr (kInPairs) {
        auto* to = (typename D::Reg*)v;
        const auto load = [&](int64_t r) {
          const Number* from = values[r] + at;
          if constexpr (kWidens) {
            typename D::Reg numbers;
            const auto take = [&](int64_t, const Lanes& lo, const Lanes& hi) { numbers = D::rounded(lo, hi); };
            channels < kStoredBlock ? Stored::widen(from, channels, take) : Stored::block(from, 0, take);
            return numbers;
          } else {
            return channels < D::step ? D::load_tail(from, int(channels)) : D::load(from);
          }
        };
        for (int64_t r = low / 2 * 2; r < high; r += 2)
          D::interleave(load(r), r + 1 < high ? load(r + 1) : typename D::Reg{}, to + r);
        if constexpr (kInTiles)  // rows that are not seen meet weights of 0, and may hold anything
          for (int64_t r = 0; r < kGrid; r++)
            if (r < low / 2 * 2 || r >= round_up(high, 2)) to[r] = typename D::Reg{};
        return {v, kChannels / 2};
      } else {
        if constexpr (!kWidens) {
          if (channels == kChannels || call.values.size == 16 || call.values.size <= kPerRegister)
            return {values.first + c, values.stride};
          if (channels <= 16) {
            for (int64_t r = low; r < high; r++)
              store16(v + r * kChannels, load_some(values[r] + at, channels));
            return {v, kChannels};
          }
        }
        for (int64_t r = low; r < high; r++)
          Stored::widen(values[r] + at, channels, [&](int64_t, const Lanes& lo, const Lanes& hi) {
            put(lo, hi, v + r * kChannels);
          });
        return {v, kChannels};
      }
    }

    // Take what is left of the sums of `Count` queries from query i on, and add rows [low, high) of some
    // values, weighed: as many channels as `Parts` registers have, `at` the first of them. One row at a
    // time, or two.
    template <int Count, int Parts>
    [[gnu::noinline]] void mix(int64_t i, int64_t at, RowsOf<float> values, int64_t low, int64_t high,
                               Ahead ahead) {
      constexpr int64_t kStep = kInPairs ? 2 : 1;
      const int64_t ld = wide_value();
      float* to = sums + i * ld + at;
      FloatRegister out[Count][Parts];
#pragma GCC unroll 16
      for (int n = 0; n < Count; n++)
#pragma GCC unroll 4
        for (int h = 0; h < Parts; h++)
          out[n][h] = load_register(to + n * ld + kPerRegister * h) * all<float, 1>(factors[i + n]);
      const int64_t first = low / kStep * kStep;
      const float *row = values[first], *weight = weights + i * kGrid + first;
      const Compute* rounded = rounded_weights + i * kGrid + first;
      const int64_t size = call.values.size;
      const auto part_of = [=](const float* row, int h) {
        return Parts == 1 ? load_some<1>(row, size) : load_register(row + kPerRegister * h);
      };
      for (int64_t r = first; r < high; r += kStep) {
        ahead.prefetch();
#pragma GCC unroll 16
        for (int n = 0; n < Count; n++) {
#pragma GCC unroll 4
          for (int h = 0; h < Parts; h++) {
            if constexpr (kInPairs)
              add_pair(out[n][h], ((const typename D::Reg*)row)[h], rounded + n * kGrid);
            else
              out[n][h] = fma16(all<float, 1>(weight[n * kGrid]), part_of(row, h), out[n][h]);
          }
        }
        row += kStep * values.stride, weight += kStep, rounded += kStep;
      }
#pragma GCC unroll 16
      for (int n = 0; n < Count; n++)
#pragma GCC unroll 4
        for (int h = 0; h < Parts; h++) store16(to + n * ld + kPerRegister * h, out[n][h]);
    }
    template <class Sums, class Pair>
    static void add_pair(Sums& sums, const Pair& rows, const Compute* weights) {
      sums.v = (decltype(sums.v))D::dot((typename Isa::Acc)sums.v, rows, D::pair(weights));
    }

    void page(int64_t base, int64_t rows) {
      const int64_t page = table[base / kGrid];
      multiply_all(page, rows);
      int64_t low, high;
      weigh_all(base, low, high);
      const int64_t size = call.values.size;
      const auto values = rows_of(call.values, page);
      const bool is_last = base + kGrid > positions[count - 1];
      const int64_t blocks = (size + kChannels - 1) / kChannels;
      const int64_t lots = size <= 16 ? 1 : kChannels / (16 * kVectors);
      const int64_t parts = blocks * lots, next = is_last ? page : table[base / kGrid + 1];
      const PagedRows* next_keys = is_last ? nullptr : &call.keys[0];
      for (int64_t block = 0; block < blocks; block++) {
        const int64_t c = block * kChannels, channels = smaller(size - c, kChannels);
        for (int i = kInWhole || kInTiles ? 0 : 1; i < 2 && !is_last; i++)
          if (call.keys[i].size)
            prefetch(call.keys[i], next, kGrid * block / blocks, kGrid * (block + 1) / blocks);
        if constexpr (kInWhole) {
          whole.read_values({values.first + Stored::width(c), values.stride, channels}, low, high);
          for (int64_t i = 0; i < count; i++) whole.read_weights(i, weights + i * kGrid);
          whole.mix(count, factors, sums + c, wide_value(), high);
          continue;
        }
        const auto rows = read_values(values, c, channels, low, high);
        if constexpr (kInTiles) {
          Isa::mix(count, factors, rounded_weights, (const Compute*)v, sums + c, wide_value());
          continue;
        }
        for (int64_t lot = 0; lot < lots; lot++) {
          const int64_t part = block * lots + lot, at = 16 * kVectors * lot;
          const RowsOf<float> some{rows.first + at, rows.stride};
          const auto ahead = [&](int64_t i) {
            return ahead_of(i ? nullptr : next_keys, next, kGrid * part / parts, kGrid * (part + 1) / parts,
                            kGrid / (kInPairs ? 2 : 1));
          };
          if (size <= kPerRegister)
            in_tiles<kNarrowTile>(count, [&](auto together, int64_t i) {
              mix<together, 1>(i, c + at, some, low, high, ahead(i));
            });
          else
            in_tiles<kTile>(count, [&](auto together, int64_t i) {
              mix<together, kVectors * kPerLanes>(i, c + at, some, low, high, ahead(i));
            });
        }
      }
    }

    void run() {
      read_queries();
      const int64_t end = positions[count - 1] + 1;
      for (int64_t base = oldest(0) / kGrid * kGrid; base < end; base += kGrid)
        page(base, smaller(end - base, kGrid));
      in_queries([&](int64_t i, int64_t token, int64_t head) {
        T* out = (T*)call.out + ((span.first + token) * call.heads + head) * call.values.size;
        const float share = total[i] > 0 ? 1.0f / total[i] : 0.0f;
        for (int64_t c = 0; c < call.values.size; c++)
          round_to(sums[i * wide_value() + c] * share, out[c]);
      });
    }
  };

  static void attend(const Attention& call, int64_t span, int64_t kv_head, int64_t first,
                     int64_t count) {
    Queries(call, span, kv_head, first, count).run();
  }
};

}  // namespace
