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
  int64_t wide;  // whether y is float32, whatever the dtype
};

// The part of a Linear that one task computes: rows [m0, m1) and columns [n0, n1) of y.
using LinearPart = void (*)(const Linear& call, int64_t m0, int64_t m1, int64_t n0, int64_t n1);

// A part has up to kFewRows rows and kFewColumns columns, or kManyRows rows and kManyColumns columns.
inline constexpr int64_t kFewRows = 24, kFewColumns = 128, kManyRows = 120, kManyColumns = 256;
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
  const void* b;  // (m, n), or (m, 1) where b_step is 0 (kSigmoid alone), or null
  void* out;      // (m, n)
  int64_t kind, dtype, m, n, a_stride, b_stride, b_step;
  float scale, cap;
};

// Rows [m0, m1), columns [n0, n1).
using PointwisePart = void (*)(const Pointwise& call, int64_t m0, int64_t m1, int64_t n0, int64_t n1);

// How scores are made of a router's logits.
enum Scoring : int { kSoftmaxOfAll, kSigmoidOfEach, kSoftmaxOfChosen };

// The choice of experts (see experts.hpp); best first.
struct Route {
  const float* logits;  // (m, experts)
  const float* bias;    // (experts), added to the scores for the choice, or null
  float* weights;       // (m, top)
  int64_t* ids;         // (m, top)
  float* room;          // (m, 3 * experts + 1)
  int64_t m, experts, top, scoring, normalize;
  int64_t groups, kept, judged_by;  // groups is 0 where all may be chosen
  float scale;
};

using RouteToken = void (*)(const Route& call, int64_t token);

// Matrices of all experts: plain, or packed.
struct ExpertStack {
  const void* w;            // or null
  const float* row_scales;  // (experts, n), or null
  const void* bias;         // (experts, n), or null
  int64_t packing;          // or -1
  int64_t stride, ldw;      // bytes from one expert to the next; numbers from row to row
  int64_t n;
};

enum Fused : int { kNotFused, kHalves, kInterleaved };

// Experts' MLPs (see experts.hpp). There are m * top rows, ordered by expert.
struct Experts {
  const void* x;         // (m, k)
  const int64_t* ids;    // (m, top)
  const float* weights;  // (m, top)
  ExpertStack gate;      // n = inner, or none
  ExpertStack up;        // n = inner, or twice as many with the gate's among them
  ExpertStack down;      // n = k
  void* y;               // (m, k)
  int64_t* table;        // room for 2 * (rows + experts + 1)
  void* x_rows;          // (rows, k), room
  float* sums;           // (rows, what is the most of inner, k and, unless usual, 2 * inner), room
  void* hidden;          // (rows, inner), room
  void* int8_room;       // rows * (the larger of k and inner) * 11 / 8 bytes, aligned to 4
  int64_t dtype, m, top, k, inner, experts;
  int64_t activation;    // of PointwiseKind
  int64_t fused;         // how gate and up lie in one matrix
  float alpha, limit;    // of the clamped form; limit is 0 for the others

  int64_t rows() const { return m * top; }
  // Row r is of token order()[r] / top; its expert's rows begin at first()[expert].
  int64_t* order() const { return table; }
  int64_t* place() const { return table + rows(); }
  int64_t* first() const { return table + 2 * rows(); }
  int64_t* tasks() const { return first() + experts + 1; }
};

struct ExpertsParts {
  void (*hidden)(const Experts& call, int64_t row);
  void (*combine)(const Experts& call, int64_t token);
};

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
  Mamba2Parts mamba2[kNumDtypes];
  AttentionPart attention[kNumDtypes];
  NormPart norm[kNumDtypes];
  RotaryPart rotate[kNumDtypes];
  PointwisePart pointwise[kNumDtypes];
  RouteToken route;
  ExpertsParts experts[kNumDtypes];
};

extern const Kernels kernels_portable;
#if defined(__x86_64__)
extern const Kernels kernels_avx2, kernels_avx512;
#endif
