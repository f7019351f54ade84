"""Whole replies: a fold of the events that generation emits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from blazr.text.events import Event, Finished, PromptDone, TextDelta, TokenText


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens spent.

    Args:
        prompt_tokens: Tokens of the prompt.
        completion_tokens: Tokens generated.
        cached_tokens: Tokens of the prompt that were not computed again.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One finished reply.

    Args:
        index: Its place: prompt number times ``n``, plus the number of the choice.
        text: The text.
        token_ids: The tokens generated.
        finish_reason: ``"stop"``, ``"length"``, ``"abort"`` or ``"error"``.
        logprobs: One per token, when asked for.
        prompt_logprobs: One per prompt token, when asked for.
        usage: Tokens spent.
        stop: The stop string that ended it, or None.
        error: What failed, for ``"error"``.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    logprobs: tuple[TokenText, ...] | None = None
    prompt_logprobs: tuple[TokenText, ...] | None = None
    usage: Usage = Usage()
    stop: str | None = None
    error: str | None = None


@dataclass(slots=True)
class _Choice:
    prompt: PromptDone | None = None
    deltas: list[TextDelta] = field(default_factory=list)
    finished: Finished | None = None


class Fold:
    """Gathers events into completions."""

    def __init__(self) -> None:
        self._choices: dict[int, _Choice] = {}

    def push(self, event: Event) -> None:
        """Take one event."""
        choice = self._choices.setdefault(event.index, _Choice())
        if isinstance(event, PromptDone):
            choice.prompt = event
        elif isinstance(event, TextDelta):
            choice.deltas.append(event)
        else:
            choice.finished = event

    def completions(self) -> list[Completion]:
        """The replies so far, by index; those still running end with ``"abort"``."""
        return [_complete(index, self._choices[index]) for index in sorted(self._choices)]


def fold(events: Iterable[Event]) -> list[Completion]:
    """The whole replies that a stream of events amounts to, by index."""
    gathered = Fold()
    for event in events:
        gathered.push(event)
    return gathered.completions()


def total_usage(completions: Iterable[Completion], *, n: int = 1) -> Usage:
    """Tokens spent on all replies together; the ``n`` replies to a prompt share its tokens."""
    prompt = completion = cached = 0
    for each in completions:
        completion += each.usage.completion_tokens
        if each.index % n == 0:
            prompt += each.usage.prompt_tokens
            cached += each.usage.cached_tokens
    return Usage(prompt, completion, cached)


def _complete(index: int, choice: _Choice) -> Completion:
    prompt = choice.prompt or PromptDone(index, 0, 0)
    token_ids = tuple(each for delta in choice.deltas for each in delta.token_ids)
    finished = choice.finished or Finished(index, "abort", len(token_ids))
    return Completion(
        index=index,
        text="".join(delta.text for delta in choice.deltas),
        token_ids=token_ids,
        finish_reason=finished.reason,
        logprobs=tuple(each for delta in choice.deltas for each in delta.logprobs) or None,
        prompt_logprobs=prompt.logprobs,
        usage=Usage(prompt.num_prompt_tokens, finished.num_tokens, prompt.num_cached_tokens),
        stop=finished.stop,
        error=finished.error,
    )
