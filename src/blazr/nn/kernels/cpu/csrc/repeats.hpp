// What followed the last tokens of a text where they stood before.
//
//   text   a b c d . . a b c e . . . b c | ?
//                ^         ^               places: behind tokens that are like the last ones
//
// Of several the one counts that is most like the end of the text, compared backwards:
//
//   place   get width ( self ) : return self . | width
//   end     get size  ( self ) : return self . | ?
//               ^ stands for width, and so it does in what follows: size
#pragma once

#include "types.hpp"

namespace {

struct Repeats {
  static constexpr int64_t kTogether = 64;  // tokens that are looked at before it is asked whether any fits
  static constexpr int64_t kMostReplaced = 8;  // that there is room for

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

  struct Tokens {
    const int32_t* first;
    int64_t count;
    bool operator==(const Tokens& other) const {
      return count == other.count && !memcmp(first, other.first, size_t(count) * sizeof(int32_t));
    }
  };
  // Tokens before a place, and those at the end of the text that stand for them.
  struct Replaced {
    Tokens old, substitute;
  };

  // How like a place the end of the text is.
  struct Alignment {
    int64_t place = -1;        // how many tokens come before it
    int64_t match = 0;         // how many of these are the last ones of the text
    int64_t num_same = 0;      // how many are the same, those before replaced ones included
    int64_t num_replaced = 0;  // pairs in `replaced`, of which the last in the text comes first
    const int32_t* start = nullptr;  // of the end of the text, as far as it was compared
    Replaced replaced[kMostReplaced];
  };

  static Alignment align(const Repeat& call, int64_t place) {
    Alignment found;
    found.place = place;
    const int32_t *begin = call.tokens, *there = begin + place, *here = begin + call.length;
    for (;;) {
      while (there > begin && found.num_same < call.longest && there[-1] == here[-1])
        there--, here--, found.num_same++;
      if (!found.num_replaced) found.match = found.num_same;
      found.start = here;
      if (found.num_same == call.longest || !step_over(call, found, there, here)) return found;
    }
  }

  // Go back from a difference, before `there` and `here`, to where both texts agree again: over tokens that
  // are known to be replaced, or else over the fewest that two equal tokens come before. False where there
  // are none.
  static bool step_over(const Repeat& call, Alignment& found, const int32_t*& there, const int32_t*& here) {
    const int32_t *begin = call.tokens, *place = begin + found.place;
    for (int64_t i = 0; i < found.num_replaced; i++) {
      const auto& [old, substitute] = found.replaced[i];
      const int32_t *before = there - old.count, *behind = here - substitute.count;
      if (before - begin < 1 || behind <= place || before[-1] != behind[-1]) continue;
      if (Tokens{before, old.count} == old && Tokens{behind, substitute.count} == substitute) {
        there = before, here = behind;
        return true;
      }
    }
    if (found.num_replaced == smaller(call.most_replaced, kMostReplaced)) return false;
    for (int64_t total = 2; total <= 2 * call.widest; total++)
      for (int64_t old = larger(1, total - call.widest); old <= smaller(call.widest, total - 1); old++) {
        const int32_t *before = there - old, *behind = here - (total - old);
        if (before - begin < 2 || behind <= place) continue;
        if (before[-1] != behind[-1] || before[-2] != behind[-2]) continue;
        found.replaced[found.num_replaced++] = {{before, old}, {behind, total - old}};
        there = before, here = behind;
        return true;
      }
    return false;
  }

  // Forget replacements of tokens that are among the last ones, unreplaced.
  static void keep_sure(const Repeat& call, Alignment& found) {
    const int32_t* end = call.tokens + call.length;
    const int32_t* recent = end - call.recent > found.start ? end - call.recent : found.start;
    int64_t kept = 0;
    for (int64_t i = 0; i < found.num_replaced; i++) {
      const Tokens old = found.replaced[i].old;
      bool is_there = false;
      for (const int32_t* at = recent; at + old.count <= end; at++)
        is_there |= Tokens{at, old.count} == old;
      if (!is_there) found.replaced[kept++] = found.replaced[i];
    }
    found.num_replaced = kept;
  }

  // Write what follows the place, replaced; behind the end of the text it comes again.
  static void write(const Repeat& call, const Alignment& found) {
    const int32_t* source = call.tokens + found.place;
    const int64_t round = call.length - found.place;
    const auto is_at = [&](int64_t at, const Tokens& some) {
      for (int64_t i = 0; i < some.count; i++)
        if (source[(at + i) % round] != some.first[i]) return false;
      return true;
    };
    for (int64_t written = 0, at = 0; written < call.most;) {
      const Tokens one{source + at % round, 1};
      Replaced now{one, one};
      for (int64_t i = found.num_replaced - 1; i >= 0; i--)
        if (is_at(at, found.replaced[i].old)) now = found.replaced[i];
      for (int64_t i = 0; i < now.substitute.count && written < call.most; i++)
        call.following[written++] = now.substitute.first[i];
      at += now.old.count;
    }
  }

  static void find(Repeat& call) {
    call.match = 0, call.num_agreed = -1, call.num_replaced = 0;
    if (call.length < 2) return;
    int64_t count = 2, place = latest(call, count, call.length);
    if (place < 0) place = latest(call, count = 1, call.length);
    if (place < 0) return;
    const int64_t first = place;
    int64_t second = -1, highest = 0;
    const auto score = [&](const Alignment& some) {
      return some.num_same - call.replaced_cost * some.num_replaced;
    };
    Alignment best;
    for (int64_t i = 0; i < call.candidates && place >= 0; i++) {
      if (i == 1) second = place;
      const Alignment found = align(call, place);
      if (!i || score(found) > highest) best = found, highest = score(best);
      if (i && highest == call.longest) break;  // as much as there can be
      place = latest(call, count, place);
    }
    keep_sure(call, best);
    write(call, best);
    call.match = best.match, call.num_replaced = best.num_replaced;
    const int64_t other = best.place == first ? second : first;
    if (other < 0) return;
    const int64_t most = smaller(call.most, call.length - other);
    int64_t agreed = 0;
    while (agreed < most && call.following[agreed] == call.tokens[other + agreed]) agreed++;
    call.num_agreed = agreed;
  }
};

}  // namespace
