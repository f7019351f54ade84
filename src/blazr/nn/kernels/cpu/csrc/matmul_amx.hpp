// Products with plain bfloat16 weights on tiles of AMX (Sapphire Rapids and later).
//
// An instruction multiplies 16 rows of one matrix by 16 of the other, 32 numbers of k at a time:
//
//   k ->                         16 rows of b ->
//   [ a a a ... 32 ]   16        [ pairs of k ]   16      sums[i][j] += a[i] . b[j], in float32
//
// Rows of a are read as they lie in memory; those of b are packed first, pairs of k side by side. Which
// matrix is a changes no bit: with few rows of x that is w, which is read once and from memory, with
// many x, and the part's columns of w are packed and stay in the second cache.
//
// Exactness: whatever the tile holds beside it, a number of the result is the sum of its own two rows
// in the order that the instruction defines, 32 numbers after 32 (Intel's manual, TDPBF16PS).
#pragma once

#include "isa_amx.hpp"
#include "matmul.hpp"

namespace {

struct AmxProduct : Amx {
  static constexpr int64_t kStep = 32;  // numbers in a row of a tile
  static constexpr int64_t kTile = kSide * kStep;
  static constexpr int64_t kMostPacked = 512 << 10;  // numbers, on the stack
  static constexpr int64_t kMostK = kMostPacked / kSide / 2;  // a tile of w and one of w2
  static constexpr int64_t kManyRows = 512;  // of a part, so that w is seldom packed
  static constexpr int kMostBlocks = 6;      // of 16 rows of x that meet w together

  using Plain = Matmul<Avx512Bf16, bf16>;
  using Rows = RowsOf<bf16>;

  // Up to sixteen rows as tiles of b, one for 32 numbers of k: a row for each pair, with zeros at the
  // ends of rows and for rows that are not there.
  static void pack(Rows rows, int64_t count, int64_t k, bf16* to) {
    for (int64_t i = 0; i < k; i += kStep, to += kTile) {
      const __mmask32 valid = k - i < kStep ? (1u << (k - i)) - 1 : ~0u;
      Registers<float, 1>::Vector pairs[kSide];
#pragma GCC unroll 16
      for (int r = 0; r < kSide; r++)
        pairs[r] = (Registers<float, 1>::Vector)_mm512_maskz_loadu_epi16(r < count ? valid : 0,
                                                                         rows[r < count ? r : 0] + i);
      transpose<kSide>(pairs);
#pragma GCC unroll 16
      for (int r = 0; r < kSide; r++) memcpy(to + r * kStep, pairs + r, sizeof pairs[r]);
    }
  }

  // Where a block's sums go: those of row i of a with row j of b to out[i * ld + j].
  struct Sums {
    float* out;
    int64_t ld;
  };

  // Sums of 16 A rows of a with 16 B packed rows of b.
  template <int A, int B>
  [[gnu::noinline]] static void block(Rows a, const bf16* b, int64_t k, Sums sums) {
    constexpr int kFirstA = A * B, kOneB = kFirstA + A;  // the tiles
    static_assert(kOneB < 8);
    const int64_t whole = k / kStep * kStep, panel = round_up(k, kStep) * kSide;
    each_of<A * B>([](auto i) { clear<i>(); });
    const auto step = [&](const bf16* from, int64_t stride, const bf16* tiles) {
      each_of<A>([&](auto i) { load<kFirstA + i>(from + i * kSide * stride, stride * 2); });
      each_of<B>([&](auto j) {
        load<kOneB>(tiles + j * panel, kStep * 2);
        each_of<A>([&](auto i) { multiply_bf16<i * B + j, kFirstA + i, kOneB>(); });
      });
    };
    for (int64_t at = 0; at < whole; at += kStep, b += kTile) step(a[0] + at, a.stride, b);
    if (whole < k) {
      bf16 ends[A * kTile] = {};
      for (int64_t r = 0; r < A * kSide; r++)
        memcpy(ends + r * kStep, a[r] + whole, size_t(k - whole) * sizeof(bf16));
      step(ends, kStep, b);
    }
    each_of<A>([&](auto i) {
      each_of<B>([&](auto j) {
        store<i * B + j>(sums.out + i * kSide * sums.ld + j * kSide, sums.ld * 4);
      });
    });
  }

