"""``/models/load``, ``/models/unload`` and ``/models/sse``, as llama.cpp's router has them."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec
from starlette.responses import Response
from starlette.types import Send

from blazr.server.errors import HttpError
from blazr.server.models import Models
from blazr.server.native.pieces import FRAMING
from blazr.server.service import Call, json_response
from blazr.server.sse import Stream, Watch
from blazr.server.state import News, Seat


class Body(msgspec.Struct, kw_only=True):
    """Which model; left out it is the first."""

    model: str | None = None


async def load(call: Call[Body]) -> Response:
    """Begin to load a model, and do not wait for it."""
    seat = call.models.find(call.body.model)
    seat.check_awake()
    call.models.begin(_load(call.models, seat))
    return json_response({"success": True})


async def unload(call: Call[Body]) -> Response:
    """Let a model go once those who use it have ended, and do not wait for that."""
    seat = call.models.find(call.body.model)
    seat.check_returns()
    call.models.begin(_unload(call.models, seat))
    return json_response({"success": True})


async def watch(call: Call[None]) -> Response:
    """What becomes of the models from now on, as a stream without an end."""
    return _News(call.models)


class _News(Stream):
    """Tells of every change in a model's life."""

    def __init__(self, models: Models) -> None:
        super().__init__(models.state.config, FRAMING)
        self._models = models

    async def send_events(self, send: Send, watch: Watch) -> None:
        """Send events until the server stops, and comments while there are none."""
        data = self._framing.keep_alive  # it has begun
        with self._models.news.watching() as news:
            while data:
                await self.send_bytes(send, watch, data)
                data = await self._next(news)

    def end(self) -> None:
        """Nothing to end."""

    async def _next(self, watcher: asyncio.Queue[News | None]) -> bytes:
        try:
            news = await asyncio.wait_for(watcher.get(), self._config.keep_alive_s)
        except TimeoutError:
            return self._framing.keep_alive
        if news is None:
            return b""
        data: dict[str, object] = {"status": news.status}
        if news.has_failed:
            data["exit_code"] = 1
        return self._framing.encode({"model": news.model, "event": "model_status", "data": data})


async def _load(models: Models, seat: Seat) -> None:
    with suppress(HttpError):  # those who watch are told, and it is in the log
        async with models.using(seat.source.name):
            pass


async def _unload(models: Models, seat: Seat) -> None:
    async with models.changing:
        seat.resting = None
        if seat.service is not None:
            await models.let_go(seat)
