// What the library asks of each instruction set. One object file per set fills a table of these.
//
// Matrices are row-major, shapes in brackets. A number is an element, whatever its dtype; strides are in
// numbers, unless a comment says bytes. `void*` is to numbers of the call's dtype, unless a comment says
// otherwise. Letters:
//
//   T        tokens of a step, those of one sequence after the other ("the packed batch")
//   m, n, k  rows of x and y; rows of w, columns of y; columns of x and w
//   ld...    numbers from one row of a matrix to the next
//
//   room     memory that a call may use for itself; what it holds before and after means nothing
//   page     64 tokens' keys and values (or latents)
//   slot     a place for what is kept of a sequence at a grid edge, every 64 tokens from position 0
//   run      a place for what a running sequence has beside that: its log, the rows of the tokens since
//            that edge, and its working states
#pragma once

#include <cstdint>

enum Dtype : int { kBf16 = 0, kF16 = 1, kF32 = 2, kNumDtypes = 3 };

// How keys, values and latents lie in pages: in the dtype of the call, or as stored.hpp says.
enum Stored : int { kPlain = 0, kStoredQ8_0 = 1, kStoredFp8 = 2, kNumStored = 3 };

// What one adapter changes in a matrix (n, k): y becomes (y + inner @ b) * gain, before the bias.
struct LoraEntry {
  const void* a;      // (rank, k), or of an embedding (vocabulary, rank)
  const void* b;      // (rank, n), scaled, in groups of columns: (n / kGroup rounded up, rank, kGroup)
  const float* gain;  // (n), or null for 1
  int64_t rank;       // 0 where the adapter leaves the matrix as it is
};

// What adapters add to a product before it is rounded; slots of rows without an adapter have rank 0. A slot
// stands for `repeat` rows, which are the same token's.
struct Lora {
  const LoraEntry* entries;  // by slot
  const int64_t* slots;      // (m / repeat): whose adapter each row takes; null adds nothing
  const float* inner;        // (m, stride): x @ a.T
  int64_t repeat, stride;
};

// y = x @ w.T + bias, or y = silu(x @ w.T) * (x @ w2.T) where w2 is given; where a residual is, this
// rounded, times `scale`, and added to it. Adapters change both products.
//
//            k ->                    k ->                     n ->
//   m  [ x x x x x x x ]    n  [ w w w w w w w ]     m  [ y y y y ]
//   |  [ x x x x x x x ]    |  [ w w w w w w w ]     |  [ y y y y ]
//
// Rows of w are as the file has them; those of each matrix lie ldw, ldx and ldy numbers apart.
struct Linear {
  const void* x;
  const void* w;
  const void* w2;    // or null
  const void* bias;  // (n) or null
  void* y;
  int64_t dtype, m, n, k, ldw, ldx, ldy;
  int64_t wide;  // whether y is float32, whatever the dtype of x and w
  const void* residual;  // lies as y does; or null
  float scale;
  Lora lora, lora2;
};

// lora.inner for rows of x, or for rows `ids` of an embedding.
struct LoraShrink {
  const void* x;       // (m, k); null with ids
  const int64_t* ids;  // (m), or null
  const LoraEntry* entries;
  const int64_t* slots;
  float* inner;
  int64_t dtype, m, k, ldx, repeat, stride;
};

// What adapters change in a product y that was rounded without them.
struct LoraExpand {
  void* y;           // (m, n)
  const void* bias;  // (n), part of y already; or null
  Lora lora;
  int64_t dtype, m, n;
};

// The same head by head, y[:, h] = x[:, h] @ w[h].T.
struct LinearHeads {
  Linear first;  // the first head's; without w2, bias and residual
  int64_t heads, w_head, x_head, y_head;  // numbers from one head to the next, of w, x and y
};

// What one thread computes of y at a time, a part, has up to kFewRows rows and kFewColumns columns where x
// has few rows, and else up to kManyRows rows and kManyColumns columns.
inline constexpr int64_t kFewRows = 24, kFewColumns = 128, kManyRows = 120, kManyColumns = 256;
// Up to so many rows of x, plain weights are read from memory once: a part has all rows, which meet its rows
// of w kFewRows at a time, and all but the first of these groups find them in the cache.
inline constexpr int64_t kOnePassRows = 4 * kFewRows;
// Bytes of packed w that a part goes through again for every few of its rows of x: half of a usual second
// cache.
inline constexpr int64_t kManyBytes = 512 << 10;
// How many bytes ahead of their products plain weights are prefetched into the first cache (library.cpp).
extern const int64_t kFetchedAhead;

