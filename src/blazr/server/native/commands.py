"""Commands that operators give: pause and resume, forget prefixes, end replies.

Bodies and answers are vLLM's and SGLang's; what the body leaves out may stand in the query.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

import msgspec
from starlette.responses import Response

from blazr.server.service import Call, json_response
from blazr.server.state import Seat, Service


class Target(msgspec.Struct, kw_only=True):
    """Which model; left out it is all of them."""

    model: str | None = None


class PauseBody(Target, kw_only=True):
    """What becomes of running replies: they end at once, are finished first, or go on later."""

    mode: Literal["abort", "wait", "keep", "in_place", "retract"] | None = None
    wait_for_inflight_requests: bool | None = None
    clear_cache: bool | None = None


class ResetBody(Target, kw_only=True):
    """Whether running replies compute what they have again, too."""

    reset_running_requests: bool | None = None


class AbortBody(Target, kw_only=True):
    """Which requests, by the id of their answer or by their own; left out it is all of them."""

    request_ids: list[str] | str | None = None
    rid: str | None = None
    abort_all: bool | None = None


async def pause(call: Call[PauseBody]) -> Response:
    """Compute nothing more until told to resume; what is asked meanwhile waits."""
    body = call.body
    mode = body.mode or ("wait" if body.wait_for_inflight_requests else "abort")
    finishes = mode in {"abort", "wait"}
    for service in _services(call, call.body.model):
        if mode == "abort":
            service.cut()
        engine = service.llm.core.engine
        await asyncio.wrap_future(engine.pause(finishes=finishes))
        if finishes and body.clear_cache is not False:
            await asyncio.to_thread(engine.forget_prefixes)
    return json_response({"status": "paused"})


async def resume(call: Call[Target]) -> Response:
    """Go on after a pause."""
    for service in _services(call, call.body.model):
        await asyncio.to_thread(service.llm.core.engine.resume)
    return json_response({"status": "resumed"})


async def is_paused(call: Call[Target]) -> Response:
    """Whether a model in memory is paused."""
    paused = [service.llm.core.engine.is_paused for service in _services(call, call.body.model)]
    return json_response({"is_paused": any(paused)})


async def reset_prefix_cache(call: Call[ResetBody]) -> Response:
    """Forget what prompts have left for others."""
    restarts, num_blocks = bool(call.body.reset_running_requests), 0
    for service in _services(call, call.body.model):
        forget = service.llm.core.engine.forget_prefixes
        num_blocks += await asyncio.to_thread(forget, restarts=restarts)
    return json_response({"success": True, "num_blocks": num_blocks})


async def abort_requests(call: Call[AbortBody]) -> Response:
    """End running requests where they stand."""
    body, names = call.body, None
    given = [body.request_ids] if isinstance(body.request_ids, str) else body.request_ids or []
    given += [body.rid] if body.rid else []
    if given and not body.abort_all:
        # the id of an answer is the request's after its kind
        parts = [(each, each.partition("-")[2], each.partition("_")[2]) for each in given]
        names = {name for each in parts for name in each if name}
    aborted = sum(service.cut(names) for service in _services(call, call.body.model))
    return json_response({"status": "aborted", "aborted": aborted})


def seats_of(call: Call[object], name: str | None) -> Sequence[Seat]:
    """The places of the models that a command is about; no name means all.

    Raises:
        HttpError: 404, there is none of that name.
    """
    return call.models.seats if name is None else [call.models.find(name)]


def _services(call: Call[object], name: str | None) -> list[Service]:
    return [seat.service for seat in seats_of(call, name) if seat.service is not None]
