"""``/slots`` of llama.cpp's server: what runs, in numbers, and saving what was computed."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from blazr.core.errors import RequestError
from blazr.engine.outputs import SlotAction
from blazr.server.endpoint import Call
from blazr.server.errors import HttpError
from blazr.server.schema import END
from blazr.server.served import ServedPipeline

_NAME = r"^\w[\w. -]{0,99}" + END


class SlotsQuery(msgspec.Struct, kw_only=True):
    """What is asked."""

    fail_on_no_slot: bool | None = None


class NextToken(msgspec.Struct):
    """How far a reply has come."""

    has_next_token: bool
    n_remain: int
    n_decoded: int


class Slot(msgspec.Struct, kw_only=True):
    """A place for a reply, and what is known of the one in it."""

    id: int
    n_ctx: int
    speculative: bool
    is_processing: bool = False
    id_task: int | UnsetType = UNSET
    n_prompt_tokens: int | UnsetType = UNSET
    n_prompt_tokens_processed: int | UnsetType = UNSET
    next_token: list[NextToken] | UnsetType = UNSET


async def show_slots(call: Call[SlotsQuery]) -> list[Slot]:
    """A slot for each reply that can be computed at once, and how far that has come."""
    if isinstance(call.model, ServedPipeline):  # it does one thing after the other
        is_busy = call.model.pipeline.jobs.figures["running"] > 0
        if call.body.fail_on_no_slot and is_busy:
            raise _no_slot()
        size = call.model.info.max_seq_len or 0
        return [Slot(id=0, n_ctx=size, speculative=False, is_processing=is_busy)]
    engine = call.llm.core.engine
    context = call.llm.core.info.max_seq_len
    running = engine.running()
    num_free = max(int(engine.stats().get("max_running", 0)) - len(running), 0)
    if call.body.fail_on_no_slot and not num_free:
        raise _no_slot()
    slots = [
        Slot(id=index, n_ctx=context, speculative=engine.has_drafters)
        for index in range(len(running) + num_free)
    ]
    for reply in running:
        slot = slots[reply.slot]
        num_left = reply.max_tokens - reply.num_output_tokens
        slot.is_processing = True
        slot.id_task = reply.request_id
        slot.n_prompt_tokens = reply.num_prompt_tokens
        slot.n_prompt_tokens_processed = min(reply.num_computed_tokens, reply.num_prompt_tokens)
        slot.next_token = [NextToken(num_left > 0, num_left, reply.num_output_tokens)]
    return slots


def _no_slot() -> HttpError:
    return HttpError(503, "no slot is free.", code="no_slot", retry_after_s=1)


class SlotBody(msgspec.Struct, kw_only=True):
    """What is done with what a slot's last reply had computed, and what it is saved as."""

    action: SlotAction | None = None
    filename: Annotated[str, msgspec.Meta(pattern=_NAME)] | None = None
    model: str | None = None


class SlotTimings(msgspec.Struct):
    """How long it took."""

    save_ms: float | UnsetType = UNSET
    restore_ms: float | UnsetType = UNSET


class SlotUsed(msgspec.Struct, kw_only=True):
    """How many tokens were saved, restored or forgotten."""

    id_slot: int
    filename: str | UnsetType = UNSET
    n_saved: int | UnsetType = UNSET
    n_restored: int | UnsetType = UNSET
    n_erased: int | UnsetType = UNSET
    timings: SlotTimings | UnsetType = UNSET


async def use_slot(call: Call[SlotBody]) -> SlotUsed:
    """Save what the last reply in a slot had computed in ``--cache-dir``, restore or forget it."""
    body = call.body
    if body.action is None:
        raise RequestError(
            "there is no action.", param="action", expected="save, restore or erase, in the query"
        )
    if body.action != "erase" and body.filename is None:
        raise RequestError(
            "there is no file name.", param="filename", expected='{"filename": "a name"}'
        )
    digits = call.path["id"]
    if not digits.isdecimal() or len(digits) > 9:
        raise RequestError(
            "there is no such slot.", param="id", found=digits[:50], expected="a number, from 0 on"
        )
    slot = int(digits)
    started = monotonic()
    engine = call.llm.core.engine
    count = await asyncio.to_thread(engine.use_slot, body.action, slot, body.filename or "")
    took_ms = 1000 * (monotonic() - started)
    if body.action == "erase":
        return SlotUsed(id_slot=slot, n_erased=count)
    used = SlotUsed(id_slot=slot, filename=body.filename or "")
    if body.action == "save":
        used.n_saved, used.timings = count, SlotTimings(save_ms=took_ms)
    else:
        used.n_restored, used.timings = count, SlotTimings(restore_ms=took_ms)
    return used
