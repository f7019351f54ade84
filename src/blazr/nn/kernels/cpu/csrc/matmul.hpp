// Products with plain weights, for every instruction set.
//
// Both x and w lie with k innermost, so a result is a dot product of two rows and nothing has to be
// repacked: weights are read where the file was mapped. A tile is R rows of w by C rows of x, and
// each of its R C accumulators is a vector of partial sums over a chunk of k:
//
//              k ->  one load of `step` numbers
//   w rows   [ ======== ======== ======== ... ==== ]   R
//   x rows   [ ======== ======== ======== ... ==== ]   C      acc[c][r] += x[c] * w[r] by lanes
//
// Exactness: an accumulator sees a chunk in one order, its lanes are added in one order, and so are
// the chunks, whatever the tile's size, the batch, the cut into parts or the thread. So a row of y
// depends on nothing but its own row of x.
//
// With several rows of x, all of them meet a chunk of some rows of w before the next: whole rows of
// thousands of numbers would have left the first cache when they are needed again. The chunks of x are
// copied side by side, since in rows that are powers of two apart they would take each other's place.
//
// Where a processor multiplies float32 alone, 16-bit factors are widened in registers: those of x once,
// as they are copied, and with many rows of x those of w as well. The sums see the same numbers in the
// same order.
#pragma once

#include "lora.hpp"

namespace {

// Rows of x or of w, `stride` numbers apart.
template <class T>
struct RowsOf {
  const T* first;
  int64_t stride;
  const T* operator[](int64_t i) const { return first + i * stride; }
};

// Rows [m, m + rows), columns [n0, n0 + n) of y from their sums, `ld` apart.
template <class T>
void finish_linear(const Linear& call, int64_t m, int64_t rows, int64_t n0, int64_t n, float* sums,
                   float* ups, int64_t ld) {
  for (int64_t row = m; row < m + rows; row++, sums += ld, ups += ld) {
    add_lora<T>(call.lora, row, n0, n, sums);
    add_lora<T>(call.lora2, row, n0, n, ups);
    const auto write = [&](auto* y) {
      const auto* residual = (decltype(y))call.residual;
      finish((const T*)call.bias, call.w2 != nullptr, n0, n, sums, ups, y + row * call.ldy,
             residual ? residual + row * call.ldy : nullptr, call.scale);
    };
    call.wide ? write((float*)call.y) : write((T*)call.y);
  }
}

template <class Isa, class T>
struct Matmul {
  using D = Dot<Isa, T>;
  using Acc = typename Isa::Acc;
  static constexpr int kRows = 4;          // of w in a tile
  static constexpr int kFetchedRows = 16;  // of w, that are prefetched together for a few rows of x

  static constexpr bool kWidens =
      !std::is_same_v<T, float> && requires(const T* p) { D::template piece<0>(p); };
  using Wide = std::conditional_t<kWidens, float, T>;  // numbers of x as several rows are copied
  static constexpr int kRunCols = kWidens ? 2 : Isa::kRunCols;  // rows of x up to which w is read in runs
  // Rows of w in a tile with `cols` rows of x: as many as leave registers for all sums, for numbers of each
  // row of the matrix with fewer rows, and for those of one row of the other.
  static constexpr int runs_beside(int cols) {
    int runs = kRows;
    while (runs * cols + int(smaller(runs, cols)) + 1 > Isa::kNumAccs) runs--;
    return runs;
  }
  // Numbers of k that an accumulator sees: so many steps that adding its lanes costs little beside.
  static constexpr int64_t kChunk = 64 * sizeof(Acc) / sizeof(Wide);

  using Rows = RowsOf<T>;
  using WideRows = RowsOf<Wide>;

  // Rows of w and of x in a tile: those that are widened in it are few.
  template <class X>
  static constexpr bool kIsWide = !std::is_same_v<X, Rows>;
  template <class X>
  static constexpr int kTileRows = kIsWide<X> ? Isa::kWideTileRows : kRows;
  template <class X>
  static constexpr int kCols = kIsWide<X> ? Isa::kWideTileCols : int(D::cols);

  // Where the sum of row c of x and row r of w goes: to out[c * ld + r * column_stride].
  struct Sums {
    float* out;
    int64_t ld, column_stride;
    bool accumulates;  // whether it is added to what is there, which an earlier chunk of k has left
  };

