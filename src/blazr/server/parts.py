"""A reply as the parts that newer APIs cut it into: thoughts, text, calls, one at a time."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

import msgspec

from blazr.core.json_text import whole_members
from blazr.server.run import Renderer
from blazr.text.events import (
    Event,
    Finished,
    PromptDone,
    ReasoningDelta,
    TokenText,
    ToolCallDelta,
    ToolStep,
)

W = TypeVar("W")
E = TypeVar("E", bound=msgspec.Struct)

Kind = Literal["text", "reasoning", "tool", "custom", "step"]


@dataclass(slots=True)
class ReplyPart:
    """A part of a reply, as far as it has come.

    Args:
        kind: What it is.
        place: How many came before it.
        text: Its text; of a call the arguments, as JSON; of a custom tool's, its input.
        call_id: Of a call.
        name: Of a call: the tool's.
        logprobs: Of its tokens, when asked for.
        latest: Of these, those of the text that came last.
        step: The call of a tool that was run on this side, as far as it has come.
    """

    kind: Kind
    place: int
    text: str = ""
    call_id: str = ""
    name: str = ""
    logprobs: list[TokenText] = field(default_factory=list)
    latest: Sequence[TokenText] = ()
    step: ToolStep | None = None

    @property
    def arguments(self) -> object:
        """Of a call: its arguments; of one that is cut off in the middle, those that came whole.

        Anthropic's API sends no argument before all of it is there, so its clients know such calls.
        """
        try:
            return json.loads(self.text or "{}")
        except (ValueError, RecursionError):
            return whole_members(self.text)


class PartsRenderer(Renderer[W, E], Generic[W, E]):
    """Says a reply part by part. The whole is what the stream has put together."""

    def __init__(self) -> None:
        self.parts: list[ReplyPart] = []
        self.prompt: PromptDone | None = None
        self.finished: Finished | None = None
        self._is_open = False

    def event(self, event: Event) -> Iterable[E]:
        """What to send for an event, when streaming."""
        if isinstance(event, PromptDone):
            self.prompt = event
            yield from self.prompt_done()
        elif isinstance(event, Finished):
            self.finished = event
            yield from self._close()
        elif isinstance(event, ToolCallDelta):
            kind: Kind = "custom" if event.is_custom else "tool"
            if event.id is not None or event.name is not None:
                part = ReplyPart(
                    kind, len(self.parts), call_id=event.id or "", name=event.name or ""
                )
                yield from self._open(part)
            if event.arguments:
                yield from self._add(kind, event.arguments)
        elif isinstance(event, ToolStep):
            yield from self._take_step(event)
        elif isinstance(event, ReasoningDelta):
            yield from self._add("reasoning", event.text)
        elif event.text or (event.logprobs and self._is_open and self.parts[-1].kind == "text"):
            yield from self._add("text", event.text, event.logprobs)

    def gather(self, event: Event) -> None:
        """Take note of an event, when not streaming."""
        for _ in self.event(event):
            pass

    def _add(self, kind: Kind, text: str, tokens: Sequence[TokenText] = ()) -> Iterator[E]:
        if not self._is_open or self.parts[-1].kind != kind:
            yield from self._open(ReplyPart(kind, len(self.parts)))
        part = self.parts[-1]
        part.text += text
        part.logprobs.extend(tokens)
        part.latest = tokens
        yield from self.part_extended(part, text)

    def _take_step(self, step: ToolStep) -> Iterator[E]:
        """Several steps may be under way at once, between other parts."""
        if step.output is None:
            yield from self._close()
            self.parts.append(ReplyPart("step", len(self.parts), step=step))
            yield from self.part_started(self.parts[-1])
            return
        part = next(each for each in self.parts if each.step and each.step.step == step.step)
        part.step = step
        yield from self.part_finished(part)

    def _open(self, part: ReplyPart) -> Iterator[E]:
        yield from self._close()
        self._is_open = True
        self.parts.append(part)
        yield from self.part_started(part)

    def _close(self) -> Iterator[E]:
        if self._is_open:
            self._is_open = False
            yield from self.part_finished(self.parts[-1])

    def prompt_done(self) -> Iterable[E]:
        """What to send when the prompt was read."""
        return ()

    def part_started(self, part: ReplyPart) -> Iterable[E]:  # noqa: ARG002
        """What to send when a part begins."""
        return ()

    @abstractmethod
    def part_extended(self, part: ReplyPart, text: str) -> Iterable[E]:
        """What to send when a part has grown."""

    @abstractmethod
    def part_finished(self, part: ReplyPart) -> Iterable[E]:
        """What to send when a part has ended."""
