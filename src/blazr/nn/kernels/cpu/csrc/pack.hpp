// Blocks of GGUF files into packings: the same numbers in another order (see packings.hpp). Source: the
// structs of ggml-common.h; MXFP4: OCP Microscaling Formats 1.0.
//
//   file     row 0  [ scales | codes ][ scales | codes ] ...       a row after the other
//            row 1  [ scales | codes ][ scales | codes ] ...
//   packed   [ scales of 16 rows | codes of 16 rows ] ...          a superblock after the other
#pragma once

#include "packings.hpp"

namespace {

// Each bit of a byte in a byte of its own, the lowest first.
inline uint64_t spread(int byte) {
  const uint64_t own = uint64_t(byte) * 0x0101010101010101u & 0x8040201008040201u;
  return (own + 0x7f7f7f7f7f7f7f7fu) >> 7 & 0x0101010101010101u;
}

// Reads fields of kBits bits, which lie in kRuns runs of kBytes bytes: first the lowest field of each byte
// of a run, then the next one of each. They are ORed to the codes, shifted left by `up` bits.
template <int kBits, int kRuns, int kBytes>
inline void fields(const uint8_t* data, int up, uint8_t* __restrict__ codes) {
  for (int run = 0; run < kRuns; run++) {
    if constexpr (kBits == 1 && kBytes == 1) {
      uint64_t eight;
      memcpy(&eight, codes + 8 * run, 8);
      eight |= spread(data[run]) << up;
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

// What lies in a block, with its bytes. d and m are float16, what has fewer than eight bits lies as
// `fields` takes it.
constexpr Source source_of(int packing) {
  constexpr Source kSources[kNumPackings] = {
      {1, 34},   // Q8_0     d 2 | codes 32
      {1, 18},   // Q4_0     d 2 | codes 16
      {1, 20},   // Q4_1     d 2 | m 2 | codes 16
      {1, 22},   // Q5_0     d 2 | bit 4 of codes 4 | bits 0 to 3 16
      {1, 24},   // Q5_1     d 2 | m 2 | bit 4 of codes 4 | bits 0 to 3 16
      {1, 18},   // IQ4_NL   d 2 | codes 16
      {1, 17},   // MXFP4    exponent 1 | codes 16
      {1, 136},  // IQ4_XS   d 2 | bits 4 and 5 of scales 2 | bits 0 to 3 4 | codes 128
      {1, 84},   // Q2_K     scales and minima, four bits each 16 | codes 64 | d 2 | m 2
      {1, 110},  // Q3_K     bit 2 of codes 32 | bits 0 and 1 64 | scales, six bits each 12 | d 2
      {1, 144},  // Q4_K     d 2 | m 2 | scales and minima, six bits each 12 | codes 128
      {1, 176},  // Q5_K     d 2 | m 2 | the same 12 | bit 4 of codes 32 | bits 0 to 3 128
      {1, 210},  // Q6_K     bits 0 to 3 of codes 128 | bits 4 and 5 64 | scales 16 | d 2
      {1, 34},   // int8     as Q8_0; d counts for nothing, rows have scales of their own
      {1, 18},   // int4     as Q4_0, by 32 columns;
      {2, 18},   //          by 64, where the first of two blocks has the scale,
      {4, 18},   //          and by 128, the first of four
      {1, 66},   // IQ2_XXS  d 2 | eight times: indices 4, a word of 4 x 7 signs and 4 bits of scale 4
      {1, 74},   // IQ2_XS   d 2 | words of 9 bits of index and 7 signs 64 | scales, four bits each 8
      {1, 82},   // IQ2_S    d 2 | indices 32 | signs 32 | bits 8 and 9 of indices 8 | scales 8
      {1, 98},   // IQ3_XXS  d 2 | indices 64 | words of 4 x 7 signs and 4 bits of scale 32
      {1, 110},  // IQ3_S    d 2 | indices 64 | bit 8 of indices 8 | signs 32 | scales 4
      {1, 50},   // IQ1_S    d 2 | indices 32 | words of 4 x 3 bits above them, 3 of scale and a sign 16
      {1, 56},   // IQ1_M    indices 32 | nibbles of 3 bits above them and a sign 16 | words of 4 x 3
                 //          bits of scale and 4 of d 8
      {1, 54},   // TQ1_0    five digits a byte 48 | four 4 | d 2
      {1, 66},   // TQ2_0    codes 64 | d 2
      {1, 36},   // NVFP4    scales of 16, eight-bit floats 4 | codes 32
      {1, 18},   // Q1_0     d 2 | codes 16
      {1, 18}};  // Q2_0     d 2 | codes 16
  return kSources[packing];
}

constexpr bool is_int4(int packing) { return packing >= kInt4By32 && packing <= kInt4By128; }
constexpr bool is_lattice(int packing) { return packing >= kIq2Xxs && packing <= kIq1M; }

inline uint32_t word_at(const uint8_t* bytes, int size) {  // little end first
  uint32_t word = 0;
  for (int i = 0; i < size; i++) word |= uint32_t(bytes[i]) << 8 * i;
  return word;
}

// Of an IQ type, eight codes of a block: rows of its codebook, and a bit above each of their digits.
template <int kPacking>
inline uint64_t read_lattice(const uint8_t* block, int eight, const uint8_t* codebook) {
  constexpr bool kOfFour = kPacking == kIq3Xxs || kPacking == kIq3S;  // digits of a row
  int first = 0, second = 0, signs = 0;  // the second row, where they are of four digits
  const auto even = [](uint32_t seven) { return int(seven | (__builtin_popcount(seven) & 1) << 7); };
  if constexpr (kPacking == kIq2Xxs) {
    const uint8_t* four = block + 2 + 8 * (eight / 4);
    first = four[eight % 4], signs = even(word_at(four + 4, 4) >> 7 * (eight % 4) & 127);
  } else if constexpr (kPacking == kIq2Xs) {
    const uint32_t word = word_at(block + 2 + 2 * eight, 2);
    first = word & 511, signs = even(word >> 9);
  } else if constexpr (kPacking == kIq2S) {
    first = block[2 + eight] | (block[66 + eight / 4] >> 2 * (eight % 4) & 3) << 8;
    signs = block[34 + eight];
  } else if constexpr (kPacking == kIq3Xxs) {
    first = block[2 + 2 * eight], second = block[3 + 2 * eight];
    signs = even(word_at(block + 66 + 4 * (eight / 4), 4) >> 7 * (eight % 4) & 127);
  } else if constexpr (kPacking == kIq3S) {
    const int above = block[66 + eight / 4] >> 2 * (eight % 4);
    first = block[2 + 2 * eight] | (above & 1) << 8, second = block[3 + 2 * eight] | (above & 2) << 7;
    signs = block[74 + eight];
  } else if constexpr (kPacking == kIq1S) {
    const uint32_t word = word_at(block + 34 + 2 * (eight / 4), 2);
    first = block[2 + eight] | int(word >> 3 * (eight % 4) & 7) << 8, signs = word >> 15 ? 255 : 0;
  } else {  // IQ1_M
    const int nibble = block[32 + eight / 2] >> 4 * (eight % 2) & 15;
    first = block[eight] | (nibble & 7) << 8, signs = nibble & 8 ? 255 : 0;
  }
  uint64_t digits = 0;
  if constexpr (kOfFour) {
    memcpy(&digits, codebook + 4 * first, 4);
    memcpy((char*)&digits + 4, codebook + 4 * second, 4);
  } else {
    memcpy(&digits, codebook + 8 * first, 8);
  }
  return digits | spread(signs) << (kOfFour ? 3 : 2);
}

// A run of bytes that hold kDigits digits of base 3 each, as a fraction: times 3, the carry is the next one.
// The first digits of all bytes come first.
template <int kDigits>
inline uint8_t* read_ternary(const uint8_t* bytes, int count, uint8_t* codes) {
  uint8_t power = 1;
  for (int digit = 0; digit < kDigits; digit++, power *= 3)
    for (int i = 0; i < count; i++) *codes++ = uint8_t(uint8_t(bytes[i] * power) * 3 >> 8);
  return codes;
}

// The codes of a block, one a byte; they are zero before.
template <int kPacking>
inline void read_codes(const uint8_t* block, const uint8_t* codebook, uint8_t* __restrict__ codes) {
  if constexpr (is_lattice(kPacking))
    for (int eight = 0; eight < 32; eight++) {
      const uint64_t found = read_lattice<kPacking>(block, eight, codebook);
      memcpy(codes + 8 * eight, &found, 8);
    }
  if constexpr (kPacking == kTq1)
    read_ternary<4>(block + 48, 4, read_ternary<5>(block + 32, 16, read_ternary<5>(block, 32, codes)));
  if constexpr (kPacking == kTq2) fields<2, 2, 32>(block, 0, codes);
  if constexpr (kPacking == kNvfp4) fields<4, 4, 8>(block + 4, 0, codes);
  if constexpr (kPacking == kQ1_0) fields<1, 16, 1>(block + 2, 0, codes);
  if constexpr (kPacking == kQ2_0) fields<2, 16, 1>(block + 2, 0, codes);
  if constexpr (kPacking == kQ8_0 || kPacking == kInt8)
    for (int i = 0; i < kBlock; i++) codes[i] = block[2 + i] ^ 0x80;
  if constexpr (kPacking == kQ4_0 || kPacking == kIq4Nl || is_int4(kPacking))
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

// Where one row of the 16 has its scales and minima, before the codes of a superblock.
struct Place {
  uint8_t* super;
  int row;

  // The float16 at `from`, whose sign bit is flipped where `sign` is 0x80, as number `index`.
  void half(int index, const uint8_t* from, int sign = 0) const {
    uint8_t* to = super + kHalves * index + 2 * row;
    to[0] = from[0], to[1] = uint8_t(from[1] ^ sign);
  }
  // A byte, as number `index` of those that follow `halves` float16.
  void byte(int halves, int index, int value) const {
    super[kHalves * halves + kGroup * index + row] = uint8_t(value);
  }
};

// Half of an unsigned E4M3 as the bits of a float16; what is no number is 0, as in ggml.
inline uint16_t half_of_e4m3(uint8_t bits) {
  if (bits == 0x7f) return 0;
  // shifted, they are a float16 of 2 ** -8 of the value
  f16 found;
  round_to(128 * to_float(f16{uint16_t((bits & 0x7f) << 7)}), found);
  return found.bits;
}

// `zero` is the code that stands for 0, where the packing has one.
template <int kPacking>
inline void read_scales(const uint8_t* block, int zero, Place place) {
  if constexpr (kPacking <= kIq4Nl || kPacking == kIq4Xs) place.half(0, block);
  // minima are subtracted, while these formats add m: its sign changes
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
  if constexpr (is_int4(kPacking)) place.half(0, block), place.byte(1, 0, zero);
  if constexpr (is_lattice(kPacking) && kPacking != kIq1M) place.half(0, block);
  const auto odd = [&](int i, int scale) { place.byte(1, i, 2 * scale + 1); };
  if constexpr (kPacking == kIq2Xxs)
    for (int i = 0; i < 8; i++) odd(i, block[9 + 8 * i] >> 4);
  if constexpr (kPacking == kIq3Xxs)
    for (int i = 0; i < 8; i++) odd(i, block[69 + 4 * i] >> 4);
  if constexpr (kPacking == kIq2Xs || kPacking == kIq2S || kPacking == kIq3S) {
    const uint8_t* scales = block + (kPacking == kIq2Xs ? 66 : kPacking == kIq2S ? 74 : 106);
    for (int i = 0; i < (kPacking == kIq3S ? 8 : 16); i++) odd(i, scales[i / 2] >> 4 * (i % 2) & 15);
  }
  if constexpr (kPacking == kIq1S)
    for (int i = 0; i < 8; i++) odd(i, block[35 + 2 * i] >> 4 & 7);
  if constexpr (kPacking == kIq1M) {
    uint8_t d[2] = {};
    for (int i = 0; i < 4; i++) {
      const uint32_t word = word_at(block + 48 + 2 * i, 2);
      d[i / 2] |= uint8_t(word >> 12 << 4 * (i % 2));
      for (int j = 0; j < 4; j++) odd(4 * i + j, word >> 3 * j & 7);
    }
    place.half(0, d);
  }
  if constexpr (kPacking == kTq1) place.half(0, block + 52);
  if constexpr (kPacking == kTq2) place.half(0, block + 64);
  if constexpr (kPacking == kNvfp4)
    for (int i = 0; i < 4; i++) {
      const uint16_t half = half_of_e4m3(block[i]);
      place.half(i, (const uint8_t*)&half);
    }
  if constexpr (kPacking == kQ1_0 || kPacking == kQ2_0) place.half(0, block);
}

// Writes lines of a block from the codes of its 16 rows, `stride` bytes apart: of each code kBits bits from
// bit `from` on, as packings.hpp has them.
template <int kBits>
inline void write_fields(const uint8_t* codes, int stride, int from, uint8_t* __restrict__ out) {
  constexpr int kOfLine = 8 / kBits;
  for (int line = 0; line < kBits; line++)
    for (int row = 0; row < kGroup; row++) {
      uint32_t found = 0;
      for (int f = 0; f < kOfLine; f++) {
        uint32_t four;
        memcpy(&four, codes + row * stride + 4 * (line * kOfLine + f), 4);
        found |= (four >> from & ((1 << kBits) - 1) * 0x01010101u) << f * kBits;
      }
      memcpy(out + 64 * line + 4 * row, &found, 4);
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
        read_codes<kPacking>(block + i * kSource.bytes, call.codebook, codes + row * kColumns + i * kKept);
    }
    for (int i = 0; i < P::kBlocks; i++) {
      using Codes = typename P::Codes;
      uint8_t* lines = super + P::Scales::kBytes + i * Codes::kBytes;
      write_fields<Codes::kLow>(codes + i * kBlock, kColumns, 0, lines);
      if constexpr (Codes::kHigh)
        write_fields<Codes::kHigh>(codes + i * kBlock, kColumns, Codes::kLow, lines + 64 * Codes::kLow);
    }
  }
}

}  // namespace
