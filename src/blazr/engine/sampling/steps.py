"""The steps between logits and a draw, for one row of a batch: biases, penalties, bans, filters.

Temperature, top_k, top_p and min_p are part of the draw itself, `blazr.nn.ops.sampling.draw`; they
are steps only where a row wants them in another order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from blazr.engine.sampling_params import SamplingParams

LEAST_TEMPERATURE = 1e-30  # greedy as it is; scores divided by less could become infinite
NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Row:
    """What a step may look at beside the logits.

    Args:
        params: How this row is sampled.
        prompt: Token ids of the prompt, (P,), int64, as far as penalties look back.
        output: Token ids generated so far, (O,), int64, as far as they do.
        num_output: How many have been generated.
        stop_ids: Ids that would end the reply.
    """

    params: SamplingParams
    prompt: Tensor
    output: Tensor
    num_output: int
    stop_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SamplingStep:
    """One step.

    Args:
        name: Its name in the table.
        sampler: Which of SAMPLERS it is part of; empty for one that always comes first.
        wanted: Whether a row asks for it; if not, it costs nothing.
        apply: float32 scores (V,) and the row to scores of the same shape. Never changes its input.
    """

    name: str
    sampler: str
    wanted: Callable[[Row], bool]
    apply: Callable[[Tensor, Row], Tensor]


def _step(
    sampler: str, *, wanted: Callable[[Row], bool]
) -> Callable[[Callable[[Tensor, Row], Tensor]], SamplingStep]:
    """Make a step of the function that applies it."""

    def decorate(apply: Callable[[Tensor, Row], Tensor]) -> SamplingStep:
        return SamplingStep(apply.__name__.removesuffix("_step"), sampler, wanted, apply)

    return decorate


def _is_ordered(row: Row) -> bool:
    return bool(row.params.samplers) and not row.params.is_greedy


@_step("", wanted=lambda row: bool(row.params.logit_bias))
def bias_step(scores: Tensor, row: Row) -> Tensor:
    """Add `logit_bias`."""
    scores = scores.clone()
    ids = torch.tensor(list(row.params.logit_bias), device=scores.device)
    values = torch.tensor(list(row.params.logit_bias.values()), device=scores.device)
    scores[ids] += values
    return scores


@_step("", wanted=lambda row: bool(row.stop_ids) and row.num_output < row.params.min_tokens)
def min_tokens_step(scores: Tensor, row: Row) -> Tensor:
    """Rule out the ids that would end the reply."""
    scores = scores.clone()
    scores[list(row.stop_ids)] = NEVER
    return scores


@_step("penalties", wanted=lambda row: row.params.repetition_penalty != 1)
def repetition_step(scores: Tensor, row: Row) -> Tensor:
    """Divide (multiply, if negative) the scores of tokens seen in prompt or output."""
    scores = scores.clone()
    seen = torch.cat((row.prompt, row.output)).unique()
    values = scores[seen]
    penalty = row.params.repetition_penalty
    scores[seen] = torch.where(values > 0, values / penalty, values * penalty)
    return scores


@_step("penalties", wanted=lambda row: row.params.presence_penalty != 0 and len(row.output) > 0)
def presence_step(scores: Tensor, row: Row) -> Tensor:
    """Subtract once from tokens already generated."""
    scores = scores.clone()
    scores[row.output.unique()] -= row.params.presence_penalty
    return scores


@_step("penalties", wanted=lambda row: row.params.frequency_penalty != 0 and len(row.output) > 0)
def frequency_step(scores: Tensor, row: Row) -> Tensor:
    """Subtract per occurrence from tokens already generated."""
    ids, counts = row.output.unique(return_counts=True)
    scores = scores.clone()
    scores[ids] -= row.params.frequency_penalty * counts
    return scores


@_step("temperature", wanted=_is_ordered)
def temperature_step(scores: Tensor, row: Row) -> Tensor:
    """Divide by the temperature."""
    return scores / max(row.params.temperature, LEAST_TEMPERATURE)


@_step("top_k", wanted=lambda row: _is_ordered(row) and row.params.top_k > 0)
def top_k_step(scores: Tensor, row: Row) -> Tensor:
    """Keep the `top_k` highest scores."""
    order = scores.argsort(descending=True, stable=True)
    return scores.index_fill(0, order[row.params.top_k :], NEVER)


@_step("top_p", wanted=lambda row: _is_ordered(row) and row.params.top_p < 1)
def top_p_step(scores: Tensor, row: Row) -> Tensor:
    """Keep the smallest set of tokens whose probabilities sum to `top_p`."""
    order = scores.argsort(descending=True, stable=True)
    sums = scores.double().softmax(-1)[order].cumsum(0)
    kept = int(torch.searchsorted(sums, row.params.top_p)) + 1
    return scores.index_fill(0, order[kept:], NEVER)


@_step("min_p", wanted=lambda row: _is_ordered(row) and row.params.min_p > 0)
def min_p_step(scores: Tensor, row: Row) -> Tensor:
    """Drop tokens below `min_p` times the probability of the likeliest."""
    least = scores.max() + math.log(row.params.min_p)
    return scores.masked_fill(scores < least, NEVER)


def in_order(steps: Iterable[SamplingStep], samplers: Sequence[str]) -> Sequence[SamplingStep]:
    """Steps in the order that a row wants; those of no sampler come first."""
    places = {name: place for place, name in enumerate(samplers)}
    return sorted(steps, key=lambda step: places.get(step.sampler, -1))
