"""The tool loop of one reply, without I/O: a model calls tools and continues with their results.

`Rounds` only decides. Its caller generates each round and passes in the events, runs the calls
that it plans, and passes in their outcomes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from blazr.agent.connection import Outcome
from blazr.agent.toolbox import Offer, OfferedTool, read_arguments
from blazr.llm.results import Fold, ToolCall
from blazr.text.events import (
    Event,
    Finished,
    PromptDone,
    TextDelta,
    ToolCallDelta,
    ToolStep,
)
from blazr.text.messages import Message, function_call

MAX_ROUNDS = 10  # unless asked otherwise
REFUSED = Outcome("the user has refused this call.", is_error=True)


@dataclass(slots=True)
class PlannedCall:
    """A call that is to be run.

    Args:
        step: Which of the reply's, from 0.
        id: Its id.
        offered: The tool.
        arguments: Text of a JSON object, as the model wrote it.
        needs_asking: Whether somebody has to agree first.
    """

    step: int
    id: str
    offered: OfferedTool
    arguments: str
    needs_asking: bool = False

    def event(self, outcome: Outcome | None = None) -> ToolStep:
        """The event of its beginning, or of its end."""
        return ToolStep(
            index=0,
            step=self.step,
            id=self.id,
            server=self.offered.server,
            name=self.offered.tool.name,
            arguments=self.arguments,
            output=None if outcome is None else outcome.text,
            is_error=outcome is not None and outcome.is_error,
        )


class Rounds:
    """One reply to one chat.

    Args:
        offer: The tools that are run here. Calls of other tools are the client's.
        messages: The chat.
        can_ask: Whether there is somebody here who can agree to a call. Where there is nobody, a
            call that needs it goes to the client, as if it were of its own tool.
        asks_always: Whether every call needs that, whatever its policy is.
        max_rounds: Most times that the model gets to see what its calls brought. Calls that it
            makes after the last go to the client.
        approved: Ids of calls, in the chat's last message, that the client has agreed to.
        separator: Text between those of two rounds, where these are shown as one.

    Attributes:
        messages: The chat as far as it has come: what to generate from in the next round.
        calls: What is to be run before that; empty while a round is generated, and at the end.
        is_over: Whether there is no next round.
        has_run: Whether a tool was run.
    """

    def __init__(
        self,
        offer: Offer,
        messages: Sequence[Message],
        *,
        can_ask: bool = False,
        asks_always: bool = False,
        max_rounds: int = MAX_ROUNDS,
        approved: Iterable[str] = (),
        separator: str = "",
    ) -> None:
        self.messages = list(messages)
        self.calls: list[PlannedCall] = []
        self.is_over = False
        self.has_run = False
        self._offer = offer
        self._can_ask = can_ask
        self._asks_always = asks_always
        self._rounds_left = max_rounds
        self._separator = separator
        self._had_text = False  # in an earlier round
        self._has_text = False  # in this one
        self._num_steps = 0
        self._num_client_calls = 0  # that the client has to run
        self._has_begun = False
        self._later_prompts = (0, 0)  # tokens of all but the first prompt, and the cached of them
        self._usage = Finished(0, "", 0)  # the counts of earlier rounds, summed
        self._begin_round()
        self._plan_approved(frozenset(approved))

    def begin(self) -> Iterator[Event]:
        """Yield the first event, if a call that the client has approved comes before any prompt."""
        if not self._has_begun:
            self._has_begun = True
            yield PromptDone(0, 0, 0)

    def push(self, event: Event) -> Iterator[Event]:
        """Take an event of this round; yield what the client gets of it."""
        if isinstance(event, PromptDone):
            if self._has_begun:
                prompt, cached = self._later_prompts
                self._later_prompts = (
                    prompt + event.num_prompt_tokens,
                    cached + event.num_cached_tokens,
                )
            else:
                self._has_begun = True
                yield event
        elif isinstance(event, ToolCallDelta):
            yield from self._take_call(event)
        elif isinstance(event, Finished):
            yield from self._end_round(event)
        else:
            if isinstance(event, TextDelta):
                self._completion.push(TextDelta(0, event.text))  # without ids and log-probabilities
                if event.text and self._had_text and not self._has_text and self._separator:
                    yield TextDelta(0, self._separator)
                self._has_text |= bool(event.text)
            else:
                self._completion.push(event)
            yield event

    def answer(self, outcomes: Sequence[Outcome]) -> Iterator[Event]:
        """Take the outcomes of `calls`, in their order; yield the end if no round follows."""
        for call, outcome in zip(self.calls, outcomes, strict=True):
            text = f"Error: {outcome.text}" if outcome.is_error else outcome.text
            extra = {"tool_call_id": call.id, "name": call.offered.shown_name}
            self.messages.append(Message(role="tool", content=text, extra=extra))
        self.calls = []
        self.has_run = True
        if self._held_end is not None:
            yield self._end(self._held_end)
        self._begin_round()

    def stop(self, reason: str, error: str | None = None) -> Finished:
        """Return the event that ends the reply now, within a round or between two."""
        return self._end(Finished(0, reason, 0, error=error))

    def _begin_round(self) -> None:
        self._had_text |= self._has_text
        self._has_text = False
        self._completion = Fold()  # text, thoughts, and calls that are run here
        self._local_calls: set[int] = set()  # indices of the calls that are run here
        self._client_calls: dict[int, int] = {}  # of the others, by index: that for the client
        self._held_end: Finished | None = None  # sent once the calls that are run here have ended

    def _take_call(self, event: ToolCallDelta) -> Iterator[Event]:
        place = event.call_index
        if place not in self._local_calls and place not in self._client_calls:
            offered = self._offer.tools.get(event.name or "")
            if offered is not None and not event.is_custom and self._can_run(offered):
                self._local_calls.add(place)
            else:
                self._client_calls[place] = self._num_client_calls
                self._num_client_calls += 1
        if place in self._local_calls:
            self._completion.push(event)
        else:
            yield replace(event, call_index=self._client_calls[place])

    def _can_run(self, offered: OfferedTool) -> bool:
        return self._rounds_left > 0 and (self._can_ask or not self._needs_asking(offered))

    def _needs_asking(self, offered: OfferedTool) -> bool:
        return self._asks_always or offered.policy != "auto"

    def _end_round(self, event: Finished) -> Iterator[Event]:
        if not self._local_calls or event.reason != "stop":
            yield self._end(event)
            return
        self._rounds_left -= 1
        (said,) = self._completion.completions()
        calls = [
            # other arguments than an object get an error as result; templates cannot render them
            function_call(
                each.id, each.name, each.arguments if read_arguments(each.arguments) else "{}"
            )
            for each in said.tool_calls
        ]
        extra: dict[str, object] = {"tool_calls": calls}
        if said.reasoning:
            extra["reasoning_content"] = said.reasoning
        self.messages.append(Message(role="assistant", content=said.text or None, extra=extra))
        self._plan(said.tool_calls)
        if self._client_calls:
            self._held_end = event  # the client has to answer, too
        else:
            self._usage = self._sum(event)

    def _plan(self, calls: Iterable[ToolCall], *, are_approved: bool = False) -> None:
        for call in calls:
            offered = self._offer.tools[call.name]
            asks = not are_approved and self._needs_asking(offered)
            step = self._num_steps
            self.calls.append(PlannedCall(step, call.id, offered, call.arguments, asks))
            self._num_steps += 1

    def _plan_approved(self, approved: frozenset[str]) -> None:
        """Plan the calls of the chat's last message that the client has agreed to."""
        answered: set[object] = set()
        for message in reversed(self.messages):
            extra = message.extra or {}
            if message.role != "tool":
                calls = extra.get("tool_calls")
                found = [_read_call(each) for each in calls] if isinstance(calls, list) else []
                waiting = approved - answered
                agreed = [x for x in found if x.id in waiting and x.name in self._offer.tools]
                self._plan(agreed, are_approved=True)
                return
            answered.add(extra.get("tool_call_id"))

    def _end(self, event: Finished) -> Finished:
        self.is_over = True
        prompt, cached = self._later_prompts
        return replace(
            self._sum(event),
            num_tool_calls=self._num_client_calls,
            num_more_prompt_tokens=prompt,
            num_more_cached_tokens=cached,
        )

    def _sum(self, event: Finished) -> Finished:
        """Return ``event`` with the counts of all rounds so far."""
        before = self._usage
        return replace(
            event,
            num_tokens=before.num_tokens + event.num_tokens,
            num_reasoning_tokens=before.num_reasoning_tokens + event.num_reasoning_tokens,
            num_drafts=before.num_drafts + event.num_drafts,
            num_kept_drafts=before.num_kept_drafts + event.num_kept_drafts,
        )


def _read_call(call: object) -> ToolCall:
    """A call in OpenAI's shape."""
    fields = call if isinstance(call, Mapping) else {}
    function = fields.get("function")
    inner = function if isinstance(function, Mapping) else {}
    arguments = str(inner.get("arguments") or "{}")
    return ToolCall(str(fields.get("id")), str(inner.get("name")), arguments)
