"""``GET /v1/models`` and ``GET /v1/models/{model}``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from time import monotonic

from starlette.responses import Response

from blazr.server.service import Call, json_response
from blazr.server.state import Seat


async def list_models(call: Call[None]) -> Response:
    """The models there are, in memory or not."""
    cards = [_card(call, seat) for seat in call.models.seats]
    ends = {"first_id": cards[0]["id"], "last_id": cards[-1]["id"], "has_more": False}
    return json_response({"object": "list", "data": cards, **ends})


async def show_model(call: Call[None]) -> Response:
    """One model."""
    return json_response(_card(call, call.models.find(call.path["model"])))


def _card(call: Call[None], seat: Seat) -> dict[str, object]:
    """What is known of a model; one that was never loaded keeps the rest to itself.

    In the words of OpenAI and of Anthropic, vLLM and llama.cpp, whose clients ask the same path.
    """
    info, name = seat.info, seat.source.name
    age_s = monotonic() - call.state.started_s
    created = (datetime.now(UTC) - timedelta(seconds=age_s)).replace(microsecond=0)
    return {
        "id": name,
        "object": "model",
        "created": int(created.timestamp()),
        "owned_by": "blazr" if info is None else info.family,
        "root": name,
        "parent": None,
        "permission": [],
        "status": {"value": seat.status} | ({"failed": True} if seat.has_failed else {}),
        "type": "model",
        "display_name": name,
        "created_at": created.isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": info and info.max_seq_len,
        "max_model_len": info and info.max_seq_len,
        "meta": info
        and {
            "n_ctx_train": info.max_seq_len,
            "n_params": info.num_parameters,
            "n_vocab": info.vocab_size,
            "size": info.size_bytes,
        },
    }