// Packed weights are superblocks of kGroup rows by 1 to kMaxSuperblock blocks of kBlock columns (see
// packings.hpp).
inline constexpr int kGroup = 16, kBlock = 32, kMaxSuperblock = 8;

// 32 activations as int8: x = scale * q. Weights are scale * (code - offset) - minimum, so that products
// with codes alone are corrected by sums of q. Which of them the union holds depends on the packing:
struct Int8Block {
  int8_t q[kBlock];
  float scale;
  union {
    int32_t offset[2];  // codes with an offset: minus that times the sum of q, of each part with a scale
    float minimum;      // a minimum for each block: the activations' scale times the sum of q
    int16_t sums[2];    // minima for the parts of a superblock: the sum of q of part p lies in sums[p % 2]
                        // of the superblock's block p / 2, whichever block the part is of
  };
};
static_assert(sizeof(Int8Block) == 44);  // callers allocate 11 / 8 bytes for each activation

// Rows of k activations for one packing.
struct Activations {
  Int8Block* blocks;
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
  void* room;  // m * k / 32 Int8Blocks, that is m * k * 11 / 8 bytes, aligned to 4
  int64_t packing, dtype, m, n, k;
  const void* residual;  // (m, n) or null
  float scale;
  Lora lora, lora2;
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

// Rows cut into pieces of one size, in another order: piece i of a row of `out` is piece order[i] of x's.
struct Pieces {
  const void* x;
  const int64_t* order;  // (count)
  void* out;  // dense
  int64_t m, count, bytes;   // rows; pieces of a row; of a piece
  int64_t x_stride, stride;  // bytes from row to row of x, and from piece to piece
};

// By number; packings.hpp draws them.
enum Packing : int {
  kQ8_0, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kIq4Nl, kMxfp4, kIq4Xs, kQ2K, kQ3K, kQ4K, kQ5K, kQ6K,
  kInt8, kInt4By32, kInt4By64, kInt4By128,
  kIq2Xxs, kIq2Xs, kIq2S, kIq3Xxs, kIq3S, kIq1S, kIq1M, kTq1, kTq2, kNvfp4,
  kQ1_0, kQ2_0, kNumPackings
};

// Blocks as files have them, a row after the other, into a packing (see pack.hpp). A row has `supers`
// superblocks.
struct Pack {
  const uint8_t* blocks;  // (rows, supers, bytes of the blocks of a superblock)
  const uint8_t* zeros;   // (rows, supers): the code of 0 of int4; null for 8
  const uint8_t* codebook;  // of the IQ1 to IQ3 types: rows of 8 digits, or of 4 with IQ3; null for others
  uint8_t* out;           // (rows / 16 rounded up, supers, bytes of a superblock)
  int64_t packing, rows, supers;
};

// Plain numbers into blocks of Q4_K (see encode.hpp).
struct Encode {
  const float* x;  // (blocks, 256)
  uint8_t* out;    // (blocks, 144)
  int64_t blocks;
};

// Rows of a matrix of small floats as plain numbers (see floats.hpp).
struct DecodeFloats {
  const uint8_t* numbers;  // (rows, k), or (rows, k / 2) where a byte holds two
  const void* scales;      // of all blocks of the matrix, (.., k / width rounded up)
  const float* whole;      // what scales are multiplied with, or divided by; null for 1
  const float* table;      // the sixteen numbers that four bits stand for; else null
  void* out;               // (rows, k)
  int64_t format, scale_format, dtype;
  int64_t rows, first, k;          // `first` is the first row's number in the matrix
  int64_t height, width;           // of a block
  int64_t is_divided;
};
enum FloatFormat : int { kE4M3, kE5M2, kFourBits };
enum ScaleFormat : int { kFloat32, kBFloat16, kFloat16, kE8M0, kScaleE4M3 };

// A way to compute products with packed weights. All ways give the same bits.
struct PackedWay {
  int64_t least;  // rows of x from which on it is faster than others
  // Rows [m0, m1) and groups [g0, g1) of 16 columns of y.
  void (*part)(const PackedLinear& call, int64_t m0, int64_t m1, int64_t g0, int64_t g1);
  int64_t rows, columns, bytes;  // what a part has at most: of y, and of w if more than a group
};
inline constexpr int64_t kAnyBytes = INT64_MAX;

struct PackedKernel {
  PackedWay ways[3];  // for ever more rows of x; the last may be missing
  // A group of 16 rows into a packing.
  void (*pack)(const Pack& call, int64_t group);
  // One of the 16 rows of a superblock as plain numbers.
  void (*unpack)(const uint8_t* superblock, int lane, float* out);
  int64_t bytes, columns;  // of a superblock
  // For Int8Block: blocks that are rounded together, parts of a block, minima, the codes' offset.
  int64_t together, parts, has_minima, offset;
};

inline constexpr int64_t kGrid = 64;  // tokens from one grid edge to the next

// What a step computes of one sequence: `length` tokens, whose rows of the packed batch begin at `first`.
struct Span {
  int64_t first, length;
  int64_t start;       // tokens of the sequence that are in memory before them
  int64_t log_length;  // of these, those since the last grid edge, which are in the log
  int64_t state_slot;  // where what was kept at that edge lies
  int64_t run_slot;    // the sequence's log is this row of the logs
  int64_t checkpoints, num_checkpoints;  // its checkpoints are so many from this one of the step's on
  // Its working states are read from row run_slot + working_from, and written to run_slot + working_to.
  int64_t working_from, working_to;

