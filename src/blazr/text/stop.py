"""Stop strings: text passes through until one of them appears, however it is cut."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Finds the first of several strings in a stream of text.

    The match that begins first wins; of two that begin together, the shorter. A match is therefore
    announced only when no other can begin before it any more. Text is held back exactly as long as
    it could still belong to a match. How the text is cut into pushes makes no difference.

    Args:
        stop: The strings, none of them empty. There may be none.
        include_stop: Let the string itself through.
    """

    def __init__(self, stop: Sequence[str], *, include_stop: bool = False) -> None:
        self._patterns = [(text, _failures(text)) for text in dict.fromkeys(stop)]
        self._include_stop = include_stop
        self._states = [0] * len(self._patterns)  # how much of each is matched at the end
        self._held = ""  # text not yet let through
        self._candidate: tuple[int, str] | None = None  # where in _held a whole match begins
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Take more text; get what may be let through. Nothing after a match ever is."""
        if self.matched is not None:
            return ""
        if not self._patterns:
            return text
        position = len(self._held)
        self._held += text
        for character in text:
            position += 1
            self._advance(character, position)
            if self._candidate and position - max(self._states) >= self._candidate[0]:
                return self._finish()
        cut = len(self._held) - max(self._states)
        if self._candidate:
            cut = min(cut, self._candidate[0])
        return self._release(cut)

    def flush(self) -> str:
        """The text ended; get what was held back of it."""
        if self._candidate:
            return self._finish()
        return self._release(len(self._held))

    def _advance(self, character: str, position: int) -> None:
        for index, (pattern, failures) in enumerate(self._patterns):
            state = self._states[index]
            while state and character != pattern[state]:
                state = failures[state - 1]
            if character == pattern[state]:
                state += 1
            if state == len(pattern):
                start = position - state
                best = self._candidate
                if best is None or (start, state) < (best[0], len(best[1])):
                    self._candidate = (start, pattern)
                state = failures[state - 1]
            self._states[index] = state

    def _finish(self) -> str:
        assert self._candidate is not None
        start, pattern = self._candidate
        self.matched = pattern
        text = self._held[: start + len(pattern) if self._include_stop else start]
        self._held = ""
        self._candidate = None
        return text

    def _release(self, cut: int) -> str:
        text = self._held[:cut]
        self._held = self._held[cut:]
        if self._candidate:
            self._candidate = (self._candidate[0] - cut, self._candidate[1])
        return text


def _failures(pattern: str) -> list[int]:
    """Of each prefix, the length of its longest proper prefix that is also its suffix.

    Source: Knuth, Morris and Pratt 1977.
    """
    failures = [0] * len(pattern)
    state = 0
    for position in range(1, len(pattern)):
        while state and pattern[position] != pattern[state]:
            state = failures[state - 1]
        if pattern[position] == pattern[state]:
            state += 1
        failures[position] = state
    return failures
