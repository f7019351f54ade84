// The C interface: chooses an instruction set, and cuts work into parts (see threads.hpp).
#include <math.h>
#include <string.h>
#if defined(__linux__) && defined(__aarch64__)
#include <sys/auxv.h>
#elif defined(__linux__) && defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "layouts.hpp"
#include "repeats.hpp"
#include "threads.hpp"

// Initialized here, since the instruction sets' own files hold code that not every processor can run.
const int64_t kFetchedAhead = [] {
#if defined(__x86_64__)
  __builtin_cpu_init();
  // Zen 3 and 4 bring what comes next to the second cache themselves. Lines that are fetched from memory
  // before that are on their way for so long that there is no room for others.
  if (__builtin_cpu_is("amdfam19h")) return int64_t{512};
#endif
  return int64_t{2048};
}();

namespace {

const Kernels* kernels = nullptr;
int in_use = 0;

int64_t clamp(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : value > high ? high : value;
}

// Below this many products, waking a thread costs more than it brings.
constexpr int64_t kSmallWork = 1 << 16;

// Of a number.
int64_t bytes_of(int64_t dtype) { return dtype == kF32 ? 4 : 2; }

// The kernels for a dtype, of the instruction set in use.
const TypedKernels& typed(int64_t dtype) { return kernels->typed[dtype]; }

// How many threads a call of so many products, or numbers, is worth.
int threads_for(int64_t work, int threads) { return work < kSmallWork ? 1 : threads; }

// How a product is shared out: parts of so many rows of x and columns (packed: groups) of w.
struct Cut {
  int64_t m, n, rows, columns;

  int64_t down() const { return (m + rows - 1) / rows; }
  int64_t parts() const { return down() * ((n + columns - 1) / columns); }
  // Call part(m0, m1, n0, n1) for part i.
  template <class Part>
  void run(int64_t i, const Part& part) const {
    const int64_t m0 = i % down() * rows, n0 = i / down() * columns;
    part(m0, smaller(m0 + rows, m), n0, smaller(n0 + columns, n));
  }
};

constexpr int64_t kLeastColumns = 16;  // of a part of a product
constexpr int64_t kTileRows = 4;       // of w, in most tiles of matmul.hpp

// Parts small enough to share out evenly, large enough to read in long runs.
Cut cut_of(const Linear& call, int threads) {
  const bool few = call.m <= kOnePassRows;
  const int64_t shares = threads == 1 ? 1 : few ? 4 * threads : 2 * threads;
  const int64_t columns = clamp(call.n / shares, kLeastColumns, few ? kFewColumns : kManyColumns);
  return {call.m, call.n, few ? kOnePassRows : typed(call.dtype).many_rows, round_up(columns, kTileRows)};
}

const PackedWay& way_of(const PackedLinear& call) {
  const auto& ways = kernels->packed[call.packing].ways;
  int i = 2;
  while (i > 0 && (!ways[i].part || call.m < ways[i].least)) i--;
  return ways[i];
}

Cut cut_of(const PackedLinear& call, int threads) {
  const PackedKernel& kernel = kernels->packed[call.packing];
  const PackedWay& way = way_of(call);
  const int64_t groups = (call.n + kGroup - 1) / kGroup, bytes = call.k / kernel.columns * kernel.bytes;
  const int64_t down = (call.m + way.rows - 1) / way.rows, shares = 4 * threads;
  const int64_t most = smaller(way.columns / kGroup, way.bytes / (bytes + 1));
  return {call.m, groups, way.rows, clamp(groups * down / shares, 1, larger(most, 1))};
}

void multiply_part(const Linear& call, const Cut& cut, int64_t i) {
  cut.run(i, [&](auto... area) { typed(call.dtype).linear(call, area...); });
}

void multiply_part(const PackedLinear& call, const Cut& cut, int64_t i) {
  cut.run(i, [&](auto... area) { way_of(call).part(call, area...); });
}

template <class Call>
void multiply(const Call& call, int threads) {
  threads = threads_for(call.m * call.n * call.k, threads);
  const Cut cut = cut_of(call, threads);
  parallel_for(cut.parts(), threads, [&](int64_t i) { multiply_part(call, cut, i); });
}

// Rounds call.activations, (m, k), to call.x, in call.room, for call.packing.
void round_activations(PackedLinear& call, int threads) {
  call.x = {static_cast<Int8Block*>(call.room), call.m, call.k};
  const PackedKernel& kernel = kernels->packed[call.packing];
  parallel_for(call.m, threads_for(call.m * call.k, threads),
               [&](int64_t row) { typed(call.dtype).quantize(call, kernel, row); });
}

// Puts rows in the order of their experts: a counting sort.
void sort_rows(const Experts& call) {
  int64_t *first = call.first(), *next = call.tasks();
  for (int64_t e = 0; e <= call.experts; e++) first[e] = 0;
  for (int64_t i = 0; i < call.rows(); i++) first[call.ids[i] + 1]++;
  for (int64_t e = 0; e < call.experts; e++) {
    first[e + 1] += first[e];
    next[e] = first[e];
  }
  for (int64_t i = 0; i < call.rows(); i++) {
    const int64_t row = next[call.ids[i]]++;
    call.order()[row] = i;
    call.place()[i] = row;
    if (call.loras.slots) call.loras.row_slots[row] = call.loras.slots[i / call.top];
  }
}

// Products of each expert's rows; make(e) is that of expert e.
template <class Make>
void multiply_sorted(const Experts& call, int threads, const Make& make) {
  int64_t *tasks = call.tasks(), *first = call.first();
  parallel_for(1, 1, [&](int64_t) {
    tasks[0] = 0;
    for (int64_t e = 0; e < call.experts; e++)
      tasks[e + 1] = tasks[e] + (first[e + 1] > first[e] ? cut_of(make(e), threads).parts() : 0);
  });
  parallel_for(tasks[call.experts], threads, [&](int64_t i) {
    int64_t low = 0, high = call.experts;  // the last expert whose tasks begin at i or before
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (tasks[middle] <= i ? low : high) = middle;
    }
    const auto one = make(low);
    multiply_part(one, cut_of(one, threads), i - tasks[low]);
  });
}

