"""The asynchronous face of the Python API; the HTTP server stands on it too."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Self

from blazr.engine.sampling_params import SamplingParams
from blazr.llm.face import CHECK_S, RETRY_S, ModelFace
from blazr.llm.form import PreparedRequest
from blazr.llm.generation import GenerationRequest, Prompt, chat_request, prompt_requests
from blazr.llm.reply import Reply
from blazr.llm.results import Completion, fold
from blazr.llm.text_engine import TextEngine
from blazr.text.events import Event
from blazr.text.messages import Message

if TYPE_CHECKING:
    from torch import Tensor


class AsyncReply:
    """The replies to some prompts, on an event loop. Made by `AsyncLLM.start`.

    Whoever made it calls `abort` at the end, whatever happened.
    """

    def __init__(self, core: TextEngine, requests: Sequence[PreparedRequest]) -> None:
        self._core = core
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._failure: Exception | None = None
        self._reply = Reply(core.engine, core.tokenizer, requests, notify=self._notify)

    @property
    def is_done(self) -> bool:
        """Whether every reply has finished."""
        return self._reply.is_done

    async def take(self, *, timeout_s: float = CHECK_S) -> list[Event]:
        """Wait for events; none when nothing happened for ``timeout_s``.

        Raises:
            EngineError: Nothing happened, and the engine does not work any more.
            Exception: What `fail` was given.
        """
        try:
            async with asyncio.timeout(RETRY_S if self._reply.is_starved else timeout_s):
                await self._wake.wait()
        except TimeoutError:
            self._core.check()
        self._wake.clear()
        if self._failure is not None:
            raise self._failure
        return self._reply.take()

    def abort(self) -> None:
        """End what still runs."""
        self._reply.abort()

    def fail(self, error: Exception) -> None:
        """Make the waiting `take`, and every later one, raise; on the event loop's thread."""
        self._failure = error
        self._wake.set()

    def _notify(self) -> None:
        # The loop may be gone when the last tokens of an abandoned reply arrive.
        with contextlib.suppress(RuntimeError):
            if not self._wake.is_set():
                self._loop.call_soon_threadsafe(self._wake.set)


class AsyncLLM(ModelFace):
    """A language model: text in, text out, on an event loop.

    Its arguments are those of `ModelFace`; it loads the model before it returns.
    """

    async def start(self, requests: Sequence[GenerationRequest]) -> AsyncReply:
        """Tokenize on a worker thread and begin to generate; it raises what `Reply` raises."""

        def prepare() -> list[PreparedRequest]:
            return [self.core.prepare(each) for each in requests]

        if any(each.has_grammar for each in requests):
            prepared = await asyncio.wrap_future(self.core.grammars.submit(prepare))
        else:
            prepared = await asyncio.to_thread(prepare)
        return AsyncReply(self.core, prepared)

    async def events(self, requests: Sequence[GenerationRequest]) -> AsyncIterator[Event]:
        """The events of all replies, as they happen. Closing the iterator ends the replies."""
        reply = await self.start(requests)
        try:
            while not reply.is_done:
                for event in await reply.take():
                    yield event
        finally:
            reply.abort()

    async def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | None = None
    ) -> list[Completion]:
        """Continue one prompt or many (text or token ids); ``n`` completions to each, in order."""
        requests = prompt_requests(prompts, params)
        return fold([event async for event in self.events(requests)])

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> AsyncIterator[Event]:
        """Continue one prompt, event by event."""
        return self.events(prompt_requests([prompt], params))

    async def chat(
        self,
        messages: Sequence[Message | Mapping[str, object]],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
    ) -> Completion:
        """Answer a chat; the first of ``n`` answers."""
        requests = [chat_request(messages, params, tools)]
        return fold([event async for event in self.events(requests)])[0]

    async def logits(self, token_ids: Sequence[int]) -> Tensor:
        """Logits after each token, (T, V) float32."""
        return await asyncio.to_thread(self.core.engine.logits, token_ids)

    async def close(self) -> None:
        """Stop the engine."""
        await asyncio.to_thread(self.core.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()
