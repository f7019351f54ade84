"""From a dialect's requests to its answer, whole or streamed: the same events either way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from time import monotonic

from starlette.responses import Response

from blazr.llm.async_llm import AsyncReply
from blazr.llm.generation import GenerationRequest
from blazr.llm.results import Completion, Fold, Usage, total_usage
from blazr.server.errors import HttpError, openai_shape
from blazr.server.service import Call, json_response
from blazr.server.state import PrefixReport
from blazr.text.events import Event, Finished, PromptDone, TextDelta

_FAILURES = {"error": 500, "abort": 503, "timeout": 408}  # the last is its own limit, mostly
_NAMES = ("request_id", "rid")  # fields of a body that name it, for those who end it
PREFIX_HEADER = "X-Blazr-Prefix-Cache"
DROPPED_HEADER = "X-Blazr-Dropped-Messages"


class Renderer(ABC):
    """How a dialect says what happens."""

    def event(self, event: Event) -> Iterable[object]:  # noqa: ARG002
        """What to send for an event, when streaming."""
        return ()

    def gather(self, event: Event) -> None:
        """Take note of an event, when not streaming."""
        del event  # most know all from the completions

    def last(self, usage: Usage) -> Iterable[object]:  # noqa: ARG002
        """What to send after the last event, when streaming."""
        return ()

    def failure(self, error: HttpError) -> Iterable[object]:
        """What to send when a stream fails."""
        return (openai_shape(error),)

    @abstractmethod
    def whole(self, completions: Sequence[Completion], usage: Usage) -> object:
        """The answer to send when not streaming."""


class Run:
    """One request being answered: its reply, what has come of it so far, its measures.

    Whoever has one calls `end`, whatever happened.
    """

    def __init__(
        self,
        call: Call[object],
        reply: AsyncReply,
        *,
        n: int,
        started_s: float,
        tells_abort: bool = False,
    ) -> None:
        names = {call.request_id, call.id, *(getattr(call.body, name, None) for name in _NAMES)}
        self.service = call.service
        self._call = call
        self._reply = reply
        self._n = n
        self._tells_abort = tells_abort
        self._started_s = started_s
        self._first: PromptDone | None = None
        self._last_s: dict[int, float] = {}
        self._gathered = Fold()
        self._has_failed = False
        self._has_ended = False
        self.service.track(reply, {name for name in names if name})

    @classmethod
    async def start(
        cls,
        call: Call[object],
        requests: Sequence[GenerationRequest],
        *,
        tells_abort: bool = False,
    ) -> Run:
        """Begin to generate.

        Args:
            call: For whom.
            requests: What.
            tells_abort: Whether the dialect can say that a reply was ended where it stood, so that
                this is no failure.

        Raises:
            RequestError: A request asks for something impossible.
            CapacityError: The queue is full.
            EngineError: The engine has stopped.
        """
        started_s = monotonic()
        try:
            reply = await call.service.llm.start(requests)
        except Exception:
            call.service.count("blazr_requests", outcome="rejected")
            raise
        n = requests[0].params.n
        return cls(call, reply, n=n, started_s=started_s, tells_abort=tells_abort)

    @property
    def is_done(self) -> bool:
        """Whether everything has been generated."""
        return self._reply.is_done

    async def take(self, *, timeout_s: float) -> list[Event]:
        """Wait for events; none when nothing happened for ``timeout_s``."""
        try:
            events = await self._reply.take(timeout_s=timeout_s)
        except Exception:
            self._has_failed = True
            raise
        for event in events:
            self._gathered.push(event)
            self._has_failed |= self.failure_of(event) is not None
            if isinstance(event, PromptDone) and event.reuse:
                is_first = self._first is None or event.index < self._first.index
                self._first = event if is_first else self._first
            self._measure(event)
        return events

    @property
    def headers(self) -> dict[str, str]:
        """What an answer's headers say of the first prompt; none before it was read.

        How much of it was reused, and why no more; how many messages of the chat were left out.
        """
        if self._first is None:
            return {}
        cached, prompt = self._first.num_cached_tokens, self._first.num_prompt_tokens
        headers = {PREFIX_HEADER: f"{cached}/{prompt}; {self._first.reuse}"}
        if self._first.num_dropped_messages:
            headers[DROPPED_HEADER] = str(self._first.num_dropped_messages)
        return headers

    def failure_of(self, event: Event) -> HttpError | None:
        """The error that an event amounts to, if it is one."""
        if not isinstance(event, Finished) or event.reason not in _FAILURES:
            return None
        if event.reason == "abort" and self._tells_abort:
            return None
        message = event.error or "the reply was ended."
        return HttpError(_FAILURES[event.reason], message, code=f"generation_{event.reason}")

    def completions(self) -> list[Completion]:
        """What has been generated."""
        return self._gathered.completions()

    def usage(self) -> Usage:
        """What it cost."""
        return total_usage(self.completions(), n=self._n)

    def end(self) -> None:
        """Stop what still runs and record the outcome. Idempotent."""
        if self._has_ended:
            return
        self._has_ended = True
        self._reply.abort()
        self.service.forget(self._reply)
        if self._first is not None:
            self.service.state.remember(self._call.tenant, self._report(self._first))
        outcome = "failed" if self._has_failed else "ok" if self.is_done else "cancelled"
        service, usage = self.service, self.usage()
        service.count("blazr_requests", outcome=outcome)
        service.count("blazr_prompt_tokens", usage.prompt_tokens)
        service.count("blazr_cached_prompt_tokens", usage.cached_tokens)
        service.count("blazr_generated_tokens", usage.completion_tokens)
        service.whole_request(monotonic() - self._started_s)
        self._call.facts.update(
            model=service.name,
            outcome=outcome,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.completion_tokens,
        )

    def _report(self, prompt: PromptDone) -> PrefixReport:
        return PrefixReport(
            request_id=self._call.request_id,
            model=self.service.name,
            prompt_tokens=prompt.num_prompt_tokens,
            cached_tokens=prompt.num_cached_tokens,
            reason=prompt.reuse,
        )

    def _measure(self, event: Event) -> None:
        now_s = monotonic()
        if isinstance(event, PromptDone):
            self.service.first_token(now_s - self._started_s)
        elif isinstance(event, TextDelta):
            before_s = self._last_s.get(event.index)
            if before_s is not None:
                self.service.between_tokens(now_s - before_s)
            self._last_s[event.index] = now_s


async def finish(run: Run, take: Callable[[Event], None]) -> None:
    """Generate to the end.

    Args:
        run: What is generated.
        take: Called with every event.

    Raises:
        HttpError: 500 or 408, when one of the replies failed.
    """
    while not run.is_done:
        events = await run.take(timeout_s=run.service.config.keep_alive_s)
        failures = [failure for failure in map(run.failure_of, events) if failure]
        if failures:
            raise failures[0]
        for event in events:
            take(event)


async def whole_answer(run: Run, renderer: Renderer) -> Response:
    """Generate to the end and render it; it raises what `finish` raises."""
    try:
        await finish(run, renderer.gather)
        answer = renderer.whole(run.completions(), run.usage())
    finally:
        run.end()
    return json_response(answer, headers=run.headers)
