"""Draw the next token of every row that wants one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from blazr.core.errors import RequestError
from blazr.engine.outputs import TokenLogprobs, describe_error
from blazr.engine.sampling.constraint import constrain
from blazr.engine.sampling.steps import SAMPLING_STEPS, Row, SamplingStep, in_order, surprises
from blazr.engine.sequence import Sequence as RunningSequence
from blazr.nn.ops.sampling import best, drawer, likeliest_finder, uniform

_UNSOUND = "the model put out no finite score (NaN or infinite logits)"
_NOTHING_LEFT = "what the request allows and what it rules out leave no token that could come next"


class Sampled(NamedTuple):
    """What came out for one sequence.

    Args:
        token_id: The next token; -1 after an error.
        logprobs: Of that token, when asked for.
        error: Why none could be drawn.
        is_refusal: Whether what the request asks for is why.
        most_surprise: What mirostat limits the token after this one to; None without it.
    """

    token_id: int
    logprobs: TokenLogprobs | None = None
    error: str | None = None
    is_refusal: bool = False
    most_surprise: float | None = None

    @property
    def is_unsound(self) -> bool:
        """Whether no score was finite."""
        return self.error == _UNSOUND


def sampled_token(token_id: int) -> Sampled:
    """What comes out where a token was drawn; -1 says that no score was finite."""
    return Sampled(token_id, error=_UNSOUND) if token_id < 0 else Sampled(token_id)


def failed_draw(error: BaseException) -> Sampled:
    """What comes out where a draw, or a constraint on it, has failed."""
    return Sampled(-1, error=describe_error(error), is_refusal=isinstance(error, RequestError))


class Sampler:
    """Draws tokens from logits; a row's draw depends on nothing but that row.

    Args:
        vocab_size: V.
        banned_ids: Ids that are never drawn: they mean nothing to the tokenizer.
        device: Where the logits are.

    Attributes:
        banned: Those in the vocabulary.
        banned_ids: The same in ascending order, (n,), int64.
    """

    def __init__(self, vocab_size: int, banned_ids: Sequence[int], device: torch.device) -> None:
        self.banned = frozenset(i for i in banned_ids if 0 <= i < vocab_size)
        self.banned_ids = torch.tensor(sorted(self.banned), dtype=torch.int64, device=device)
        self._likeliest = likeliest_finder(device)
        self._draw = drawer(device)

    def draws(self, logits: Tensor) -> Draws:
        """Draws from a step's logits, (J, V) float32, which have to stay until the last."""
        return Draws(self, logits, self._likeliest(logits))

    def draw_rows(self, logits: Tensor, sequences: list[RunningSequence]) -> list[Sampled]:
        """Draw for rows that ask for more than their likeliest token.

        Args:
            logits: (B, V), float32.
            sequences: B, in the same order.
        """
        scores = logits.index_fill(1, self.banned_ids, float("-inf")) if self.banned else logits
        errors: dict[int, BaseException] = {}
        if not all(each.draws_plainly for each in sequences):
            scores, errors = constrain(scores, sequences)
            scores = _apply_steps(scores, sequences, is_copy=scores is not logits)
        tokens = self._draw(scores, [*map(_filters_of, sequences)])
        sampled = []
        for index, (sequence, token) in enumerate(zip(sequences, tokens, strict=True)):
            if index in errors:
                sampled.append(failed_draw(errors[index]))
                continue
            if token < 0:  # `Draws` has found that the logits are sound
                sampled.append(self._why_nothing(logits[index : index + 1]))
                continue
            params = sequence.request.params
            limit = None
            if params.has_mirostat:
                surprise = float(surprises(scores[index], params.temperature)[token])
                excess = surprise - params.mirostat_tau
                limit = sequence.most_surprise - params.mirostat_eta * excess
            wanted = params.logprobs
            logprobs = None
            if wanted is not None:
                (logprobs,) = many_logprobs(logits[index : index + 1], [token], wanted)
            sampled.append(Sampled(token, logprobs, most_surprise=limit))
        return sampled

    def _why_nothing(self, logits: Tensor) -> Sampled:
        """What comes out where no token is left, of logits (1, V) of which some are finite.

        Where these are of ids alone that are never drawn, the request has no part in it.
        """
        allowed = logits.index_fill(1, self.banned_ids, float("-inf"))
        if self._likeliest(allowed)[0] < 0:
            return sampled_token(-1)
        return Sampled(-1, error=_NOTHING_LEFT, is_refusal=True)


