"""The steps between logits and a draw, for one row of a batch: biases, penalties and bans.

Temperature, top_k, top_p and min_p are part of the draw itself, `blazr.nn.ops.sampling.draw`.
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
        apply: float32 scores (V,) and the row to scores of the same shape. Never changes its input.
    """

    name: str
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
