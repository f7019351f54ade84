// What the library asks of each instruction set. One object file per set fills a table of these.
#pragma once

#include <cstdint>

enum Dtype : int { kBf16 = 0, kF16 = 1, kF32 = 2, kNumDtypes = 3 };

// y = x @ w.T + bias, or y = silu(x @ w.T) * (x @ w2.T) where w2 is given.
//
//            k ->                    k ->                     n ->
//   m  [ x x x x x x x ]    n  [ w w w w w w w ]     m  [ y y y y ]
//   |  [ x x x x x x x ]    |  [ w w w w w w w ]     |  [ y y y y ]
//
// Rows of w are as the file has them, ldw numbers apart; x and y are dense.
struct Linear {
  const void* x;
  const void* w;
  const void* w2;    // or null
  const void* bias;  // (n) or null
  void* y;
  int64_t dtype, m, n, k, ldw;
};

// The part of a Linear that one task computes: rows [m0, m1) and columns [n0, n1) of y.
using LinearPart = void (*)(const Linear& call, int64_t m0, int64_t m1, int64_t n0, int64_t n1);

// A part has up to kFewRows rows and kFewColumns columns, or more rows and kManyColumns columns.
inline constexpr int64_t kFewRows = 24, kFewColumns = 128, kManyColumns = 256;
// Plain weights: up to here a part takes its rows in groups of few, all but the first from the cache.
inline constexpr int64_t kStillFew = 4 * kFewRows;

// Activations as int8: q (m, k), for each row and block of 32 a scale, and for each half of a block
// the sum of its q.
struct Activations {
  int8_t* q;
  float* scales;
  int32_t* sums;
  int64_t m, k;
};

// See packings.hpp.
struct PackedMatrix {
  const uint8_t* blocks;
  const float* row_scales;  // (n), or null
};

struct PackedLinear;

// Rounds columns [n0, n1) of a row of y from their sums.
using Finish = void (*)(const PackedLinear& call, int64_t row, int64_t n0, int64_t n1, float* sums,
                        float* ups);

// As Linear, with packed weights.
struct PackedLinear {
  const void* activations;
  PackedMatrix w, w2;  // w2.blocks may be null
  const void* bias;    // (n) or null
  void* y;
  void* room;  // m * k * 11 / 8 bytes, aligned to 4
  int64_t packing, dtype, m, n, k;
  // filled in by the library:
  Activations x;
  Finish finish;
};

// Rows ids[0 .. m) of a packed matrix with k columns, into y (m, k).
struct PackedRows {
  PackedMatrix w;
  const int64_t* ids;
  void* y;
  int64_t packing, dtype, m, k;
};

// Rows ids[0 .. m) of a plain matrix, `bytes` each and `stride` bytes apart, into y.
struct Rows {
  const void* w;
  const int64_t* ids;
  void* y;
  int64_t m, bytes, stride;
};

// Fills one row of call.x.
using Quantize = void (*)(const PackedLinear& call, int64_t row);

// By number; packings.hpp draws them.
enum Packing : int {
  kQ8_0, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kIq4Nl, kMxfp4, kIq4Xs, kQ2K, kQ3K, kQ4K, kQ5K, kQ6K,
  kInt8, kInt4By32, kInt4By64, kInt4By128, kNumPackings
};

// Blocks as files have them, a row after the other, into a packing (see pack.hpp).
struct Pack {
  const uint8_t* blocks;  // (rows, supers, bytes of the blocks of a superblock)
  const uint8_t* zeros;   // (rows, supers): the code of 0 of int4; null for 8
  uint8_t* out;           // (rows / 16 rounded up, supers, bytes of a superblock)
  int64_t packing, rows, supers;
};

// One group of 16 rows, by packing; the same for every instruction set.
extern void (*const pack_groups[kNumPackings])(const Pack& call, int64_t group);

// Plain numbers into blocks (see encode.hpp).
struct Encode {
  const float* x;  // (blocks, 256)
  uint8_t* out;    // (blocks, bytes of a block)
  int64_t blocks;
};

