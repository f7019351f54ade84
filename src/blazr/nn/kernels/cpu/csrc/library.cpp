// The C interface: chooses an instruction set, cuts work into parts, runs them on torch's threads.
#include <math.h>
#include <string.h>

#include <atomic>

#include "kernels.hpp"

namespace {

// OpenMP's entry point for a parallel region, taken from the runtime that torch has loaded: two
// runtimes in one process would each keep spinning threads and slow each other down many times.
using ParallelRegion = void (*)(void (*body)(void*), void* data, unsigned threads, unsigned flags);

ParallelRegion parallel_region = nullptr;
const Kernels* kernels = nullptr;
int in_use = 0;

// Call body(i) for i in [0, num_parts), each once, on up to `threads` threads.
template <class Body>
void parallel_for(int64_t num_parts, int threads, const Body& body) {
  struct Work {
    const Body& body;
    int64_t num_parts;
    std::atomic<int64_t> next{0};
  } work{body, num_parts};
  const auto run = [](void* data) {
    Work& all = *static_cast<Work*>(data);
    for (int64_t i; (i = all.next.fetch_add(1, std::memory_order_relaxed)) < all.num_parts;)
      all.body(i);
  };
  if (threads > num_parts) threads = int(num_parts);
  if (threads > 1 && parallel_region)
    parallel_region(run, &work, unsigned(threads), 0);
  else
    run(&work);
}

int64_t clamp(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : value > high ? high : value;
}

// Bytes of w that a part with many rows of x goes through again and again: half of a usual second
// cache.
constexpr int64_t kPanelBytes = 512 << 10;
// Below this many products, waking a thread costs more than it brings.
constexpr int64_t kSmallWork = 1 << 16;

const char* const kNames[] = {"avx512", "avx2", "portable"};

const Kernels* find(int isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (isa == 0 && avx2 && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16"))
    return &kernels_avx512;
  if (isa == 1 && avx2) return &kernels_avx2;
#endif
  return isa == 2 ? &kernels_portable : nullptr;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// Name of instruction set i, best first, or null where this processor lacks it or there is none.
const char* blazr_isa(int i) { return i >= 0 && i < 3 && find(i) ? kNames[i] : nullptr; }

// Run on instruction set i (see blazr_isa), and on the threads behind `region`, or on the caller's.
int blazr_use(int i, ParallelRegion region) {
  const Kernels* found = i >= 0 && i < 3 ? find(i) : nullptr;
  if (!found) return -1;
  kernels = found;
  in_use = i;
  parallel_region = region;
  return 0;
}

// Name of the instruction set that runs, or null before blazr_use.
const char* blazr_in_use() { return kernels ? kNames[in_use] : nullptr; }

// What this was compiled from, so that a library left over from other sources is not used.
const char* blazr_sources() { return BLAZR_SOURCES; }

// Every kernel has one form, so that calls can be kept and made again (see Recorded): the structs of
// kernels.hpp say what they do. The caller has checked shapes; null stands for what is not given.

void blazr_linear(const Linear* call, int threads) {
  const int64_t m = call->m, n = call->n, k = call->k;
  const int64_t bytes = call->dtype == kF32 ? 4 : 2;
  if (m * n * k < kSmallWork) threads = 1;
  const bool few = m <= kStillFew;
  // parts small enough to share out evenly, large enough to read in long runs
  const int64_t columns =
      (clamp(few ? n / (4 * threads) : kPanelBytes / (k * bytes + 1), 16,
             few ? kFewColumns : kManyColumns) + 3) / 4 * 4;
  const int64_t rows = few ? kStillFew : 120;
  const int64_t across = (n + columns - 1) / columns, down = (m + rows - 1) / rows;
  const LinearPart part = kernels->linear[call->dtype];
  parallel_for(across * down, threads, [&](int64_t i) {
    const int64_t m0 = i % down * rows, n0 = i / down * columns;
    part(*call, m0, m0 + rows < m ? m0 + rows : m, n0, n0 + columns < n ? n0 + columns : n);
  });
}

void blazr_packed_linear(const PackedLinear* given, int threads) {
  PackedLinear call = *given;
  const int64_t m = call.m, n = call.n, k = call.k, num_blocks = k / 32, groups = (n + 15) / 16;
  call.x.scales = static_cast<float*>(call.room);
  call.x.sums = reinterpret_cast<int32_t*>(call.x.scales + m * num_blocks);
  call.x.q = reinterpret_cast<int8_t*>(call.x.sums + 2 * m * num_blocks);
  call.x.m = m, call.x.k = k;
  call.finish = kernels->finish[call.dtype];
  const PackedKernel& kernel = kernels->packed[call.packing];
  if (m * n * k < kSmallWork) threads = 1;
  const Quantize quantize = kernels->quantize[call.dtype];
  parallel_for(m, m * k < kSmallWork ? 1 : threads, [&](int64_t row) { quantize(call, row); });
  const bool few = m <= kFewRows;
  const int64_t group_bytes = k / kernel.columns * kernel.bytes;
  const int64_t across = clamp(few ? groups / (4 * threads) : kPanelBytes / (group_bytes + 1), 1,
                               (few ? kFewColumns : kManyColumns) / 16);
  const int64_t rows = few ? kFewRows : 120;
  const int64_t down = (m + rows - 1) / rows, parts = (groups + across - 1) / across;
  parallel_for(parts * down, threads, [&](int64_t i) {
    const int64_t m0 = i % down * rows, g0 = i / down * across;
    kernel.part(call, m0, m0 + rows < m ? m0 + rows : m, g0,
                g0 + across < groups ? g0 + across : groups);
  });
}

void blazr_packed_rows(const PackedRows* given, int threads) {
  const PackedKernel& kernel = kernels->packed[given->packing];
  const int64_t bytes = kernel.bytes, columns = kernel.columns, supers = given->k / columns;
  PackedLinear call{};
  call.y = given->y, call.n = given->k;
  const int few = given->m * given->k < kSmallWork ? 1 : threads;
  parallel_for(given->m, few, [&](int64_t row) {
    const int64_t id = given->ids[row];
    for (int64_t s = 0; s < supers; s++) {
      float numbers[256];
      kernel.unpack(given->w.blocks + (id / 16 * supers + s) * bytes, int(id % 16), numbers);
      if (given->w.row_scales)
        for (int64_t i = 0; i < columns; i++) numbers[i] *= given->w.row_scales[id];
      kernels->finish[given->dtype](call, row, s * columns, (s + 1) * columns, numbers, nullptr);
    }
  });
}

void blazr_pack(const Pack* call, int threads) {
  const auto pack = pack_groups[call->packing];
  parallel_for((call->rows + 15) / 16, threads, [&](int64_t i) { pack(*call, i); });
}

void blazr_encode_q4_k(const Encode* call, int threads) {
  const auto encode = kernels->encode_q4_k;
  parallel_for((call->blocks + 1) / 2, threads, [&](int64_t i) { encode(*call, 2 * i); });
}

void blazr_mamba2(const Mamba2* call, int threads) {
  const Mamba2Parts& parts = kernels->mamba2[call->dtype];
  const int few = call->num_tokens > 8 ? threads : 1;
  constexpr int64_t kRows = 16;
  const int64_t strips = (call->longest + kRows - 1) / kRows;
  parallel_for(call->num_spans * strips, few, [&](int64_t i) {
    const Span& span = call->spans[i / strips];
    const int64_t t0 = i % strips * kRows, t1 = t0 + kRows;
    parts.convolve(*call, span, t0, t1 < span.length ? t1 : span.length);
  });
  const int64_t group = call->heads / call->groups;
  const int64_t blocks = (group + kHeadsTogether - 1) / kHeadsTogether;
  parallel_for(call->num_spans * call->groups * blocks, threads, [&](int64_t i) {
    const int64_t block = i % (call->groups * blocks), low = block % blocks * kHeadsTogether;
    const int64_t high = low + kHeadsTogether < group ? low + kHeadsTogether : group;
    const int64_t base = block / blocks * group;
    parts.recur(*call, call->spans[i / (call->groups * blocks)], base + low, base + high);
  });
  parallel_for(call->num_tokens, few, [&](int64_t token) { parts.finish(*call, token); });
  parallel_for(call->num_spans, few, [&](int64_t i) { parts.remember(*call, call->spans[i]); });
}

void blazr_attention(const Attention* call, int threads) {
  const int64_t group = call->heads / call->kv_heads;
  const int64_t blocks = (call->longest * group + kQueriesTogether - 1) / kQueriesTogether;
  const AttentionPart part = kernels->attention[call->dtype];
  // the longest way back comes first, so that no thread is left with it at the end
  parallel_for(call->num_spans * call->kv_heads * blocks, threads, [&](int64_t i) {
    const int64_t span = i % call->num_spans, rest = i / call->num_spans;
    const int64_t first = (blocks - 1 - rest / call->kv_heads) * kQueriesTogether;
    const int64_t left = call->spans[span].length * group - first;
    if (left > 0)
      part(*call, span, rest % call->kv_heads, first, left < kQueriesTogether ? left : kQueriesTogether);
  });
}

void blazr_norm(const Norm* call, int threads) {
  const NormPart part = kernels->norm[call->dtype];
  const int64_t rows = kSmallWork / (call->size + 1) + 1, m = call->m;  // of a part
  parallel_for((m + rows - 1) / rows, threads, [&](int64_t i) {
    part(*call, i * rows, i * rows + rows < m ? i * rows + rows : m);
  });
}

void blazr_rotate(const Rotary* call, int threads) {
  const RotaryPart part = kernels->rotate[call->dtype];
  constexpr int64_t kTokens = 16;  // of a part
  parallel_for((call->tokens + kTokens - 1) / kTokens, threads, [&](int64_t i) {
    const int64_t t0 = i * kTokens, t1 = t0 + kTokens;
    part(*call, t0, t1 < call->tokens ? t1 : call->tokens);
  });
}

void blazr_pointwise(const Pointwise* call, int threads) {
  const PointwisePart part = kernels->pointwise[call->dtype];
  constexpr int64_t kNumbers = 1 << 14;  // of a part
  const int64_t strips = (call->n + kNumbers - 1) / kNumbers;
  const int64_t rows = clamp(kNumbers / (call->n + 1), 1, call->m + 1);
  parallel_for((call->m + rows - 1) / rows * strips, threads, [&](int64_t i) {
    const int64_t m0 = i / strips * rows, n0 = i % strips * kNumbers;
    part(*call, m0, m0 + rows < call->m ? m0 + rows : call->m, n0,
         n0 + kNumbers < call->n ? n0 + kNumbers : call->n);
  });
}

void blazr_rows(const Rows* call, int threads) {
  const int few = call->m * call->bytes < kSmallWork ? 1 : threads;
  parallel_for(call->m, few, [&](int64_t row) {
    memcpy(static_cast<char*>(call->y) + row * call->bytes,
           static_cast<const char*>(call->w) + call->ids[row] * call->stride, size_t(call->bytes));
  });
}

void blazr_angles(const Angles* call, int threads) {
  const int64_t pairs = call->pairs;
  const int few = call->tokens * pairs < kSmallWork / 16 ? 1 : threads;
  parallel_for(call->tokens, few, [&](int64_t t) {
    float *cosine = call->out + t * pairs, *sine = cosine + call->tokens * pairs;
    for (int64_t i = 0; i < pairs; i++) {
      const float angle = float(call->positions[t]) * call->frequencies[i];
      cosine[i] = float(cos(double(angle))) * call->factor;
      sine[i] = float(sin(double(angle))) * call->factor;
    }
  });
}

// Make calls again, one after the other.
void blazr_replay(const Recorded* calls, int64_t count, int threads) {
  for (int64_t i = 0; i < count; i++) calls[i].run(calls[i].call, threads);
}

}  // extern "C"
#pragma GCC visibility pop
