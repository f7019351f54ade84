"""How much prefill fits beside decoding without the readers noticing."""

from __future__ import annotations

PACE = 1.1  # factor by which an estimate moves towards each new value
LEAST_SHARE = 0.1  # of a step with prefill that its decoding is taken to cost
MIN_TOKENS = 8  # prefill goes on, however slow it seems


class Pacing:
    """Learns from the lengths of steps what a prefill token costs.

    While sequences decode, a step may take at most ``share`` times as long as without prefill.

    Args:
        share: That factor, at least 1.
        token_budget: Never more prefill tokens than this.
    """

    def __init__(self, *, share: float, token_budget: int) -> None:
        self._share = share
        self._budget = token_budget
        self._decode_s: float | None = None
        self._token_s: float | None = None
        self.longest_step_s = 0.0

    def prefill_budget(self) -> int:
        """Most prefill tokens in the next step, if something decodes in it."""
        if self._decode_s is None or self._token_s is None:
            return MIN_TOKENS
        affordable = (self._share - 1) * self._decode_s / self._token_s
        return max(MIN_TOKENS, min(int(affordable), self._budget))

    def learn(self, num_decodes: int, num_prefill_tokens: int, seconds: float) -> None:
        """Take in one step's length.

        Args:
            num_decodes: Sequences that decoded in it.
            num_prefill_tokens: Prefill tokens it computed.
            seconds: How long it took.
        """
        self.longest_step_s = max(self.longest_step_s, seconds)
        if not num_prefill_tokens:
            self._decode_s = _follow(self._decode_s, seconds)
        elif not num_decodes:
            self._learn_token(seconds, num_prefill_tokens)
        elif self._decode_s is not None:
            self._learn_token(seconds - self._decode_s, num_prefill_tokens)
        elif self._token_s is not None:
            rest = seconds - self._token_s * num_prefill_tokens
            self._decode_s = max(rest, LEAST_SHARE * seconds)

    def _learn_token(self, seconds: float, count: int) -> None:
        # a handful of tokens costs a whole step, which says little about many
        if count >= MIN_TOKENS:
            self._token_s = _follow(self._token_s, max(seconds / count, 1e-7))


def _follow(old: float | None, new: float) -> float:
    """Move towards the median: a step that was held up once says nothing about the next."""
    if old is None or old / PACE < new < old * PACE:
        return new
    return old * PACE if new > old else old / PACE
