"""The rounds of one reply: a model calls tools, these are run, and it goes on with what they say.

It decides, and does nothing itself: whoever generates hands it the events of each round, runs the
calls that it names, and tells it what came of them.
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
        joint: What stands between the texts of two rounds, where these are shown as one.

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
        joint: str = "",
    ) -> None:
        self.messages = list(messages)
        self.calls: list[PlannedCall] = []
        self.is_over = False
        self.has_run = False
        self._offer = offer
        self._can_ask = can_ask
        self._asks_always = asks_always
        self._rounds_left = max_rounds
        self._joint = joint
        self._has_spoken = False  # in an earlier round
        self._speaks = False  # in this one
        self._num_steps = 0
        self._num_passed = 0  # calls that went to the client
        self._has_begun = False
        self._more = (0, 0)  # tokens of later prompts, and of these the cached ones
        self._earlier = Finished(0, "", 0)  # the sums of earlier rounds
        self._begin_round()
        self._plan_approved(frozenset(approved))

    def begin(self) -> Iterator[Event]:
        """The first event, where a call that the client has agreed to goes before the prompt."""
        if not self._has_begun:
            self._has_begun = True
            yield PromptDone(0, 0, 0)

    def push(self, event: Event) -> Iterator[Event]:
        """Take an event of this round; yields what is to be shown of it."""
        if isinstance(event, PromptDone):
            if self._has_begun:
                prompt, cached = self._more
                self._more = prompt + event.num_prompt_tokens, cached + event.num_cached_tokens
            else:
                self._has_begun = True
                yield event
        elif isinstance(event, ToolCallDelta):
            yield from self._take_call(event)
        elif isinstance(event, Finished):
            yield from self._end_round(event)
        else:
            if isinstance(event, TextDelta):
                self._said.push(TextDelta(0, event.text))  # without what is known of its tokens
                if event.text and self._has_spoken and not self._speaks and self._joint:
                    yield TextDelta(0, self._joint)
                self._speaks |= bool(event.text)
            else:
                self._said.push(event)
            yield event

    def answer(self, outcomes: Sequence[Outcome]) -> Iterator[Event]:
        """Take what came of `calls`, in their order; yields the end, if there is no more."""
        for call, outcome in zip(self.calls, outcomes, strict=True):
            text = f"Error: {outcome.text}" if outcome.is_error else outcome.text
            extra = {"tool_call_id": call.id, "name": call.offered.shown_name}
            self.messages.append(Message(role="tool", content=text, extra=extra))
        self.calls = []
        self.has_run = True
        if self._held is not None:
            yield self._end(self._held)
        self._begin_round()

    def stop(self, reason: str, error: str | None = None) -> Finished:
        """The end, between two rounds or in one."""
        return self._end(Finished(0, reason, 0, error=error))

    def _begin_round(self) -> None:
        self._has_spoken |= self._speaks
        self._speaks = False
        self._said = Fold()  # text, thoughts, and calls that are run here
        self._own: set[int] = set()  # the places of these calls
        self._passed: dict[int, int] = {}  # the others: their place for the client
        self._held: Finished | None = None

    def _take_call(self, event: ToolCallDelta) -> Iterator[Event]:
        place = event.call_index
        if place not in self._own and place not in self._passed:
            offered = self._offer.tools.get(event.name or "")
            if offered is not None and not event.is_custom and self._runs(offered):
                self._own.add(place)
            else:
                self._passed[place] = self._num_passed
                self._num_passed += 1
        if place in self._own:
            self._said.push(event)
        else:
            yield replace(event, call_index=self._passed[place])

    def _runs(self, offered: OfferedTool) -> bool:
        return self._rounds_left > 0 and (self._can_ask or not self._needs_asking(offered))

    def _needs_asking(self, offered: OfferedTool) -> bool:
        return self._asks_always or offered.policy != "auto"

    def _end_round(self, event: Finished) -> Iterator[Event]:
        if not self._own or event.reason != "stop":
            yield self._end(event)
            return
        self._rounds_left -= 1
        (said,) = self._said.completions()
        calls = [
            # what is no object is answered with an error, and templates could not write it
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
        if self._passed:
            self._held = event  # the client has to answer, too
        else:
            self._earlier = self._sum(event)

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
        prompt, cached = self._more
        return replace(
            self._sum(event),
            num_tool_calls=self._num_passed,
            num_more_prompt_tokens=prompt,
            num_more_cached_tokens=cached,
        )

    def _sum(self, event: Finished) -> Finished:
        """An end with the sums of all rounds so far."""
        before = self._earlier
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
