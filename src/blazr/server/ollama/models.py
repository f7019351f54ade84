"""``/api/version``, ``/api/tags``, ``/api/ps``, ``/api/show`` and ``/api/pull``."""

from __future__ import annotations

import asyncio
import hashlib
import re
from datetime import UTC, datetime, timedelta
from math import inf
from time import monotonic
from typing import Annotated

import msgspec
from starlette.responses import Response

from blazr.core.errors import RequestError
from blazr.server.errors import HttpError
from blazr.server.params import said
from blazr.server.service import Call, json_response
from blazr.server.sse import LINES
from blazr.server.state import Seat

# The version of Ollama whose API this is: clients look at it before they ask for more. Tools have
# been streamed since 0.8, thinking has been apart since 0.9, and told how hard since 0.11.
OLLAMA_VERSION = "0.12.0"

_PARAMETERS = {"repetition_penalty": "repeat_penalty"}  # what Ollama calls them

_LONGEST_S = 365 * 86400.0
_UNITS_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_DURATION = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(h|ms|m|us|ns|s)"
KeepAlive = float | Annotated[str, said(pattern=f"^-?([0-9]+|({_DURATION})+)$")]


class ShowBody(msgspec.Struct, kw_only=True):
    """Which model; ``name`` is an older spelling."""

    model: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        """Settle which."""
        self.model = self.model or self.name


class PullBody(ShowBody, kw_only=True):
    """A model to fetch."""

    stream: bool | None = None


def error_object(error: HttpError) -> dict[str, object]:
    """Ollama's error object."""
    return {"error": error.text}


async def version(call: Call[None]) -> Response:  # noqa: ARG001
    """Which version of Ollama this is compatible with."""
    return json_response({"version": OLLAMA_VERSION})


async def tags(call: Call[None]) -> Response:
    """The models there are, in memory or not."""
    return json_response({"models": [_card(call, seat) for seat in call.models.seats]})


async def pull(call: Call[PullBody]) -> Response:
    """Say that a model is there already; this server fetches none."""
    try:
        call.models.find(call.body.model)
    except HttpError as error:
        error.message += " This server fetches no models while it runs: name it to blazr serve."
        raise
    steps = [{"status": "pulling manifest"}, {"status": "success"}]
    if call.body.stream is False:
        return json_response(steps[-1])
    lines = b"".join(msgspec.json.encode(each) + b"\n" for each in steps)
    return Response(lines, media_type=LINES.media_type)


async def running(call: Call[None]) -> Response:
    """The models in memory."""
    shown = [
        {**_card(call, seat), "expires_at": _end(call, seat), "size_vram": seat.num_bytes}
        for seat in call.models.seats
        if seat.service is not None
    ]
    return json_response({"models": shown})


def keep(call: Call[object], keep_alive: float | str | None) -> None:
    """Keep the model of a request in memory for as long after it as the client wants.

    Args:
        call: The request.
        keep_alive: Seconds, or a duration such as ``"1h30m"``; 0 is no longer, what
            is negative for ever, and None as the server was told when it started.

    Raises:
        RequestError: It is no duration.
    """
    seat = next(each for each in call.models.seats if each.service is call.service)
    if keep_alive is None:
        seat.idle_s = None
        return
    seconds = _seconds(keep_alive) if isinstance(keep_alive, str) else keep_alive
    seat.idle_s = min(seconds, _LONGEST_S) if seconds >= 0 else inf


def _seconds(text: str) -> float:
    """A duration as Go writes it, or a number of seconds."""
    sign, size = (-1, text[1:]) if text.startswith("-") else (1, text)
    if size.isascii() and size.isdigit():
        return sign * float(size[:20])
    if not re.fullmatch(f"({_DURATION})+", size[:100], re.ASCII):
        raise RequestError(
            "keep_alive is no duration.", param="keep_alive", expected="seconds, or such as '5m'"
        )
    parts = re.findall(_DURATION, size, re.ASCII)
    return sign * sum(float(number) * _UNITS_S[unit] for number, unit in parts)


def _end(call: Call[None], seat: Seat) -> str:
    """When a model leaves the memory, if nobody uses it again; a year stands for ever."""
    left_s = min(call.models.idle_s(seat), _LONGEST_S)
    if seat.timer is not None and seat.service is not None and not seat.service.num_users:
        left_s = seat.timer.when() - asyncio.get_running_loop().time()
    return (datetime.now(UTC) + timedelta(seconds=left_s)).isoformat()


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
            "parameters": "\n".join(
                f"{_PARAMETERS.get(name, name):<30} {value:g}"
                for name, value in info.sampling.items()
            ),
            "template": "" if core.template is None else core.template.name,
            "model_info": {
                "general.architecture": info.family,
                "general.parameter_count": info.num_parameters,
                f"{info.family}.context_length": info.max_seq_len,
            },
        }
    )


def with_tag(name: str) -> str:
    """A model's name as Ollama has it: what has no tag is the latest."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def _card(call: Call[None] | Call[ShowBody], seat: Seat) -> dict[str, object]:
    """What is known of a model; its figures only once it was loaded."""
    info, name = seat.info, seat.source.name
    began = datetime.now(UTC) - timedelta(seconds=monotonic() - call.state.started_s)
    family = "" if info is None else info.family
    return {
        "name": with_tag(name),
        "model": with_tag(name),
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
