// Loops over parts of the work, on torch's threads.
//
//   a call alone      | part 0 | part 3 |        one region for each loop
//                     | part 1 | part 2 |
//
//   recorded calls    | part 0 | part 3 || part 0 || part 0 |    one region for all of them; a loop
//                     | part 1 | part 2 || part 1 |              begins when no part is left before
#pragma once

#include <sched.h>

#include <atomic>

#include "types.hpp"

namespace {

// OpenMP's entry point for a parallel region, taken from the runtime that torch has loaded: two
// runtimes in one process would each keep spinning threads and slow each other down many times.
using ParallelRegion = void (*)(void (*body)(void*), void* data, unsigned threads, unsigned flags);

ParallelRegion parallel_region = nullptr;

// Threads that go through recorded calls together, which is several times cheaper than a region for
// each loop. Every thread runs every call and counts the loops inside; those of one loop share its
// parts out. A loop is over when its parts are done, whoever did them: while another program has a
// thread's core the others do its share, and once it is back it passes over the loops it missed.
struct Team {
  std::atomic<uint64_t> place{0};  // number of the loop << 32 | its next part
  std::atomic<int64_t> done{0};    // parts of that loop

  template <class Body>
  void run(uint64_t loop, int64_t num_parts, const Body& body) {
    const uint64_t first = loop << 32, end = first + uint64_t(num_parts);
    if (num_parts == 0) {
      uint64_t expected = first;
      place.compare_exchange_strong(expected, first + kNextLoop, std::memory_order_acq_rel);
      return;
    }
    uint64_t at = place.load(std::memory_order_acquire);
    for (int turn = 0; at >> 32 == loop;) {
      if (at < end) {
        // a plain increment could take a part of a later loop
        if (!place.compare_exchange_weak(at, at + 1, std::memory_order_acq_rel)) continue;
        body(int64_t(at - first));
        if (done.fetch_add(1, std::memory_order_acq_rel) + 1 == num_parts) {
          done.store(0, std::memory_order_relaxed);
          place.store(first + kNextLoop, std::memory_order_release);
          return;
        }
      } else if (++turn > 10000) {
        sched_yield();  // the thread that has the last part may wait for this core
      } else {
        relax();
      }
      at = place.load(std::memory_order_acquire);
    }
  }

  static constexpr uint64_t kNextLoop = uint64_t(1) << 32;

  static void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
  }
};

thread_local Team* team = nullptr;
thread_local uint64_t num_loops = 0;  // which this thread has been through in its team

// Call body() on each of `threads` threads.
template <class Body>
void in_region(int threads, const Body& body) {
  const auto run = [](void* data) { (*static_cast<const Body*>(data))(); };
  parallel_region(run, const_cast<Body*>(&body), unsigned(threads), 0);
}

// Call body(i) for i in [0, num_parts), each once, on up to `threads` threads.
//
// In a team every thread runs what a kernel does outside of such loops, and one that was held up
// does so late. There a kernel must write to no memory that others see, and how many loops it has
// must follow from its arguments alone.
template <class Body>
void parallel_for(int64_t num_parts, int threads, const Body& body) {
  if (team) return team->run(num_loops++, num_parts, body);
  std::atomic<int64_t> next{0};
  const auto run = [&] {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < num_parts;) body(i);
  };
  threads = int(smaller(threads, num_parts));
  if (threads > 1 && parallel_region)
    in_region(threads, run);
  else
    run();
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
