// Loops over parts of the work, on torch's threads.
//
//   a call alone      | part 0 | part 3 |        one region for each loop
//                     | part 1 | part 2 |
//
//   recorded calls    | part 0 | part 3 | meet | part 0 | meet | ...    one region for all of them
//                     | part 1 | part 2 | meet | part 1 | meet | ...
#pragma once

#include <sched.h>

#include <atomic>

#include "types.hpp"

namespace {

// OpenMP's entry point for a parallel region, taken from the runtime that torch has loaded: two
// runtimes in one process would each keep spinning threads and slow each other down many times.
using ParallelRegion = void (*)(void (*body)(void*), void* data, unsigned threads, unsigned flags);

ParallelRegion parallel_region = nullptr;
int (*num_threads)() = nullptr;  // of the region that the caller is in

// Threads that go through recorded calls together. Each runs every call; the loops inside share
// their parts out and meet at the end, which is several times cheaper than a region for each.
struct Team {
  std::atomic<int> threads{1}, arrived{0}, loops{0};
  std::atomic<int64_t> next{0};  // part of the loop they are in

  void meet() {
    const int loop = loops.load(std::memory_order_acquire);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == threads.load(std::memory_order_relaxed)) {
      arrived.store(0, std::memory_order_relaxed);
      next.store(0, std::memory_order_relaxed);
      loops.store(loop + 1, std::memory_order_release);
      return;
    }
    // somebody else's work may keep the others from running
    for (int turn = 0; loops.load(std::memory_order_acquire) == loop; turn++)
      if (turn > 10000) sched_yield();
      else relax();
  }

  static void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
  }
};

thread_local Team* team = nullptr;

// Call body() on each of `threads` threads.
template <class Body>
void in_region(int threads, const Body& body) {
  const auto run = [](void* data) { (*static_cast<const Body*>(data))(); };
  parallel_region(run, const_cast<Body*>(&body), unsigned(threads), 0);
}

// Call body(i) for i in [0, num_parts), each once, on up to `threads` threads. What a kernel does
// outside of such loops must not write to memory that others see: a team does it on every thread.
template <class Body>
void parallel_for(int64_t num_parts, int threads, const Body& body) {
  const auto run = [&](std::atomic<int64_t>& next) {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < num_parts;) body(i);
  };
  if (team) {
    run(team->next);
    return team->meet();
  }
  std::atomic<int64_t> next{0};
  threads = int(smaller(threads, num_parts));
  if (threads > 1 && parallel_region)
    in_region(threads, [&] { run(next); });
  else
    run(next);
}

// Call body(i0, i1) for stretches of `size` that make up [0, n).
template <class Body>
void in_stretches_of(int64_t size, int64_t n, int threads, const Body& body) {
  parallel_for((n + size - 1) / size, threads,
               [&](int64_t i) { body(i * size, smaller((i + 1) * size, n)); });
}

// Call body(span, i0, i1) for stretches of `size` that make up [0, n) of every sequence.
template <class Body>
void in_sequences(const Sequences& all, int64_t size, int64_t n, int threads, const Body& body) {
  const int64_t count = (n + size - 1) / size;
  parallel_for(all.num_spans * count, threads, [&](int64_t i) {
    const int64_t i0 = i % count * size;
    body(all.spans[i / count], i0, smaller(i0 + size, n));
  });
}

// Call body(span, t0, t1) for a few rows of every sequence.
template <class Body>
void in_rows(const Sequences& all, int threads, const Body& body) {
  in_sequences(all, 16, all.longest, threads, [&](const Span& span, int64_t t0, int64_t t1) {
    body(span, t0, smaller(t1, span.length));
  });
}

}  // namespace