  // Call log(t, row) for each of its tokens behind the last grid edge: token t goes to that row of
  // the sequence's log.
  template <class Log>
  void in_log(const Log& log) const {
    const int64_t total = log_length + length, edge = total / kGrid * kGrid;
    for (int64_t at = edge > log_length ? edge : log_length; at < total; at++)
      log(at - log_length, at - edge);
  }
};

// A state to be kept: after so many tokens of this step, in this slot.
struct Checkpoint {
  int64_t distance, slot;
};

// A state that sequences carry from step to step: as it was at grid edges (kept), and after the last token
// (working). Where it is kept as bfloat16, it is rounded to that at every grid edge, also where no
// checkpoint is kept, so that results do not depend on which are.
struct Carried {
  void* kept;      // (slots, ...), float32 or bfloat16
  float* working;  // (runs, ...)
  int64_t kept_stride, working_stride;  // numbers from one to the next
  int64_t dtype;                        // of what is kept
};

// Inputs of a causal convolution: the last ones before a grid edge, and those since.
struct Window {
  void* kept;  // (slots, taps - 1, channels)
  void* log;   // (runs, 64, channels)
  int64_t kept_slot, kept_row, log_run, log_row;  // numbers from one to the next
};

// The sequences of a step.
struct Sequences {
  const Span* spans;
  const Checkpoint* checkpoints;
  int64_t num_spans, num_tokens, longest;
};

// Rows of tokens that go to the sequences' logs.
struct LogRows {
  const void* x;  // (T, n)
  void* log;      // (runs, 64, n)
  Sequences sequences;
  int64_t bytes, x_stride;  // of a row; from row to row of x
};

// Beside each token's row the hidden state of the token before, which for the first of a sequence is
// in its log, in the row of its position modulo kGrid; zeros before the first of all.
struct JoinPrevious {
  const void* x;       // (T, n)
  const void* hidden;  // (T, n)
  const void* log;     // (runs, 64, n)
  void* out;           // (T, 2 n)
  Sequences sequences;
  int64_t bytes, x_stride, hidden_stride;  // of a row; from row to row
};

// The hidden states of a step's tokens to their rows of the log.
struct KeepLast {
  const void* hidden;  // (T, n)
  void* log;           // (runs, 64, n)
  Sequences sequences;
  int64_t bytes, hidden_stride;  // of a row; from row to row
};

// How a recurrence's output y is gated and normalised (see gated_norm.hpp).
enum GatedNorm : int {
  kGateFirst,    // norm(y * silu(gate))
  kNormFirst,    // norm(y) * silu(gate)
  kNormSigmoid,  // norm(y) * sigmoid(gate)
  kGateOnly,     // y * silu(gate)
  kUngated       // y
};

// The Mamba-2 mixer between its projections (see mamba2.hpp). Numbers without a type here are in
// the dtype of proj.
struct Mamba2 {
  void* proj;                // (T, inner + conv + heads); multiplied in place
  void* post;                // (T, conv), room
  float* y;                  // (T, inner), room
  float* dt;                 // (T, heads), room
  void* out;                 // (T, inner)
  const float* conv_weight;  // (taps, conv); null where there are none
  const float* conv_bias;    // (conv), or null
  const float *dt_bias, *a, *d;  // (heads); a is negative
  const float* norm_weight;  // (inner), or null where there is no norm
  const float* multipliers;  // (inner + conv + heads), of proj, or null
  void* states;              // (slots, heads, head_dim, state_size), in state_dtype; see Carried
  void* conv_states;         // (slots, taps - 1, conv), or null
  void* log_raw;             // (runs, 64, conv), or null
  void* log_xb;              // (runs, 64, inner + maps)
  float* log_dt;             // (runs, 64, heads)
  Sequences sequences;
  int64_t heads, head_dim, state_size, groups, taps;
  int64_t state_stride, conv_state_stride;  // numbers from one slot to the next
  int64_t dtype, state_dtype, norm, norm_groups;
  float dt_min, dt_max, eps;

