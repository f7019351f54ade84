"""Whole replies: a fold of the events that generation emits."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from blazr.text.events import (
    Event,
    Finished,
    PromptDone,
    ReasoningDelta,
    TextDelta,
    TokenText,
    ToolCallDelta,
    ToolStep,
)

if TYPE_CHECKING:
    from blazr.llm.generation import GenerationRequest

E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens spent.

    Args:
        prompt_tokens: Tokens of the prompt.
        completion_tokens: Tokens generated.
        cached_tokens: Tokens of the prompt that were not computed again.
        reasoning_tokens: Tokens generated that are the model's thinking.
        draft_tokens: Tokens computed on speculation.
        kept_draft_tokens: Of these, those that were kept.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    draft_tokens: int = 0
    kept_draft_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool that the model wants made.

    Args:
        id: What its result will be known by.
        name: The tool's.
        arguments: Text of a JSON object, as the model wrote it; of a custom tool, its input.
        is_custom: Whether the tool is a custom one.
    """

    id: str
    name: str
    arguments: str
    is_custom: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One finished reply.

    Args:
        index: Its place: prompt number times ``n``, plus the number of the choice.
        text: The text.
        token_ids: The tokens generated.
        finish_reason: ``"stop"``, ``"length"``, ``"abort"``, ``"timeout"`` or ``"error"``.
        logprobs: One per token, when asked for.
        prompt_logprobs: One per prompt token, when asked for.
        usage: Tokens spent.
        stop: The stop string that ended it, or None.
        error: What failed, for ``"error"`` and ``"timeout"``.
        embedding: The prompt as a vector, where that was asked for instead of text.
        reasoning: The model's thinking, which is not part of the text.
        tool_calls: The calls it makes, which are not either.
        tool_steps: The tools that were run before it went on, where an agent's loop did so.
        num_dropped_messages: Messages of the chat that did not fit and were left out, the oldest.
        prompt: The text that was continued; None where that was a chat or token ids.
        prompt_token_ids: The token ids that were continued, where the prompt was token ids.
        others: The other replies to the same prompt, of the first one; see `outputs`.
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
    embedding: array[float] | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_steps: tuple[ToolStep, ...] = ()
    num_dropped_messages: int = 0
    prompt: str | None = field(default=None, compare=False)
    prompt_token_ids: tuple[int, ...] | None = field(default=None, compare=False)
    others: tuple[Completion, ...] = field(default=(), compare=False, repr=False)

    @property
    def outputs(self) -> tuple[Completion, ...]:
        """All ``n`` replies to the prompt; this is the first of them."""
        return (self, *self.others)

    def __iter__(self) -> Iterator[Completion]:
        """Iterate over this one completion: vLLM's ``chat`` returns a list of one."""
        yield self

    def __getitem__(self, index: int) -> Completion:
        return (self,)[index]


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """A text as a vector.

    Args:
        embedding: Its C numbers.
        prompt_tokens: Tokens of the text.
    """

    embedding: list[float]
    prompt_tokens: int

    @property
    def data(self) -> list[float]:
        """The same, as vLLM's ``encode`` calls it."""
        return self.embedding

    @property
    def outputs(self) -> Embedding:
        """This object, where vLLM's results have another one inside."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How well two texts fit each other.

    Args:
        score: The cosine of their vectors, -1 to 1; by a model that was made to rank, its
            own number, mostly 0 to 1.
    """

    score: float

    @property
    def outputs(self) -> Score:
        """This object, where vLLM's results have another one inside."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    """The labels of a text.

    Args:
        label: The likeliest.
        probs: The probability of each label; of a model of regression, its own numbers.
        labels: The model's labels, in the order of ``probs``.
        prompt_tokens: Tokens of the text.
    """

    label: str
    probs: list[float]
    labels: list[str]
    prompt_tokens: int

    @property
    def num_classes(self) -> int:
        """How many labels there are, as vLLM calls it."""
        return len(self.probs)

    @property
    def outputs(self) -> Classification:
        """This object, where vLLM's results have another one inside."""
        return self


class Fold:
    """Gathers events into completions."""

    def __init__(self) -> None:
        self._events: dict[int, list[Event]] = {}  # by index of the reply

    def push(self, event: Event) -> None:
        """Take one event."""
        self._events.setdefault(event.index, []).append(event)

    def completions(self) -> list[Completion]:
        """The replies so far, by index; those still running end with ``"abort"``."""
        return [_completion(index, self._events[index]) for index in sorted(self._events)]


