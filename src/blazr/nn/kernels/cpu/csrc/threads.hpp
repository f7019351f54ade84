// Loops over parts of the work, on threads of this library.
//
//   caller | part 0 | part 3 | part 4 |   next loop: | part 0 | part 2 |
//   helper | part 1 | part 2 |                       | part 1 |
//
// A loop is over when its parts are done, whoever did them: the caller takes every part that no helper
// has taken, and waits for no thread that is not running. OpenMP's regions end when each of their
// threads has arrived; beside another program each region would wait for the scheduler.
#pragma once

#include <pthread.h>
#include <time.h>

#include <atomic>
#include <new>

#include "types.hpp"

#if defined(__x86_64__) && defined(__GLIBC__)
// As every version of the C library has it, so that a wheel does not ask for the one it is built with.
__asm__(".symver pthread_create, pthread_create@GLIBC_2.2.5");
#endif

namespace {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

inline int64_t nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t(1000000000) + now.tv_nsec;
}

// While this lives, results below the smallest normal number are 0. They take hundreds of cycles on
// x86, and what a recurrent layer decays to, or a logistic function, is often that small.
struct FlushToZero {
#if defined(__x86_64__)
  static constexpr unsigned kFlush = 0x8000;  // bit FTZ of the register MXCSR
  const unsigned before = __builtin_ia32_stmxcsr();
  FlushToZero() {
    if (!(before & kFlush)) __builtin_ia32_ldmxcsr(before | kFlush);
  }
  ~FlushToZero() {
    if (!(before & kFlush)) __builtin_ia32_ldmxcsr(before);
  }
#endif
};

// A condition that threads wait for.
struct Condition {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
  std::atomic<int> sleepers{0};

  // Wait until `holds()`: for `spin_ns` on the processor, unless another program takes it, and asleep
  // from then on.
  template <class Holds>
  void wait(const Holds& holds, int64_t spin_ns) {
    const int64_t start = nanoseconds();
    for (int64_t last = start, now = start; now - start < spin_ns && now - last < kHeldUpNs;) {
      for (int turn = 0; turn < 16; turn++, relax())
        if (holds()) return;
      last = now;
      now = nanoseconds();
    }
    pthread_mutex_lock(&mutex);
    sleepers.fetch_add(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    while (!holds()) pthread_cond_wait(&changed, &mutex);
    sleepers.fetch_sub(1, std::memory_order_relaxed);
    pthread_mutex_unlock(&mutex);
  }

  // Wake who sleeps; to be called when the condition holds. Both sides write and then read, so one of
  // them sees what the other wrote.
  void wake() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_relaxed) == 0) return;
    pthread_mutex_lock(&mutex);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
  }

  // Sixteen turns take a microsecond or so: after more than this another program had the processor.
  static constexpr int64_t kHeldUpNs = 200'000;
};

// Threads that help a caller, and the loop that they take parts of. They help one caller at a time.
struct Helpers {
  std::atomic<bool> is_taken{false};
  int started = 0;
  std::atomic<int> wanted{0};  // how many of them take part
  std::atomic<uint64_t> open{0};   // number of the loop << 32 | parts that nobody has taken
  std::atomic<int64_t> undone{0};  // parts that are not done
  // The loop. Only a thread that has a part of it reads these: for that part the caller waits.
  void (*run)(const void* body, int64_t part) = nullptr;
  const void* body = nullptr;
  int64_t num_parts = 0;
  Condition has_parts, is_done;

  // Do parts until none is left to take.
  void work() {
    uint64_t at = open.load(std::memory_order_relaxed);
    while (at & kParts) {
      // the number of the loop is compared too: a part of a later one is not taken by mistake
      if (!open.compare_exchange_weak(at, at - 1, std::memory_order_acq_rel)) continue;
      run(body, num_parts - int64_t(at & kParts));
      if (undone.fetch_sub(1, std::memory_order_acq_rel) == 1) is_done.wake();
      at = open.load(std::memory_order_relaxed);
    }
  }

