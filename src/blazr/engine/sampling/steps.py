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
    values = scores[seen]
    penalty = row.params.repetition_penalty
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
    return scores / max(row.params.temperature, LEAST_TEMPERATURE)


def _top_k(scores: Tensor, row: Row) -> Tensor:
    order = scores.argsort(descending=True, stable=True)
    return scores.index_fill(0, order[row.params.top_k :], NEVER)


def _top_p(scores: Tensor, row: Row) -> Tensor:
    order = scores.argsort(descending=True, stable=True)
    sums = scores.double().softmax(-1)[order].cumsum(0)
    kept = int(torch.searchsorted(sums, row.params.top_p)) + 1
    return scores.index_fill(0, order[kept:], NEVER)


def _min_p(scores: Tensor, row: Row) -> Tensor:
    least = scores.max() + math.log(row.params.min_p)
    return scores.masked_fill(scores < least, NEVER)


def _is_ordered(row: Row) -> bool:
    return bool(row.params.samplers) and not row.params.is_greedy


bias_step = SamplingStep("bias", "", lambda r: bool(r.params.logit_bias), _bias)
min_tokens_step = SamplingStep(
    "min_tokens", "", lambda r: bool(r.stop_ids) and r.num_output < r.params.min_tokens, _min_tokens
)
repetition_step = SamplingStep(
    "repetition", "penalties", lambda r: r.params.repetition_penalty != 1, _repetition
)
presence_step = SamplingStep(
    "presence",
    "penalties",
    lambda r: r.params.presence_penalty != 0 and len(r.output) > 0,
    _presence,
)
frequency_step = SamplingStep(
    "frequency",
    "penalties",
    lambda r: r.params.frequency_penalty != 0 and len(r.output) > 0,
    _frequency,
)
temperature_step = SamplingStep("temperature", "temperature", _is_ordered, _temperature)
top_k_step = SamplingStep("top_k", "top_k", lambda r: _is_ordered(r) and r.params.top_k > 0, _top_k)
top_p_step = SamplingStep("top_p", "top_p", lambda r: _is_ordered(r) and r.params.top_p < 1, _top_p)
min_p_step = SamplingStep("min_p", "min_p", lambda r: _is_ordered(r) and r.params.min_p > 0, _min_p)


def in_order(steps: Iterable[SamplingStep], samplers: Sequence[str]) -> Sequence[SamplingStep]:
    """Steps in the order that a row wants; those of no sampler come first."""
    places = {name: place for place, name in enumerate(samplers)}
    return sorted(steps, key=lambda step: places.get(step.sampler, -1))
