// Where the last tokens of a text stood before.
//
//   text   a b c d . . a b c e . . . b c | ?
//                ^         ^               places: behind tokens that are like the last ones
#pragma once

#include "types.hpp"

namespace {

struct Repeats {
  static constexpr int64_t kTogether = 64;  // tokens that are looked at before it is asked whether any fits

  // The latest place before `limit`, or -1, behind tokens of which the first and the last are those of
  // the last `count` tokens: of up to two, all are.
  static int64_t latest(const Repeat& call, int64_t count, int64_t limit) {
    const int32_t* tokens = call.tokens;
    const int32_t last = tokens[call.length - 1], first = tokens[call.length - count];
    const auto fits = [=](int64_t place) {
      return (tokens[place - 1] == last) & (tokens[place - count] == first);
    };
    for (int64_t end = limit, begin; end > count; end = begin) {
      begin = larger(end - kTogether, count);
      int any = 0;
      for (int64_t place = begin; place < end; place++) any |= fits(place);
      if (any)
        for (int64_t place = end - 1; place >= begin; place--)
          if (fits(place)) return place;
    }
    return -1;
  }

  // How many tokens before a place are the last ones.
  static int64_t match_at(const Repeat& call, int64_t place) {
    const int64_t most = smaller(place, call.longest);
    int64_t match = 0;
    while (match < most && call.tokens[place - match - 1] == call.tokens[call.length - match - 1]) match++;
    return match;
  }

  static void find(Repeat& call) {
    call.place = -1, call.match = 0, call.num_agreed = -1;
    if (call.length < 2) return;
    int64_t count = 2, found = latest(call, count, call.length);
    if (found < 0) found = latest(call, count = 1, call.length);
    const int64_t first = found;
    int64_t second = -1;
    for (int64_t i = 0; i < call.candidates && found >= 0; i++) {
      if (i == 1) second = found;
      const int64_t match = match_at(call, found);
      if (match > call.match) call.place = found, call.match = match;
      // of single tokens no place is behind more of them, and none behind more than are compared
      if (i && (count == 1 || call.match == call.longest)) break;
      found = latest(call, count, found);
    }
    const int64_t other = call.place == first ? second : first;
    if (other < 0) return;
    const int64_t round = call.length - call.place;
    for (int64_t i = 0; ; i++) {
      call.num_agreed = i;
      if (i == call.most || other + i == call.length) return;
      if (call.tokens[call.place + i % round] != call.tokens[other + i]) return;
    }
  }
};

}  // namespace