  int64_t inner() const { return heads * head_dim; }
  int64_t maps() const { return groups * state_size; }
  int64_t conv() const { return inner() + 2 * maps(); }
  int64_t ld_proj() const { return inner() + conv() + heads; }
};

// What mamba2.hpp has room for; larger models run on the reference.
inline constexpr int64_t kMaxTaps = 8, kMaxHeadDim = 128, kMaxStateSize = 256, kHeadsTogether = 4;

// A causal convolution (see convolution.hpp); gates lie as x does.
struct Convolution {
  const void* x;         // (T, channels)
  const void* in_gate;   // x is multiplied with it; or null
  const void* out_gate;  // the result is; or null
  void* out;             // (T, channels)
  const float* weight;   // (taps, channels)
  const float* bias;     // (channels)
  Window window;
  Sequences sequences;
  int64_t channels, taps, dtype, silu;
  int64_t x_stride, out_stride;  // numbers from row to row
};

// The recurrence of Mamba-1, and its gate (see mamba1.hpp).
struct Mamba1 {
  const void *u, *dt;  // (T, inner), dt before softplus
  const void *b, *c;   // (T, state_size)
  const void* gate;  // (T, inner)
  void* out;         // (T, inner)
  const float* a;    // (inner, state_size)
  const float* d;    // (inner)
  Carried state;     // (inner, state_size)
  Sequences sequences;
  int64_t inner, state_size, dtype;
  int64_t b_stride, c_stride, gate_stride;  // numbers from row to row
  float limit;                              // of a number of the state, or 0
};

inline constexpr int64_t kChannelsTogether = 16;  // what mamba1.hpp has room for

// Mamba-3's recurrence (see mamba3.hpp).
struct Mamba3 {
  const void* x;        // (T, heads, width)
  const void *b, *c;    // (T, groups, state_size)
  const void *dt, *mix; // (T, heads), before softplus and sigmoid
  const void* theta;    // (T, heads, state_size / 2), or null
  void* out;            // (T, heads, width)
  const float* norm;    // (state_size)
  const float *b_bias, *c_bias;   // (heads, state_size)
  const float *dt_bias, *a, *d;   // (heads); a is negative
  // (heads, width, state_size), (heads, width), (heads, state_size), (heads, state_size / 2)
  Carried state, x_before, b_before, angle;
  Sequences sequences;
  int64_t heads, groups, width, state_size, dtype, silu;
  int64_t x_stride, map_stride, dt_stride;  // numbers from row to row
  float eps, dt_min, dt_max;
};

inline constexpr int64_t kMaxWidth = 1024;  // what mamba3.hpp has room for

// The gated delta rule and its gated norm (see gated_delta.hpp).
struct GatedDelta {
  const void *q, *k;         // (T, key_heads, key_dim)
  const void* v;             // (T, heads, value_dim)
  const void* decay;         // (T, heads, decays), before softplus
  const void* beta;          // (T, heads), before the sigmoid
  const void* gate;          // (T, heads, value_dim)
  void* out;                 // (T, heads, value_dim)
  const float* dt_bias;      // (heads, decays)
  const float* a;            // (heads), negative
  const float* norm_weight;  // (value_dim)
  Carried state;             // (heads, key_dim, value_dim)
  Sequences sequences;
  int64_t heads, key_heads, key_dim, value_dim, decays, norm, dtype;
  int64_t qkv_stride, decay_stride, beta_stride, gate_stride;  // numbers from row to row
  float eps, beta_scale;     // beta is the scaled sigmoid
  float least;  // logarithms of decays lie between it and 0; 0 for no limit
};

// The RG-LRU (see rg_lru.hpp).
struct RgLru {
  const void *x, *input_gate, *decay_gate;  // (T, width), the gates before their biases
  void* out;                                // (T, width)
  const float *input_bias, *decay_bias;     // (width)
  const float* a;                           // (width), negative
  Carried state;                            // (width)
  Sequences sequences;
  int64_t width, dtype;
};

// A gated norm by itself.
struct GatedRows {
  const void* x;        // (m, n)
  const void* gate;     // (m, n), rows gate_stride numbers apart
  const float* weight;  // (n)
  void* out;            // (m, n)
  int64_t m, n, groups, norm, gate_stride, dtype;
  float eps;
};

inline constexpr int64_t kMaxGated = 1 << 15;  // numbers of a row that GatedRows has room for

// Keys, values or latents, (pages, 64, kv_heads, what `size` numbers take): the elements of a token's
// head lie side by side, all else as many elements apart as the strides say.
struct PagedRows {
  void* first;
  int64_t page, row, head;  // strides: from page to page, from token to token, from head to head
  int64_t size;
};

// Attention over pages (see attention.hpp).
struct Attention {
  const void* q;                // (T, heads, the sizes of keys together)
  PagedRows keys[2];            // the second may have nothing
  PagedRows values;
  void* out;                    // (T, heads, values.size)
  const float* sinks;           // (heads) or null
  const int64_t* block_tables;  // (sequences, table_stride)
  const Span* spans;
  int64_t table_stride, num_spans, longest, heads, kv_heads;
  int64_t window;  // tokens, or 0
  int64_t dtype, stored, temperature_length;
  // Of position p, scores are multiplied with scale * (1 + temperature * log(1 + p / length)), the
  // quotient rounded down.
  float scale, softcap, temperature;
};

// What attention.hpp has room for.
inline constexpr int64_t kMaxKey = 576, kMaxValue = 512, kQueriesTogether = 48;

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

// Rotation of queries and keys; keys and values go to their places in the pages (see rows.hpp).
// Keys and values of a token lie side by side in k and v; strides are numbers from token to token, or
// from head to head.
struct Rotary {
  const void* q;         // (T, heads, keys.size)
  const void* k;         // (T, kv_heads, keys.size)
  const void* v;         // (T, kv_heads, values.size)
  const float *cos, *sin;  // (T, pairs)
  const int64_t* slots;  // (T), page * kGrid + row of the page
  void* out;             // (T, heads, keys.size), the queries
  PagedRows keys, values;
  int64_t tokens, heads, kv_heads, pairs;
  int64_t q_stride, q_head, k_stride, v_stride, out_stride, out_head;
  int64_t interleaved;  // whether the channels of a pair lie side by side
  int64_t dtype, stored;
};

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
  const void* b;  // (m, n), or (m, 1) where b_step is 0 (kSigmoid alone), or null
  void* out;      // (m, n)
  int64_t kind, dtype, m, n, a_stride, b_stride, b_step;
  float scale, cap;
};

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