struct PackedKernel {
  // Rows [m0, m1) and groups [g0, g1) of 16 columns of y.
  void (*part)(const PackedLinear& call, int64_t m0, int64_t m1, int64_t g0, int64_t g1);
  // One of the 16 rows of a superblock as plain numbers.
  void (*unpack)(const uint8_t* superblock, int lane, float* out);
  int64_t bytes, columns;  // of a superblock
};

// What a step computes of one sequence: `length` tokens from row `first` of the packed batch, with
// `start` in memory before them, `log_length` of these since the checkpoint in `state_slot`. Row
// `run_slot` of the logs is the sequence's. States are written where `checkpoints` says.
struct Span {
  int64_t first, length, start, log_length, state_slot, run_slot, checkpoints, num_checkpoints;
};

// A state to be kept: after so many tokens of this step, in this slot.
struct Checkpoint {
  int64_t distance, slot;
};

// The Mamba-2 mixer between its projections (see mamba2.hpp). Numbers without a type here are in
// the dtype of proj.
struct Mamba2 {
  const void* proj;          // (T, inner + conv + heads)
  void* post;                // (T, conv), room
  float* y;                  // (T, inner), room
  float* dt;                 // (T, heads), room
  void* out;                 // (T, inner)
  const float* conv_weight;  // (taps, conv)
  const float* conv_bias;    // (conv)
  const float* dt_bias;      // (heads)
  const float* a;            // (heads), negative
  const float* d;            // (heads)
  const float* norm_weight;  // (inner)
  float* states;             // (slots, heads, head_dim, state_size)
  void* conv_states;         // (slots, taps - 1, conv)
  void* log_raw;             // (runs, 64, conv)
  void* log_xb;              // (runs, 64, inner + maps)
  float* log_dt;             // (runs, 64, heads)
  const Span* spans;
  const Checkpoint* checkpoints;
  int64_t num_spans, num_tokens, longest;
  int64_t heads, head_dim, state_size, groups, taps;
  int64_t state_stride, conv_state_stride;  // numbers from one slot to the next
  int64_t dtype;
  float dt_min, dt_max, eps;

  int64_t inner() const { return heads * head_dim; }
  int64_t maps() const { return groups * state_size; }
  int64_t conv() const { return inner() + 2 * maps(); }
  int64_t ld_proj() const { return inner() + conv() + heads; }
};

// What mamba2.hpp has room for; larger models run on the reference.
inline constexpr int64_t kMaxTaps = 8, kMaxHeadDim = 128, kMaxStateSize = 256, kHeadsTogether = 4;

struct Mamba2Parts {
  // Rows [t0, t1) of a sequence.
  void (*convolve)(const Mamba2& call, const Span& span, int64_t t0, int64_t t1);
  // Heads [h0, h1) of a sequence, at most kHeadsTogether, of one group.
  void (*recur)(const Mamba2& call, const Span& span, int64_t h0, int64_t h1);
  void (*finish)(const Mamba2& call, int64_t token);
  void (*remember)(const Mamba2& call, const Span& span);
};

// Attention over pages (see attention.hpp).
struct Attention {
  const void* q;                // (T, heads, key_sizes[0] + key_sizes[1])
  const void* keys[2];          // (pages, 64, kv_heads, key_sizes[i])
  const void* values;           // (pages, 64, kv_heads, value_size)
  void* out;                    // (T, heads, value_size)
  const float* sinks;           // (heads) or null
  const int64_t* block_tables;  // (sequences, table_stride)
  const Span* spans;
  int64_t key_sizes[2], value_size, table_stride;
  int64_t key_strides[2], value_stride;  // numbers from one page to the next
  int64_t num_spans, longest, heads, kv_heads;
  int64_t window;  // tokens, or 0
  int64_t dtype;
  float scale, softcap;
};

