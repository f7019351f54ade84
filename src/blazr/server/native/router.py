"""``/models/load``, ``/models/unload`` and ``/models/sse``, as llama.cpp's router has them."""

from __future__ import annotations

from contextlib import suppress
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from blazr.server.endpoint import Call
from blazr.server.errors import HttpError
from blazr.server.model_events import ModelState
from blazr.server.native.commands import does_not_end
from blazr.server.sse import Stream


class RouterBody(msgspec.Struct, kw_only=True):
    """Which model; left out it is the first."""

    model: str | None = None


class Success(msgspec.Struct):
    """It was done, or begun."""

    success: bool = True
    message: str | UnsetType = UNSET


class ModelChange(msgspec.Struct):
    """Where a model is in its life; an exit code says that it could not be loaded."""

    status: ModelState
    exit_code: int | UnsetType = UNSET


class ModelNews(msgspec.Struct, kw_only=True):
    """What has become of a model."""

    model: str
    event: Literal["model_status"] = "model_status"
    data: ModelChange


async def load(call: Call[RouterBody]) -> Success:
    """Begin to load a model, and do not wait for it."""
    models = call.models
    slot = call.models.find(call.body.model)
    slot.check_awake()

    async def work() -> None:
        with suppress(HttpError):  # subscribers are told, and it is in the log
            await models.load(slot)

    models.begin(work())
    return Success()


async def unload(call: Call[RouterBody]) -> Success:
    """Let a model go once those who use it have ended, and do not wait for that."""
    models = call.models
    slot = call.models.find(call.body.model)
    slot.check_reloadable()
    if slot.is_paused and slot.model is not None and slot.model.num_users:
        raise does_not_end("resume it, or abort its requests")

    async def work() -> None:
        async with models.changing:
            slot.offloaded = None
            if slot.model is not None:
                await models.unload(slot)

    models.begin(work())
    return Success()


async def watch(call: Call[None]) -> Stream[ModelNews]:
    """What becomes of the models from now on, as a stream without an end."""
    return _ModelStream(call)


class _ModelStream(Stream[ModelNews]):
    """Tells of every change in a model's life."""

    def __init__(self, call: Call[None]) -> None:
        super().__init__(call.state.config, call.framing)
        self._models = call.models

    async def send_events(self) -> None:
        """Send events until the server stops, and comments while there are none."""
        with self._models.events.subscribe() as queue:
            await self.send_bytes(self._framing.keep_alive)
            while (event := await self.wait_for_item(queue)) is not None:
                change = ModelChange(event.status, 1 if event.has_failed else UNSET)
                news = ModelNews(model=event.model, data=change)
                await self.send_bytes(self._framing.encode(news))
