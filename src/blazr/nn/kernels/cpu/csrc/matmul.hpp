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
#pragma once

#include "types.hpp"

namespace {

template <class Isa, class T>
struct Matmul {
  using D = Dot<Isa, T>;
  using Acc = typename Isa::Acc;
  static constexpr int kRows = 4;     // of w in a tile
  static constexpr int kRunCols = 2;  // rows of x up to which w is read in four runs

  // Rows of x or of w, `stride` numbers apart.
  struct Rows {
    const T* first;
    int64_t stride;
    const T* operator[](int64_t i) const { return first + i * stride; }
  };

  // Where a tile's sums go: out[c * ld + r * gap].
  struct Sums {
    float* out;
    int64_t ld, gap;
  };

  // Sums of R rows of w with C rows of x. `next` is what memory should fetch meanwhile, or null.
  template <int R, int C>
  [[gnu::noinline]] static void tile(Rows w, Rows x, int64_t k, Sums sums, const char* next) {
    constexpr int kStepBytes = R * D::step * int(sizeof(T));
    Acc acc[C][kRows];
#pragma GCC unroll 8
    for (int c = 0; c < C; c++)
#pragma GCC unroll 8
      for (int r = 0; r < kRows; r++) acc[c][r] = Isa::zero();
    int64_t i = 0;
#pragma GCC unroll 2
    for (; i + D::step <= k; i += D::step) {
      typename D::Reg b[C];
#pragma GCC unroll 8
      for (int c = 0; c < C; c++) b[c] = D::load(x[c] + i);
      if (C > kRunCols && next)
        for (int line = 0; line < kStepBytes; line += 64)
          __builtin_prefetch(next + i / D::step * kStepBytes + line, 0, 2);
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) {
        if (C <= kRunCols) __builtin_prefetch((const char*)(w[r] + i) + 1024, 0, 2);
        const typename D::Reg a = D::load(w[r] + i);
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) acc[c][r] = D::dot(acc[c][r], a, b[c]);
      }
    }
    if (i < k) {
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

  // The same for num_cols rows of x, as equal tiles.
  template <int R>
  static void tiles(int64_t num_cols, Rows w, Rows x, int64_t k, Sums sums, const char* next) {
    const int64_t num_tiles = (num_cols + D::cols - 1) / D::cols;
    const int64_t step = (num_cols + num_tiles - 1) / num_tiles;
    for (int64_t c = 0; c < num_cols; c += step)
      with_count<D::cols>(smaller(step, num_cols - c), [&](auto count) {
        tile<R, count>(w, {x[c], x.stride}, k, {sums.out + c * sums.ld, sums.ld, sums.gap}, next);
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
  static void strip(Rows w, int64_t num_rows, Rows x, int64_t num_cols, int64_t k, float* out,
                    bool is_cached) {
    const int64_t quarter = num_rows / kRows, ld = num_rows;
    for (int64_t r = 0; r < quarter; r++) {
      if (num_cols <= kRunCols) {
        tiles<kRows>(num_cols, {w[r], quarter * w.stride}, x, k, {out + r, ld, quarter}, nullptr);
      } else {
        const char* next = is_cached ? nullptr : (const char*)w[kRows * (r + 1)];
        tiles<kRows>(num_cols, {w[kRows * r], w.stride}, x, k, {out + kRows * r, ld, 1}, next);
      }
    }
    for (int64_t r = quarter * kRows; r < num_rows; r++)
      tiles<1>(num_cols, {w[r], 0}, x, k, {out + r, ld, 0}, nullptr);
  }

  // Rows [m0, m1), columns [n0, n1). With many rows of x a few of them stay in the first cache
  // while the part of w goes by in the second.
  static void part(const Linear& call, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
    const bool few = call.m <= kStillFew;  // not of this part alone: the last one may be short
    const int64_t turns = larger((call.m + kFewRows - 1) / kFewRows, 1);
    const int64_t group = few ? (call.m + turns - 1) / turns : D::cols;
    const int64_t n = n1 - n0, offset = n0 * call.ldw;
    static_assert(D::cols * kManyColumns <= kFewRows * kFewColumns);
    float sums[2][kFewRows * kFewColumns];
    for (int64_t m = m0; m < m1; m += group) {
      const int64_t rows = smaller(group, m1 - m);
      const Rows x{(const T*)call.x + m * call.ldx, call.ldx};
      strip({(const T*)call.w + offset, call.ldw}, n, x, rows, call.k, sums[0], !few);
      if (call.w2)
        strip({(const T*)call.w2 + offset, call.ldw}, n, x, rows, call.k, sums[1], !few);
      for (int64_t row = 0; row < rows; row++) {
        float *own = sums[0] + row * n, *ups = sums[1] + row * n;
        const int64_t at = (m + row) * call.ldy;
        const auto write = [&](auto* y) {
          const auto* residual = (decltype(y))call.residual;
          finish((const T*)call.bias, call.w2 != nullptr, n0, n, own, ups, y + at,
                 residual ? residual + at : nullptr, call.scale);
        };
        call.wide ? write((float*)call.y) : write((T*)call.y);
      }
    }
  }
};

}  // namespace