// Matrices of all experts: plain, or packed.
struct ExpertStack {
  const void* w;            // or null
  const float* row_scales;  // (experts, n), or null
  const void* bias;         // (experts, n), or null
  int64_t packing;          // or -1
  int64_t stride, ldw;      // bytes from one expert to the next; numbers from row to row
  int64_t n;
};

// What adapters change in the matrices of all experts. Each of the tables, (experts, num_slots), may be null.
struct ExpertLoras {
  const LoraEntry *gate, *up, *down;
  const int64_t* slots;  // (m): whose adapter each token takes; null adds nothing
  int64_t* row_slots;    // (rows), room: the same of each row
  float* inner;          // (2, rows, stride), room: inner products for one stack, or for gate and up
  int64_t num_slots, stride;
};

// Experts' MLPs (see experts.hpp). There are m * top rows, ordered by expert.
struct Experts {
  const void* x;         // (m, k)
  const int64_t* ids;    // (m, top)
  const float* weights;  // (m, top)
  ExpertStack gate;      // n = inner, or none
  ExpertStack up;        // n = inner
  ExpertStack down;      // n = k
  void* y;               // (m, k)
  int64_t* table;        // 2 * (rows + experts + 1), room; see below
  void* x_rows;          // (rows, k), room
  float* sums;           // (rows, the larger of k and 2 * inner), room
  void* hidden;          // (rows, inner), room
  void* int8_room;       // Int8Blocks for rows of k or of inner, whichever is more (see PackedLinear::room)
  int64_t dtype, m, top, k, inner, experts;
  int64_t activation;    // of PointwiseKind
  float alpha, limit;    // of the clamped form; limit is 0 for the others
  ExpertLoras loras;

