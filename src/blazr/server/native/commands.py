"""Operators' commands: pause and resume, forget prefixes, abort replies.

Bodies and answers are vLLM's and SGLang's; what the body leaves out may stand in the query.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

import msgspec

from blazr.server.endpoint import Call
from blazr.server.models import ModelSlot, Service


class Target(msgspec.Struct, kw_only=True):
    """Which model; left out it is all of them."""

    model: str | None = None


class PauseBody(Target, kw_only=True):
    """What becomes of running replies: they end, are finished first, or go on when resumed."""

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


class PauseState(msgspec.Struct):
    """What was done."""

    status: Literal["paused", "resumed"]


class Paused(msgspec.Struct):
    """Whether a model is paused."""

    is_paused: bool


class Forgotten(msgspec.Struct, kw_only=True):
    """How many blocks of tokens were forgotten."""

    success: bool = True
    num_blocks: int


class Aborted(msgspec.Struct, kw_only=True):
    """How many requests were ended."""

    status: Literal["aborted"] = "aborted"
    aborted: int


async def pause(call: Call[PauseBody]) -> PauseState:
    """Compute nothing more until told to resume; what is asked meanwhile waits."""
    body = call.body
    mode = body.mode or ("wait" if body.wait_for_inflight_requests else "abort")
    finishes = mode in {"abort", "wait"}
    for service in _services(call, call.body.model):
        if mode == "abort":
            service.abort()
        engine = service.llm.core.engine
        await asyncio.wrap_future(engine.pause(finishes=finishes))
        if finishes and body.clear_cache is not False:
            await asyncio.to_thread(engine.forget_prefixes)
    return PauseState("paused")


async def resume(call: Call[Target]) -> PauseState:
    """Go on after a pause."""
    for service in _services(call, call.body.model):
        await asyncio.to_thread(service.llm.core.engine.resume)
    return PauseState("resumed")


async def is_paused(call: Call[Target]) -> Paused:
    """Whether a model in memory is paused."""
    paused = [service.llm.core.engine.is_paused for service in _services(call, call.body.model)]
    return Paused(any(paused))


async def reset_prefix_cache(call: Call[ResetBody]) -> Forgotten:
    """Forget what prompts have left for others."""
    restarts = bool(call.body.reset_running_requests)
    num_blocks = 0
    for service in _services(call, call.body.model):
        forget = service.llm.core.engine.forget_prefixes
        num_blocks += await asyncio.to_thread(forget, restarts=restarts)
    return Forgotten(num_blocks=num_blocks)


async def abort_requests(call: Call[AbortBody]) -> Aborted:
    """End running requests where they stand."""
    body = call.body
    names = None
    given = [body.request_ids] if isinstance(body.request_ids, str) else body.request_ids or []
    given += [body.rid] if body.rid else []
    if given and not body.abort_all:
        # the id of an answer is the request's after its kind
        parts = [(each, each.partition("-")[2], each.partition("_")[2]) for each in given]
        names = {name for each in parts for name in each if name}
    aborted = sum(service.abort(names) for service in _services(call, call.body.model))
    return Aborted(aborted=aborted)


def slots_of(call: Call[object], name: str | None) -> Sequence[ModelSlot]:
    """The models that a command is about; no name means all.

    Raises:
        HttpError: 404, there is none of that name.
    """
    return call.models.slots if name is None else [call.models.find(name)]


def _services(call: Call[object], name: str | None) -> list[Service]:
    return [slot.service for slot in slots_of(call, name) if slot.service is not None]