// Inner products of x (rows, k) with what adapters change in the matrices of the rows' experts, in `inner`,
// as products with these matrices take them: of expert 0, and from row 0 on.
Lora shrink_experts(const Experts& call, const LoraEntry* entries, const void* x, int64_t k, float* inner,
                    int threads) {
  const ExpertLoras& loras = call.loras;
  if (!loras.slots || !entries) return {};
  const int64_t rows = call.rows();
  threads = threads_for(rows * loras.stride * k, threads);
  parallel_stretches(clamp(rows / (2 * threads), 1, kFewRows), rows, threads, [&](int64_t m0, int64_t m1) {
    for (int64_t m = m0, end; m < m1; m = end) {
      const int64_t e = call.ids[call.order()[m]];
      end = smaller(call.first()[e + 1], m1);
      const LoraShrink one{x,     nullptr,    entries + e * loras.num_slots, loras.row_slots,
                           inner, call.dtype, rows, k, k, 1, loras.stride};
      typed(call.dtype).lora_shrink(one, m, end);
    }
  });
  return {entries, loras.row_slots, inner, 1, loras.stride};
}

// Rows x (rows, k) times the matrices of their experts, gated where there is a second stack, into y:
// float32 if `wide`. x.lora and x.lora2 are those of expert 0 and from row 0 on.
void multiply_experts(const Experts& call, const ExpertStack& w, const ExpertStack* w2,
                      PackedLinear x, void* y, bool wide, int threads) {
  const int64_t size = bytes_of(call.dtype), y_size = wide ? 4 : size, k = x.k;
  const auto at = [](const void* from, int64_t bytes) -> const void* {
    return from ? static_cast<const char*>(from) + bytes : nullptr;
  };
  const auto matrix_at = [&](const ExpertStack& stack, int64_t e) {
    return at(stack.w, e * stack.stride);
  };
  const auto y_of = [&](int64_t first) { return static_cast<char*>(y) + first * w.n * y_size; };
  const auto lora_of = [&](const Lora& lora, int64_t e) {
    if (!lora.slots) return lora;
    const int64_t first = call.first()[e];
    return Lora{lora.entries + e * call.loras.num_slots, lora.slots + first,
                lora.inner + first * lora.stride, 1, lora.stride};
  };
  if (w.packing < 0)
    return multiply_sorted(call, threads, [&](int64_t e) {
      const int64_t first = call.first()[e], count = call.first()[e + 1] - first;
      return Linear{at(x.activations, first * k * size), matrix_at(w, e),
                    w2 ? matrix_at(*w2, e) : nullptr, nullptr, y_of(first), call.dtype, count, w.n, k,
                    w.ldw, k, w.n, wide, nullptr, 0, lora_of(x.lora, e), lora_of(x.lora2, e)};
    });
  x.packing = w.packing;
  round_activations(x, threads);
  const auto matrix_of = [&](const ExpertStack& stack, int64_t e) {
    return PackedMatrix{static_cast<const uint8_t*>(matrix_at(stack, e)),
                        stack.row_scales ? stack.row_scales + e * stack.n : nullptr};
  };
  multiply_sorted(call, threads, [&](int64_t e) {
    const int64_t first = call.first()[e];
    PackedLinear one = x;
    one.w = matrix_of(w, e);
    one.w2 = w2 ? matrix_of(*w2, e) : PackedMatrix{};
    one.y = y_of(first);
    one.n = w.n, one.m = one.x.m = call.first()[e + 1] - first;
    one.x.blocks += first * (k / kBlock);
    one.lora = lora_of(x.lora, e), one.lora2 = lora_of(x.lora2, e);
    one.finish = wide ? typed(call.dtype).finish_wide : typed(call.dtype).finish;
    return one;
  });
}

