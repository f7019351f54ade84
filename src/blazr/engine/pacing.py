"""How much prefill fits beside decoding without the readers noticing."""

from __future__ import annotations

from operator import mul
from typing import NamedTuple

PACE = 1.1  # an estimate changes by this factor at most with each step
LEAST_SHARE = 0.1  # of a step's time: what it costs at least without any token
MIN_TOKENS = 8  # prefill continues, however slow it seems
MIN_ALONE = 64  # tokens: fewer take as long as the weights, which says little about many
MOST_PRESSURE = 2.0  # the time for prefill grows by this factor at most while many prompts wait
FADING = 0.9  # what a step counts after the next one with prefill
OLDEST = 64  # such steps, after which it fades no more: a line needs two points


class _Reading(NamedTuple):
    """A step with prefill.

    Args:
        number: How many there were before it.
        num_decodes: Sequences that decoded in it.
        num_tokens: Tokens of prompts that it computed.
        seconds: How long it took.
    """

    number: int
    num_decodes: int
    num_tokens: int
    seconds: float


class Pacing:
    """Learns what a step costs: so much, more for every token, and more if it has prefill.

    While sequences decode, a step may take at most ``share`` times as long as without prefill.
    Where more sequences wait for their prompts than decode, the time for prefill is up to twice
    that: a handful of readers must not keep a crowd waiting, nor the weights be read for a handful.

    Steps with prefill are not recorded. Of a small model, or on a GPU, that costs more than the
    share leaves. Then the tokens of prompts get as much time again: with fewer of them in a step
    everybody would wait longer, those who read and those whose prompts are being read.

    Args:
        share: That factor, at least 1.
        token_budget: Never more prefill tokens than this.
    """

    def __init__(self, *, share: float, token_budget: int) -> None:
        self._share = share
        self._budget = token_budget
        self._base_s: float | None = None
        self._token_s: float | None = None
        self._start_s = 0.0  # what prefill costs before its first token
        self._num_readings = 0
        self._readings: dict[int, _Reading] = {}  # the latest of about so many tokens, in bits

    def prefill_budget(self, num_decodes: int, num_prompts: int = 1) -> int:
        """Most prefill tokens in the next step, if something decodes in it.

        Args:
            num_decodes: Sequences that decode in it.
            num_prompts: Sequences whose prompts are being computed, or wait for it.
        """
        if self._base_s is None or self._token_s is None:
            return MIN_TOKENS
        decode_s = self._base_s + self._token_s * num_decodes
        pressure = min(max(num_prompts / max(num_decodes, 1), 1.0), MOST_PRESSURE)
        left_s = (self._share - 1) * pressure * decode_s - self._start_s
        affordable = int(max(left_s, self._start_s) / self._token_s)
        # a few tokens do not tell how long many take, nor do those of one size what the first costs
        most = 2 * max(each.num_tokens for each in self._readings.values())
        least = MIN_TOKENS if len(self._readings) > 1 else 2 * MIN_TOKENS
        return min(max(least, min(affordable, most)), self._budget)

    def learn(self, num_decodes: int, num_prefill_tokens: int, seconds: float) -> None:
        """Take in one step's length.

        Args:
            num_decodes: Sequences that decoded in it.
            num_prefill_tokens: Prefill tokens it computed.
            seconds: How long it took.
        """
        num_tokens = num_decodes + num_prefill_tokens
        least_s = LEAST_SHARE * seconds
        if not num_prefill_tokens:
            base_s = seconds - (self._token_s or 0.0) * num_tokens
            self._base_s = _limit_change(self._base_s, max(base_s, least_s))
        elif num_decodes and self._base_s is None:
            if self._token_s is not None:
                self._base_s = max(seconds - self._token_s * num_tokens, least_s)
        elif num_prefill_tokens >= (MIN_TOKENS if num_decodes else MIN_ALONE):
            self._learn_prefill(num_decodes, num_prefill_tokens, seconds)

    def _learn_prefill(self, num_decodes: int, num_tokens: int, seconds: float) -> None:
        size = num_tokens.bit_length()
        known = self._readings.get(size)
        if known is not None:
            more_s = (self._token_s or 0.0) * (num_tokens - known.num_tokens)
            expected_s = self._beside(num_decodes) + self._prefill(known) + more_s
            if expected_s > 0:
                seconds = _limit_change(expected_s, seconds)
        seconds = max(seconds, 1e-7)  # as some clocks see it, a step takes no time
        self._num_readings += 1
        self._readings[size] = _Reading(self._num_readings, num_decodes, num_tokens, seconds)
        self._fit()

    def _beside(self, num_decodes: int) -> float:
        """Seconds of a step without its prefill; nothing where only prompts are read."""
        if not num_decodes:
            return 0.0
        return (self._base_s or 0.0) + (self._token_s or 0.0) * num_decodes

    def _prefill(self, reading: _Reading) -> float:
        return reading.seconds - self._beside(reading.num_decodes)

    def _fit(self) -> None:
        """Find the line through what prefill cost: least squares of shares of the steps' times."""
        readings = self._readings.values()
        counts = [each.num_tokens for each in readings]
        costs = [self._prefill(each) for each in readings]
        ages = [min(self._num_readings - each.number, OLDEST) for each in readings]
        weights = [FADING**age / each.seconds**2 for age, each in zip(ages, readings, strict=True)]
        mean = sum(map(mul, weights, counts)) / sum(weights)
        beyond = [weight * (count - mean) for weight, count in zip(weights, counts, strict=True)]
        spread = sum(map(mul, beyond, counts))
        token_s = sum(map(mul, beyond, costs)) / spread if len(counts) > 1 else 0.0
        start_s = sum(map(mul, weights, costs)) / sum(weights) - token_s * mean
        if token_s <= 0 or start_s < 0:  # a line through the origin then
            scaled = [*map(mul, weights, counts)]
            start_s, token_s = 0.0, sum(map(mul, scaled, costs)) / sum(map(mul, scaled, counts))
        self._start_s, self._token_s = start_s, max(token_s, 1e-7)


def _limit_change(old: float | None, new: float) -> float:
    """Move towards the median: a step that was held up once says nothing about the next."""
    if old is None or old / PACE < new < old * PACE:
        return new
    return old * PACE if new > old else old / PACE
