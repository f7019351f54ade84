"""A reply on an event loop that runs tools between its rounds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from blazr.agent.connection import Outcome
from blazr.agent.rounds import PlannedCall, Rounds
from blazr.agent.toolbox import RequestConnections, Toolbox
from blazr.llm.async_llm import AsyncLLM, AsyncReply
from blazr.llm.generation import GenerationRequest
from blazr.llm.language_model import CHECK_S
from blazr.text.events import Event, ToolStep


@dataclass(frozen=True, slots=True)
class Agent:
    """What runs the tools that one reply calls.

    Args:
        rounds: Which calls are run, and how often.
        toolbox: Runs them.
        request_connections: To servers that the request names; closed with the reply.
    """

    rounds: Rounds
    toolbox: Toolbox
    request_connections: RequestConnections | None = None


class AgentReply:
    """An `AsyncReply` that runs the tools that the model calls, round by round.

    Calls of one round run concurrently. The caller must call `abort` at the end.

    Args:
        llm: The model.
        request: The chat; one reply to it.
        agent: What is run, how often, and by what.
    """

    def __init__(self, llm: AsyncLLM, request: GenerationRequest, agent: Agent) -> None:
        self._llm = llm
        self._agent = agent
        self._request = request
        self._rounds = agent.rounds
        self._until_s = None if request.timeout_s is None else monotonic() + request.timeout_s
        self._round: AsyncReply | None = None
        self._running: dict[asyncio.Future[Outcome], PlannedCall] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._is_aborted = False
        self._failure: Exception | None = None
        self._woken = asyncio.Event()

    @classmethod
    async def start(cls, llm: AsyncLLM, request: GenerationRequest, agent: Agent) -> AgentReply:
        """Begin to generate, or to run approved calls; raises what `AsyncLLM.start` raises."""
        reply = cls(llm, request, agent)
        try:
            if not agent.rounds.calls:
                await reply._generate()
        except BaseException:
            reply.abort()
            raise
        return reply

    @property
    def is_done(self) -> bool:
        """Whether the last round has ended."""
        return self._rounds.is_over

    async def take(self, *, timeout_s: float = CHECK_S) -> list[Event]:
        """Wait for events; return none if nothing happens within ``timeout_s``.

        Raises:
            EngineError: Nothing happened, and the engine does not work any more.
            RequestError: The prompt with the results of tools does not fit into the context.
            Exception: What `fail` was given.
        """
        if self._round is None:
            return await self._run_tools(timeout_s)
        taken = await self._round.take(timeout_s=timeout_s)
        events = [each for event in taken for each in self._rounds.push(event)]
        if self._rounds.calls:
            self._round = None
            events += [self._rounds.stop("abort")] if self._is_aborted else self._begin_calls()
        return events

    def abort(self) -> None:
        """Cancel what still runs: calls, generation and connections. Idempotent."""
        self._is_aborted = True
        for each in self._running:
            each.cancel()
        if self._round is not None:
            self._round.abort()
        if self._agent.request_connections is not None:
            self._agent.request_connections.close()
        self._woken.set()

    def fail(self, error: Exception) -> None:
        """Make the waiting `take`, and every later one, raise."""
        self._failure = error
        if self._round is not None:
            self._round.fail(error)
        self._woken.set()

    async def _generate(self) -> None:
        """Begin the next round."""
        request = replace(self._request, messages=self._rounds.messages)
        if self._rounds.has_run:  # a call that is required is made once
            request = replace(request, tool_choice="auto", tool_name=None)
        if self._until_s is not None:
            request = replace(request, timeout_s=max(self._until_s - monotonic(), 0.001))
        self._round = await self._llm.start([request])
        if self._failure is not None:
            self._round.fail(self._failure)
        if self._is_aborted:
            self._round.abort()

    def _begin_calls(self) -> Sequence[ToolStep]:
        for call in self._rounds.calls:
            future = self._agent.toolbox.call(call.offered, call.arguments)
            self._running[asyncio.wrap_future(future)] = call
        return [each.event() for each in self._rounds.calls]

    async def _run_tools(self, timeout_s: float) -> list[Event]:
        """Wait for calls to end; after the last, the next round begins."""
        if not self._running and not self._is_aborted and self._failure is None:
            return [*self._rounds.begin(), *self._begin_calls()]
        waiting_s = timeout_s
        if self._until_s is not None:
            waiting_s = min(timeout_s, max(self._until_s - monotonic(), 0.0))
        woken = asyncio.ensure_future(self._woken.wait())
        waited: list[asyncio.Future[Any]] = [*self._running, woken]
        try:
            await asyncio.wait(waited, timeout=waiting_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()
        if self._failure is not None:
            raise self._failure
        if self._is_aborted:
            return [self._rounds.stop("abort")]
        events: list[Event] = [*self._ended_calls()]
        if not self._running:
            outcomes = [self._outcomes[call.step] for call in self._rounds.calls]
            events += self._rounds.answer(outcomes)
            if not self._rounds.is_over:
                await self._generate()
        elif self._until_s is not None and monotonic() >= self._until_s:
            self.abort()
            events.append(self._rounds.stop("timeout", "the tools took too long."))
        return events

    def _ended_calls(self) -> Iterator[ToolStep]:
        for future in [each for each in self._running if each.done()]:
            call = self._running.pop(future)
            ended = Outcome("the servers of tools are stopped.", is_error=True)
            outcome = ended if future.cancelled() else future.result()
            self._outcomes[call.step] = outcome
            yield call.event(outcome)
