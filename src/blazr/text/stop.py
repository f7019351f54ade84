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
    """

    def __init__(self, stop: Sequence[str], *, include_stop: bool = False) -> None:
        self._stop = tuple(stop)
        self._include_stop = include_stop
        self._held = ""  # text not yet let through
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Take more text; get what may be let through. Nothing after a match ever is."""
        if self.matched is not None:
            return ""
        if not self._stop:
            return text
        self._held += text
        return self._release(max(overlap(self._held, each) for each in self._stop))

    def flush(self) -> str:
        """The text ended; get what was held back of it."""
        return self._release(0)

    def _release(self, begun: int) -> str:
        """Let text through, but for that many characters with which a match may begin."""
        held = self._held
        cut = len(held) - begun
        found = ((at, len(each), each) for each in self._stop if (at := held.find(each)) >= 0)
        start, length, matched = min(found, default=(cut, 0, None))
        if matched is None or start > cut:
            cut = min(start, cut)
            self._held = held[cut:]
            return held[:cut]
        self.matched = matched
        self._held = ""
        return held[: start + length if self._include_stop else start]
