// What sequences carry from step to step, for mixers whose state follows from the one before alone.
#pragma once

#include "lanes.hpp"

namespace {

template <class T>
inline T* kept(const Carried& all, int64_t slot) {
  return (T*)all.kept + slot * all.kept_stride;
}

template <class T>
inline T* working(const Carried& all, const Span& span) {
  return (T*)all.working + span.run_slot * all.working_stride;
}

// Where a sequence stands: right after a grid edge that is what was kept there.
template <class T>
inline const T* standing(const Carried& all, const Span& span) {
  return span.log_length ? working<T>(all, span) : kept<T>(all, span.state_slot);
}

// The working numbers of one head, `size` each; they are brought there if need be.
inline float* brought(const Carried& all, const Span& span, int64_t head, int64_t size) {
  float* to = working<float>(all, span) + head * size;
  const float* from = standing<float>(all, span) + head * size;
  if (from != to) memcpy(to, from, size_t(size) * sizeof(float));
  return to;
}

inline void keep(const Carried& all, int64_t slot, int64_t head, const float* from, int64_t size) {
  memcpy(kept<float>(all, slot) + head * size, from, size_t(size) * sizeof(float));
}

// A sequence's tokens, up to `few` at once and none across a checkpoint: advance(first row, rows),
// and keep_at(slot) at each checkpoint.
template <class Advance, class Keep>
inline void in_stretches(const Sequences& all, const Span& span, int64_t few, const Advance& advance,
                         const Keep& keep_at) {
  int64_t t = 0;
  const auto advance_to = [&](int64_t end) {
    for (; t < end; t += few) advance(span.first + t, smaller(few, end - t));
    t = end;
  };
  for (int64_t i = 0; i < span.num_checkpoints; i++) {
    const Checkpoint& edge = all.checkpoints[span.checkpoints + i];
    advance_to(edge.distance);
    keep_at(edge.slot);
  }
  advance_to(span.length);
}

}  // namespace