// Instruction sets by number, best first, and their names.
enum IsaNumber : int { kAmx, kAvx512Bf16, kAvx512, kAvxVnni, kAvx2, kNeon, kPortable, kNumIsas };
const char* const kNames[kNumIsas] = {"amx",  "avx512_bf16", "avx512",  "avx_vnni",
                                      "avx2", "neon",        "portable"};

#if defined(__x86_64__)
// Whether the processor multiplies tiles of bfloat16 and of int8, and the system lets this process do so.
bool may_use_amx() {
#if defined(__linux__)
  constexpr unsigned kBf16 = 1u << 22, kTiles = 1u << 24, kInt8 = 1u << 25;  // of leaf 7, in edx
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // of Linux's asm/prctl.h
  unsigned a, b, c, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || ~d & (kBf16 | kTiles | kInt8)) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#endif

// The kernels of an instruction set, or null where this processor lacks it.
const Kernels* find(int isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vnni");
  const bool avx512_bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
  if (isa == kAmx && avx512_bf16 && may_use_amx()) {
    static const Kernels kernels_amx = with_amx(with_avx512_bf16(kernels_avx512));
    return &kernels_amx;
  }
  if (isa == kAvx512Bf16 && avx512_bf16) {
    static const Kernels kernels_avx512_bf16 = with_avx512_bf16(kernels_avx512);
    return &kernels_avx512_bf16;
  }
  if (isa == kAvx512 && avx512) return &kernels_avx512;
  if (isa == kAvxVnni && avx2 && __builtin_cpu_supports("avxvnni")) {
    static const Kernels kernels_avx_vnni = with_avx_vnni(kernels_avx2);
    return &kernels_avx_vnni;
  }
  if (isa == kAvx2 && avx2) return &kernels_avx2;
#elif defined(__aarch64__) && defined(__linux__)
  // NEON is always there, its dot-product instructions are not
  if (isa == kNeon && getauxval(AT_HWCAP) & HWCAP_ASIMDDP) return &kernels_neon;
#elif defined(__aarch64__)
  if (isa == kNeon) return &kernels_neon;  // Apple has them
#endif
  return isa == kPortable ? &kernels_portable : nullptr;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// Name of instruction set i, best first, or null where this processor lacks it or there is none.
const char* blazr_isa(int i) { return i >= 0 && i < kNumIsas && find(i) ? kNames[i] : nullptr; }

// Run on instruction set i (see blazr_isa).
int blazr_use(int i) {
  const Kernels* found = i >= 0 && i < kNumIsas ? find(i) : nullptr;
  if (!found) return -1;
  kernels = found;
  in_use = i;
  return 0;
}

// Name of the instruction set that runs, or null before blazr_use.
const char* blazr_in_use() { return kernels ? kNames[in_use] : nullptr; }

// What this was compiled from, so that a library left over from other sources is not used.
const char* blazr_sources() { return BLAZR_SOURCES; }

// Sizes and offsets of what calls are given, a line for each structure.
const char* blazr_layouts() {
  static const std::string text = layouts();
  return text.c_str();
}

// Does `operations` or more on each of `threads` threads, and returns how many in all (see peak.hpp):
// with numbers of a dtype, or, from kNumDtypes on, with packed codes of eight bits and of four.
int64_t blazr_peak(int64_t kind, int64_t operations, int threads) {
  alignas(64) static const char zeros[kPeakOperands] = {};
  const auto run = kind < kNumDtypes ? typed(kind).peak : kernels->peak[kind - kNumDtypes];
  std::atomic<int64_t> done{0};
  parallel_for(threads, threads, [&](int64_t) {
    int64_t result = 0;
    done += run(zeros, operations, &result);
  });
  return done;
}

// Every kernel has one form, so that calls can be kept and made again (see Recorded): the structs of
// kernels.hpp say what they do. The caller has checked shapes; null stands for what is not given.

void blazr_linear(const Linear* call, int threads) { multiply(*call, threads); }

void blazr_linear_heads(const LinearHeads* call, int threads) {
  Linear all = call->first;
  all.n *= call->heads;
  threads = threads_for(all.m * all.n * all.k, threads);
  Cut cut = cut_of(all, threads);
  cut.n = call->first.n;
  const int64_t parts = cut.parts(), bytes = bytes_of(all.dtype);
  parallel_for(call->heads * parts, threads, [&](int64_t i) {
    const int64_t head = i / parts;
    Linear one = call->first;
    one.w = static_cast<const char*>(one.w) + head * call->w_head * bytes;
    one.x = static_cast<const char*>(one.x) + head * call->x_head * bytes;
    one.y = static_cast<char*>(one.y) + head * call->y_head * bytes;
    multiply_part(one, cut, i % parts);
  });
}

void blazr_packed_linear(const PackedLinear* given, int threads) {
  PackedLinear call = *given;
  call.finish = typed(call.dtype).finish;
  round_activations(call, threads);
  multiply(call, threads);
}

void blazr_lora_shrink(const LoraShrink* call, int threads) {
  threads = threads_for(call->m * call->stride * (call->ids ? 1 : call->k), threads);
  parallel_stretches(clamp(call->m / (2 * threads), 1, kFewRows), call->m, threads,
                     [&](int64_t m0, int64_t m1) { typed(call->dtype).lora_shrink(*call, m0, m1); });
}

void blazr_lora_expand(const LoraExpand* call, int threads) {
  parallel_for(call->m, threads_for(call->m * call->n * call->lora.stride, threads),
               [&](int64_t m) { typed(call->dtype).lora_expand(*call, m); });
}

void blazr_packed_rows(const PackedRows* given, int threads) {
  const PackedKernel& kernel = kernels->packed[given->packing];
  const int64_t bytes = kernel.bytes, columns = kernel.columns, supers = given->k / columns;
  PackedLinear call{};
  call.y = given->y, call.n = given->k;
  parallel_for(given->m, threads_for(given->m * given->k, threads), [&](int64_t row) {
    const int64_t id = given->ids[row];
    for (int64_t s = 0; s < supers; s++) {
      float numbers[kMaxSuperblock * kBlock];
      kernel.unpack(given->w.blocks + (id / kGroup * supers + s) * bytes, int(id % kGroup), numbers);
      if (given->w.row_scales)
        for (int64_t i = 0; i < columns; i++) numbers[i] *= given->w.row_scales[id];
      typed(given->dtype).finish(call, row, s * columns, (s + 1) * columns, numbers, nullptr);
    }
  });
}

void blazr_pack(const Pack* call, int threads) {
  const PackedKernel& kernel = kernels->packed[call->packing];
  parallel_for((call->rows + kGroup - 1) / kGroup, threads, [&](int64_t i) { kernel.pack(*call, i); });
}

void blazr_encode_q4_k(const Encode* call, int threads) {
  parallel_for((call->blocks + 1) / 2, threads,
               [&](int64_t i) { kernels->encode_q4_k(*call, 2 * i); });
}

void blazr_decode_floats(const DecodeFloats* call, int threads) {
  parallel_for(call->rows, threads_for(call->rows * call->k, threads),
               [&](int64_t row) { typed(call->dtype).decode_floats(*call, row); });
}

void blazr_mamba2(const Mamba2* call, int threads) {
  const TypedKernels& parts = typed(call->dtype);
  const Sequences& all = call->sequences;
  const int fewer = threads_for_tokens(all, threads);
  if (call->multipliers)
    parallel_for(all.num_tokens, fewer, [&](int64_t token) { parts.mamba2_multiply(*call, token); });
  parallel_tokens(all, fewer, [&](auto... part) { parts.mamba2_convolve(*call, part...); });
  const int64_t group = call->heads / call->groups;
  // what a group's heads have in common is computed once for a part
  const int64_t together = threads == 1 ? group : kHeadsTogether;
  const int64_t blocks = (group + together - 1) / together;
  parallel_in_sequences(all, 1, call->groups * blocks, threads, [&](const Span& span, int64_t i, int64_t) {
    const int64_t base = i / blocks * group, low = i % blocks * together;
    parts.mamba2_recur(*call, span, base + low, base + smaller(low + together, group));
  });
  parallel_for(all.num_tokens, fewer, [&](int64_t token) { parts.mamba2_finish(*call, token); });
  parallel_sequences(all, threads, [&](const Span& span) { parts.mamba2_remember(*call, span); });
}

void blazr_convolution(const Convolution* call, int threads) {
  const TypedKernels& parts = typed(call->dtype);
  const Sequences& all = call->sequences;
  const int fewer = threads_for_tokens(all, threads);
  parallel_tokens(all, fewer, [&](auto... part) { parts.convolve(*call, part...); });
  parallel_sequences(all, threads, [&](const Span& span) { parts.convolve_remember(*call, span); });
}

void blazr_log_rows(const LogRows* call, int threads) {
  const int64_t bytes = call->bytes;
  parallel_sequences(call->sequences, threads, [&](const Span& span) {
    span.in_log([&](int64_t t, int64_t row) {
      memcpy(static_cast<char*>(call->log) + (span.run_slot * kGrid + row) * bytes,
             static_cast<const char*>(call->x) + (span.first + t) * call->x_stride, size_t(bytes));
    });
  });
}

void blazr_join_previous(const JoinPrevious* call, int threads) {
  const size_t bytes = size_t(call->bytes);
  parallel_sequences(call->sequences, threads, [&](const Span& span) {
    for (int64_t t = 0; t < span.length; t++) {
      const int64_t row = span.first + t;
      char* out = static_cast<char*>(call->out) + 2 * row * call->bytes;
      memcpy(out, static_cast<const char*>(call->x) + row * call->x_stride, bytes);
      out += bytes;
      if (t) {
        memcpy(out, static_cast<const char*>(call->hidden) + (row - 1) * call->hidden_stride, bytes);
      } else if (span.start) {
        const int64_t logged = span.run_slot * kGrid + (span.start - 1) % kGrid;
        memcpy(out, static_cast<const char*>(call->log) + logged * call->bytes, bytes);
      } else {
        memset(out, 0, bytes);
      }
    }
  });
}

void blazr_keep_last(const KeepLast* call, int threads) {
  parallel_sequences(call->sequences, threads, [&](const Span& span) {
    for (int64_t t = span.length > kGrid ? span.length - kGrid : 0; t < span.length; t++) {
      const int64_t logged = span.run_slot * kGrid + (span.start + t) % kGrid;
      memcpy(static_cast<char*>(call->log) + logged * call->bytes,
             static_cast<const char*>(call->hidden) + (span.first + t) * call->hidden_stride,
             size_t(call->bytes));
    }
  });
}

void blazr_mamba1(const Mamba1* call, int threads) {
  parallel_in_sequences(call->sequences, kChannelsTogether, call->inner, threads,
                        [&](auto... part) { typed(call->dtype).mamba1(*call, part...); });
}

void blazr_mamba3(const Mamba3* call, int threads) {
  parallel_in_sequences(call->sequences, 1, call->heads, threads,
                        [&](auto... part) { typed(call->dtype).mamba3(*call, part...); });
}

void blazr_gated_delta(const GatedDelta* call, int threads) {
  parallel_in_sequences(call->sequences, 1, call->heads, threads,
                        [&](auto... part) { typed(call->dtype).gated_delta(*call, part...); });
}

void blazr_rg_lru(const RgLru* call, int threads) {
  parallel_in_sequences(call->sequences, kChannelsTogether, call->width, threads,
                        [&](auto... part) { typed(call->dtype).rg_lru(*call, part...); });
}

void blazr_gated_rows(const GatedRows* call, int threads) {
  parallel_for(call->m, threads_for(call->m * call->n, threads),
               [&](int64_t m) { typed(call->dtype).gated_row(*call, m); });
}

void blazr_attention(const Attention* call, int threads) {
  const int64_t group = call->heads / call->kv_heads, most = call->longest * group;
  // as many queries together as there are, but work for every thread
  const int64_t step = clamp(most * call->num_spans * call->kv_heads / threads, 4, kQueriesTogether);
  const int64_t blocks = (most + step - 1) / step;
  // the longest way back comes first, so that no thread is left with it at the end
  parallel_for(call->num_spans * call->kv_heads * blocks, threads, [&](int64_t i) {
    const int64_t span = i % call->num_spans, rest = i / call->num_spans;
    const int64_t first = (blocks - 1 - rest / call->kv_heads) * step;
    const int64_t left = call->spans[span].length * group - first;
    if (left > 0)
      typed(call->dtype).attend[call->stored](*call, span, rest % call->kv_heads, first, smaller(left, step));
  });
}

void blazr_norm(const Norm* call, int threads) {
  parallel_stretches(kSmallWork / (call->size + 1) + 1, call->m, threads,
                     [&](int64_t m0, int64_t m1) { typed(call->dtype).norm(*call, m0, m1); });
}

void blazr_rotate(const Rotary* call, int threads) {
  parallel_stretches(16, call->tokens, threads,
                     [&](int64_t t0, int64_t t1) { typed(call->dtype).rotate[call->stored](*call, t0, t1); });
}

void blazr_pointwise(const Pointwise* call, int threads) {
  constexpr int64_t kNumbers = 1 << 14;  // of a part
  const Cut cut{call->m, call->n, clamp(kNumbers / (call->n + 1), 1, call->m + 1), kNumbers};
  parallel_for(cut.parts(), threads, [&](int64_t i) {
    cut.run(i, [&](auto... area) { typed(call->dtype).pointwise(*call, area...); });
  });
}

void blazr_angles(const Angles* call, int threads) {
  const int64_t pairs = call->pairs;
  parallel_for(call->tokens, threads_for(16 * call->tokens * pairs, threads), [&](int64_t t) {
    float *cosine = call->out + t * pairs, *sine = cosine + call->tokens * pairs;
    for (int64_t i = 0; i < pairs; i++) {
      const float angle = float(call->positions[t]) * call->frequencies[i];
      cosine[i] = float(cos(double(angle))) * call->factor;
      sine[i] = float(sin(double(angle))) * call->factor;
    }
  });
}

void blazr_pieces(const Pieces* call, int threads) {
  const int64_t bytes = call->bytes;
  const auto copy = [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; i++) {
      const int64_t at = i / call->count * call->x_stride + call->order[i % call->count] * call->stride;
      memcpy(static_cast<char*>(call->out) + i * bytes, static_cast<const char*>(call->x) + at,
             size_t(bytes));
    }
  };
  parallel_stretches(kSmallWork / (bytes + 1) + 1, call->m * call->count, threads, copy);
}