def _of(kind: type[E], events: Iterable[Event]) -> list[E]:
    """The events of one kind."""
    return [each for each in events if isinstance(each, kind)]


def _completion(index: int, events: Sequence[Event]) -> Completion:
    """One reply, of its events so far."""
    deltas = _of(TextDelta, events)
    token_ids = tuple(each for delta in deltas for each in delta.token_ids)
    prompts = _of(PromptDone, events)
    prompt = prompts[-1] if prompts else PromptDone(index, 0, 0)
    ends = _of(Finished, events)
    finished = ends[-1] if ends else Finished(index, "abort", len(token_ids))
    calls: dict[int, list[ToolCallDelta]] = {}
    for call in _of(ToolCallDelta, events):
        calls.setdefault(call.call_index, []).append(call)
    return Completion(
        index=index,
        text="".join(delta.text for delta in deltas),
        token_ids=token_ids,
        finish_reason=finished.reason,
        logprobs=tuple(each for delta in deltas for each in delta.logprobs) or None,
        prompt_logprobs=prompt.logprobs,
        usage=usage_of(prompt.num_prompt_tokens, prompt.num_cached_tokens, finished),
        stop=finished.stop,
        error=finished.error,
        embedding=prompt.embedding,
        reasoning="".join(delta.text for delta in _of(ReasoningDelta, events)),
        tool_calls=tuple(
            ToolCall(
                id=next((each.id for each in parts if each.id is not None), ""),
                name=next((each.name for each in parts if each.name is not None), ""),
                arguments="".join(each.arguments for each in parts),
                is_custom=parts[0].is_custom,
            )
            for parts in calls.values()
        ),
        tool_steps=tuple(each for each in _of(ToolStep, events) if each.output is not None),
        num_dropped_messages=prompt.num_dropped_messages,
    )


def usage_of(num_prompt: int, num_cached: int, finished: Finished) -> Usage:
    """Tokens spent on one reply, of those of its first prompt and its last event."""
    return Usage(
        num_prompt + finished.num_more_prompt_tokens,
        finished.num_tokens,
        num_cached + finished.num_more_cached_tokens,
        finished.num_reasoning_tokens,
        finished.num_drafts,
        finished.num_kept_drafts,
    )


class Tally:
    """What replies have cost so far, while they are generated.

    Args:
        n: How many replies share a prompt.
    """

    def __init__(self, n: int) -> None:
        self._n = n
        self._usages: dict[int, Usage] = {}

    def push(self, event: Event) -> None:
        """Take one event. Thinking is told apart at a reply's end."""
        known = self._usages.get(event.index, Usage())
        if isinstance(event, PromptDone) and event.index % self._n == 0:
            known = Usage(event.num_prompt_tokens, 0, event.num_cached_tokens)
        elif isinstance(event, TextDelta):
            known = replace(known, completion_tokens=known.completion_tokens + len(event.token_ids))
        elif isinstance(event, Finished):
            known = usage_of(known.prompt_tokens, known.cached_tokens, event)
        self._usages[event.index] = known

    @property
    def usage(self) -> Usage:
        """All of it together."""
        return sum_usage(self._usages.values())


def fold(events: Iterable[Event]) -> list[Completion]:
    """The whole replies that a stream of events amounts to, by index."""
    gathered = Fold()
    for event in events:
        gathered.push(event)
    return gathered.completions()


def by_prompt(
    completions: Sequence[Completion], requests: Sequence[GenerationRequest]
) -> list[Completion]:
    """Return the first reply to each prompt, which holds the others.

    Args:
        completions: All replies, by index.
        requests: What was asked, in order.
    """
    found = []
    at = 0
    for request in requests:
        prompt = request.prompt
        about: dict[str, Any] = {}
        if isinstance(prompt, str):
            about["prompt"] = prompt
        elif prompt is not None:
            about["prompt_token_ids"] = tuple(prompt)
        first, *others = (
            replace(each, **about) for each in completions[at : at + request.params.n]
        )
        found.append(replace(first, others=tuple(others)))
        at += request.params.n
    return found


def total_usage(completions: Iterable[Completion], *, n: int = 1) -> Usage:
    """Tokens spent on all replies together; the ``n`` replies to a prompt share its tokens."""
    usages = [
        replace(each.usage, prompt_tokens=0, cached_tokens=0) if each.index % n else each.usage
        for each in completions
    ]
    return sum_usage(usages)


def sum_usage(usages: Iterable[Usage]) -> Usage:
    """All of it together."""
    return Usage(*map(sum, zip(*map(astuple, usages), strict=True)))
