"""`AsyncLLM`, the asynchronous Python API, which the HTTP server uses too."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal, Self, TypeVar

from blazr.core.errors import TemplateLimitError
from blazr.engine.request import Request
from blazr.engine.sampling_params import SamplingParams
from blazr.llm.generation import (
    GenerationRequest,
    Params,
    Prompt,
    PromptInput,
    Truncation,
    TruncationMode,
    as_prompt,
    as_token_ids,
    chat_request,
    prompt_requests,
)
from blazr.llm.language_model import (
    CHECK_S,
    WHOLE_PAUSE_S,
    LanguageModel,
    ModelReading,
    Reading,
)
from blazr.llm.reply import Reply
from blazr.llm.results import Classification, Completion, Embedding, Score, by_prompt, fold
from blazr.llm.room import RETRY_S, with_room
from blazr.llm.text_engine import PreparedRequest, TextEngine
from blazr.llm.vectors import pairs_of
from blazr.llm.workers import run_in_turn, run_on_worker
from blazr.text.chat_template import time_limit
from blazr.text.events import Event
from blazr.text.messages import Message

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
R = TypeVar("R")
# Characters or token ids that are prepared on the event loop: waking a worker thread takes longer.
MAX_INLINE_LENGTH = 1000
# Processor time for rendering a chat on the event loop, and on a worker thread beside others. Only
# an unusual template takes longer; such chats are then rendered one at a time, because each thread
# that renders slows down all others.
INLINE_RENDER_S = 0.005
CONCURRENT_RENDER_S = 0.2
# Steps of a reply that are processed before the event loop goes on with other replies.
MAX_STEPS_PER_TAKE = 256


class Notifier:
    """Wakes the replies of an event loop, all that got something in a step at once.

    Args:
        loop: Theirs.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._pending: deque[AsyncReply] = deque()
        self._is_scheduled = False

    def notify(self, reply: AsyncReply) -> None:
        """There is something for a reply; on the engine's thread."""
        self._pending.append(reply)
        if not self._is_scheduled:
            self._is_scheduled = True
            # the loop may be gone when the last tokens of an abandoned reply arrive
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._wake_pending)

    def _wake_pending(self) -> None:
        self._is_scheduled = False  # first, so that whoever comes now schedules another call
        for _ in range(len(self._pending)):  # others may come faster than these are woken
            self._pending.popleft().wake()


class AsyncReply:
    """The replies to some prompts, on an event loop. Made by `AsyncLLM.start`.

    Whoever made it calls `abort` at the end, whatever happened.
    """

    def __init__(
        self,
        core: TextEngine,
        requests: Sequence[PreparedRequest],
        notifier: Notifier,
        *,
        pause_s: float,
        waits: bool,
    ) -> None:
        self._core = core
        self._loop = notifier.loop
        self._has_news = False
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline_s = 0.0
        self._failure: Exception | None = None
        self._reply = Reply(
            core.engine,
            core.tokenizer,
            requests,
            notify=lambda: notifier.notify(self),
            pause_s=pause_s,
            waits=waits,
        )

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
        if self._has_news:
            await asyncio.sleep(0)  # an engine that is faster than we are holds up nobody else
        else:
            await self._wait_for_wake(RETRY_S if self._reply.is_starved else timeout_s)
        if not self._has_news:
            self._core.check()
        if self._failure is not None:
            raise self._failure
        events = self._reply.take(MAX_STEPS_PER_TAKE)
        self._has_news = self._reply.has_more
        return events

    def abort(self) -> None:
        """End what still runs where it stands; `take` tells of that as of any end. Idempotent."""
        self._reply.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.wake()

    def fail(self, error: Exception) -> None:
        """Make the waiting `take`, and every later one, raise; on the event loop's thread."""
        self._failure = error
        self.wake()

    def wake(self) -> None:
        """There is something to take; on the event loop's thread."""
        self._has_news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait_for_wake(self, timeout_s: float) -> None:
        """Wait to be woken. One timer serves many waits, because most end long before it."""
        self._deadline_s = self._loop.time() + timeout_s
        if self._timer is None or self._timer.when() > self._deadline_s:
            self._set_timer()
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._deadline_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        if self._loop.time() < self._deadline_s:
            self._set_timer()  # it was set for an earlier wait
        else:
            self._waiter.set_result(None)


