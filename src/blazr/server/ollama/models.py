"""``/api/version``, ``/api/tags``, ``/api/ps`` and ``/api/show``."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from time import monotonic

import msgspec
from starlette.responses import Response

import blazr
from blazr.server.errors import HttpError
from blazr.server.models import Seat
from blazr.server.service import Call, json_response


class ShowBody(msgspec.Struct, kw_only=True):
    """Which model; ``name`` is an older spelling."""

    model: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        """Settle which."""
        self.model = self.model or self.name


def error_object(error: HttpError) -> dict[str, object]:
    """Ollama's error object."""
    return {"error": error.text}


async def version(call: Call[None]) -> Response:  # noqa: ARG001
    """Which blazr this is."""
    return json_response({"version": blazr.__version__})


async def tags(call: Call[None]) -> Response:
    """The models there are, in memory or not."""
    return json_response({"models": [_card(call, seat) for seat in call.models.seats]})


async def running(call: Call[None]) -> Response:
    """The models in memory."""
    never = datetime.now(UTC) + timedelta(days=365)
    return json_response(
        {
            "models": [
                {
                    **_card(call, seat),
                    "expires_at": never.isoformat(),
                    "size_vram": seat.num_bytes,
                }
                for seat in call.models.seats
                if seat.service is not None
            ]
        }
    )


async def show(call: Call[ShowBody]) -> Response:
    """About a model."""
    core = call.service.llm.core
    card, info = _card(call, call.models.find(call.body.model)), core.info
    capabilities = ["completion", "embedding"]
    return json_response(
        {
            "details": card["details"],
            "modified_at": card["modified_at"],
            "capabilities": capabilities if core.template is None else [*capabilities, "tools"],
            "parameters": "",
            "template": "" if core.template is None else core.template.name,
            "model_info": {
                "general.architecture": info.family,
                "general.parameter_count": info.num_parameters,
                f"{info.family}.context_length": info.max_seq_len,
            },
        }
    )


def _card(call: Call[None] | Call[ShowBody], seat: Seat) -> dict[str, object]:
    """What is known of a model; its figures only once it was loaded."""
    info, name = seat.info, seat.source.name
    began = datetime.now(UTC) - timedelta(seconds=monotonic() - call.state.started_s)
    family = "" if info is None else info.family
    return {
        "name": name,
        "model": name,
        "modified_at": began.isoformat(),
        "size": seat.num_bytes if info is None else info.size_bytes,
        "digest": hashlib.sha256(name.encode()).hexdigest(),
        "details": {
            "format": "safetensors",
            "family": family,
            "families": [family] if family else [],
            "parameter_size": "" if info is None else f"{info.num_parameters / 1e6:.1f}M",
            "quantization_level": "",
        },
    }
