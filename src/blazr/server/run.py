"""From a dialect's requests to its reply, whole or streamed: the same events either way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from time import monotonic
from typing import Generic, TypeVar

import msgspec

from blazr.agent.reply import Agent, AgentReply
from blazr.engine.request import Request
from blazr.llm.async_llm import AsyncReply
from blazr.llm.generation import GenerationRequest
from blazr.llm.results import Completion, Fold, Usage, total_usage
from blazr.server.endpoint import Call, Reply
from blazr.server.errors import STOPS, HttpError, openai_error
from blazr.server.state import PrefixReport
from blazr.server.work import Work, WorkStream
from blazr.text.events import Event, Finished, PromptDone, TextDelta, ToolStep

W = TypeVar("W")
E = TypeVar("E", bound=msgspec.Struct)

_FAILURES = {"error": 500, "abort": 503, "timeout": 408}  # the last is its own limit, mostly
PREFIX_HEADER = "X-Blazr-Prefix-Cache"
DROPPED_HEADER = "X-Blazr-Dropped-Messages"


class Renderer(ABC, Generic[W, E]):
    """How a dialect says what happens: events E of a stream, or a whole reply W.

    Attributes:
        reports_abort: Whether it has a finish reason for replies that were aborted, so that this is
            no failure.
    """

    reports_abort = False

    def event(self, event: Event) -> Iterable[E]:  # noqa: ARG002
        """What to send for an event, when streaming."""
        return ()

    def pending(self) -> Iterable[E]:
        """What to send of events before, when streaming and the next one has yet to come."""
        return ()

    def gather(self, event: Event) -> None:
        """Take note of an event, when not streaming."""
        del event  # most know all from the completions

    def last(self, usage: Usage) -> Iterable[E]:  # noqa: ARG002
        """What to send after the last event, when streaming."""
        return ()

    def failure(self, error: HttpError) -> Iterable[msgspec.Struct]:
        """What to send when a stream fails."""
        return (openai_error(error),)

    @abstractmethod
    def whole(self, completions: Sequence[Completion], usage: Usage) -> W:
        """The reply to send when not streaming."""


class Run(Work[Event]):
    """One request being answered: its reply, what has come of it so far, its measures."""

    def __init__(
        self,
        call: Call[object],
        reply: AsyncReply | AgentReply,
        *,
        n: int,
        started_s: float,
        reports_abort: bool,
    ) -> None:
        super().__init__(call, reply, started_s=started_s)
        self._model = call.language_model
        self._reply = reply
        self._n = n
        self._reports_abort = reports_abort
        self._first: PromptDone | None = None
        self._last_s: dict[int, float] = {}
        self._gathered = Fold()

    @classmethod
    async def start(
        cls,
        call: Call[object],
        requests: Sequence[GenerationRequest],
        *,
        reports_abort: bool = False,
        before: Callable[[Sequence[Request]], Awaitable[None]] | None = None,
        agent: Agent | None = None,
    ) -> Run:
        """Begin to generate.

        Args:
            call: The request it answers.
            requests: What to generate.
            agent: What runs the tools that the one reply to the one request calls.
            reports_abort: See `Renderer`.
            before: Waited for when it is known of which tokens the prompts are.

        Raises:
            RequestError: A request asks for something impossible.
            CapacityError: The queue is full.
            EngineError: The engine has stopped.
        """
        started_s = monotonic()
        try:
            reply: AsyncReply | AgentReply
            if agent is None:
                reply = await call.llm.start(requests, before=before)
            else:
                reply = await AgentReply.start(call.llm, requests[0], agent)
        except STOPS:
            raise
        except BaseException:
            call.model.count("blazr_requests", outcome="rejected")
            raise
        n = requests[0].params.n
        return cls(call, reply, n=n, started_s=started_s, reports_abort=reports_abort)

    @property
    def is_done(self) -> bool:
        """Whether everything has been generated."""
        return self._reply.is_done

    async def take(self) -> list[Event]:
        """Wait for events; none where nothing came for the time after which a stream says so."""
        try:
            events = await self._reply.take(timeout_s=self._model.config.keep_alive_s)
        except STOPS:
            raise
        except BaseException:
            self._has_failed = True
            raise
        now_s = monotonic()
        for event in events:
            self._gathered.push(event)
            self._has_failed |= self.failure_of(event) is not None
            if isinstance(event, PromptDone):
                self._model.first_token(now_s - self._started_s)
                is_first = self._first is None or event.index < self._first.index
                if event.reuse and is_first:
                    self._first = event
            elif isinstance(event, TextDelta):
                if event.index in self._last_s:
                    self._model.between_tokens(now_s - self._last_s[event.index])
                self._last_s[event.index] = now_s
            elif isinstance(event, ToolStep):
                self._last_s.pop(event.index, None)  # it is not the model that takes the time
        return events

    @property
    def headers(self) -> dict[str, str]:
        """What an answer's headers say of the first prompt; none before it was read.

        How much of it was reused, and why no more; how many messages of the chat were left out.
        """
        if self._first is None:
            return {}
        cached = self._first.num_cached_tokens
        prompt = self._first.num_prompt_tokens
        words = [self._first.reuse, *filter(None, [self._first.resumed_at])]
        headers = {PREFIX_HEADER: "; ".join([f"{cached}/{prompt}", *words])}
        if self._first.num_dropped_messages:
            headers[DROPPED_HEADER] = str(self._first.num_dropped_messages)
        return headers

    def failure_of(self, item: Event) -> HttpError | None:
        """The error that an event amounts to, if it is one."""
        if not isinstance(item, Finished) or item.reason not in _FAILURES:
            return None
        if item.reason == "abort" and self._reports_abort:
            return None
        message = item.error or "the reply was ended."
        if item.is_refusal:
            return HttpError(400, message, code="invalid_value")
        return HttpError(_FAILURES[item.reason], message, code=f"generation_{item.reason}")

    def completions(self) -> list[Completion]:
        """What has been generated."""
        return self._gathered.completions()

    def usage(self) -> Usage:
        """What it cost."""
        return total_usage(self.completions(), n=self._n)

    async def finish(self, take: Callable[[Event], None] = lambda _: None) -> None:
        """Generate to the end.

        Args:
            take: Called with every event.

        Raises:
            HttpError: 500, 503 or 408, when one of the replies failed.
        """
        while not self.is_done:
            events = await self.take()
            failures = [failure for failure in map(self.failure_of, events) if failure]
            if failures:
                raise failures[0]
            for event in events:
                take(event)

    async def result(
        self, take: Callable[[Event], None] = lambda _: None
    ) -> tuple[list[Completion], Usage]:
        """Generate to the end and close; what was generated, and what it cost.

        The headers of the answer then tell of the prompt. It raises what `finish` raises.
        """
        try:
            await self.finish(take)
            self.call.headers.update(self.headers)
            return self.completions(), self.usage()
        finally:
            self.close()

    def close(self) -> None:
        """Abort what still runs and record the outcome. Idempotent."""
        if self._is_closed:
            return
        super().close()
        if self._first is not None:
            prompt = self._first
            report = PrefixReport(
                request_id=self.call.request_id,
                model=self._model.name,
                prompt_tokens=prompt.num_prompt_tokens,
                cached_tokens=prompt.num_cached_tokens,
                reason=prompt.reuse,
                state=prompt.resumed_at or None,
            )
            self._model.state.remember(self.call.tenant, report)
        usage = self.usage()
        self._model.count("blazr_prompt_tokens", usage.prompt_tokens)
        self._model.count("blazr_cached_prompt_tokens", usage.cached_tokens)
        self._model.count("blazr_generated_tokens", usage.completion_tokens)
        self.call.facts.update(
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.completion_tokens,
        )


async def reply(
    call: Call[object],
    requests: Sequence[GenerationRequest],
    renderer: Renderer[W, E],
    *,
    stream: bool | None,
    before: Callable[[Sequence[Request]], Awaitable[None]] | None = None,
    agent: Agent | None = None,
) -> Reply[W, E]:
    """Answer with what is generated. It raises what `Run.start` raises, too.

    Args:
        call: The request it answers.
        requests: What to generate.
        renderer: How the dialect says it.
        stream: Whether to stream it, or to send it whole.
        before: See `Run.start`.
        agent: See `Run.start`.

    Raises:
        HttpError: 500, 503 or 408, when one of the replies failed and nothing was sent yet.
    """
    run = await Run.start(
        call, requests, reports_abort=renderer.reports_abort, before=before, agent=agent
    )
    if stream:
        return WorkStream(
            run,
            renderer.event,
            lambda: renderer.last(run.usage()),
            pending=renderer.pending,
            failure=renderer.failure,
        )
    completions, usage = await run.result(renderer.gather)
    return renderer.whole(completions, usage)