void blazr_route(const Route* call, int threads) {
  parallel_stretches(32, call->m, threads, [&](int64_t m0, int64_t m1) {
    for (int64_t token = m0; token < m1; token++) kernels->route(*call, token);
  });
}

void blazr_experts(const Experts* given, int threads) {
  const Experts& call = *given;
  const TypedKernels& parts = typed(call.dtype);
  const int64_t rows = call.rows(), bytes = call.k * bytes_of(call.dtype);
  const int fewer = threads_for(rows * call.k, threads);
  const ExpertLoras& loras = call.loras;
  parallel_for(1, 1, [&](int64_t) { sort_rows(call); });
  parallel_for(rows, fewer, [&](int64_t row) {
    memcpy(static_cast<char*>(call.x_rows) + row * bytes,
           static_cast<const char*>(call.x) + call.order()[row] / call.top * bytes, size_t(bytes));
  });
  PackedLinear x{};
  x.activations = call.x_rows, x.dtype = call.dtype, x.m = rows, x.k = call.k;
  x.room = call.int8_room;
  const Lora gate = shrink_experts(call, loras.gate, call.x_rows, call.k, loras.inner, threads);
  const Lora up = shrink_experts(call, loras.up, call.x_rows, call.k, loras.inner + rows * loras.stride,
                                 threads);
  const bool is_alike = call.gate.packing == call.up.packing && call.gate.ldw == call.up.ldw;
  const bool is_bare = !call.gate.bias && !call.up.bias && call.limit == 0;
  if (call.gate.w && call.activation == kSilu && is_alike && is_bare) {
    x.lora = gate, x.lora2 = up;
    multiply_experts(call, call.gate, &call.up, x, call.hidden, false, threads);
  } else {
    float* ups = call.sums + (call.gate.w ? rows * call.inner : 0);
    x.lora = gate;
    if (call.gate.w) multiply_experts(call, call.gate, nullptr, x, call.sums, true, threads);
    x.lora = up;
    multiply_experts(call, call.up, nullptr, x, ups, true, threads);
    parallel_for(rows, fewer, [&](int64_t row) { parts.expert_hidden(call, row); });
  }
  x.activations = call.hidden, x.k = call.inner;
  x.lora = shrink_experts(call, loras.down, call.hidden, call.inner, loras.inner, threads), x.lora2 = {};
  multiply_experts(call, call.down, nullptr, x, call.sums, true, threads);
  parallel_for(call.m, fewer, [&](int64_t token) { parts.expert_combine(call, token); });
}

