// What sequences carry from step to step, for mixers whose state follows from the one before alone.
#pragma once

#include "lanes.hpp"

namespace {

// Calls with(pointer) for numbers of a dtype from number `at` on: a bf16* or a float*.
template <class With>
inline void with_numbers(void* first, int64_t dtype, int64_t at, const With& with) {
  if (dtype == kBf16)
    with((bf16*)first + at);
  else
    with((float*)first + at);
}

// Calls with(pointer) for what is kept in a slot.
template <class With>
inline void with_kept(const Carried& all, int64_t slot, const With& with) {
  with_numbers(all.kept, all.dtype, slot * all.kept_stride, with);
}

// A sequence's working numbers before a step, and behind it.
inline float* working_before(const Carried& all, const Span& span) {
  return all.working + (span.run_slot + span.working_from) * all.working_stride;
}
inline float* working_after(const Carried& all, const Span& span) {
  return all.working + (span.run_slot + span.working_to) * all.working_stride;
}

// The place for the working numbers of one head, `size` each, after the step. Those before the step are
// copied there first; right after a grid edge they are what was kept.
inline float* brought(const Carried& all, const Span& span, int64_t head, int64_t size) {
  float* to = working_after(all, span) + head * size;
  if (!span.log_length)
    with_kept(all, span.state_slot, [&](const auto* from) { widen(from + head * size, size, size, to); });
  else if (span.working_from != span.working_to)
    memcpy(to, working_before(all, span) + head * size, size_t(size) * sizeof(float));
  return to;
}

inline void keep(const Carried& all, int64_t slot, int64_t head, const float* from, int64_t size) {
  with_kept(all, slot, [&](auto* to) { narrow(from, size, to + head * size); });
}

// Numbers at a grid edge become what would be kept of them.
inline void round_to_kept(int64_t dtype, float* numbers, int64_t n) {
  if (dtype != kBf16) return;
  for (int64_t i = 0; i < n; i++) {
    bf16 rounded;
    round_to(numbers[i], rounded);
    numbers[i] = to_float(rounded);
  }
}

// A sequence's tokens, up to `few` at once and none across a grid edge: advance(first row, rows), at
// each edge at_edge(), and behind that keep_at(slot) where a checkpoint is wanted.
template <class Advance, class Edge, class Keep>
inline void in_stretches(const Sequences& all, const Span& span, int64_t few, const Advance& advance,
                         const Edge& at_edge, const Keep& keep_at) {
  const Checkpoint* some = all.checkpoints + span.checkpoints;
  int64_t t = 0, written = 0;
  while (t < span.length) {
    const int64_t edge = t + kGrid - (span.log_length + t) % kGrid, end = smaller(edge, span.length);
    for (; t < end; t += few) advance(span.first + t, smaller(few, end - t));
    t = end;
    if (t < edge) return;
    at_edge();
    for (; written < span.num_checkpoints && some[written].distance == t; written++)
      keep_at(some[written].slot);
  }
}

}  // namespace
