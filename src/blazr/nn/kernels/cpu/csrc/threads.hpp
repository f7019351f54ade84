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

#include "kernels.hpp"

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

// Call body(i) for i in [0, num_parts), each once, on up to `threads` threads. What a kernel does
// outside of such loops must not write to memory that others see: a team does it on every thread.
template <class Body>
void parallel_for(int64_t num_parts, int threads, const Body& body) {
  if (team) {
    for (int64_t i; (i = team->next.fetch_add(1, std::memory_order_relaxed)) < num_parts;) body(i);
    return team->meet();
  }
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

// Call body(span, t0, t1) for strips of rows of every sequence.
template <class Body>
void in_strips(const Span* spans, int64_t num_spans, int64_t longest, int threads, const Body& body) {
  constexpr int64_t kRows = 16;
  const int64_t strips = (longest + kRows - 1) / kRows;
  parallel_for(num_spans * strips, threads, [&](int64_t i) {
    const Span& span = spans[i / strips];
    const int64_t t0 = i % strips * kRows, t1 = t0 + kRows;
    body(span, t0, t1 < span.length ? t1 : span.length);
  });
}

}  // namespace