void blazr_choose(const Choice* call, int threads) {
  const int64_t parts = (call->blocks + kBlocksTogether - 1) / kBlocksTogether;
  parallel_for(call->rows * parts, threads_for(call->rows * call->size, threads), [&](int64_t i) {
    const int64_t row = i / parts, b0 = i % parts * kBlocksTogether;
    kernels->scan(call->scores + row * call->stride, call->size, b0,
                  smaller(b0 + kBlocksTogether, call->blocks), call->peaks + row * call->blocks);
  });
  parallel_for(call->rows, call->count ? threads : 1, [&](int64_t row) {
    const float *scores = call->scores + row * call->stride, *peaks = call->peaks + row * call->blocks;
    if (call->count)
      kernels->best(scores, call->size, peaks, call->count, call->places + row * call->count);
    else
      call->places[row] = kernels->likeliest(scores, call->size, peaks);
  });
}

void blazr_draw(const Draw* call, int threads) {
  const Choice likeliest{call->scores, call->peaks,  call->places, call->rows,
                         call->size,   call->stride, call->blocks, 0};
  blazr_choose(&likeliest, threads);
  parallel_for(call->rows * call->parts, threads, [&](int64_t i) {
    if (call->places[i / call->parts] >= 0) kernels->weigh(*call, i / call->parts, i % call->parts);
  });
  parallel_for(call->rows, threads, [&](int64_t row) {
    if (call->places[row] >= 0) call->places[row] = kernels->draw(*call, row);
  });
}

void blazr_find_repeat(Repeat* call, int) { Repeats::find(*call); }

// Make calls again, one after the other.
void blazr_replay(const Recorded* calls, int64_t count, int threads) {
  const FlushToZero flush;  // once, not in each loop
  for (int64_t i = 0; i < count; i++) calls[i].run(calls[i].call, threads);
}

}  // extern "C"
#pragma GCC visibility pop
