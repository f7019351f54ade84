"""``POST /sleep``, ``/wake_up`` and ``GET /is_sleeping``, as vLLM has them."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Literal

import msgspec
from starlette.responses import Response

from blazr.server.errors import HttpError
from blazr.server.models import Models
from blazr.server.native.commands import Target, seats_of
from blazr.server.service import Call, json_response
from blazr.server.state import Seat


class SleepBody(Target, kw_only=True):
    """How deep: 1 keeps the weights, 2 does not. What runs is finished first, or ended."""

    level: Annotated[int, msgspec.Meta(ge=1, le=2)] | None = None
    mode: Literal["wait", "abort"] | None = None


class WakeBody(Target, kw_only=True):
    """Everything comes back at once, whichever parts are asked for."""

    tags: list[str] | str | None = None


async def sleep(call: Call[SleepBody]) -> Response:
    """Free the memory of models; nobody gets them until they are woken."""
    body, seats = call.body, seats_of(call, call.body.model)
    keeps_weights, cuts = body.level != 2, body.mode == "abort"
    for seat in seats:
        _check(seat, keeps_weights=keeps_weights, cuts=cuts)
    for seat in seats:
        if not seat.is_asleep:
            seat.wakes, seat.is_asleep = seat.status != "unloaded", True
        if seat.service is not None and cuts:
            seat.service.cut()
    lie_down = partial(_lie_down, call.models, keeps_weights=keeps_weights)
    await asyncio.shield(asyncio.gather(*(call.models.begin(lie_down(seat)) for seat in seats)))
    return json_response({"is_sleeping": True})


async def wake_up(call: Call[WakeBody]) -> Response:
    """Bring models that sleep back."""
    for seat in seats_of(call, call.body.model):
        if seat.is_asleep:
            await _wake(call.models, seat)
    return json_response({"is_sleeping": False})


async def is_sleeping(call: Call[Target]) -> Response:
    """Whether models sleep."""
    return json_response(
        {"is_sleeping": all(seat.is_asleep for seat in seats_of(call, call.body.model))}
    )


def _check(seat: Seat, *, keeps_weights: bool, cuts: bool) -> None:
    """Refuse what could not be undone, or would not come to an end."""
    if not keeps_weights or seat.opened is None:
        seat.check_returns()
    if seat.service is not None and seat.service.llm.core.engine.is_paused and not cuts:
        raise HttpError(
            409, "what is paused does not end: resume it, or send mode=abort.", code="paused"
        )


async def _lie_down(models: Models, seat: Seat, *, keeps_weights: bool) -> None:
    async with models.changing:
        seat.resting = seat.opened if keeps_weights else None
        if seat.service is not None:
            await models.let_go(seat)
        else:
            models.news.tell(seat)
        if seat.resting is not None:
            await asyncio.to_thread(seat.resting.offload)


async def _wake(models: Models, seat: Seat) -> None:
    """Let a model be used again; what was in memory returns there, or sleeps on if it cannot."""
    async with models.changing:  # so that it has fallen asleep
        seat.is_asleep = False
    models.news.tell(seat)
    try:
        if seat.wakes:
            async with models.using(seat.source.name):
                pass
    except HttpError:
        seat.is_asleep = True
        models.news.tell(seat)
        raise
