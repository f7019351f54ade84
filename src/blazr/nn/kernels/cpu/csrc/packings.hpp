// How packed weights lie in memory: scales and codes, combined freely into the packings.
//
// A matrix is groups of 16 rows, interleaved so that a vector lane is a row and nothing is added
// across lanes. A group is superblocks of 1 to 8 blocks, one after the other; a block is 32 columns
// of the 16 rows. A superblock holds what scales it, then the codes of its blocks:
//
//   [ scales, see below ][ codes of block 0 ][ codes of block 1 ] ...
//
// The codes of a block are eight vectors of 64 bytes; vector v holds columns 4v .. 4v+3:
//
//   [ r0: 4 columns | r1: 4 columns | ... | r15 ]
//
// of whole bytes, or of fields of 4, 2 or 1 bits: then line j holds vectors 2j and 2j+1, 4j to 4j+3, or all,
// the first in the lowest bits. Lines with the bits above these may follow, of all vectors in the same way.
//
// A number is scale * (code - offset) - minimum. The instructions multiply unsigned with signed
// bytes, hence the offset; it is taken off again with the sum of the activations.
#pragma once

#include <tuple>

#include "types.hpp"

namespace {

constexpr int kHalves = 2 * kGroup;  // bytes: a float16 for each row of a group

// Below I is Int8<Isa> of registers.hpp, which computes with the vectors that scales and codes are read as.

// ---- scales: what comes before the codes.

template <int kPartsOfBlock, bool kMinima, bool kWhole>
struct ScalesKind {
  static constexpr int kParts = kPartsOfBlock;  // of a block, which have a scale each
  static constexpr bool kHasMinima = kMinima, kAreWhole = kWhole;
};

// Scales of each row for a part, most of them the same for all blocks; a minimum may follow from it.

template <class I>
struct HalfScales : ScalesKind<1, false, false> {  // [ 16 float16 ]
  static constexpr int kBytes = kHalves;
  static typename I::Floats scale(const uint8_t* s, int) { return I::halves(s); }
};

template <class I, int kBlocks, int kPartsOfBlock>
struct HalfScalesOfParts : ScalesKind<kPartsOfBlock, false, false> {  // [ for each part: 16 float16 ]
  static constexpr int kBytes = kBlocks * kPartsOfBlock * kHalves;
  static typename I::Floats scale(const uint8_t* s, int part) { return I::halves(s + kHalves * part); }
};

template <class I>
struct HalfScalesAndMinima : ScalesKind<1, true, false> {  // [ 16 float16 ][ minima: 16 float16 ]
  static constexpr int kBytes = 2 * kHalves;
  static typename I::Floats scale(const uint8_t* s, int) { return I::halves(s); }
  static typename I::Floats minimum(const uint8_t* s, const typename I::Floats&) {
    return I::halves(s + kHalves);
  }
};

// [ 16 float16 ][ 16 uint8 ]; a minimum is scale * uint8
template <class I>
struct HalfScalesAndZeros : ScalesKind<1, true, false> {
  static constexpr int kBytes = kHalves + kGroup;
  static typename I::Floats scale(const uint8_t* s, int) { return I::halves(s); }
  static typename I::Floats minimum(const uint8_t* s, const typename I::Floats& scale) {
    return I::times(scale, I::floats(I::unsigned_bytes(s + kHalves)));
  }
};

template <class I>
struct Exponents : ScalesKind<1, false, false> {  // [ 16 uint8 e ]; a scale is half of 2 ** (e - 127)
  static constexpr int kBytes = kGroup;
  static typename I::Floats scale(const uint8_t* s, int) { return I::powers(s); }
};

template <class I>
struct NoScales : ScalesKind<1, false, false> {  // all are 1: rows are scaled at the end
  static constexpr int kBytes = 0;
  static typename I::Floats scale(const uint8_t*, int) { return I::all(1.0f); }
};

// Scales of parts that are whole numbers: products of a superblock are summed as integers, whose
// activations have one scale, too.

// [ 16 float16 d ][ for each part: 16 int8 ]; a scale is d / kUnits * int8
template <class I, int kPartsOfBlock, int kUnits = 1>
struct SignedScales : ScalesKind<kPartsOfBlock, false, true> {
  static constexpr int kBytes = kHalves + 8 * kPartsOfBlock * kGroup;
  static typename I::Floats together(const uint8_t* s) {
    const typename I::Floats d = I::halves(s);
    return kUnits == 1 ? d : I::times(d, I::all(1.0f / kUnits));
  }
  static typename I::Ints whole(const uint8_t* s, int part) {
    return I::signed_bytes(s + kHalves + kGroup * part);
  }
};

// [ 16 float16 d ][ 16 float16 m ][ parts: 16 uint8 ][ parts: 16 uint8 ]
template <class I, int kPartsOfBlock>
struct ScalesAndMinima : ScalesKind<kPartsOfBlock, true, true> {
  static constexpr int kBytes = 2 * (kHalves + 8 * kPartsOfBlock * kGroup);
  static typename I::Floats together(const uint8_t* s) { return I::halves(s); }
  static typename I::Ints whole(const uint8_t* s, int part) {
    return I::unsigned_bytes(s + 2 * kHalves + kGroup * part);
  }
  static const uint8_t* minima(const uint8_t* s, int part) {
    return s + 2 * kHalves + kGroup * (8 * kPartsOfBlock + part);
  }
};

// ---- codes: vector v of a block.

// kLow bits of each code lie together, and so do kHigh above them.
template <int kLowBits, int kHighBits = 0>
struct CodesKind {
  static constexpr int kLow = kLowBits, kHigh = kHighBits;
  static constexpr int kBytes = 64 * (kLow + kHigh);
};

template <class I>
struct Bytes : CodesKind<8> {
  static constexpr int kOffset = 128, kLargest = 255;
  static typename I::Line vector(const uint8_t* block, int v) { return I::load(block + 64 * v); }
};

template <class I, int kOff, int kLow, int kHigh = 0>
struct Fields : CodesKind<kLow, kHigh> {
  static constexpr int kOffset = kOff, kLargest = (1 << (kLow + kHigh)) - 1;
  static typename I::Line vector(const uint8_t* block, int v) {
    const typename I::Line low = field<kLow>(block, v, 0);
    if constexpr (kHigh == 0)
      return low;
    else
      return I::join(low, field<kHigh>(block + 64 * kLow, v, kLow));
  }
  // The field of a vector, moved to bit `to`.
  template <int kBits>
  static typename I::Line field(const uint8_t* lines, int v, int to) {
    constexpr int kOfLine = 8 / kBits;
    return I::shifted(I::load(lines + 64 * (v / kOfLine)), to - v % kOfLine * kBits,
                      ((1 << kBits) - 1) << to);
  }
};

// Codes that number the values of a table.
template <class I, class Table, int kLow = 4, int kHigh = 0>
struct Numbered : CodesKind<kLow, kHigh> {
  static constexpr int kOffset = Table::kOffset, kLargest = Table::kLargest;
  static typename I::Line vector(const uint8_t* block, int v) {
    return I::look_up(Table::kCodes, Fields<I, 0, kLow, kHigh>::vector(block, v));
  }
};

struct NonLinear {  // kvalues_iq4nl of ggml-common.h, plus 127: for IQ4_NL and IQ4_XS
  static constexpr int kOffset = 127, kLargest = 240;
  static constexpr uint8_t kCodes[16] = {0,   23,  44,  62,  78,  92,  105, 117,
                                         128, 140, 152, 165, 180, 196, 216, 240};
};

struct Float4 {  // E2M1 of OCP Microscaling Formats 1.0, doubled, plus 12
  static constexpr int kOffset = 12, kLargest = 24;
  static constexpr uint8_t kCodes[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                         12, 11, 10, 9,  8,  6,  4,  0};
};

struct Sign {  // 1 for a bit that is set, else -1; plus 1
  static constexpr int kOffset = 1, kLargest = 2;
  static constexpr uint8_t kCodes[16] = {0, 2};
};

// Digits of codebooks with a bit above them (see nn/operands/packing.py), plus the largest value. Seven is
// the most of a code of three bits.
struct Lattice1 {  // of the IQ1 types
  static constexpr int kOffset = 9, kLargest = 18;
  static constexpr uint8_t kCodes[16] = {2, 10, 18, 9, 0, 8, 16, 9};
};

struct Lattice2 {  // of the IQ2 types
  static constexpr int kOffset = 43, kLargest = 86;
  static constexpr uint8_t kCodes[16] = {51, 68, 86, 43, 35, 18, 0, 43};
};

struct Lattice3Xxs {
  static constexpr int kOffset = 62, kLargest = 124;
  static constexpr uint8_t kCodes[16] = {66, 74, 82, 90, 98, 106, 114, 124, 58, 50, 42, 34, 26, 18, 10, 0};
};

struct Lattice3S {
  static constexpr int kOffset = 15, kLargest = 30;
  static constexpr uint8_t kCodes[16] = {16, 18, 20, 22, 24, 26, 28, 30, 14, 12, 10, 8, 6, 4, 2, 0};
};

template <class I, int kBlocksOfSuperblock, class ScalesOf, class CodesOf>
struct PackingOf {
  using Scales = ScalesOf;
  using Codes = CodesOf;
  static constexpr int kBlocks = kBlocksOfSuperblock;
  static_assert(kBlocks <= kMaxSuperblock);
  static constexpr int64_t kBytes = Scales::kBytes + kBlocks * Codes::kBytes;
};

// By number, as `Packing` of kernels.hpp has them.
template <class I>
using Packings = std::tuple<
    PackingOf<I, 1, HalfScales<I>, Bytes<I>>,                           // Q8_0
    PackingOf<I, 1, HalfScales<I>, Fields<I, 8, 4>>,                    // Q4_0
    PackingOf<I, 1, HalfScalesAndMinima<I>, Fields<I, 0, 4>>,           // Q4_1
    PackingOf<I, 1, HalfScales<I>, Fields<I, 16, 4, 1>>,                // Q5_0
    PackingOf<I, 1, HalfScalesAndMinima<I>, Fields<I, 0, 4, 1>>,        // Q5_1
    PackingOf<I, 1, HalfScales<I>, Numbered<I, NonLinear>>,             // IQ4_NL
    PackingOf<I, 1, Exponents<I>, Numbered<I, Float4>>,                 // MXFP4
    PackingOf<I, 8, SignedScales<I, 1>, Numbered<I, NonLinear>>,        // IQ4_XS
    PackingOf<I, 8, ScalesAndMinima<I, 2>, Fields<I, 0, 2>>,            // Q2_K
    PackingOf<I, 8, SignedScales<I, 2>, Fields<I, 4, 2, 1>>,            // Q3_K
    PackingOf<I, 8, ScalesAndMinima<I, 1>, Fields<I, 0, 4>>,            // Q4_K
    PackingOf<I, 8, ScalesAndMinima<I, 1>, Fields<I, 0, 4, 1>>,         // Q5_K
    PackingOf<I, 8, SignedScales<I, 2>, Fields<I, 32, 4, 2>>,           // Q6_K
    PackingOf<I, 1, NoScales<I>, Bytes<I>>,                             // int8
    PackingOf<I, 1, HalfScalesAndZeros<I>, Fields<I, 0, 4>>,            // int4 by 32
    PackingOf<I, 2, HalfScalesAndZeros<I>, Fields<I, 0, 4>>,            // by 64
    PackingOf<I, 4, HalfScalesAndZeros<I>, Fields<I, 0, 4>>,            // by 128
    PackingOf<I, 8, SignedScales<I, 1, 8>, Numbered<I, Lattice2, 2, 1>>,  // IQ2_XXS
    PackingOf<I, 8, SignedScales<I, 2, 8>, Numbered<I, Lattice2, 2, 1>>,  // IQ2_XS
    PackingOf<I, 8, SignedScales<I, 2, 8>, Numbered<I, Lattice2, 2, 1>>,  // IQ2_S
    PackingOf<I, 8, SignedScales<I, 1, 4>, Numbered<I, Lattice3Xxs>>,   // IQ3_XXS
    PackingOf<I, 8, SignedScales<I, 1>, Numbered<I, Lattice3S>>,        // IQ3_S
    PackingOf<I, 8, SignedScales<I, 1, 8>, Numbered<I, Lattice1, 2, 1>>,  // IQ1_S
    PackingOf<I, 8, SignedScales<I, 2, 8>, Numbered<I, Lattice1, 2, 1>>,  // IQ1_M
    PackingOf<I, 8, HalfScales<I>, Fields<I, 1, 2>>,                    // TQ1_0
    PackingOf<I, 8, HalfScales<I>, Fields<I, 1, 2>>,                    // TQ2_0
    PackingOf<I, 2, HalfScalesOfParts<I, 2, 2>, Numbered<I, Float4>>,   // NVFP4
    PackingOf<I, 4, HalfScales<I>, Numbered<I, Sign, 1>>,               // Q1_0
    PackingOf<I, 2, HalfScales<I>, Fields<I, 1, 2>>>;                   // Q2_0

}  // namespace
