"""``POST /sleep``, ``/wake_up`` and ``GET /is_sleeping``, as vLLM has them."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

import msgspec

from blazr.server.endpoint import Call
from blazr.server.errors import HttpError
from blazr.server.models import ModelSlot
from blazr.server.native.commands import Target, slots_of


class SleepBody(Target, kw_only=True):
    """How deep: 1 keeps the weights, 2 does not. What runs is finished first, or ended."""

    level: Annotated[int, msgspec.Meta(ge=1, le=2)] | None = None
    mode: Literal["wait", "abort"] | None = None


class WakeBody(Target, kw_only=True):
    """Everything comes back at once, whichever parts are asked for."""

    tags: list[str] | str | None = None


class Sleeping(msgspec.Struct):
    """Whether models sleep."""

    is_sleeping: bool


async def sleep(call: Call[SleepBody]) -> Sleeping:
    """Free the memory of models; nobody gets them until they are woken."""
    body = call.body
    models = call.models
    slots = slots_of(call, body.model)
    keeps_weights = body.level != 2
    aborts = body.mode == "abort"

    async def free(slot: ModelSlot) -> None:
        async with models.changing:
            slot.offloaded = slot.bundle if keeps_weights else None
            if slot.service is not None:
                await models.unload(slot)
            else:
                models.events.publish(slot.event)
            if slot.offloaded is not None:
                await asyncio.to_thread(slot.offloaded.offload)

    for slot in slots:  # refuse what could not be undone, or would not come to an end
        if not keeps_weights or slot.bundle is None:
            slot.check_reloadable()
        if slot.service is not None and slot.service.llm.core.engine.is_paused and not aborts:
            raise HttpError(
                409, "what is paused does not end: resume it, or send mode=abort.", code="paused"
            )
    for slot in slots:
        if not slot.is_asleep:
            slot.reloads = slot.status != "unloaded"
            slot.is_asleep = True
        if slot.service is not None and aborts:
            slot.service.abort()
    await asyncio.shield(asyncio.gather(*(models.begin(free(slot)) for slot in slots)))
    return Sleeping(is_sleeping=True)


async def wake_up(call: Call[WakeBody]) -> Sleeping:
    """Bring models that sleep back."""
    models = call.models
    for slot in slots_of(call, call.body.model):
        if not slot.is_asleep:
            continue
        async with models.changing:  # so that it has fallen asleep
            slot.is_asleep = False
        models.events.publish(slot.event)
        try:
            if slot.reloads:
                await models.load(slot)
        except HttpError:
            slot.is_asleep = True
            models.events.publish(slot.event)
            raise
    return Sleeping(is_sleeping=False)


async def is_sleeping(call: Call[Target]) -> Sleeping:
    """Whether models sleep."""
    slots = slots_of(call, call.body.model)
    return Sleeping(is_sleeping=all(slot.is_asleep for slot in slots))