  // Few rows of x, packed: sums[c * n + r] of column n0 + r of w, which has `all`, with row c.
  static void strip(Rows w, int64_t all, int64_t n0, int64_t n, const bf16* x, int64_t count, int64_t k,
                    float* sums) {
    const bool pairs = count > kSide && count <= 2 * kSide && all >= 2 * kSide;
    const int64_t rows = pairs ? 2 * kSide : kSide, blocks = (count + kSide - 1) / kSide;
    alignas(64) float out[2 * kSide * kMostBlocks * kSide];
    for (int64_t r = n0; r < n0 + n; r += rows) {
      const int64_t first = smaller(r, all - rows);  // some are computed again, the same
      const Rows a{w[first], w.stride};
      const Sums to{out, blocks * kSide};
      with_count<kMostBlocks>(blocks, [&](auto b) {
        if constexpr (b <= 2) {
          if (pairs) return block<2, b>(a, x, k, to);
        }
        block<1, b>(a, x, k, to);
      });
      for (int64_t c = 0; c < count; c++)
        for (int64_t i = r; i < smaller(r + rows, n0 + n); i++)
          sums[c * n + i - n0] = out[(i - first) * to.ld + c];
    }
  }

  // As Matmul::part. Where a matrix has no tile, or a packed one no room or no numbers, the products are
  // Plain's, for any number of rows.
  static void part(const Linear& call, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
    if (call.n < kSide || call.k == 0 || call.k > kMostK) return Plain::part(call, m0, m1, n0, n1);
    const Tiles tiles;
    alignas(64) bf16 packed[kMostPacked];
    call.m <= kOnePassRows ? few(call, m0, m1, n0, n1, packed) : many(call, m0, m1, n0, n1, packed);
  }

  // As Peak::numbers.
  static int64_t peak(const void* operands, int64_t operations, int64_t* result) {
    constexpr int kSums = 4;  // enough that no product waits for the one before
    const Tiles tiles;
    each_of<8>([&](auto i) { load<i>(operands, 0); });
    const int64_t of_round = kSums * 2 * kSide * kTile, rounds = operations / of_round + 1;
    for (int64_t round = 0; round < rounds; round++)
      each_of<kSums>([](auto i) { multiply_bf16<i, kSums, kSums + 1>(); });
    int32_t sums[kSide * kSide];
    each_of<kSums>([&](auto i) {
      store<i>(sums, kSide * 4);
      *result ^= sums[0];
    });
    return rounds * of_round;
  }

 private:
  static Rows rows_of(const void* first, int64_t stride) { return {(const bf16*)first, stride}; }

  static void few(const Linear& call, int64_t m0, int64_t m1, int64_t n0, int64_t n1, bf16* packed) {
    const int64_t panel = round_up(call.k, kStep) * kSide, n = n1 - n0;
    const int64_t most = smaller(kMostBlocks, kMostPacked / panel) * kSide;
    float sums[2][kOnePassRows * kFewColumns];
    for (int64_t m = m0; m < m1; m += most) {
      const int64_t count = smaller(most, m1 - m);
      const Rows x = rows_of(call.x, call.ldx);
      for (int64_t c = 0; c < count; c += kSide)
        pack({x[m + c], x.stride}, smaller(kSide, count - c), call.k, packed + c / kSide * panel);
      strip(rows_of(call.w, call.ldw), call.n, n0, n, packed, count, call.k, sums[0]);
      if (call.w2) strip(rows_of(call.w2, call.ldw), call.n, n0, n, packed, count, call.k, sums[1]);
      finish_linear<bf16>(call, m, count, n0, n, sums[0], sums[1], n);
    }
  }

  static void many(const Linear& call, int64_t m0, int64_t m1, int64_t n0, int64_t n1, bf16* packed) {
    constexpr int64_t kRows = 2 * kSide;
    const int64_t panel = round_up(call.k, kStep) * kSide, matrices = call.w2 ? 2 : 1;
    const int64_t most = smaller(kMostPacked / panel / matrices * kSide, kManyColumns);
    float sums[2][kRows * kManyColumns];
    for (int64_t first = n0; first < n1; first += most) {
      const int64_t n = smaller(most, n1 - first), panels = (n + kSide - 1) / kSide;
      for (int64_t i = 0; i < matrices; i++) {
        const Rows w = rows_of(i ? call.w2 : call.w, call.ldw);
        for (int64_t j = 0; j < panels; j++)
          pack({w[first + j * kSide], w.stride}, smaller(kSide, n - j * kSide), call.k,
               packed + (i * panels + j) * panel);
      }
      const Rows x = rows_of(call.x, call.ldx);
      for (int64_t m = m0; m < m1; m += kRows) {
        const int64_t at = smaller(m, call.m - kRows);  // some are computed again, the same
        const Rows a{x[at], x.stride};
        for (int64_t i = 0; i < matrices; i++)
          for (int64_t j = 0; j < panels; j += 2) {
            const bf16* b = packed + (i * panels + j) * panel;
            const Sums to{sums[i] + j * kSide, panels * kSide};
            j + 1 < panels ? block<2, 2>(a, b, call.k, to)
                           : block<2, 1>(a, b, call.k, to);
          }
        const int64_t skipped = (m - at) * panels * kSide;
        finish_linear<bf16>(call, m, smaller(kRows, m1 - m), first, n, sums[0] + skipped,
                            sums[1] + skipped, panels * kSide);
      }
    }
  }
};

}  // namespace