// What attention.hpp has room for.
inline constexpr int64_t kMaxKey = 576, kMaxValue = 512, kQueriesTogether = 8;

// Queries [first, first + count) of sequence `span` and one key/value head, at most
// kQueriesTogether; query i is head i % group of token i / group.
using AttentionPart = void (*)(const Attention& call, int64_t span, int64_t kv_head, int64_t first,
                               int64_t count);

// RMSNorm or LayerNorm of rows (see rows.hpp).
struct Norm {
  const void* x;       // (m / inner, inner, size): rows side by side, `stride` numbers from one
                       // lot of `inner` to the next
  const void* weight;  // (size)
  const void* bias;    // (size): LayerNorm; null: RMSNorm
  void* out;           // (m, size)
  int64_t dtype, m, inner, size, stride;
  float eps;
  int unit_offset;  // whether the weight is stored less one
};

// Rows [m0, m1) of a norm.
using NormPart = void (*)(const Norm& call, int64_t m0, int64_t m1);

// Rotation of queries and keys; keys and values go to their places in the pages (see rows.hpp).
// A token's heads lie side by side; strides are numbers from token to token, or page to page.
struct Rotary {
  const void* q;         // (T, heads, key_size)
  const void* k;         // (T, kv_heads, key_size)
  const void* v;         // (T, kv_heads, value_size)
  const float* cos;      // (T, pairs)
  const float* sin;      // (T, pairs)
  const int64_t* slots;  // (T), page * 64 + place
  void* out;             // (T, heads, key_size), the queries
  void* keys;            // (pages, 64, kv_heads, key_size)
  void* values;          // (pages, 64, kv_heads, value_size)
  int64_t tokens, heads, kv_heads, key_size, value_size, pairs;
  int64_t q_stride, k_stride, v_stride, key_page, value_page;
  int64_t interleaved;  // whether the channels of a pair lie side by side
  int64_t dtype;
};

// Tokens [t0, t1).
using RotaryPart = void (*)(const Rotary& call, int64_t t0, int64_t t1);

// Cosine and sine of position * frequency, times the factor.
struct Angles {
  const float* frequencies;  // (pairs)
  const int64_t* positions;  // (tokens)
  float* out;                // (2, tokens, pairs)
  int64_t tokens, pairs;
  float factor;
};

// What is done to each number alone (see pointwise.hpp).
enum PointwiseKind : int {
  kAdd,       // a + b * scale
  kScale,     // a * scale
  kWiden,     // a, divided by `scale` and capped at `cap` unless these are 1 and 0, as float32
  kSilu, kGelu, kGeluTanh, kRelu, kRelu2,  // of a, times b if given
  kSigmoid,   // a * sigmoid(b)
  kNumPointwise
};

// Rows lie `..._stride` numbers apart; out is dense.
struct Pointwise {
  const void* a;  // (m, n)
  const void* b;  // (m, n) or null
  void* out;      // (m, n)
  int64_t kind, dtype, m, n, a_stride, b_stride;
  float scale, cap;
};

// Rows [m0, m1), columns [n0, n1).
using PointwisePart = void (*)(const Pointwise& call, int64_t m0, int64_t m1, int64_t n0, int64_t n1);

// A call that was made, to be made again.
struct Recorded {
  void (*run)(const void* call, int threads);
  const void* call;
};

struct Kernels {
  LinearPart linear[kNumDtypes];
  Quantize quantize[kNumDtypes];
  Finish finish[kNumDtypes];
  PackedKernel packed[kNumPackings];
  void (*encode_q4_k)(const Encode& call, int64_t first);
  Mamba2Parts mamba2[kNumDtypes];
  AttentionPart attention[kNumDtypes];
  NormPart norm[kNumDtypes];
  RotaryPart rotate[kNumDtypes];
  PointwisePart pointwise[kNumDtypes];
};

extern const Kernels kernels_portable;
#if defined(__x86_64__)
extern const Kernels kernels_avx2, kernels_avx512;
#endif