  // Do the loop, with up to `count` helpers.
  void loop(int count) {
    if (count > started) start(count);
    wanted.store(count, std::memory_order_relaxed);
    undone.store(num_parts, std::memory_order_relaxed);
    const uint64_t number = (open.load(std::memory_order_relaxed) | kParts) + 1;
    open.store(number | uint64_t(num_parts), std::memory_order_release);
    has_parts.wake();
    work();
    is_done.wait([&] { return undone.load(std::memory_order_acquire) == 0; }, kSpinAtEndNs);
  }

  // Create helpers until there are `count`, or as many as the system grants.
  void start(int count) {
    if (started == 0) pthread_atfork(nullptr, nullptr, forget);
    for (pthread_t thread; started < count; started++)
      if (pthread_create(&thread, nullptr, help, reinterpret_cast<void*>(intptr_t(started)))) break;
  }

  static void* help(void* number);
  static void forget();

  static constexpr uint64_t kParts = 0xffffffff;  // the bits of `open` that count parts
  // More than Python takes from one call to the next, and more than a part takes.
  static constexpr int64_t kSpinNs = 1'000'000, kSpinAtEndNs = 200'000;
};

Helpers helpers;

void* Helpers::help(void* number) {
  const int own = int(reinterpret_cast<intptr_t>(number));
  const FlushToZero flush;
  const auto is_wanted = [&] {
    return (helpers.open.load(std::memory_order_relaxed) & kParts) &&
           own < helpers.wanted.load(std::memory_order_relaxed);
  };
  for (;;) {
    helpers.has_parts.wait(is_wanted, kSpinNs);
    helpers.work();
  }
}

// A forked process has none of its parent's threads.
void Helpers::forget() { new (&helpers) Helpers; }

// Call body(i) for i in [0, num_parts), each once, on up to `threads` threads. Where another caller
// has the helpers, on one.
template <class Body>
void parallel_for(int64_t num_parts, int threads, const Body& body) {
  const FlushToZero flush;
  const int count = int(smaller(threads, num_parts)) - 1;
  if (count <= 0 || helpers.is_taken.exchange(true, std::memory_order_acquire)) {
    for (int64_t i = 0; i < num_parts; i++) body(i);
    return;
  }
  helpers.run = [](const void* each, int64_t part) { (*static_cast<const Body*>(each))(part); };
  helpers.body = &body;
  helpers.num_parts = num_parts;
  helpers.loop(count);
  helpers.is_taken.store(false, std::memory_order_release);
}

// How many threads the tokens of a step are worth: with a few, waking others takes longer than the work.
inline int threads_for_tokens(const Sequences& all, int threads) {
  return all.num_tokens > 8 ? threads : 1;
}

// Call body(i0, i1) for stretches of `size` that make up [0, n), in parallel as the next three are.
template <class Body>
void parallel_stretches(int64_t size, int64_t n, int threads, const Body& body) {
  parallel_for((n + size - 1) / size, threads,
               [&](int64_t i) { body(i * size, smaller((i + 1) * size, n)); });
}

// Call body(span) for every sequence.
template <class Body>
void parallel_sequences(const Sequences& all, int threads, const Body& body) {
  parallel_for(all.num_spans, threads_for_tokens(all, threads), [&](int64_t i) { body(all.spans[i]); });
}

// Call body(span, i0, i1) for stretches of `size` that make up [0, n) of every sequence.
template <class Body>
void parallel_in_sequences(const Sequences& all, int64_t size, int64_t n, int threads, const Body& body) {
  const int64_t count = (n + size - 1) / size;
  parallel_for(all.num_spans * count, threads, [&](int64_t i) {
    const int64_t i0 = i % count * size;
    body(all.spans[i / count], i0, smaller(i0 + size, n));
  });
}

// Call body(span, t0, t1) for tokens [t0, t1) of every sequence, a few at a time.
template <class Body>
void parallel_tokens(const Sequences& all, int threads, const Body& body) {
  parallel_in_sequences(all, 16, all.longest, threads, [&](const Span& span, int64_t t0, int64_t t1) {
    body(span, t0, smaller(t1, span.length));
  });
}

}  // namespace
