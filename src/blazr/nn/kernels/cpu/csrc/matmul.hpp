// Products with plain weights, for every instruction set.
//
// Both x and w lie with k innermost, so a result is a dot product of two rows and nothing has to be
// repacked: weights are read where the file was mapped. A tile is 4 rows of w by C rows of x, and
// each of its 4 C accumulators is a vector of partial sums over k:
//
//              k ->  one load of `step` numbers
//   w rows   [ ======== ======== ======== ... ==== ]   4
//   x rows   [ ======== ======== ======== ... ==== ]   C      acc[c][r] += x[c] * w[r] by lanes
//
// Exactness: an accumulator sees k in one order, and its lanes are added in one order, whatever the
// tile's size, the batch, the cut into parts or the thread. So a row of y depends on nothing but
// its own row of x.
//
// Where a processor multiplies float32 alone, 16-bit factors are widened in registers; with several
// rows of x these are widened once, so that a tile widens its rows of w alone and has room for more
// accumulators. The sums see the same numbers in the same order.
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
    add_lora<T>(call.lora, row, call.n, n0, n, sums);
    add_lora<T>(call.lora2, row, call.n, n0, n, ups);
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
  static constexpr int kRows = 4;     // of w in a tile
  static constexpr int kRunCols = 2;  // rows of x up to which w is read in four runs

  static constexpr bool kWidens =
      !std::is_same_v<T, float> && requires(const T* p) { D::template piece<0>(p); };
  // Numbers that are widened at once, on the stack; rows that are longer are not.
  static constexpr int64_t kMostWide = kWidens ? 128 << 10 : 1;

  using Rows = RowsOf<T>;

  // Rows of x in a tile.
  template <class X>
  static constexpr int kCols = std::is_same_v<X, Rows> ? int(D::cols) : int(D::wide_cols);

  // Where a tile's sums go: out[c * ld + r * gap].
  struct Sums {
    float* out;
    int64_t ld, gap;
  };

  // Sums of R rows of w with C rows of x. `next` is what memory should fetch meanwhile, or null.
  template <int R, int C, class X>
  [[gnu::noinline]] static void tile(Rows w, X x, int64_t k, Sums sums, const char* next) {
    constexpr bool kIsWide = !std::is_same_v<X, Rows>;
    constexpr int kStepBytes = R * D::step * int(sizeof(T));
    Acc acc[C][kRows];
#pragma GCC unroll 8
    for (int c = 0; c < C; c++)
#pragma GCC unroll 8
      for (int r = 0; r < kRows; r++) acc[c][r] = Isa::zero();
    int64_t i = 0;
#pragma GCC unroll 2
    for (; i + D::step <= k; i += D::step) {
      if (next)
#pragma GCC unroll 8
        for (int line = 0; line < kStepBytes; line += 64)
          __builtin_prefetch(next + i / D::step * kStepBytes + line, 0, 2);
      if constexpr (kIsWide) {
        wide_step<R, C>(acc, [&](int r) { return w[r] + i; }, x, i);
        continue;
      } else {
        typename D::Reg b[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) b[c] = D::load(x[c] + i);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
          if (C <= kRunCols) __builtin_prefetch((const char*)(w[r] + i) + 1024, 0, 2);
          const typename D::Reg a = D::load(w[r] + i);
#pragma GCC unroll 8
          for (int c = 0; c < C; c++) acc[c][r] = D::dot(acc[c][r], a, b[c]);
        }
      }
    }
    if constexpr (kIsWide) {
      if (i < k) {
        T ends[R][D::step] = {};
        for (int r = 0; r < R; r++) memcpy(ends[r], w[r] + i, size_t(k - i) * sizeof(T));
        wide_step<R, C>(acc, [&](int r) { return ends[r]; }, x, i);
      }
    } else if (i < k) {
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) {
        const typename D::Reg a = D::load_tail(w[r] + i, int(k - i));
#pragma GCC unroll 8
        for (int c = 0; c < C; c++)
          acc[c][r] = D::dot(acc[c][r], a, D::load_tail(x[c] + i, int(k - i)));
      }
    }
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) {
      float four[kRows];
      if (R == kRows && sums.gap == 1) {
        Isa::sum4(acc[c], sums.out + c * sums.ld);
        continue;
      }
      Isa::sum4(acc[c], four);
      for (int r = 0; r < R; r++) sums.out[c * sums.ld + r * sums.gap] = four[r];
    }
  }

  // A step of a tile, piece by piece; x is widened, `row` is where the step begins in a row of w.
  template <int R, int C, int kPiece = 0, class Row>
  [[gnu::always_inline]] static void wide_step(Acc (&acc)[C][kRows], const Row& row,
                                               RowsOf<float> x, int64_t i) {
    constexpr int kLanes = D::step / D::pieces;
    Acc b[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) b[c] = Isa::load(x[c] + i + kPiece * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const Acc a = D::template piece<kPiece>(row(r));
#pragma GCC unroll 8
      for (int c = 0; c < C; c++) acc[c][r] = Isa::fma(a, b[c], acc[c][r]);
    }
    if constexpr (kPiece + 1 < D::pieces) wide_step<R, C, kPiece + 1>(acc, row, x, i);
  }

  // Rows as wide_step reads them, `stride` numbers apart, with zeros at their ends.
  static void widen(Rows x, int64_t rows, int64_t k, float* out, int64_t stride) {
    for (int64_t row = 0; row < rows; row++, out += stride) {
      const T* from = x[row];
      int64_t i = 0;
      for (; i + D::step <= k; i += D::step) widen_step(from + i, out + i);
      if (i == k) continue;
      T end[D::step] = {};
      memcpy(end, from + i, size_t(k - i) * sizeof(T));
      widen_step(end, out + i);
    }
  }

  template <int kPiece = 0>
  [[gnu::always_inline]] static void widen_step(const T* from, float* out) {
    const Acc wide = D::template piece<kPiece>(from);
    memcpy(out + kPiece * (D::step / D::pieces), &wide, sizeof wide);
    if constexpr (kPiece + 1 < D::pieces) widen_step<kPiece + 1>(from, out);
  }

  // The same for num_cols rows of x, as equal tiles.
  template <int R, class X>
  static void tiles(int64_t num_cols, Rows w, X x, int64_t k, Sums sums, const char* next) {
    const int64_t num_tiles = (num_cols + kCols<X> - 1) / kCols<X>;
    const int64_t step = (num_cols + num_tiles - 1) / num_tiles;
    for (int64_t c = 0; c < num_cols; c += step)
      with_count<kCols<X>>(smaller(step, num_cols - c), [&](auto count) {
        tile<R, count>(w, X{x[c], x.stride}, k, {sums.out + c * sums.ld, sums.ld, sums.gap}, next);
      });
  }

  // out[c * num_rows + r] = dot(x[c], w[r]), in an order of rows that memory can follow:
  //
  // - One or two rows of x: reading w is all the work. The rows of a tile are a quarter of the
  //   strip apart, so that there are four long runs, each in pages of its own. Four short rows in
  //   one page would be four runs that no prefetcher tells apart (a third of the speed).
  // - A few more: four neighbouring rows of w meet all of x in the first cache, while the next four
  //   are fetched in one run.
  // - Many (`is_cached`): w comes from the second cache, and nothing is fetched.
  template <class X>
  static void strip(Rows w, int64_t num_rows, X x, int64_t num_cols, int64_t k, float* out,
                    bool is_cached) {
    const int64_t quarter = num_rows / kRows, ld = num_rows;
    for (int64_t r = 0; r < quarter; r++) {
      if (num_cols <= kRunCols) {
        tiles<kRows>(num_cols, Rows{w[r], quarter * w.stride}, x, k, {out + r, ld, quarter}, nullptr);
      } else {
        const char* next = is_cached ? nullptr : (const char*)w[kRows * (r + 1)];
        tiles<kRows>(num_cols, Rows{w[kRows * r], w.stride}, x, k, {out + kRows * r, ld, 1}, next);
      }
    }
    for (int64_t r = quarter * kRows; r < num_rows; r++)
      tiles<1>(num_cols, Rows{w[r], 0}, x, k, {out + r, ld, 0}, nullptr);
  }

  // Rows [m0, m1), columns [n0, n1). With many rows of x a few of them stay in the first cache
  // while the part of w goes by in the second.
  static void part(const Linear& call, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
    const bool few = call.m <= kStillFew;  // not of this part alone: the last one may be short
    const int64_t stride = round_up(call.k, D::step);
    const bool widens = kWidens && call.m > kRunCols && 2 * kMostCols * stride <= kMostWide;
    if constexpr (kWidens)
      if (widens && !few) return wide_part(call, m0, m1, n0, n1, stride);
    const int64_t most = widens ? smaller(kFewRows, kMostWide / larger(stride, 1)) : kFewRows;
    const int64_t turns = larger((call.m + most - 1) / most, 1);
    const int64_t group = few ? (call.m + turns - 1) / turns : D::cols;
    const int64_t n = n1 - n0, offset = n0 * call.ldw;
    float sums[2][kFewRows * kFewColumns], wide[kMostWide];
    for (int64_t m = m0; m < m1; m += group) {
      const int64_t rows = smaller(group, m1 - m);
      const Rows x{(const T*)call.x + m * call.ldx, call.ldx};
      const auto multiply = [&](auto rows_of_x) {
        strip({(const T*)call.w + offset, call.ldw}, n, rows_of_x, rows, call.k, sums[0], !few);
        if (call.w2)
          strip({(const T*)call.w2 + offset, call.ldw}, n, rows_of_x, rows, call.k, sums[1], !few);
      };
      if constexpr (kWidens) {
        if (widens) widen(x, rows, call.k, wide, stride);
        widens ? multiply(RowsOf<float>{wide, stride}) : multiply(x);
      } else {
        multiply(x);
      }
      finish_linear<T>(call, m, rows, n0, n, sums[0], sums[1], n);
    }
  }

 private:
  static constexpr int kMostCols = larger(D::cols, Isa::kTile);
  static_assert(kMostCols * kManyColumns <= kFewRows * kFewColumns);

  // Many rows of x: those of w are widened, too, as many as the second cache holds, and the tiles are
  // those of float32.
  static void wide_part(const Linear& call, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                        int64_t stride) {
    using Wide = Matmul<Isa, float>;
    const int64_t room = kMostWide / stride - kMostCols, each = call.w2 ? room / 2 : room;
    const int64_t panel = larger(smaller(each, n1 - n0) / kRows * kRows, smaller(kRows, each));
    float sums[2][kFewRows * kFewColumns], wide[kMostWide];
    float *x = wide, *w[2] = {x + kMostCols * stride, x + (kMostCols + panel) * stride};
    for (int64_t n = n0; n < n1; n += panel) {
      const int64_t columns = smaller(panel, n1 - n);
      widen({(const T*)call.w + n * call.ldw, call.ldw}, columns, call.k, w[0], stride);
      if (call.w2)
        widen({(const T*)call.w2 + n * call.ldw, call.ldw}, columns, call.k, w[1], stride);
      for (int64_t m = m0; m < m1; m += Isa::kTile) {
        const int64_t rows = smaller(Isa::kTile, m1 - m);
        widen({(const T*)call.x + m * call.ldx, call.ldx}, rows, call.k, x, stride);
        for (int i = 0; i < (call.w2 ? 2 : 1); i++)
          Wide::strip({w[i], stride}, columns, RowsOf<float>{x, stride}, rows, stride, sums[i], true);
        finish_linear<T>(call, m, rows, n, columns, sums[0], sums[1], columns);
      }
    }
  }
};

}  // namespace
