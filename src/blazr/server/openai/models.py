"""``GET /v1/models`` and ``GET /v1/models/{model}``."""

from __future__ import annotations

from datetime import UTC, datetime
from time import monotonic

from starlette.responses import Response

from blazr.server.service import Call, Service, json_response


async def list_models(call: Call[None]) -> Response:
    """The models there are: the one loaded."""
    return json_response({"object": "list", "data": [_card(call.service)]})


async def show_model(call: Call[None]) -> Response:
    """One model."""
    call.service.check_model(call.path["model"])
    return json_response(_card(call.service))


def _card(service: Service) -> dict[str, object]:
    info = service.llm.core.info
    age_s = monotonic() - service.started_s
    return {
        "id": service.name,
        "object": "model",
        "created": int(datetime.now(UTC).timestamp() - age_s),
        "owned_by": info.family,
        "root": service.name,
        "parent": None,
        "permission": [],
        "max_model_len": info.max_seq_len,
        "meta": {
            "n_ctx_train": info.max_seq_len,
            "n_params": info.num_parameters,
            "n_vocab": info.vocab_size,
            "size": info.size_bytes,
        },
    }
