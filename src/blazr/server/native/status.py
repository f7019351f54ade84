"""``GET /health``, ``/ready``, ``/version``, ``/openapi.json`` and ``/metrics``."""

from __future__ import annotations

from starlette.responses import Response

import blazr
from blazr.server.errors import HttpError
from blazr.server.service import Call, Service, json_response

_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


async def health(call: Call[None]) -> Response:
    """Whether the engine works: its last sign of life, not that of this process."""
    service = call.service
    _check(service)
    info = service.llm.core.info
    return json_response(
        {
            "status": "ok",
            "version": blazr.__version__,
            "model": service.name,
            "device": info.device,
            "heartbeat_age_s": round(service.llm.core.engine.health().heartbeat_age_s, 3),
        }
    )


async def ready(call: Call[None]) -> Response:
    """Whether new requests are welcome."""
    _check(call.service)
    if call.service.is_draining:
        raise HttpError(503, "the server is stopping.", code="stopping")
    return json_response({"status": "ready"})


async def version(call: Call[None]) -> Response:  # noqa: ARG001
    """Which blazr this is."""
    return json_response({"version": blazr.__version__})


async def openapi(call: Call[None]) -> Response:
    """The endpoints and their bodies, as an OpenAPI document."""
    return json_response(call.service.document)


async def metrics(call: Call[None]) -> Response:
    """Everything counted, for Prometheus."""
    return Response(call.service.metrics.render(), media_type=_PROMETHEUS)


def _check(service: Service) -> None:
    service.llm.core.check()
