"""``GET /health``, ``/ready``, ``/version``, ``/load``, ``/metrics`` and such."""

from __future__ import annotations

from time import monotonic

from starlette.responses import Response

import blazr
from blazr.server.errors import HttpError
from blazr.server.service import Call, json_response

_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


async def health(call: Call[None]) -> Response:
    """Whether the engines work: their last signs of life, not that of this process."""
    _check(call)
    first, loaded = call.models.seats[0], call.models.loaded()
    ages_s = [service.llm.core.engine.health().heartbeat_age_s for service in loaded]
    return json_response(
        {
            "status": "ok",
            "version": blazr.__version__,
            "model": first.source.name,
            "device": first.info and first.info.device,
            "heartbeat_age_s": round(max(ages_s), 3) if ages_s else None,
            "models": {seat.source.name: seat.status for seat in call.models.seats},
        }
    )


async def ready(call: Call[None]) -> Response:
    """Whether new requests are welcome."""
    _check(call)
    if call.state.is_draining:
        raise HttpError(
            503, "the server is stopping.", code="stopping", headers={"Retry-After": "5"}
        )
    if all(seat.is_asleep for seat in call.models.seats):
        call.models.seats[0].check_awake()
    return json_response({"status": "ready"})


async def version(call: Call[None]) -> Response:  # noqa: ARG001
    """Which blazr this is."""
    return json_response({"version": blazr.__version__})


async def load(call: Call[None]) -> Response:
    """How many requests are being answered, as vLLM tells it."""
    return json_response({"server_load": call.state.num_working})


async def server_info(call: Call[None]) -> Response:
    """Which blazr this is, for how long, and what its models are."""
    models = [
        {
            "name": seat.source.name,
            "status": seat.status,
            "family": seat.info and seat.info.family,
            "device": seat.info and seat.info.device,
            "max_model_len": seat.info and seat.info.max_seq_len,
            "size_bytes": seat.num_bytes,
        }
        for seat in call.models.seats
    ]
    uptime_s = round(monotonic() - call.state.started_s, 3)
    return json_response({"version": blazr.__version__, "uptime_s": uptime_s, "models": models})


async def openapi(call: Call[None]) -> Response:
    """The endpoints and their bodies, as an OpenAPI document."""
    return json_response(call.state.document)


async def metrics(call: Call[None]) -> Response:
    """Everything counted, for Prometheus."""
    return Response(call.state.metrics.render(), media_type=_PROMETHEUS)


def _check(call: Call[None]) -> None:
    for service in call.models.loaded():
        service.llm.core.check()