  int64_t rows() const { return m * top; }
  // The table: which choice, ids[order()[r]] of token order()[r] / top, row r is; which row each choice is;
  // where the rows of an expert begin; and, while its products are computed, where their parts begin.
  int64_t* order() const { return table; }
  int64_t* place() const { return table + rows(); }
  int64_t* first() const { return table + 2 * rows(); }
  int64_t* tasks() const { return first() + experts + 1; }
};

// Choosing tokens (see sampling.hpp): scores of a block, and blocks that a thread looks at together.
inline constexpr int64_t kScoresTogether = 512, kBlocksTogether = 16;

// Rows of scores, `stride` numbers apart.
struct Choice {
  const float* scores;  // (rows, size)
  float* peaks;         // (rows, blocks), room
  int64_t* places;      // (rows, count)
  int64_t rows, size, stride, blocks;
  int64_t count;  // 0: the likeliest of each row alone, or -1 where its score is not finite
};

// How a row is drawn from: filters are passed over where top_k is 0, top_p is 1, min_p is 0. The uniform
// number is in [0, 1).
struct Wish {
  double temperature, top_k, top_p, min_p, uniform;
};

// A score's mass is its probability as a whole number, 2^42 for the largest score: 2^20 of these and more
// have a sum that fits 64 bits.
inline constexpr int kMassBits = 42;
inline constexpr uint64_t kMassOfLargest = uint64_t(1) << kMassBits;

// Mass, and the number of scores that have it.
using Tally = uint64_t __attribute__((vector_size(16)));

// Buckets of mass, from the largest down to so many octaves (halvings) below it; the last one also holds
// everything beneath. From kMassBits + 1 octaves on mass is 0.
inline constexpr int kMostOctaves = 50, kBucketsPerOctave = 16;
inline constexpr int kNumBuckets = kMostOctaves * kBucketsPerOctave + 1;

struct Candidate {
  uint64_t mass;
  uint32_t key, index;  // the smaller, the larger the score (see Sampling::rank); its place in the row
};

struct Draw {
  const float* scores;  // (rows, size), `stride` numbers from row to row
  const Wish* wishes;   // (rows)
  float* peaks;         // (rows, blocks), room
  Tally* tallies;       // (rows, parts, kNumBuckets + 1), room; the last is the mass that min_p leaves
  Candidate* candidates;  // (rows, size), room
  int64_t* places;        // (rows): tokens, or -1 where the largest score is not finite
  int64_t rows, size, stride, blocks, parts;
};

// What followed the last tokens of a text where they stood before (see repeats.hpp).
struct Repeat {
  const int32_t* tokens;
  int32_t* following;  // (most), what is found
  int64_t length;      // of the text
  int64_t most;        // tokens that are wanted
  // As blazr.nn.ops.repeats names them.
  int64_t longest, candidates, widest, most_replaced, replaced_cost, recent;
  // How many tokens before the place are the last ones, or 0 where there is none; how many of those
  // that are found follow the latest other place, or -1 where there is none; how many replacements
  // were made.
  int64_t match, num_agreed, num_replaced;
};

// A call that was made, to be made again.
struct Recorded {
  void (*run)(const void* call, int threads);
  const void* call;
};

