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

// A sequence's tokens from one checkpoint to the next: advance(t0, t1), then keep(slot) there.
template <class Advance, class Keep>
inline void in_stretches(const Sequences& all, const Span& span, const Advance& advance,
                         const Keep& keep) {
  int64_t t = 0;
  for (int64_t i = 0; i < span.num_checkpoints; i++) {
    const Checkpoint& edge = all.checkpoints[span.checkpoints + i];
    advance(t, edge.distance);
    keep(edge.slot);
    t = edge.distance;
  }
  advance(t, span.length);
}

}  // namespace
