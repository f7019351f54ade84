"""The steps between logits and a draw, for one row of a batch.

Penalties and bans see the scores of the whole vocabulary. What follows sees the candidates: scores
in falling order, already cut to the row's top-k, so that nothing sorts a vocabulary in vain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from blazr.engine.sampling_params import SamplingParams

NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Row:
    """What a step may look at beside the logits.

    Args:
        params: How this row is sampled.
        prompt: Token ids of the prompt, (P,), int64.
        output: Token ids generated so far, (O,), int64.
        stop_ids: Ids that would end the reply.
    """

    params: SamplingParams
    prompt: Tensor
    output: Tensor
    stop_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SamplingStep:
    """One step.

    Args:
        name: Its name in the table.
        wanted: Whether a row asks for it; if not, it costs nothing.
        apply: float32 scores and the row to scores of the same shape: (V,) by token id, or (K,)
            candidates in falling order. Never changes its input.
        on_candidates: Whether it is one of the later, which never matter to the likeliest token.
    """

    name: str
    wanted: Callable[[Row], bool]
    apply: Callable[[Tensor, Row], Tensor]
    on_candidates: bool = False


def _bias(scores: Tensor, row: Row) -> Tensor:
    scores = scores.clone()
    ids = torch.tensor(list(row.params.logit_bias), device=scores.device)
    values = torch.tensor(list(row.params.logit_bias.values()), device=scores.device)
    scores[ids] += values
    return scores


def _min_tokens(scores: Tensor, row: Row) -> Tensor:
    scores = scores.clone()
    scores[list(row.stop_ids)] = NEVER
    return scores


def _repetition(scores: Tensor, row: Row) -> Tensor:
    scores = scores.clone()
    seen = torch.cat((row.prompt, row.output)).unique()
    values, penalty = scores[seen], row.params.repetition_penalty
    scores[seen] = torch.where(values > 0, values / penalty, values * penalty)
    return scores


def _presence(scores: Tensor, row: Row) -> Tensor:
    scores = scores.clone()
    scores[row.output.unique()] -= row.params.presence_penalty
    return scores


def _frequency(scores: Tensor, row: Row) -> Tensor:
    ids, counts = row.output.unique(return_counts=True)
    scores = scores.clone()
    scores[ids] -= row.params.frequency_penalty * counts
    return scores


def _temperature(scores: Tensor, row: Row) -> Tensor:
    # the largest score is taken off first, so that a tiny temperature cannot overflow
    return (scores - scores[0]) / row.params.temperature


def _top_k(scores: Tensor, row: Row) -> Tensor:
    rank = torch.arange(len(scores), device=scores.device)
    return scores.masked_fill(rank >= row.params.top_k, NEVER)


def _top_p(scores: Tensor, row: Row) -> Tensor:
    """Keep the likeliest tokens up to the one that brings their sum to top_p [arXiv:1904.09751]."""
    shares = scores.softmax(-1)
    cut = shares.cumsum(-1) - shares >= row.params.top_p
    cut[0] = False  # one token always remains
    return scores.masked_fill(cut, NEVER)


def _min_p(scores: Tensor, row: Row) -> Tensor:
    shares = scores.softmax(-1)
    return scores.masked_fill(shares < row.params.min_p * shares[0], NEVER)


bias_step = SamplingStep("bias", lambda r: bool(r.params.logit_bias), _bias)
min_tokens_step = SamplingStep(
    "min_tokens", lambda r: bool(r.stop_ids) and len(r.output) < r.params.min_tokens, _min_tokens
)
repetition_step = SamplingStep(
    "repetition", lambda r: r.params.repetition_penalty != 1, _repetition
)
presence_step = SamplingStep(
    "presence", lambda r: r.params.presence_penalty != 0 and len(r.output) > 0, _presence
)
frequency_step = SamplingStep(
    "frequency", lambda r: r.params.frequency_penalty != 0 and len(r.output) > 0, _frequency
)
temperature_step = SamplingStep(
    "temperature", lambda r: r.params.temperature != 1, _temperature, on_candidates=True
)
top_k_step = SamplingStep("top_k", lambda r: r.params.top_k > 0, _top_k, on_candidates=True)
top_p_step = SamplingStep("top_p", lambda r: r.params.top_p < 1, _top_p, on_candidates=True)
min_p_step = SamplingStep("min_p", lambda r: r.params.min_p > 0, _min_p, on_candidates=True)
