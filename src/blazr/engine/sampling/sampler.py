"""Draw the next token of every row that wants one."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from blazr.engine.outputs import TokenLogprobs
from blazr.engine.sampling import SAMPLING_STEPS
from blazr.engine.sampling.constraint import constrain
from blazr.engine.sampling.steps import Row
from blazr.engine.sequence import Sequence as RunningSequence

_ON_SCORES = tuple(step for step in SAMPLING_STEPS.values() if not step.on_candidates)
_ON_CANDIDATES = tuple(step for step in SAMPLING_STEPS.values() if step.on_candidates)
_MASK = 2**64 - 1
_UNSOUND = "the model put out no finite score (NaN or infinite logits)"


class Sampled(NamedTuple):
    """What came out for one sequence.

    Args:
        token_id: The next token; -1 after an error.
        logprobs: Of that token, when asked for.
        error: Why none could be drawn.
    """

    token_id: int
    logprobs: TokenLogprobs | None = None
    error: str | None = None


class Sampler:
    """Draws tokens from logits; a row's draw depends on nothing but that row.

    Args:
        vocab_size: V.
        banned_ids: Ids that are never drawn: they mean nothing to the tokenizer.
        device: Where the logits are.
    """

    def __init__(self, vocab_size: int, banned_ids: Sequence[int], device: torch.device) -> None:
        self._banned = frozenset(i for i in banned_ids if 0 <= i < vocab_size)
        self._banned_index = torch.tensor(sorted(self._banned), dtype=torch.int64, device=device)

    def sample(self, logits: Tensor, sequences: Sequence[RunningSequence]) -> list[Sampled]:
        """Draw one token for each row.

        Args:
            logits: (B, V), float32.
            sequences: B, in the same order.
        """
        sampled, others = [], []
        rows = zip(sequences, *_likeliest(logits), strict=True)
        for index, (sequence, token, height) in enumerate(rows):
            if not isfinite(height):
                sampled.append(Sampled(-1, error=_UNSOUND))
                continue
            if not sequence.takes_likeliest or token in self._banned:
                others.append(index)
            sampled.append(Sampled(token))
        if others:
            part = logits if len(others) == len(logits) else logits[others]
            drawn = self._draw_rows(part, [sequences[i] for i in others])
            for index, result in zip(others, drawn, strict=True):
                sampled[index] = result
        return sampled

    def _draw_rows(self, logits: Tensor, sequences: list[RunningSequence]) -> list[Sampled]:
        """Draw for rows that ask for more than their likeliest token."""
        free = logits.index_fill(1, self._banned_index, float("-inf"))
        scores, errors = constrain(free, sequences)
        # a mask hides what is wrong with the scores, so they are looked at without it
        heights = _likeliest(free)[1]
        likeliest = _likeliest(scores)[0]
        sampled = []
        for index, (sequence, token) in enumerate(zip(sequences, likeliest, strict=True)):
            error = errors.get(index) if isfinite(heights[index]) else _UNSOUND
            if error is not None:
                sampled.append(Sampled(-1, error=error))
                continue
            row = _row(sequence, logits.device)
            if row is not None:
                token = _draw(scores[index], row, sequence)  # noqa: PLW2901
            wanted = sequence.request.params.logprobs
            logprobs = None
            if wanted is not None:
                (logprobs,) = many_logprobs(logits[index : index + 1], [token], wanted)
            sampled.append(Sampled(token, logprobs))
        return sampled


def _likeliest(scores: Tensor) -> tuple[list[int], list[float]]:
    """The place of the largest of each row's scores (B, V), the first of equals, and that score.

    NaN counts as largest.
    """
    if scores.device.type == "cpu":  # numpy is several times as fast at this as torch
        values = scores.numpy()
        places = values.argmax(-1)
        return places.tolist(), values[np.arange(len(values)), places].tolist()
    heights, argmax = scores.max(-1)
    return argmax.tolist(), heights.tolist()


def many_logprobs(logits: Tensor, token_ids: Sequence[int], num_top: int) -> list[TokenLogprobs]:
    """Log-probabilities of T tokens from logits (T, V) float32, before any penalty or filter.

    The values of ``top`` and of the token come from one array, so that equal means equal.
    """
    logprobs = logits.log_softmax(-1)
    chosen = torch.tensor(token_ids, dtype=torch.int64, device=logits.device)
    values = logprobs.gather(1, chosen[:, None])[:, 0].tolist()
    if not num_top:
        return [TokenLogprobs(*pair) for pair in zip(token_ids, values, strict=True)]
    heights, places = logprobs.topk(min(num_top, logprobs.shape[1]))
    tops = (
        tuple(zip(ids, tall, strict=True))
        for ids, tall in zip(places.tolist(), heights.tolist(), strict=True)
    )
    return [TokenLogprobs(*each) for each in zip(token_ids, values, tops, strict=True)]


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on these two alone (SplitMix64).

    Source: Steele, Lea and Flood 2014, doi:10.1145/2660193.2660195.
    """
    z = (seed + (position + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((z ^ (z >> 31)) >> 11) / 2**53


def _row(sequence: RunningSequence, device: torch.device) -> Row | None:
    """What the steps look at, or None for a greedy row that no step concerns."""
    params = sequence.request.params
    is_plain = (
        params.repetition_penalty == 1
        and params.presence_penalty == 0
        and params.frequency_penalty == 0
    )
    touches_ids = bool(params.logit_bias) or sequence.num_output < params.min_tokens
    if params.is_greedy and is_plain and not touches_ids:
        return None
    # the history is only made when somebody reads it
    history = sequence.tokens.tolist() if not is_plain else []
    ids = torch.tensor(history, dtype=torch.int64, device=device)
    split = sequence.num_prompt if history else 0
    output = ids[split:] if history else ids.new_empty(sequence.num_output)
    stops = (*sequence.request.stop_ids, *params.stop_token_ids)
    return Row(params, ids[:split], output, stops)


def _draw(scores: Tensor, row: Row, sequence: RunningSequence) -> int:
    for step in _ON_SCORES:
        if step.wanted(row):
            scores = step.apply(scores, row)
    params = row.params
    if params.is_greedy:
        return int(scores.argmax())
    if 0 < params.top_k < scores.shape[0]:
        candidates, ids = scores.topk(params.top_k)
    else:
        candidates, ids = scores.sort(descending=True, stable=True)
    for step in _ON_CANDIDATES:
        if step.wanted(row):
            candidates = step.apply(candidates, row)
    heights = candidates.double().softmax(-1).cumsum(-1)
    point = uniform(sequence.seed, len(sequence.tokens)) * float(heights[-1])
    place = int(torch.searchsorted(heights, point, right=True))
    return int(ids[min(place, len(ids) - 1)])
