"""``/api/version``, ``/api/tags``, ``/api/ps`` and ``/api/show``."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from time import monotonic

import msgspec
from starlette.responses import Response

import blazr
from blazr.server.errors import HttpError
from blazr.server.service import Call, Service, json_response


class ShowBody(msgspec.Struct, kw_only=True):
    """Which model; ``name`` is an older spelling."""

    model: str | None = None
    name: str | None = None


def error_object(error: HttpError) -> dict[str, object]:
    """Ollama's error object."""
    return {"error": error.text}


def check_model(service: Service, name: str | None) -> None:
    """Refuse a model that is not the one loaded; ``:latest`` says nothing.

    Raises:
        HttpError: 404.
    """
    service.check_model(None if name is None else name.removesuffix(":latest"))


async def version(call: Call[None]) -> Response:  # noqa: ARG001
    """Which blazr this is."""
    return json_response({"version": blazr.__version__})


async def tags(call: Call[None]) -> Response:
    """The models there are: the one loaded."""
    return json_response({"models": [_card(call.service)]})


async def running(call: Call[None]) -> Response:
    """The models in memory."""
    size = call.service.llm.core.info.size_bytes
    never = (datetime.now(UTC) + timedelta(days=365)).isoformat()
    more = {"expires_at": never, "size_vram": size}
    return json_response({"models": [{**_card(call.service), **more}]})


async def show(call: Call[ShowBody]) -> Response:
    """About a model."""
    core = call.service.llm.core
    check_model(call.service, call.body.model or call.body.name)
    card, info = _card(call.service), core.info
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


def _card(service: Service) -> dict[str, object]:
    info = service.llm.core.info
    began = datetime.now(UTC) - timedelta(seconds=monotonic() - service.started_s)
    return {
        "name": service.name,
        "model": service.name,
        "modified_at": began.isoformat(),
        "size": info.size_bytes,
        "digest": hashlib.sha256(service.name.encode()).hexdigest(),
        "details": {
            "format": "safetensors",
            "family": info.family,
            "families": [info.family],
            "parameter_size": f"{info.num_parameters / 1e6:.1f}M",
            "quantization_level": "",
        },
    }
