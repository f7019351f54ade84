"""``GET /slots``: what runs, as llama.cpp's server tells it; in numbers, without any text."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from blazr.engine.outputs import Running
from blazr.server.errors import HttpError
from blazr.server.service import Call, json_response


class Query(msgspec.Struct, kw_only=True):
    """What is asked."""

    fail_on_no_slot: bool | None = None


async def show_slots(call: Call[Query]) -> Response:
    """A slot for each reply that can be computed at once, and how far that has come."""
    engine, context = call.service.llm.core.engine, call.service.llm.core.info.max_seq_len
    running = engine.running()
    num_free = max(int(engine.stats().get("max_running", 0)) - len(running), 0)
    if call.body.fail_on_no_slot and not num_free:
        raise HttpError(503, "no slot is free.", code="no_slot", headers={"Retry-After": "1"})
    free: list[dict[str, object]] = [{"is_processing": False}] * num_free
    slots = [*map(_busy, running), *free]
    common = {"n_ctx": context, "speculative": False}
    return json_response([{"id": i, **common, **each} for i, each in enumerate(slots)])


def _busy(reply: Running) -> dict[str, object]:
    num_left = reply.max_tokens - reply.num_output_tokens
    token = {
        "has_next_token": num_left > 0,
        "n_remain": num_left,
        "n_decoded": reply.num_output_tokens,
    }
    return {
        "is_processing": True,
        "id_task": reply.request_id,
        "n_prompt_tokens": reply.num_prompt_tokens,
        "n_prompt_tokens_processed": min(reply.num_computed_tokens, reply.num_prompt_tokens),
        "next_token": [token],
    }
