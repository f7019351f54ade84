"""How much prefill fits beside decoding without the readers noticing."""

from __future__ import annotations

PACE = 1.1  # an estimate changes by this factor at most with each step
LEAST_SHARE = 0.1  # of a step's time: what it costs at least without any token
MIN_TOKENS = 8  # prefill continues, however slow it seems
MOST_PRESSURE = 2.0  # the time for prefill grows by this factor at most while many prompts wait


class Pacing:
    """Learns what a step costs: so much, and so much more for every token in it.

    While sequences decode, a step may take at most ``share`` times as long as without prefill.
    Where more sequences wait for their prompts than decode, the time for prefill is up to twice
    that: a handful of readers must not keep a crowd waiting, nor the weights be read for a handful.

    Args:
        share: That factor, at least 1.
        token_budget: Never more prefill tokens than this.
    """

    def __init__(self, *, share: float, token_budget: int) -> None:
        self._share = share
        self._budget = token_budget
        self._base_s: float | None = None
        self._token_s: float | None = None

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
        affordable = (self._share - 1) * pressure * decode_s / self._token_s
        return max(MIN_TOKENS, min(int(affordable), self._budget))

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
        elif num_prefill_tokens >= MIN_TOKENS:
            # a handful of tokens costs a whole step, which says little about many
            base_s = (self._base_s or 0.0) if num_decodes else 0.0
            self._token_s = _limit_change(self._token_s, max((seconds - base_s) / num_tokens, 1e-7))


def _limit_change(old: float | None, new: float) -> float:
    """Move towards the median: a step that was held up once says nothing about the next."""
    if old is None or old / PACE < new < old * PACE:
        return new
    return old * PACE if new > old else old / PACE
