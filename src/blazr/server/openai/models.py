"""``GET /v1/models`` and ``GET /v1/models/{model}``."""

from __future__ import annotations

from datetime import UTC, datetime
from time import monotonic

from starlette.responses import Response

from blazr.server.models import Seat
from blazr.server.service import Call, json_response


async def list_models(call: Call[None]) -> Response:
    """The models there are, in memory or not."""
    cards = [_card(call, seat) for seat in call.models.seats]
    return json_response({"object": "list", "data": cards})


async def show_model(call: Call[None]) -> Response:
    """One model."""
    return json_response(_card(call, call.models.find(call.path["model"])))


def _card(call: Call[None], seat: Seat) -> dict[str, object]:
    """What is known of a model; one that was never loaded keeps the rest to itself."""
    info, name = seat.info, seat.source.name
    age_s = monotonic() - call.state.started_s
    return {
        "id": name,
        "object": "model",
        "created": int(datetime.now(UTC).timestamp() - age_s),
        "owned_by": "blazr" if info is None else info.family,
        "root": name,
        "parent": None,
        "permission": [],
        "status": {"value": seat.status},
        "max_model_len": info and info.max_seq_len,
        "meta": info
        and {
            "n_ctx_train": info.max_seq_len,
            "n_params": info.num_parameters,
            "n_vocab": info.vocab_size,
            "size": info.size_bytes,
        },
    }
