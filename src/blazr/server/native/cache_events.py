"""``GET /cache_events``: which prefixes a model has in memory, as they come and go, for routers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, cast

import msgspec

from blazr.engine.cache.known import AllRemoved, BlockEvent, BlocksRemoved, BlocksStored
from blazr.server.endpoint import Call
from blazr.server.errors import HttpError
from blazr.server.served import ServedLLM
from blazr.server.sse import Stream

_MOST_WAITING = 10_000  # events that a client has not read


class CacheEventsQuery(msgspec.Struct, kw_only=True):
    """Of which model; that which is first, if it is not said."""

    model: str | None = None


class CacheEvent(msgspec.Struct, kw_only=True):
    """A change of what is in memory."""

    number: int  # counts from 0


class Stored(CacheEvent, tag="stored", kw_only=True):
    """Blocks that a prompt can go on from now, one behind the other, by their names.

    ``parent_block_hash`` is the block before the first; null where a prompt begins with that.
    """

    block_hashes: list[str]
    parent_block_hash: str | None
    block_size: int


class Removed(CacheEvent, tag="removed", kw_only=True):
    """Blocks that no prompt can go on from any more."""

    block_hashes: list[str]


class Cleared(CacheEvent, tag="cleared", kw_only=True):
    """Nothing is in memory any more."""


AnyCacheEvent = Stored | Removed | Cleared


async def watch(call: Call[CacheEventsQuery]) -> Stream[AnyCacheEvent]:
    """Which prefixes are in memory, first all and then what changes, as a stream without an end."""
    slot = call.models.find(call.body.model)
    model = slot.model
    if not isinstance(model, ServedLLM):
        message = "the model is not in memory, or keeps no prefixes; ask it something first."
        raise HttpError(409, message, param="model", code="model_not_loaded")
    return _CacheEvents(call, model)


class _CacheEvents(Stream[AnyCacheEvent]):
    """Tells of every change in a model's prefixes until the model is unloaded."""

    def __init__(self, call: Call[Any], model: ServedLLM) -> None:
        super().__init__(call.state.config, call.framing)
        self._models = call.models
        self._model = model
        self._num_events = 0
        self._block_size = int(model.llm.core.engine.stats().get("block_tokens", 0))

    async def send_events(self) -> None:
        """Send events, and comments while there are none."""
        engine = self._model.llm.core.engine
        loop = asyncio.get_running_loop()
        with self._models.events.subscribe() as queue:
            events = cast("asyncio.Queue[Any]", queue)  # of the models, and of the prefixes

            def listen(event: BlockEvent) -> None:
                with suppress(RuntimeError):  # the server has ended before its engine
                    loop.call_soon_threadsafe(events.put_nowait, event)

            def leave(joining: asyncio.Future[None]) -> None:
                if not joining.cancelled() and joining.exception() is None:
                    engine.unwatch_prefixes(listen)

            # who leaves meanwhile joins all the same, and has to be told nothing more
            joining = asyncio.ensure_future(asyncio.to_thread(engine.watch_prefixes, listen))
            try:
                await asyncio.shield(joining)
                await self.send_bytes(self._framing.keep_alive)
                while await self._send_next(events):
                    pass
            finally:
                joining.add_done_callback(leave)

    async def _send_next(self, events: asyncio.Queue[Any]) -> bool:
        """Send what has happened; says whether more may follow."""
        event = await self.wait_for_item(events)
        if isinstance(event, (BlocksStored, BlocksRemoved, AllRemoved)):
            await self.send_bytes(self._framing.encode(self._render(event)))
            # who reads too slowly connects again, and is told what is there then
            return events.qsize() <= _MOST_WAITING
        # of the models: the server stops, or one of them was loaded or unloaded
        return event is not None and self._model in self._models.loaded()

    def _render(self, event: BlockEvent) -> AnyCacheEvent:
        number = self._num_events
        self._num_events += 1
        if isinstance(event, BlocksStored):
            return Stored(
                number=number,
                block_hashes=[each.hex() for each in event.names],
                parent_block_hash=None if event.parent is None else event.parent.hex(),
                block_size=self._block_size,
            )
        if isinstance(event, BlocksRemoved):
            return Removed(number=number, block_hashes=[each.hex() for each in event.names])
        return Cleared(number=number)
