// Blocks of GGUF files into packings: the same numbers in another order (see packings.hpp). Source: the
// structs of ggml-common.h; MXFP4: OCP Microscaling Formats 1.0.
//
//   file     row 0  [ scales | codes ][ scales | codes ] ...       a row after the other
//            row 1  [ scales | codes ][ scales | codes ] ...
//   packed   [ scales of 16 rows | codes of 16 rows ] ...          a superblock after the other
#pragma once

#include "packings.hpp"

namespace {

// Fields of kBits bits, in kRuns runs of kBytes bytes. Of a run, the lowest field of all bytes comes
// first. They are added to the codes, moved up so far.
template <int kBits, int kRuns, int kBytes>
inline void fields(const uint8_t* data, int up, uint8_t* __restrict__ codes) {
  for (int run = 0; run < kRuns; run++) {
    if constexpr (kBits == 1 && kBytes == 1) {  // each bit to a byte of its own
      const uint64_t own = data[run] * 0x0101010101010101u & 0x8040201008040201u;
      const uint64_t bits = (own + 0x7f7f7f7f7f7f7f7fu) >> 7 & 0x0101010101010101u;
      uint64_t eight;
      memcpy(&eight, codes + 8 * run, 8);
      eight |= bits << up;
      memcpy(codes + 8 * run, &eight, 8);
      continue;
    }
    for (int field = 0; field < 8 / kBits; field++)
      for (int i = 0; i < kBytes; i++)
        *codes++ |= (data[run * kBytes + i] >> field * kBits & ((1 << kBits) - 1)) << up;
  }
}

// How many blocks of a file a superblock's row is, and bytes of one.
struct Source {
  int blocks, bytes;
};

constexpr Source source_of(int packing) {
  constexpr Source kSources[kNumPackings] = {
      {1, 34},  {1, 18},  {1, 20},  {1, 22},  {1, 24},  {1, 18}, {1, 17}, {1, 136}, {1, 84},
      {1, 110}, {1, 144}, {1, 176}, {1, 210}, {1, 34}, {1, 18}, {2, 18}, {4, 18}};
  return kSources[packing];
}

// The codes of a block, one a byte; they are zero before.
template <int kPacking>
inline void read_codes(const uint8_t* block, uint8_t* __restrict__ codes) {
  if constexpr (kPacking == kQ8_0 || kPacking == kInt8)
    for (int i = 0; i < kBlock; i++) codes[i] = block[2 + i] ^ 0x80;
  if constexpr (kPacking == kQ4_0 || kPacking == kIq4Nl || kPacking >= kInt4By32)
    fields<4, 1, 16>(block + 2, 0, codes);
  if constexpr (kPacking == kQ4_1) fields<4, 1, 16>(block + 4, 0, codes);
  if constexpr (kPacking == kMxfp4) fields<4, 1, 16>(block + 1, 0, codes);
  if constexpr (kPacking == kQ5_0 || kPacking == kQ5_1) {
    constexpr int kAbove = kPacking == kQ5_0 ? 2 : 4;
    fields<4, 1, 16>(block + kAbove + 4, 0, codes);
    fields<1, 4, 1>(block + kAbove, 4, codes);
  }
  if constexpr (kPacking == kIq4Xs) fields<4, 8, 16>(block + 8, 0, codes);
  if constexpr (kPacking == kQ2K) fields<2, 2, 32>(block + 16, 0, codes);
  if constexpr (kPacking == kQ3K) {
    fields<2, 2, 32>(block + 32, 0, codes);
    fields<1, 1, 32>(block, 2, codes);
  }
  if constexpr (kPacking == kQ4K) fields<4, 4, 32>(block + 16, 0, codes);
  if constexpr (kPacking == kQ5K) {
    fields<4, 4, 32>(block + 48, 0, codes);
    fields<1, 1, 32>(block + 16, 4, codes);
  }
  if constexpr (kPacking == kQ6K) {
    fields<4, 2, 64>(block, 0, codes);
    fields<2, 2, 32>(block + 128, 4, codes);
  }
}

// One row of what is before the codes of a superblock.
struct Place {
  uint8_t* super;
  int row;

