"""``POST /sleep``, ``/wake_up`` and ``GET /is_sleeping``, as vLLM has them."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Literal

import msgspec

from blazr.server.endpoint import Call
from blazr.server.errors import HttpError
from blazr.server.models import Models, ModelSlot
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
    body, slots = call.body, slots_of(call, call.body.model)
    keeps_weights, aborts = body.level != 2, body.mode == "abort"
    for slot in slots:
        _check(slot, keeps_weights=keeps_weights, aborts=aborts)
    for slot in slots:
        if not slot.is_asleep:
            slot.wakes, slot.is_asleep = slot.status != "unloaded", True
        if slot.service is not None and aborts:
            slot.service.abort()
    lie_down = partial(_lie_down, call.models, keeps_weights=keeps_weights)
    await asyncio.shield(asyncio.gather(*(call.models.begin(lie_down(slot)) for slot in slots)))
    return Sleeping(is_sleeping=True)


async def wake_up(call: Call[WakeBody]) -> Sleeping:
    """Bring models that sleep back."""
    for slot in slots_of(call, call.body.model):
        if slot.is_asleep:
            await _wake(call.models, slot)
    return Sleeping(is_sleeping=False)


async def is_sleeping(call: Call[Target]) -> Sleeping:
    """Whether models sleep."""
    slots = slots_of(call, call.body.model)
    return Sleeping(is_sleeping=all(slot.is_asleep for slot in slots))


def _check(slot: ModelSlot, *, keeps_weights: bool, aborts: bool) -> None:
    """Refuse what could not be undone, or would not come to an end."""
    if not keeps_weights or slot.bundle is None:
        slot.check_returns()
    if slot.service is not None and slot.service.llm.core.engine.is_paused and not aborts:
        raise HttpError(
            409, "what is paused does not end: resume it, or send mode=abort.", code="paused"
        )


async def _lie_down(models: Models, slot: ModelSlot, *, keeps_weights: bool) -> None:
    async with models.changing:
        slot.resting = slot.bundle if keeps_weights else None
        if slot.service is not None:
            await models.let_go(slot)
        else:
            models.events.publish(slot.event)
        if slot.resting is not None:
            await asyncio.to_thread(slot.resting.offload)


async def _wake(models: Models, slot: ModelSlot) -> None:
    """Let a model be used again; what was in memory returns there, or sleeps on if it cannot."""
    async with models.changing:  # so that it has fallen asleep
        slot.is_asleep = False
    models.events.publish(slot.event)
    try:
        if slot.wakes:
            async with models.using(slot.source.name):
                pass
    except HttpError:
        slot.is_asleep = True
        models.events.publish(slot.event)
        raise
