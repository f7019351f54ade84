"""``GET /health``, ``/ready``, ``/version``, ``/load``, ``/metrics`` and such."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from time import monotonic
from typing import Literal

import msgspec
from starlette.responses import PlainTextResponse

import blazr
from blazr.server.config import Limits
from blazr.server.endpoint import Call
from blazr.server.model_events import ModelState
from blazr.server.schema import Schema

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class Health(msgspec.Struct, kw_only=True):
    """The engines work."""

    status: Literal["ok"] = "ok"
    version: str
    model: str
    device: str | None
    heartbeat_age_s: float | None
    models: dict[str, ModelState]


class Ready(msgspec.Struct):
    """New requests are welcome."""

    status: Literal["ready"] = "ready"


class Version(msgspec.Struct):
    """Which blazr this is."""

    version: str


class Load(msgspec.Struct):
    """How much is being done."""

    server_load: int


class ModelFacts(msgspec.Struct, kw_only=True):
    """What is known of a model; some of it only once it was loaded."""

    name: str
    status: ModelState
    family: str | None = None
    device: str | None = None
    max_model_len: int | None = None
    size_bytes: int


class McpFacts(msgspec.Struct, kw_only=True):
    """What is known of a server of tools."""

    name: str
    status: Literal["starting", "ready", "failed"]
    num_tools: int
    failure: str | None = None


class ServerInfo(msgspec.Struct):
    """What serves, and what it has."""

    version: str
    uptime_s: float
    models: list[ModelFacts]
    limits: dict[str, float]  # `Limits`, by name
    mcp_servers: list[McpFacts]


async def health(call: Call[None]) -> Health:
    """Whether the engines work: their last signs of life, not that of this process."""
    first = call.models.slots[0]
    ages_s = [model.check() for model in call.models.loaded()]
    return Health(
        version=blazr.__version__,
        model=first.source.name,
        device=first.info.device if first.info else None,
        heartbeat_age_s=round(max(ages_s), 3) if ages_s else None,
        models={slot.source.name: slot.status for slot in call.models.slots},
    )


async def ready(call: Call[None]) -> Ready:
    """Whether new requests are welcome."""
    call.models.check()
    call.state.check_not_draining()
    if all(slot.is_asleep for slot in call.models.slots):
        call.models.slots[0].check_awake()
    return Ready()


async def version(call: Call[None]) -> Version:  # noqa: ARG001
    """Which blazr this is."""
    return Version(blazr.__version__)


async def load(call: Call[None]) -> Load:
    """How many requests are being answered, as vLLM tells it."""
    return Load(call.state.num_working)


async def server_info(call: Call[None]) -> ServerInfo:
    """Which blazr this is, for how long, and what its models are."""
    models = []
    for slot in call.models.slots:
        facts = ModelFacts(name=slot.source.name, status=slot.status, size_bytes=slot.num_bytes)
        if slot.info is not None:
            facts.family = slot.info.family
            facts.device = slot.info.device
            facts.max_model_len = slot.info.max_seq_len
        models.append(facts)
    uptime_s = round(monotonic() - call.state.started_s, 3)
    limits = {each.name: getattr(call.state.config, each.name) for each in fields(Limits)}
    toolbox = call.models.toolbox
    servers = [
        McpFacts(
            name=each.server.name,
            status=each.state,
            num_tools=len(each.tools),
            failure=each.failure or None,
        )
        for each in (toolbox.connections if toolbox else ())
    ]
    return ServerInfo(
        version=blazr.__version__,
        uptime_s=uptime_s,
        models=models,
        limits=limits,
        mcp_servers=servers,
    )


async def openapi(call: Call[None]) -> Schema:
    """The endpoints and their bodies, as an OpenAPI document."""
    return dict(await asyncio.to_thread(call.state.document))


async def metrics(call: Call[None]) -> PlainTextResponse:
    """Everything counted, for Prometheus."""
    return PlainTextResponse(call.state.metrics.render(), media_type=PROMETHEUS)