  void half(int index, const uint8_t* from, int sign = 0) const {
    uint8_t* to = super + kHalves * index + 2 * row;
    to[0] = from[0], to[1] = uint8_t(from[1] ^ sign);
  }
  // Number `index` of those behind `halves` float16.
  void byte(int halves, int index, int value) const {
    super[kHalves * halves + kGroup * index + row] = uint8_t(value);
  }
};

// `zero` is the code that stands for 0, where the packing has one.
template <int kPacking>
inline void read_scales(const uint8_t* block, int zero, Place place) {
  if constexpr (kPacking <= kIq4Nl || kPacking == kIq4Xs) place.half(0, block);
  // minima are taken off, where these formats add them
  if constexpr (kPacking == kQ4_1 || kPacking == kQ5_1) place.half(1, block + 2, 0x80);
  if constexpr (kPacking == kMxfp4) place.byte(0, 0, block[0]);
  if constexpr (kPacking == kIq4Xs)  // six bits: four and two
    for (int i = 0; i < 8; i++) {
      const int low = block[4 + i / 2] >> 4 * (i % 2) & 15, high = block[2 + i / 4] >> 2 * (i % 4) & 3;
      place.byte(1, i, (low | high << 4) - 32);
    }
  if constexpr (kPacking == kQ2K) {
    place.half(0, block + 80), place.half(1, block + 82);
    for (int i = 0; i < 16; i++)
      place.byte(2, i, block[i] & 15), place.byte(2, 16 + i, block[i] >> 4);
  }
  if constexpr (kPacking == kQ3K) {
    place.half(0, block + 108);
    for (int i = 0; i < 16; i++) {
      const int low = block[96 + i % 8] >> 4 * (i / 8) & 15;
      place.byte(1, i, (low | (block[104 + i % 4] >> 2 * (i / 4) & 3) << 4) - 32);
    }
  }
  if constexpr (kPacking == kQ4K || kPacking == kQ5K) {
    // of eight scales and minima, four lie in six bits of a byte, the others in what is left over
    place.half(0, block), place.half(1, block + 2);
    const uint8_t *scales = block + 4, *minima = block + 8, *rest = block + 12;
    for (int i = 0; i < 4; i++) {
      place.byte(2, i, scales[i] & 63);
      place.byte(2, 4 + i, (rest[i] & 15) | (scales[i] >> 2 & 48));
      place.byte(2, 8 + i, minima[i] & 63);
      place.byte(2, 12 + i, rest[i] >> 4 | (minima[i] >> 2 & 48));
    }
  }
  if constexpr (kPacking == kQ6K) {
    place.half(0, block + 208);
    for (int i = 0; i < 16; i++) place.byte(1, i, block[192 + i]);
  }
  if constexpr (kPacking >= kInt4By32) place.half(0, block), place.byte(1, 0, zero);
}

// Writes the lines of a block from the codes of its 16 rows, `stride` apart. kTall: bits above four.
template <int kBytes>
inline void write_lines(const uint8_t* codes, int stride, uint8_t* __restrict__ out) {
  constexpr int kTall = kBytes == 512 ? 0 : (kBytes - 256) / 64, kFields = kTall ? 8 / kTall : 0;
  const auto word = [&](int v, int row) {
    uint32_t four;
    memcpy(&four, codes + row * stride + 4 * v, 4);
    return four;
  };
  const auto put = [&](int line, int row, uint32_t four) { memcpy(out + 64 * line + 4 * row, &four, 4); };
  if constexpr (kBytes == 512) {
    for (int row = 0; row < kGroup; row++)
      for (int v = 0; v < 8; v++) put(v, row, word(v, row));
    return;
  }
  for (int row = 0; row < kGroup; row++)
    for (int j = 0; j < 4; j++) {
      const uint32_t low = word(2 * j, row) & 0x0f0f0f0f, high = word(2 * j + 1, row) & 0x0f0f0f0f;
      put(j, row, low | high << 4);
    }
  for (int line = 0; line < kTall; line++)
    for (int row = 0; row < kGroup; row++) {
      uint32_t above = 0;
      for (int f = 0; f < kFields; f++)
        above |= (word(line * kFields + f, row) >> 4 & ((1 << kTall) - 1) * 0x01010101u) << f * kTall;
      put(4 + line, row, above);
    }
}

// One group of 16 rows; rows that are missing are zero.
template <class I, int kPacking>
void pack_group(const Pack& call, int64_t group) {
  using P = std::tuple_element_t<kPacking, Packings<I>>;
  constexpr Source kSource = source_of(kPacking);
  constexpr int kColumns = P::kBlocks * kBlock, kKept = kColumns / kSource.blocks;
  const int rows = int(smaller(kGroup, call.rows - group * kGroup));
  for (int64_t s = 0; s < call.supers; s++) {
    alignas(64) uint8_t codes[kGroup * kColumns] = {};
    uint8_t* super = call.out + (group * call.supers + s) * P::kBytes;
    if (rows < kGroup) memset(super, 0, P::Scales::kBytes);
    for (int row = 0; row < rows; row++) {
      const int64_t index = (group * kGroup + row) * call.supers + s;
      const uint8_t* block = call.blocks + index * kSource.blocks * kSource.bytes;
      read_scales<kPacking>(block, call.zeros ? call.zeros[index] : 8, {super, row});
      for (int i = 0; i < kSource.blocks; i++)
        read_codes<kPacking>(block + i * kSource.bytes, codes + row * kColumns + i * kKept);
    }
    for (int i = 0; i < P::kBlocks; i++)
      write_lines<P::Codes::kBytes>(codes + i * kBlock, kColumns,
                                    super + P::Scales::kBytes + i * P::Codes::kBytes);
  }
}

}  // namespace
