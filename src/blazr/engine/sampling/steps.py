"""The steps between logits and a draw, for one row of a batch: biases, penalties, bans, filters.

Temperature, top_k, top_p and min_p are part of the draw itself, `blazr.nn.ops.sampling.draw`; they
are steps only where a row wants them in another order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from blazr.core.table import Table
from blazr.engine.sampling_params import SamplingParams
from blazr.nn.ops.sampling import penalize

LEAST_TEMPERATURE = 1e-30  # greedy as it is; scores divided by less could become infinite
NEVER = float("-inf")
_LONGEST_REPETITION = 50  # tokens that are compared: penalties of longer ones are beyond all scores
_LARGEST_PENALTY = 1e30  # what is allowed alone can still come
_MOST_PLACES = 1000  # that are compared, the latest
_FIRST_SORTED = 1024  # tokens, where only the first ones of an order are wanted


@dataclass(frozen=True, slots=True)
class Row:
    """What a step may look at beside the logits.

    Args:
        params: How this row is sampled.
        prompt: Token ids of the prompt, (P,), int64, as far as penalties look back.
        output: Token ids generated so far, (O,), int64, as far as they do.
        num_output: How many have been generated.
        stop_ids: Ids that would end the reply.
        history: Prompt and reply, as far as they have not been forgotten.
        num_prompt: How much of that is the prompt.
        chance: A random number in [0, 1) of this token's own.
        breakers: Ids that no repetition goes beyond.
        bad_words: Ids that may not come one after the other.
        most_surprise: Of tokens that mirostat keeps, bits.
    """

    params: SamplingParams
    prompt: Tensor
    output: Tensor
    num_output: int
    stop_ids: tuple[int, ...]
    history: Sequence[int] = ()
    num_prompt: int = 0
    chance: float = 0.0
    breakers: frozenset[int] = frozenset()
    bad_words: tuple[tuple[int, ...], ...] = ()
    most_surprise: float = math.inf


@dataclass(frozen=True, slots=True)
class SamplingStep:
    """One step.

    Args:
        name: Its name in the table.
        sampler: Which of SAMPLERS it is part of; empty for one that always comes first.
        wanted: Whether a row asks for it; if not, it costs nothing.
        apply: float32 scores (V,) and the row to scores of the same shape. Never changes its input.
        together: The same of several rows at once, (B, V), for a step that is faster so.
    """

    name: str
    sampler: str
    wanted: Callable[[Row], bool]
    apply: Callable[[Tensor, Row], Tensor]
    together: Callable[[Tensor, Sequence[Row]], Tensor] | None = None


def _step(
    sampler: str,
    *,
    wanted: Callable[[Row], bool],
    together: Callable[[Tensor, Sequence[Row]], Tensor] | None = None,
) -> Callable[[Callable[[Tensor, Row], Tensor]], SamplingStep]:
    """Make a step of the function that applies it."""

    def decorate(apply: Callable[[Tensor, Row], Tensor]) -> SamplingStep:
        name = apply.__name__.removesuffix("_step")
        return SamplingStep(name, sampler, wanted, apply, together)

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


@_step("", wanted=lambda row: row.params.allowed_token_ids is not None)
def allowed_step(scores: Tensor, row: Row) -> Tensor:
    """Rule out all but `allowed_token_ids`."""
    allowed = row.params.allowed_token_ids or ()
    ids = torch.tensor(allowed, dtype=torch.int64, device=scores.device)
    return torch.full_like(scores, NEVER).index_copy(0, ids, scores[ids])


@_step("", wanted=lambda row: bool(row.bad_words))
def bad_words_step(scores: Tensor, row: Row) -> Tensor:
    """Rule out the last id of a text that may not come where the others have come."""
    history = row.history
    banned = [
        last
        for *before, last in row.bad_words
        if len(before) <= len(history) and [*history[len(history) - len(before) :]] == before
    ]
    ids = torch.tensor(banned, dtype=torch.int64, device=scores.device)
    return scores.index_fill(0, ids, NEVER)


@_step("", wanted=lambda row: bool(row.stop_ids) and row.num_output < row.params.min_tokens)
def min_tokens_step(scores: Tensor, row: Row) -> Tensor:
    """Rule out the ids that would end the reply."""
    scores = scores.clone()
    scores[list(row.stop_ids)] = NEVER
    return scores


def _has_penalties(row: Row) -> bool:
    params = row.params
    of_replies = params.presence_penalty != 0 or params.frequency_penalty != 0
    return params.repetition_penalty != 1 or (of_replies and len(row.output) > 0)


def _penalized(scores: Tensor, rows: Sequence[Row]) -> Tensor:
    """`penalties_step` of several rows at once, (B, V)."""
    texts = [torch.cat((row.prompt, row.output)) for row in rows]
    ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    ends = torch.tensor(
        [[len(row.prompt), len(text)] for row, text in zip(rows, texts, strict=True)]
    )
    penalties = torch.tensor(
        [
            [params.repetition_penalty, params.presence_penalty, params.frequency_penalty]
            for params in (row.params for row in rows)
        ]
    )
    return penalize(scores, *(each.to(scores.device) for each in (ids, ends, penalties)))


@_step("penalties", wanted=_has_penalties, together=_penalized)
def penalties_step(scores: Tensor, row: Row) -> Tensor:
    """Apply the repetition, presence and frequency penalties."""
    return _penalized(scores[None], [row])[0]


@_step("", wanted=lambda row: row.params.dry_multiplier > 0)
def dry_step(scores: Tensor, row: Row) -> Tensor:
    """Subtract from tokens that would continue a repetition, more for longer ones.

    Source: p-e-w 2024, "DRY", github.com/oobabooga/text-generation-webui/pull/5677.
    """
    params = row.params
    most = params.dry_penalty_last_n
    history = row.history if most < 0 else row.history[max(len(row.history) - most, 0) :]
    lengths = repetitions(history, row.breakers)
    least = params.dry_allowed_length
    found = {token: length for token, length in lengths.items() if length >= least}
    if not found:
        return scores
    ids = torch.tensor(list(found), dtype=torch.int64, device=scores.device)
    sizes = torch.tensor(list(found.values()), dtype=torch.float32, device=scores.device)
    scores = scores.clone()
    penalties = params.dry_multiplier * params.dry_base ** (sizes - least)
    scores[ids] -= penalties.clamp(max=_LARGEST_PENALTY)
    return scores


def repetitions(history: Sequence[int], breakers: Set[int]) -> dict[int, int]:
    """By token, how many of the last tokens stood before it where it stood before.

    Args:
        history: Tokens.
        breakers: Ids that end what is compared.
    """
    tokens = np.array(history, np.int32)
    found: dict[int, int] = {}
    if len(tokens) < 2 or int(tokens[-1]) in breakers:
        return found
    end = len(tokens) - 1
    for place in np.flatnonzero(tokens[:-1] == tokens[-1])[-_MOST_PLACES:].tolist():
        length = 1
        while (
            length <= min(place, _LONGEST_REPETITION)
            and tokens[place - length] == tokens[end - length]
            and int(tokens[place - length]) not in breakers
        ):
            length += 1
        following = int(tokens[place + 1])
        if following not in breakers:
            found[following] = max(found.get(following, 0), length)
    return found


@_step("", wanted=lambda row: bool(row.params.logits_processors))
def processors_step(scores: Tensor, row: Row) -> Tensor:
    """Call `logits_processors`."""
    for process in row.params.logits_processors:
        scores = process([*row.history[row.num_prompt :]], scores.clone())
    return scores


@_step("", wanted=lambda row: row.params.top_n_sigma > 0 and not row.params.is_greedy)
def top_n_sigma_step(scores: Tensor, row: Row) -> Tensor:
    """Drop tokens whose logits are `top_n_sigma` standard deviations below the largest.

    Source: Tang et al. 2024, arXiv:2411.07641.
    """
    spread = scores[scores > NEVER].double().std(correction=0)
    return scores.masked_fill(scores < scores.max() - row.params.top_n_sigma * spread, NEVER)


def _keep_first(scores: Tensor, keys: Tensor, chances: Tensor, share: float) -> Tensor:
    """Keep the fewest tokens, in ascending order of keys, whose probabilities sum to a share.

    Usually few are enough, and to sort these alone takes a fraction of the time.
    """
    order, sums = keys[:0], keys[:0]
    if len(keys) > _FIRST_SORTED:
        (places,) = torch.where(keys <= keys.kthvalue(_FIRST_SORTED).values)
        order = places[keys[places].argsort(stable=True)]
        sums = chances[order].cumsum(0)
    if not len(sums) or sums[-1] < share:
        order = keys.argsort(stable=True)
        sums = chances[order].cumsum(0)
    kept = order[: int(torch.searchsorted(sums, share)) + 1]
    return torch.full_like(scores, NEVER).index_copy(0, kept, scores[kept])


@_step("", wanted=lambda row: row.params.typical_p < 1 and not row.params.is_greedy)
def typical_p_step(scores: Tensor, row: Row) -> Tensor:
    """Keep the tokens whose surprise is nearest to the expected one, up to `typical_p` in all.

    Source: Meister et al. 2022, arXiv:2202.00666.
    """
    logs = scores.double().log_softmax(-1)
    chances = logs.exp()
    expected = -(chances * logs.nan_to_num(neginf=0.0)).sum()
    return _keep_first(scores, (-logs - expected).abs(), chances, row.params.typical_p)


@_step("", wanted=lambda row: row.chance < row.params.xtc_probability and not row.params.is_greedy)
def xtc_step(scores: Tensor, row: Row) -> Tensor:
    """Drop the tokens of at least `xtc_threshold`, all but the least likely of them.

    Tokens that other filters have ruled out do not count, even with a threshold of 0.

    Source: p-e-w 2024, "XTC", github.com/oobabooga/text-generation-webui/pull/6335.
    """
    chances = scores.double().softmax(-1)
    (places,) = torch.where((chances >= row.params.xtc_threshold) & (chances > 0))
    order = scores[places].argsort(descending=True, stable=True)
    return scores.index_fill(0, places[order[:-1]], NEVER)


@_step("", wanted=lambda row: row.params.has_mirostat)
def mirostat_step(scores: Tensor, row: Row) -> Tensor:
    """Keep the tokens whose surprise is at most the row's limit, and the likeliest in any case.

    Source: Basu et al. 2021, arXiv:2007.14966, algorithm 2.
    """
    surprise = surprises(scores, row.params.temperature)
    return scores.masked_fill(surprise > max(row.most_surprise, float(surprise.min())), NEVER)


def surprises(scores: Tensor, temperature: float) -> Tensor:
    """Minus the binary logarithm of each token's probability, (V,), float64."""
    logs = (scores.double() / max(temperature, LEAST_TEMPERATURE)).log_softmax(-1)
    return -logs / math.log(2)


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
    return _keep_first(scores, -scores, scores.double().softmax(-1), row.params.top_p)


