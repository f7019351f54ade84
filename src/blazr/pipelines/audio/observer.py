"""Follows transformers while it generates: to stop it, to show text early, to collect scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

INCOMPLETE = "\ufffd"  # what bytes become that are no character yet


class GenerationObserver:
    """Follows a generation, as a logits processor that changes no logits.

    Args:
        check: Raises where the work is to end.
        decode: The text of some tokens; None where it is not wanted before the end.

    Attributes:
        said: The text that was passed on so far.
        say: Takes more of the text; set before generation.
    """

    def __init__(
        self, check: Callable[[], None], decode: Callable[[Sequence[int]], str | None]
    ) -> None:
        self._check = check
        self._decode = decode
        self._start = 0
        self._num_passes = 0
        self._last: Tensor | None = None
        self._logprobs: list[float] = []
        self.said = ""
        self.say: Callable[[str], None] = lambda _: None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Take note of the tokens so far, (1, tokens), and the logits of the next, (1, V)."""
        self._check()
        length = input_ids.shape[1]
        if self._last is None or length <= self._start:
            self._num_passes += 1  # where a model writes times unasked, there are several
            self._start = length
        else:
            self._logprobs.append(float(self._last[input_ids[0, -1]]))
            is_first = self._num_passes == 1
            text = self._decode(input_ids[0, self._start :].tolist()) if is_first else None
            if text and not text.endswith(INCOMPLETE) and text.startswith(self.said):
                self.say(text[len(self.said) :])
                self.said = text
        self._last = scores[0].log_softmax(-1)
        return scores

    def mean_logprob(self) -> float:
        """The mean log-probability of the tokens so far; 0.0 where there are none."""
        found = [each for each in self._logprobs if each > -np.inf]
        return round(float(np.mean(found)), 4) if found else 0.0