class Draws:
    """Draws from a step's logits, some at once, others when it is known what came before them.

    Args:
        sampler: Draws.
        logits: (J, V), float32.
        likeliest: The likeliest token of each row, -1 where none is finite.
    """

    def __init__(self, sampler: Sampler, logits: Tensor, likeliest: Sequence[int]) -> None:
        self._sampler = sampler
        self._logits = logits
        self._tokens = likeliest

    def draw(self, rows: Sequence[tuple[int, RunningSequence]]) -> list[Sampled]:
        """Draw what follows each sequence as it stands now.

        Args:
            rows: B places in the logits, and whose they are.
        """
        banned = self._sampler.banned
        sampled = []
        others = []
        for index, (place, sequence) in enumerate(rows):
            token = self._tokens[place]
            sampled.append(sampled_token(token))
            if token >= 0 and (not sequence.takes_likeliest or token in banned):
                others.append(index)
        if others:
            places = [rows[i][0] for i in others]
            is_all = places == list(range(self._logits.shape[0]))
            part = self._logits if is_all else self._logits[places]
            drawn = self._sampler.draw_rows(part, [rows[i][1] for i in others])
            for index, result in zip(others, drawn, strict=True):
                sampled[index] = result
        return sampled

    def likeliest(self, first: int, count: int) -> Sequence[int]:
        """The likeliest token of each of these places; -1 where none may be drawn that is."""
        tokens, banned = self._tokens[first : first + count], self._sampler.banned
        if banned.isdisjoint(tokens):
            return tokens
        return [-1 if token in banned else token for token in tokens]


def many_logprobs(logits: Tensor, token_ids: Sequence[int], num_top: int) -> list[TokenLogprobs]:
    """Log-probabilities of T tokens from logits (T, V) float32, before any penalty or filter.

    The values of ``top`` and of the token come from one array, so that equal means equal.
    """
    logprobs = logits.log_softmax(-1)
    chosen = torch.tensor(token_ids, dtype=torch.int64, device=logits.device)
    values = logprobs.gather(1, chosen[:, None])[:, 0].tolist()
    if not num_top:
        return [TokenLogprobs(*pair) for pair in zip(token_ids, values, strict=True)]
    places = best(logprobs, min(num_top, logprobs.shape[1]))
    heights = logprobs.gather(1, places)
    tops = (
        tuple(zip(ids, tall, strict=True))
        for ids, tall in zip(places.tolist(), heights.tolist(), strict=True)
    )
    return [TokenLogprobs(*each) for each in zip(token_ids, values, tops, strict=True)]


def _filters_of(sequence: RunningSequence) -> tuple[float, float, float, float, float]:
    """Temperature, top_k, top_p, min_p and the random number of a row, as `draw` takes them."""
    params = sequence.request.params
    if params.is_greedy:
        return 1.0, 1.0, 1.0, 0.0, 0.0
    point = uniform(sequence.seed, sequence.num_prompt + sequence.num_output)
    if params.samplers:  # steps have filtered
        return 1.0, 0.0, 1.0, 0.0, point
    if params.has_mirostat:
        return params.temperature, 0.0, 1.0, 0.0, point
    return params.temperature, params.top_k, params.top_p, params.min_p, point


def _apply_steps(scores: Tensor, sequences: list[RunningSequence], *, is_copy: bool) -> Tensor:
    """Scores after the steps that rows ask for; changed in place where they are a copy."""
    rows = {index: row for index, each in enumerate(sequences) if (row := _row_of(each))}
    if not rows:
        return scores
    if not is_copy:
        scores = scores.clone()
    steps = SAMPLING_STEPS.values()
    for step in steps:
        usual = {
            index: row
            for index, row in rows.items()
            if not row.params.samplers and step.wanted(row)
        }
        if usual:
            scores = _apply_step(step, scores, usual)
    for index, row in rows.items():
        for step in in_order(steps, row.params.samplers) if row.params.samplers else ():
            if step.wanted(row):
                scores[index] = step.apply(scores[index], row)
    return scores


def _apply_step(step: SamplingStep, scores: Tensor, rows: dict[int, Row]) -> Tensor:
    """Scores after a step that some rows ask for; they may be changed in place."""
    if step.together is None:
        for index, row in rows.items():
            scores[index] = step.apply(scores[index], row)
        return scores
    if len(rows) == len(scores):
        return step.together(scores, [*rows.values()])
    places = [*rows]
    scores[places] = step.together(scores[places], [*rows.values()])
    return scores


def _row_of(sequence: RunningSequence) -> Row | None:
    """What the steps look at, or None for a row that no step concerns."""
    params = sequence.request.params
    touches_ids = bool(params.logit_bias) or sequence.num_output < params.min_tokens
    is_asked = touches_ids or params.samplers or params.has_rules or params.has_rare_filters
    if not params.has_penalties and not is_asked:
        return None
    # the history is only made when somebody reads it
    length = len(sequence.tokens)
    most = params.repeat_last_n
    start = length
    if params.has_penalties:
        start = 0 if most < 0 else max(length - most, 0)
    ids = torch.tensor(sequence.tokens[start:].tolist(), dtype=torch.int64)
    split = max(sequence.num_prompt_left - start, 0)
    stops = (*sequence.request.stop_ids, *params.stop_token_ids)
    request = sequence.request
    return Row(
        params=params,
        prompt=ids[:split],
        output=ids[split:],
        num_output=sequence.num_output,
        stop_ids=stops,
        history=sequence.tokens,
        num_prompt=sequence.num_prompt_left,
        # with every bit of the seed flipped, so that it is not the draw's own number
        chance=uniform(~sequence.seed, sequence.num_prompt + sequence.num_output),
        breakers=request.dry_breakers,
        bad_words=request.bad_words,
        most_surprise=sequence.most_surprise,
    )