@_step("min_p", wanted=lambda row: _is_ordered(row) and row.params.min_p > 0)
def min_p_step(scores: Tensor, row: Row) -> Tensor:
    """Drop tokens below `min_p` times the probability of the likeliest."""
    least = scores.max() + math.log(row.params.min_p)
    return scores.masked_fill(scores < least, NEVER)


SAMPLING_STEPS: Table[SamplingStep] = Table.of(
    "sampling step",
    (
        bias_step,
        allowed_step,
        bad_words_step,
        min_tokens_step,
        penalties_step,
        dry_step,
        processors_step,
        top_n_sigma_step,
        typical_p_step,
        xtc_step,
        mirostat_step,
        temperature_step,
        top_k_step,
        top_p_step,
        min_p_step,
    ),
)
"""The steps, in the usual order.

No step looks at a row whose parameters ask for nothing unusual: what a new one is asked by belongs
in `SamplingParams.has_rules`, or in `has_rare_filters` where it does nothing to a greedy reply.
"""


def in_order(steps: Iterable[SamplingStep], samplers: Sequence[str]) -> Sequence[SamplingStep]:
    """Steps in the order that a row wants; those of no sampler come first."""
    places = {name: place for place, name in enumerate(samplers)}
    return sorted(steps, key=lambda step: places.get(step.sampler, -1))
