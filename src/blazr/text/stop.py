"""Stop strings: text passes through until one of them appears, however it is cut."""

from __future__ import annotations

from collections.abc import Sequence

from blazr.text.splitter import overlap


class StopMatcher:
    """Finds the first of several strings in a stream of text.

    The match that begins first wins; of two that begin together, the shorter. A match is therefore
    announced only when no other can begin before it any more. Text is held back exactly as long as
    it could still belong to a match. How the text is cut into pushes makes no difference.

    Args:
        stop: The strings, none of them empty. There may be none.
        include_stop: Let the string itself through.
        unseen: More such strings, which are never let through.
    """

    def __init__(
        self, stop: Sequence[str], *, include_stop: bool = False, unseen: Sequence[str] = ()
    ) -> None:
        self._stop = (*stop, *unseen)
        self._included = frozenset(stop if include_stop else ())
        self._held = ""  # text not yet let through
        self._num_free = 0  # characters of it in which no match may end
        self.matched: str | None = None

    def push(self, text: str, *, may_end: bool = True) -> str:
        """Take more text; get what may be let through. Nothing after a match ever is.

        Args:
            text: The text.
            may_end: Whether a match may end in it; one may begin in it all the same.
        """
        if self.matched is not None:
            return ""
        if not self._stop:
            return text
        self._held += text
        if not may_end:
            self._num_free = len(self._held)
        return self._release(max(overlap(self._held, each) for each in self._stop))

    def flush(self) -> str:
        """The text ended; get what was held back of it."""
        return self._release(0)

    def _release(self, begun: int) -> str:
        """Let text through, but for that many characters with which a match may begin."""
        held = self._held
        cut = len(held) - begun
        free = self._num_free
        found = (
            (at, len(each), each)
            for each in self._stop
            if (at := held.find(each, max(free + 1 - len(each), 0))) >= 0
        )
        start, length, matched = min(found, default=(cut, 0, None))
        if matched is None or start > cut:
            cut = min(start, cut)
            self._held = held[cut:]
            self._num_free = max(free - cut, 0)
            return held[:cut]
        self.matched = matched
        self._held = ""
        return held[: start + length if matched in self._included else start]