  // Tiles of the same rows of x one after the other.
  struct Turns {
    int64_t count;
    int64_t w_step, out_step;  // numbers by which w, and its sums, lie further in the next tile
    int64_t jump;  // bytes from the end of the last tile's rows to what is read next, for prefetching
  };

  // The products of R rows of w and C rows of x, then those of the next tiles. Where kIsRun is set, w is
  // prefetched kFetchedAhead bytes ahead along its own rows. Else the rows of `next`, which lie as those of
  // w do, are prefetched as these are read, unless it is null.
  template <int R, int C, bool kIsRun = false, class X>
  [[gnu::noinline]] static void tile(Rows w, X x, int64_t k, Sums sums, const T* next, Turns turns) {
    const int64_t row = larger(k, 1) * int64_t(sizeof(T));
    // behind this turn what lies kFetchedAhead bytes ahead is no longer in these rows
    const int64_t last = turns.count - (kFetchedAhead + row - 1) / row;
    for (int64_t turn = 0; turn < turns.count; turn++) {
      one_tile<R, C, kIsRun>(w, x, k, sums, next, kFetchedAhead + (turn > last ? turns.jump : 0));
      w.first += turns.w_step, sums.out += turns.out_step;
      if (next) next += turns.w_step;
    }
  }
  template <int R, int C, bool kIsRun, class X>
  [[gnu::always_inline]] static void one_tile(Rows w, X x, int64_t k, Sums sums, const T* next,
                                                int64_t ahead) {
    int64_t i = 0;
    do {
      const int64_t end = smaller(i + kChunk, k);
      Acc acc[C][R];
#pragma GCC unroll 8
      for (int c = 0; c < C; c++)
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) acc[c][r] = Isa::zero();
#pragma GCC unroll 2
      for (; i + D::step <= end; i += D::step) {
        if (!kIsRun && next)
#pragma GCC unroll 8
          for (int r = 0; r < R; r++) __builtin_prefetch(next + r * w.stride + i, 0, 2);
        if constexpr (kIsWide<X>) {
          wide_step<R, C>(acc, [&](int r) { return w[r] + i; }, x, i);
        } else {
          plain_step<R, C, kIsRun>(acc, w, x, i, ahead);
        }
      }
      if constexpr (kIsWide<X>) {
        if (i < end) {
          T ends[R][D::step] = {};
          for (int r = 0; r < R; r++) memcpy(ends[r], w[r] + i, size_t(end - i) * sizeof(T));
          wide_step<R, C>(acc, [&](int r) { return ends[r]; }, x, i);
        }
      } else if (i < end) {
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
          const typename D::Reg a = D::load_tail(w[r] + i, int(end - i));
#pragma GCC unroll 8
          for (int c = 0; c < C; c++)
            acc[c][r] = D::dot(acc[c][r], a, D::load_tail(x[c] + i, int(end - i)));
        }
      }
      add_up(acc, sums);
      i = end, sums.accumulates = true;
    } while (i < k);
  }

  // The lanes of a tile's accumulators, to where their sums go.
  template <int R, int C>
  [[gnu::always_inline]] static void add_up(const Acc (&acc)[C][R], const Sums& sums) {
    typedef float Four __attribute__((vector_size(16)));
    constexpr int kCount = R * C;
#pragma GCC unroll 8
    for (int first = 0; first < kCount; first += 4) {
      Acc four[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++)
        four[i] = first + i < kCount ? acc[(first + i) / R][(first + i) % R] : Isa::zero();
      Four found;
      Isa::sum4(four, (float*)&found);
      if (R == 4 && sums.column_stride == 1) {
        float* out = sums.out + first / R * sums.ld;
        if (sums.accumulates) found += load_as<Four>(out);
        memcpy(out, &found, sizeof found);
        continue;
      }
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) {
        if (first + i >= kCount) break;
        float& out = sums.out[(first + i) / R * sums.ld + (first + i) % R * sums.column_stride];
        out = sums.accumulates ? out + found[i] : found[i];
      }
    }
  }

  // acc[c][r] = dot(acc[c][r], of_w(r), of_x(c)) for all, where those that are fewer stay in registers.
  template <int R, int C, class OfW, class OfX, class Product>
  [[gnu::always_inline]] static void add_products(Acc (&acc)[C][R], const OfW& of_w, const OfX& of_x,
                                                  const Product& dot) {
    if constexpr (R < C) {
      decltype(of_w(0)) a[R];
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) a[r] = of_w(r);
#pragma GCC unroll 8
      for (int c = 0; c < C; c++) {
        const auto b = of_x(c);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) acc[c][r] = dot(acc[c][r], a[r], b);
      }
    } else {
      decltype(of_x(0)) b[C];
#pragma GCC unroll 8
      for (int c = 0; c < C; c++) b[c] = of_x(c);
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) {
        const auto a = of_w(r);
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) acc[c][r] = dot(acc[c][r], a, b[c]);
      }
    }
  }

  // A step of a tile. w is prefetched `ahead` bytes ahead where it is read in runs, and by tiles of one or
  // two rows of x.
  template <int R, int C, bool kIsRun>
  [[gnu::always_inline]] static void plain_step(Acc (&acc)[C][R], Rows w, Rows x, int64_t i, int64_t ahead) {
    const auto of_w = [&](int r) {
      if (kIsRun || C <= 2) __builtin_prefetch((const char*)(w[r] + i) + ahead);
      return D::load(w[r] + i);
    };
    add_products(acc, of_w, [&](int c) { return D::load(x[c] + i); }, D::dot);
  }

  // A step of a tile, piece by piece; x is widened, `row` is where the step begins in a row of w.
  template <int R, int C, int kPiece = 0, class Row>
  [[gnu::always_inline]] static void wide_step(Acc (&acc)[C][R], const Row& row,
                                               RowsOf<float> x, int64_t i) {
    constexpr int kLanes = D::step / D::pieces;
    add_products(acc, [&](int r) { return D::template piece<kPiece>(row(r)); },
                 [&](int c) { return Isa::load(x[c] + i + kPiece * kLanes); },
                 [](const Acc& sum, const Acc& a, const Acc& b) { return Isa::fma(a, b, sum); });
    if constexpr (kPiece + 1 < D::pieces) wide_step<R, C, kPiece + 1>(acc, row, x, i);
  }

  // How far apart copies of k numbers lie, kCopyStride at most: an odd number of lines of the cache, so that
  // the same columns of different rows do not take each other's place.
  static constexpr int64_t kLine = 64 / sizeof(Wide), kCopyStride = kChunk + kLine;
  static int64_t copy_stride(int64_t k) { return round_up(k, 2 * kLine) + kLine; }

  // k numbers of some rows, as tiles read copies of them: widened with zeros behind them.
  static void copy(Rows from, int64_t rows, int64_t k, Wide* out) {
    for (int64_t row = 0; row < rows; row++, out += copy_stride(k)) {
      if constexpr (!kWidens) {
        if (k) memcpy(out, from[row], size_t(k) * sizeof(T));  // what has no numbers may lie nowhere
      } else {
        const T* numbers = from[row];
        int64_t i = 0;
        for (; i + D::step <= k; i += D::step) widen_step(numbers + i, out + i);
        if (i == k) continue;
        T end[D::step] = {};
        memcpy(end, numbers + i, size_t(k - i) * sizeof(T));
        widen_step(end, out + i);
      }
    }
  }

  template <int kPiece = 0>
  [[gnu::always_inline]] static void widen_step(const T* from, float* out) {
    const Acc wide = D::template piece<kPiece>(from);
    memcpy(out + kPiece * (D::step / D::pieces), &wide, sizeof wide);
    if constexpr (kPiece + 1 < D::pieces) widen_step<kPiece + 1>(from, out);
  }

  // tile() for num_cols rows of x, cut into tiles of equal size but for the last.
  template <int R, class X>
  static void tiles(int64_t num_cols, Rows w, X x, int64_t k, Sums sums, const T* next,
                    Turns turns = {1, 0, 0, 0}) {
    const int64_t num_tiles = (num_cols + kCols<X> - 1) / kCols<X>;
    const int64_t step = (num_cols + num_tiles - 1) / num_tiles;
    for (int64_t c = 0; c < num_cols; c += step) {
      with_count<kCols<X>>(smaller(step, num_cols - c), [&](auto count) {
        tile<R, count>(w, X{x[c], x.stride}, k,
                       {sums.out + c * sums.ld, sums.ld, sums.column_stride, sums.accumulates}, next, turns);
      });
      next = nullptr;
    }
  }

  // What rows of x that are read again and again may take of a first cache, which has 32 KB or more.
  static constexpr int64_t kNearBytes = 24 << 10;

  // A chunk of num_rows rows of w with all of x: sums.out[c * sums.ld + r].
  template <class X>
  static void chunk(Rows w, int64_t num_rows, X x, int64_t num_cols, int64_t k, Sums sums,
                    const T* next) {
    const auto some = [&](auto count, int64_t r, int64_t turns) {
      tiles<count>(num_cols, Rows{w[r], w.stride}, x, k, {sums.out + r, sums.ld, 1, sums.accumulates},
                   next ? next + r * w.stride : nullptr, {turns, count * w.stride, count, 0});
    };
    // a tile of x meets several tiles of w in turn: all, where there is no other tile of x to read them again,
    // and else as many as stay in the first cache
    const int64_t whole = num_rows / kTileRows<X>;
    const int64_t near = kNearBytes / 2 / (kTileRows<X> * larger(k, 1) * int64_t(sizeof(T)));
    const int64_t most = num_cols <= kCols<X> ? larger(whole, 1) : larger(near, 1);
    in_pieces(whole, most, [&](int64_t first, int64_t turns) {
      some(std::integral_constant<int, kTileRows<X>>{}, first * kTileRows<X>, turns);
    });
    for (int64_t r = whole * kTileRows<X>; r < num_rows; r++) some(std::integral_constant<int, 1>{}, r, 1);
  }

  // Rows [m0, m1), columns [n0, n1).
  static void part(const Linear& call, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
    // by all rows of the call: the last part may be short
    constexpr int64_t kMostOfFew = kWidens ? kOnePassRows / 2 : kOnePassRows;
    // rows of x that stay in the first cache, or are so few that they come from the second in time
    const bool are_near = call.m <= 3 || call.m * call.k * int64_t(sizeof(T)) <= kNearBytes;
    const auto multiply = call.m <= kRunCols && are_near ? runs : call.m <= kMostOfFew ? few : many;
    multiply(call, m0, m1, n0, n1);
  }

 private:
  // Calls body(first, count) for all of n, up to `most` at once; of nothing, once.
  template <class Body>
  static void in_pieces(int64_t n, int64_t most, const Body& body) {
    int64_t at = 0;
    do body(at, smaller(most, n - at));
    while ((at += most) < n);
  }

  // Rows n0 and on of w, or of w2.
  static Rows matrix(const Linear& call, int i, int64_t n0) {
    return {(const T*)(i ? call.w2 : call.w) + n0 * call.ldw, call.ldw};
  }

  // So few rows of x that they make one tile: w is read once, and that is most of the work. Rows of w in
  // a tile are far apart, so that there are long runs, each in pages of its own. Short rows in one page
  // would be runs that no prefetcher tells apart (a third of the speed).
  static void runs(const Linear& call, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
    const int64_t n = n1 - n0, rows = m1 - m0;
    const Rows x{(const T*)call.x + m0 * call.ldx, call.ldx};
    alignas(64) float sums[2][kRunCols * kFewColumns];
    for (int i = 0; i < (call.w2 ? 2 : 1); i++) {
      const Rows w = matrix(call, i, n0);
      with_count<kRunCols>(rows, [&](auto count) {
        constexpr int kRuns = runs_beside(count);
        const int64_t run = n / kRuns;
        // behind its own end a run would fetch the next one, which was read beside it
        const int64_t jump = n1 < call.n ? (n - run) * call.ldw * int64_t(sizeof(T)) : 0;
        const auto some = [&]<int R>(std::integral_constant<int, R>, int64_t first, int64_t turns) {
          tile<R, count, true>(Rows{w[first], turns * w.stride}, x, call.k,
                               {sums[i] + first, n, turns, false}, nullptr, {turns, w.stride, 1, jump});
        };
        some(std::integral_constant<int, kRuns>{}, 0, run);
        some(std::integral_constant<int, 1>{}, run * kRuns, n - run * kRuns);
      });
    }
    finish_linear<T>(call, m0, rows, n0, n, sums[0], sums[1], n);
  }

  // A few more: some neighbouring rows of w meet all of x, while as many behind them are fetched.
  static void few(const Linear& call, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
    constexpr int64_t kCopied = 2048;  // numbers of each row of x that are copied at once
    static_assert(kCopied % kChunk == 0);
    const int64_t n = n1 - n0, turns = (m1 - m0 + kFewRows - 1) / kFewRows;
    alignas(64) float sums[2][kFewRows * kFewColumns];
    alignas(64) Wide copied[kFewRows * kCopied / kChunk * kCopyStride];
    in_pieces(m1 - m0, (m1 - m0 + turns - 1) / turns, [&](int64_t m, int64_t rows) {
      const Rows x{(const T*)call.x + (m0 + m) * call.ldx, call.ldx};
      in_pieces(call.k, kCopied, [&](int64_t block, int64_t block_k) {
        in_pieces(block_k, kChunk, [&](int64_t at, int64_t k) {
          copy({x[0] + block + at, x.stride}, rows, k, copied + at / kChunk * rows * kCopyStride);
        });
        for (int i = 0; i < (call.w2 ? 2 : 1); i++)
          in_pieces(n, kFetchedRows, [&](int64_t r, int64_t num_rows) {
            const Rows w = matrix(call, i, n0 + r);
            in_pieces(block_k, kChunk, [&](int64_t at, int64_t k) {
              const T* from = w[0] + block + at;
              const WideRows near{copied + at / kChunk * rows * kCopyStride, copy_stride(k)};
              chunk({from, w.stride}, num_rows, near, rows, k,
                    {sums[i] + r, n, 1, block + at > 0}, m ? nullptr : from + kFetchedRows * w.stride);
            });
          });
      });
      finish_linear<T>(call, m0 + m, rows, n0, n, sums[0], sums[1], n);
    });
  }

  // Many: chunks of as many rows of w as the second cache holds meet all of x, some rows of which stay in
  // the first.
  static void many(const Linear& call, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
    using Products = Matmul<Isa, Wide>;
    constexpr int64_t kPanel = kWidens ? 128 : kManyColumns;
    constexpr int64_t kNearRows = kNearBytes / (kChunk * sizeof(Wide));
    alignas(64) float sums[2][kManyRows * kPanel];
    alignas(64) Wide x[kNearRows * kCopyStride], widened[kWidens ? kPanel * kCopyStride : 1];
    const int num_matrices = call.w2 ? 2 : 1;
    const int64_t panel = kPanel / num_matrices;
    in_pieces(m1 - m0, kManyRows, [&](int64_t m, int64_t all_rows) {
      in_pieces(n1 - n0, panel, [&](int64_t n, int64_t columns) {
        in_pieces(call.k, kChunk, [&](int64_t at, int64_t k) {
          WideRows w[2];
          for (int i = 0; i < num_matrices; i++) {
            const Rows from = matrix(call, i, n0 + n);
            if constexpr (kWidens) {
              w[i] = {widened + i * panel * kCopyStride, copy_stride(k)};
              copy({from[0] + at, from.stride}, columns, k, widened + i * panel * kCopyStride);
            } else {
              w[i] = {from[0] + at, from.stride};
            }
          }
          in_pieces(all_rows, kNearRows, [&](int64_t row, int64_t rows) {
            copy({(const T*)call.x + (m0 + m + row) * call.ldx + at, call.ldx}, rows, k, x);
            const bool is_far = !kWidens && m == 0 && row == 0;  // later rows find w in the second cache
            for (int i = 0; i < num_matrices; i++)
              Products::chunk(w[i], columns, WideRows{x, copy_stride(k)}, rows,
                              kWidens ? round_up(k, D::step) : k,
                              {sums[i] + row * columns, columns, 1, at > 0},
                              is_far ? w[i][kFetchedRows] : nullptr);
          });
        });
        finish_linear<T>(call, m0 + m, all_rows, n0 + n, columns, sums[0], sums[1], columns);
      });
    });
  }
};

}  // namespace
