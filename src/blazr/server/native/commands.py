"""Operators' commands: pause and resume, sleep and wake up, forget prefixes, abort replies.

Bodies and answers are vLLM's and SGLang's; what the body leaves out may stand in the query.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from blazr.server.endpoint import Call
from blazr.server.errors import HttpError
from blazr.server.models import ModelSlot
from blazr.server.served import ServedLLM, ServedModel


class Target(msgspec.Struct, kw_only=True):
    """Which model; left out it is all of them."""

    model: str | None = None


class PauseBody(Target, kw_only=True):
    """What becomes of running replies: they end, are finished first, or go on when resumed."""

    mode: Literal["abort", "wait", "keep", "in_place", "retract"] | None = None
    wait_for_inflight_requests: bool | None = None
    clear_cache: bool | None = None


class SleepBody(Target, kw_only=True):
    """How deep: 1 keeps the weights, 2 does not. What runs is finished first, or ended."""

    level: Annotated[int, msgspec.Meta(ge=1, le=2)] | None = None
    mode: Literal["wait", "abort"] | None = None


class WakeBody(Target, kw_only=True):
    """Everything comes back at once, whichever parts are asked for."""

    tags: list[str] | str | None = None


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


class Sleeping(msgspec.Struct):
    """Whether models sleep."""

    is_sleeping: bool


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
    for model in _llms(call):
        if mode == "abort":
            model.abort()
        engine = model.llm.core.engine
        await asyncio.wrap_future(engine.pause(finishes=finishes))
        if finishes and body.clear_cache is not False:
            await asyncio.to_thread(engine.forget_prefixes)
    return PauseState("paused")


async def resume(call: Call[Target]) -> PauseState:
    """Go on after a pause."""
    for model in _working(call):
        if isinstance(model, ServedLLM):
            await asyncio.to_thread(model.llm.core.engine.resume)
    return PauseState("resumed")


async def is_paused(call: Call[Target]) -> Paused:
    """Whether a model in memory is paused."""
    llms = [model.llm for model in _working(call) if isinstance(model, ServedLLM)]
    return Paused(any(llm.core.engine.is_paused for llm in llms))


async def sleep(call: Call[SleepBody]) -> Sleeping:
    """Free the memory of models; nobody gets them until they are woken."""
    body = call.body
    models = call.models
    slots = _slots(call)
    keeps_weights = body.level != 2
    aborts = body.mode == "abort"

    async def free(slot: ModelSlot) -> None:
        async with models.changing:
            slot.offloaded = slot.bundle if keeps_weights else None
            if slot.model is not None:
                await models.unload(slot)
            else:
                models.events.publish(slot.event)
            if slot.offloaded is not None:
                await asyncio.to_thread(slot.offloaded.offload)

    for slot in slots:  # refuse what could not be undone, or would not come to an end
        if not keeps_weights or slot.bundle is None:
            slot.check_reloadable()
        if slot.is_paused and not aborts:
            raise does_not_end("resume it, or send mode=abort")
    for slot in slots:
        if not slot.is_asleep:
            slot.reloads_on_wake = slot.status != "unloaded"
            slot.is_asleep = True
        if slot.model is not None and aborts:
            slot.model.abort()
    await asyncio.shield(asyncio.gather(*(models.begin(free(slot)) for slot in slots)))
    return Sleeping(is_sleeping=True)


async def wake_up(call: Call[WakeBody]) -> Sleeping:
    """Bring models that sleep back."""
    models = call.models
    for slot in _slots(call):
        if not slot.is_asleep:
            continue
        async with models.changing:  # so that it has fallen asleep
            slot.is_asleep = False
        models.events.publish(slot.event)
        try:
            if slot.reloads_on_wake:
                await models.load(slot)
        except HttpError:
            slot.is_asleep = True
            models.events.publish(slot.event)
            raise
    return Sleeping(is_sleeping=False)


async def is_sleeping(call: Call[Target]) -> Sleeping:
    """Whether models sleep."""
    slots = _slots(call)
    return Sleeping(is_sleeping=all(slot.is_asleep for slot in slots))


async def reset_prefix_cache(call: Call[ResetBody]) -> Forgotten:
    """Forget what prompts have left for others."""
    restarts = bool(call.body.reset_running_requests)
    num_blocks = 0
    for model in _llms(call):
        forget = model.llm.core.engine.forget_prefixes
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
    return Aborted(aborted=sum(model.abort(names) for model in _working(call)))


def does_not_end(hint: str) -> HttpError:
    """Why a model that is paused cannot be let go.

    Args:
        hint: What to do first.
    """
    return HttpError(409, f"what is paused does not end: {hint}.", code="paused")


def _slots(call: Call[Target]) -> Sequence[ModelSlot]:
    """The models that a command is about; no name means all.

    Raises:
        HttpError: 404, there is none of that name.
    """
    name = call.body.model
    return call.models.slots if name is None else [call.models.find(name)]


def _working(call: Call[Target]) -> list[ServedModel]:
    """The models in memory that a command is about, also those that will leave it."""
    return [model for slot in _slots(call) for model in call.models.working(slot)]


def _llms(call: Call[Target]) -> list[ServedLLM]:
    return [x.model for x in _slots(call) if isinstance(x.model, ServedLLM)]