class AsyncLLM(LanguageModel):
    """A language model: text in, text out, on an event loop; or an encoder.

    Its arguments are those of `LanguageModel`; it loads the model before it returns.
    """

    _notifier: Notifier | None = None

    async def start(
        self,
        requests: Sequence[GenerationRequest],
        *,
        before: Callable[[Sequence[Request]], Awaitable[None]] | None = None,
        pause_s: float = 0.0,
        waits: bool = False,
    ) -> AsyncReply:
        """Tokenize, what is long on a worker thread, and begin to generate.

        It raises what `Reply` raises.

        Args:
            requests: What to generate.
            before: Waited for when it is known of which tokens the prompts are.
            pause_s: Seconds that events may wait for later ones.
            waits: See `Reply`.
        """

        def prepare() -> list[PreparedRequest]:
            return [self.core.prepare(each) for each in requests]

        if any(each.has_grammar for each in requests):
            prepared = await self._compile(prepare, waits=waits)
        else:
            prepared = await self._prepare(prepare, requests)
        if before is not None:
            await before([each.request for each in prepared])
        notifier = self._loop_notifier()
        return AsyncReply(self.core, prepared, notifier, pause_s=pause_s, waits=waits)

    async def _compile(
        self, prepare: Callable[[], list[PreparedRequest]], *, waits: bool
    ) -> list[PreparedRequest]:
        """Prepare requests with grammars."""
        submit = partial(self.core.grammars.submit, prepare)
        return await asyncio.wrap_future(await with_room(submit) if waits else submit())

    async def _prepare(
        self, prepare: Callable[[], list[PreparedRequest]], requests: Sequence[GenerationRequest]
    ) -> list[PreparedRequest]:
        """Prepare short requests here, and others on a worker thread."""
        length = sum(each.length for each in requests)
        has_images = any(each.has_images for each in requests)
        try:
            if length <= MAX_INLINE_LENGTH and not has_images:
                return time_limit(INLINE_RENDER_S)(prepare)()
            return await run_on_worker(
                time_limit(CONCURRENT_RENDER_S)(prepare), length=length, has_images=has_images
            )
        except TemplateLimitError:
            return await run_in_turn(prepare)

    async def read(self, work: Callable[[], R], request: GenerationRequest) -> R:
        """Do something with the text of a request on a worker thread.

        Raises:
            BaseException: What ``work`` raises.
        """
        return await run_on_worker(work, length=request.length, has_images=request.has_images)

    async def encode_chat(self, request: GenerationRequest) -> list[int]:
        """The token ids of a chat, encoded on a worker thread."""
        return await self.read(lambda: self.core.encode_chat(request), request)

    def _loop_notifier(self) -> Notifier:
        loop = asyncio.get_running_loop()
        notifier = self._notifier  # looked at once: other threads with other loops change it
        if notifier is None or notifier.loop is not loop:
            notifier = self._notifier = Notifier(loop)
        return notifier

    async def events(
        self, requests: Sequence[GenerationRequest], *, pause_s: float = 0.0
    ) -> AsyncIterator[Event]:
        """The events of all replies, as they happen; see `LLM.events`.

        Closing the iterator ends the replies.
        """
        reply = await self.start(requests, pause_s=pause_s, waits=True)
        try:
            while not reply.is_done:
                for event in await reply.take():
                    yield event
        finally:
            reply.abort()

    async def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        params: Params = None,
        *,
        sampling_params: Params = None,
        adapter: str | None = None,
    ) -> list[Completion]:
        """Continue one prompt or many; see `LLM.generate`."""
        requests = prompt_requests(prompts, sampling_params or params, adapter)
        return await self._whole(requests)

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, adapter: str | None = None
    ) -> AsyncIterator[Event]:
        """Continue one prompt, event by event."""
        return self.events(prompt_requests([as_prompt(prompt)], params, adapter))

    async def chat(
        self,
        messages: Sequence[Message | Mapping[str, object]],
        params: SamplingParams | None = None,
        *,
        adapter: str | None = None,
        tools: Sequence[Mapping[str, object]] | None = None,
        truncation: TruncationMode = "disabled",
    ) -> Completion:
        """Answer a chat; the first of ``n`` answers.

        ``truncation="auto"`` leaves out the oldest turns of a chat that does not fit the context;
        the completion's ``num_dropped_messages`` says how many messages.
        """
        requests = [replace(chat_request(messages, params, tools, truncation), adapter=adapter)]
        return (await self._whole(requests))[0]

    async def _whole(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        events = self.events(requests, pause_s=WHOLE_PAUSE_S)
        return by_prompt(fold([event async for event in events]), requests)

    async def embed(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        *,
        dimensions: int | None = None,
        truncate_prompt_tokens: int | None = None,
        truncation_side: Literal["left", "right"] | None = None,
        prompt_name: str | None = None,
        normalize: bool = False,
    ) -> list[Embedding]:
        """Return each prompt as a vector; see `LLM.embed`."""
        return await self._read(
            self._to_embed(
                prompts,
                dimensions=dimensions,
                truncation=Truncation.of_tokens(truncate_prompt_tokens, truncation_side),
                prompt_name=prompt_name,
                normalize=normalize,
            )
        )

    encode = embed

    async def score(
        self,
        text_1: str | Sequence[str],
        text_2: str | Sequence[str],
        *,
        truncate_prompt_tokens: int | None = None,
        truncation_side: Literal["left", "right"] | None = None,
    ) -> list[Score]:
        """Return how well pairs of texts fit each other; see `LLM.score`."""
        pairs = pairs_of(text_1, text_2)
        truncation = Truncation.of_tokens(truncate_prompt_tokens, truncation_side)
        return await self._read(self._to_score(pairs, truncation))

    async def classify(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        *,
        truncate_prompt_tokens: int | None = None,
        truncation_side: Literal["left", "right"] | None = None,
    ) -> list[Classification]:
        """Return the labels of each text, and how likely each is; see `LLM.classify`."""
        truncation = Truncation.of_tokens(truncate_prompt_tokens, truncation_side)
        return await self._read(self._to_classify(prompts, truncation))

    async def _read(self, reading: Reading[T]) -> list[T]:
        if isinstance(reading, ModelReading):
            requests = await asyncio.to_thread(reading.requests)
            events = self.events(requests)
            return reading.finish(fold([event async for event in events]))
        assert self._encoder is not None
        return await self._encoder.read_async(reading)

    async def logits(self, token_ids: Sequence[int]) -> Tensor:
        """Logits after each token, (T, V) float32."""
        return await asyncio.to_thread(self.core.engine.logits, as_token_ids(token_ids))

    async def close(self) -> None:
        """Stop the engine, and free the weights and caches."""
        await asyncio.to_thread(self._close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()
