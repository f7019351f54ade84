"""``GET /slots``: what runs, as llama.cpp's server tells it; in numbers, without any text."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from blazr.server.endpoint import Call
from blazr.server.errors import HttpError


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
    speculative: bool = False
    is_processing: bool = False
    id_task: int | UnsetType = UNSET
    n_prompt_tokens: int | UnsetType = UNSET
    n_prompt_tokens_processed: int | UnsetType = UNSET
    next_token: list[NextToken] | UnsetType = UNSET


async def show_slots(call: Call[SlotsQuery]) -> list[Slot]:
    """A slot for each reply that can be computed at once, and how far that has come."""
    engine = call.service.llm.core.engine
    context = call.service.llm.core.info.max_seq_len
    running = engine.running()
    num_free = max(int(engine.stats().get("max_running", 0)) - len(running), 0)
    if call.body.fail_on_no_slot and not num_free:
        raise HttpError(503, "no slot is free.", code="no_slot", headers={"Retry-After": "1"})
    slots = [Slot(id=index, n_ctx=context) for index in range(len(running) + num_free)]
    for slot, reply in zip(slots, running, strict=False):
        num_left = reply.max_tokens - reply.num_output_tokens
        slot.is_processing = True
        slot.id_task = reply.request_id
        slot.n_prompt_tokens = reply.num_prompt_tokens
        slot.n_prompt_tokens_processed = min(reply.num_computed_tokens, reply.num_prompt_tokens)
        slot.next_token = [NextToken(num_left > 0, num_left, reply.num_output_tokens)]
    return slots
