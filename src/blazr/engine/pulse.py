"""Whether the engine's thread works or has stalled, and whether what it does succeeds."""

from __future__ import annotations

import time
from math import inf

# An engine has stalled when a step takes this many times as long as recent steps of its size, and
# at least this many seconds: a machine that is busy elsewhere holds up steps of a millisecond.
STALL_FACTOR = 10.0
STALL_S = 2.0
# Allowed for work whose length is not known: the first step, recording, loading other weights.
UNKNOWN_S = 30.0
DECAY = 0.9  # of the longest time of a size with each step, so that one slow step is forgotten
FAILURES = 3  # requests in a row that end with an error


class Pulse:
    """The heartbeat of the engine's thread, which alone writes it; any thread may read it.

    The thread beats before each step and between steps, never within one. How long a step may take
    is estimated from earlier steps, in buckets by the power of two of their number of tokens.

    Attributes:
        beat_s: Time of the last beat, on the monotonic clock.
        allowed_s: Seconds from then on after which the thread counts as stalled.
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
        """Beat; the thread now waits for work, however long."""
        self._set(inf)

    def work(self) -> None:
        """Beat; the thread now does something of unknown length."""
        self._set(UNKNOWN_S)

    def step(self, num_tokens: int) -> None:
        """Beat; the thread now computes a step of at most ``num_tokens``."""
        self._set(max(STALL_S, STALL_FACTOR * self._expected_s(num_tokens)))

    def extend(self) -> None:
        """Beat; within a step, the thread also does something of unknown length."""
        self._set(max(self.allowed_s, UNKNOWN_S))

    def learn(self, num_tokens: int, seconds: float) -> None:
        """Record how long a step took."""
        bits = num_tokens.bit_length()
        self._longest_s += [0.0] * (bits + 1 - len(self._longest_s))
        self._longest_s[bits] = max(seconds, DECAY * self._longest_s[bits])

    def fail(self, request_id: int) -> None:
        """Record that a request ended with an error."""
        if not self.has_failed:
            self._failed.add(request_id)

    def succeed(self) -> None:
        """Record that something was computed; earlier failures no longer count."""
        self._failed.clear()

    def _expected_s(self, num_tokens: int) -> float:
        """How long a step takes, extrapolated from smaller ones where none was as large."""
        if not self._longest_s:
            return UNKNOWN_S / STALL_FACTOR
        bits = num_tokens.bit_length()
        most = len(self._longest_s) - 1
        return max(self._longest_s[: bits + 1]) * 2.0 ** max(bits - most, 0)

    def _set(self, allowed_s: float) -> None:
        # in this order, or a reader in between would take the long wait before for a stall
        self.beat_s = time.monotonic()
        self.allowed_s = allowed_s
