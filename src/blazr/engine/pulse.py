"""Whether the engine's thread works or has stalled, and whether what it does succeeds."""

from __future__ import annotations

import time
from math import inf

# An engine has stalled when a step takes so many times as long as steps of its size lately took,
# and at least so many seconds: a machine that is busy elsewhere holds up steps of a millisecond.
SLOWER = 10.0
STALL_S = 2.0
# For work of which nobody knows how long it takes: the first step, recording, other weights.
UNKNOWN_S = 30.0
DECAY = 0.9  # a step that was held up once counts less with every later one
FAILURES = 3  # requests in a row that end with an error


class Pulse:
    """Signs of life of one thread; any other may read them.

    Steps are as long as they are large, so the time that one may take follows from those that ended
    before it, by powers of two of their tokens. No sign is given within a step: a network that
    takes longer than two seconds for one is known to by then.

    Attributes:
        beat_s: When the thread last came round, on the monotonic clock.
        allowed_s: How long it may take from there on.
    """

    def __init__(self) -> None:
        self._longest_s: list[float] = []  # by bits of the number of tokens
        self._failed: set[int] = set()
        self.beat_s = time.monotonic()
        self.allowed_s = UNKNOWN_S

    @property
    def has_failed(self) -> bool:
        """Whether the last requests all ended with an error."""
        return len(self._failed) >= FAILURES

    def rest(self) -> None:
        """It waits for something to do, for as long as it likes."""
        self._set(inf)

    def work(self) -> None:
        """It begins something of unknown length."""
        self._set(UNKNOWN_S)

    def step(self, num_tokens: int) -> None:
        """It begins a step of at most so many tokens."""
        self._set(max(STALL_S, SLOWER * self._expected_s(num_tokens)))

    def extend(self) -> None:
        """Within a step, it begins something of unknown length besides."""
        self._set(max(self.allowed_s, UNKNOWN_S))

    def learn(self, num_tokens: int, seconds: float) -> None:
        """A step of so many tokens took so long."""
        bits = num_tokens.bit_length()
        self._longest_s += [0.0] * (bits + 1 - len(self._longest_s))
        self._longest_s[bits] = max(seconds, DECAY * self._longest_s[bits])

    def fail(self, request_id: int) -> None:
        """A request has ended with an error."""
        if not self.has_failed:
            self._failed.add(request_id)

    def succeed(self) -> None:
        """Something was computed."""
        self._failed.clear()

    def _expected_s(self, num_tokens: int) -> float:
        """How long a step may take, judged by smaller ones where none was as large."""
        if not self._longest_s:
            return UNKNOWN_S / SLOWER
        bits = num_tokens.bit_length()
        most = len(self._longest_s) - 1
        return max(self._longest_s[: bits + 1]) * 2.0 ** max(bits - most, 0)

    def _set(self, allowed_s: float) -> None:
        # in this order, or a reader in between would take the long wait before for a stall
        self.beat_s = time.monotonic()
        self.allowed_s = allowed_s