// Bytes that `peak` reads.
inline constexpr int64_t kPeakOperands = 64 * 12;

// The kernels of an instruction set for one dtype; most compute a part of a call.
struct TypedKernels {
  int64_t (*peak)(const void* operands, int64_t operations, int64_t* result);  // see peak.hpp
  int64_t many_rows;  // of x in a part of a product where x has more than kOnePassRows
  // Rows [m0, m1) and columns [n0, n1).
  void (*linear)(const Linear& call, int64_t m0, int64_t m1, int64_t n0, int64_t n1);
  // Rows [m0, m1); row m.
  void (*lora_shrink)(const LoraShrink& call, int64_t m0, int64_t m1);
  void (*lora_expand)(const LoraExpand& call, int64_t m);
  void (*pointwise)(const Pointwise& call, int64_t m0, int64_t m1, int64_t n0, int64_t n1);
  // A row of call.x.
  void (*quantize)(const PackedLinear& call, const PackedKernel& kernel, int64_t row);
  Finish finish, finish_wide;  // into numbers of the dtype, and into float32
  void (*decode_floats)(const DecodeFloats& call, int64_t row);
  // Rows, or tokens, [m0, m1).
  void (*norm)(const Norm& call, int64_t m0, int64_t m1);
  void (*rotate[kNumStored])(const Rotary& call, int64_t m0, int64_t m1);
  // Queries [first, first + count) of a sequence and one key/value head, at most kQueriesTogether;
  // query i is head i % group of token i / group.
  void (*attend[kNumStored])(const Attention& call, int64_t span, int64_t kv_head, int64_t first,
                             int64_t count);
  // For one sequence: its tokens [t0, t1); heads [h0, h1) of one group; channels [c0, c1), at most
  // kChannelsTogether; one head, in gated_delta a value head (the last argument is not used).
  void (*mamba2_convolve)(const Mamba2& call, const Span& span, int64_t t0, int64_t t1);
  void (*mamba2_recur)(const Mamba2& call, const Span& span, int64_t h0, int64_t h1);
  void (*mamba2_remember)(const Mamba2& call, const Span& span);
  void (*convolve)(const Convolution& call, const Span& span, int64_t t0, int64_t t1);
  void (*convolve_remember)(const Convolution& call, const Span& span);
  void (*mamba1)(const Mamba1& call, const Span& span, int64_t c0, int64_t c1);
  void (*mamba3)(const Mamba3& call, const Span& span, int64_t head, int64_t);
  void (*gated_delta)(const GatedDelta& call, const Span& span, int64_t head, int64_t);
  void (*rg_lru)(const RgLru& call, const Span& span, int64_t c0, int64_t c1);
  // One row, or token.
  void (*mamba2_multiply)(const Mamba2& call, int64_t token);
  void (*mamba2_finish)(const Mamba2& call, int64_t token);
  void (*gated_row)(const GatedRows& call, int64_t m);
  void (*expert_hidden)(const Experts& call, int64_t row);
  void (*expert_combine)(const Experts& call, int64_t token);
};

struct Kernels {
  TypedKernels typed[kNumDtypes];
  PackedKernel packed[kNumPackings];
  // Of packed codes: of eight bits, of four; see peak.hpp.
  int64_t (*peak[2])(const void* operands, int64_t operations, int64_t* result);
  void (*encode_q4_k)(const Encode& call, int64_t first);
  void (*route)(const Route& call, int64_t token);
  // See sampling.hpp.
  void (*scan)(const float* row, int64_t size, int64_t b0, int64_t b1, float* peaks);
  int64_t (*likeliest)(const float* row, int64_t size, const float* peaks);
  void (*best)(const float* row, int64_t size, const float* peaks, int64_t count, int64_t* places);
  void (*weigh)(const Draw& call, int64_t row, int64_t part);
  int64_t (*draw)(const Draw& call, int64_t row);
};

extern const Kernels kernels_portable;
#if defined(__x86_64__)
extern const Kernels kernels_avx2, kernels_avx512;
// Kernels, those in their places that further instructions make faster.
Kernels with_avx_vnni(Kernels avx2);
Kernels with_avx512_bf16(Kernels avx512);
Kernels with_amx(Kernels avx512_bf16);
#elif defined(__aarch64__)
extern const Kernels kernels_neon;
#endif
