"""Ollama's models: ``/api/version``, ``/api/tags``, ``/api/ps``, ``/api/show``, ``/api/pull``.

What would change them is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Annotated, NoReturn

import msgspec

from blazr.core.errors import RequestError
from blazr.core.gguf_header import ARCHITECTURE_KEY
from blazr.llm.infill import infill_format
from blazr.pipelines.kinds import AUDIO, COMPLETION, EMBEDDING, VISION
from blazr.server.endpoint import Call, Reply
from blazr.server.errors import HttpError
from blazr.server.models import ModelSlot, untagged
from blazr.server.schema import schema_hint
from blazr.server.served import ServedPipeline
from blazr.server.sse import Stream

# The version of Ollama whose API this is: clients look at it before they ask for more. Tools have
# been streamed since 0.8, thinking has been apart since 0.9, and its effort a parameter since 0.11.
OLLAMA_VERSION = "0.12.0"

# What a model can do, where Ollama has a word for it.
_CAPABILITIES = frozenset({COMPLETION, EMBEDDING, VISION, AUDIO})
_PARAMETERS = {"repetition_penalty": "repeat_penalty"}  # what Ollama calls them

_LONGEST_S = 365 * 86400.0
_UNITS_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_DURATION = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(h|ms|m|us|ns|s)"
KeepAlive = float | Annotated[str, schema_hint(pattern=f"^-?([0-9]+|({_DURATION})+)$")]


class ShowBody(msgspec.Struct, kw_only=True):
    """Which model; ``name`` is an older spelling."""

    model: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        """Take either spelling."""
        self.model = self.model or self.name


class PullBody(ShowBody, kw_only=True):
    """A model to fetch."""

    stream: bool | None = None


class OllamaError(msgspec.Struct):
    """An error, as Ollama writes it."""

    error: str


class OllamaVersion(msgspec.Struct):
    """The version of Ollama whose API this is."""

    version: str


class PullLine(msgspec.Struct):
    """How far the fetching of a model has come."""

    status: str


class ModelDetails(msgspec.Struct, kw_only=True):
    """What kind of model it is."""

    format: str = "safetensors"
    family: str
    families: list[str]
    parent_model: str = ""
    parameter_size: str
    quantization_level: str = ""


class Tag(msgspec.Struct, kw_only=True):
    """A model; sizes are in bytes."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: ModelDetails


class TagList(msgspec.Struct):
    """The models there are."""

    models: list[Tag]


class RunningModel(Tag, kw_only=True):
    """A model in memory."""

    expires_at: str
    size_vram: int
    context_length: int


class RunningList(msgspec.Struct):
    """The models in memory."""

    models: list[RunningModel]


class ShownModel(msgspec.Struct, kw_only=True):
    """About a model."""

    details: ModelDetails
    modified_at: str
    capabilities: list[str]
    parameters: str
    template: str
    model_info: dict[str, str | int]


def ollama_error(error: HttpError) -> OllamaError:
    """Ollama's error object."""
    return OllamaError(error.text)


async def version(call: Call[None]) -> OllamaVersion:  # noqa: ARG001
    """Which version of Ollama this is compatible with."""
    return OllamaVersion(OLLAMA_VERSION)


async def tags(call: Call[None]) -> TagList:
    """The models there are, in memory or not, and their adapters."""
    return TagList(
        [
            _tag(call, slot, adapter)
            for slot in call.models.slots
            for adapter in (None, *slot.adapters)
        ]
    )


async def pull(call: Call[PullBody]) -> Reply[PullLine, PullLine]:
    """Say that a model is there already; this server fetches none."""
    try:
        call.models.find(call.body.model)
    except HttpError as error:
        error.message += " This server fetches no models while it runs: name it to blazr serve."
        raise
    if call.body.stream is False:
        return PullLine("success")
    return _PullStream(call.state.config, call.framing)


class _PullStream(Stream[PullLine]):
    """Says that a model is there."""

    async def send_events(self) -> None:
        """Send both lines."""
        for status in ("pulling manifest", "success"):
            await self.send_bytes(self._framing.encode(PullLine(status)))


async def refuse_name(call: Call[None]) -> NoReturn:  # noqa: ARG001
    """Say where models get their names."""
    raise HttpError.unsupported(
        "this server makes no models while it runs. Try: blazr serve NAME=PATH, which serves a "
        "model under a name, and the system prompt in each request."
    )


async def refuse_delete(call: Call[None]) -> NoReturn:  # noqa: ARG001
    """Say that files stay."""
    raise HttpError.unsupported(
        'this server deletes no models. Try: "keep_alive": 0 in /api/generate, which frees the '
        "memory of one."
    )


async def refuse_push(call: Call[None]) -> NoReturn:  # noqa: ARG001
    """Say that models stay here."""
    raise HttpError.unsupported(
        "this server sends models nowhere. Try: hf upload, for the Hugging Face hub."
    )


async def running(call: Call[None]) -> RunningList:
    """The models in memory."""
    now = datetime.now(UTC)
    now_s = asyncio.get_running_loop().time()
    models = []
    for slot in call.models.slots:
        if slot.model is None:
            continue
        # when it is unloaded if nobody uses it again; a year stands for ever
        left_s = min(call.models.idle_s(slot), _LONGEST_S)
        if slot.timer is not None and not slot.model.num_users:
            left_s = slot.timer.when() - now_s
        expires_at = (now + timedelta(seconds=left_s)).isoformat()
        tag = msgspec.structs.asdict(_tag(call, slot))
        models.append(
            RunningModel(
                **tag,
                expires_at=expires_at,
                size_vram=slot.num_bytes,
                context_length=slot.model.info.max_seq_len or 0,
            )
        )
    return RunningList(models)


async def show(call: Call[ShowBody]) -> ShownModel:
    """About a model."""
    model = call.model
    slot = _slot_of(call)
    tag = _tag(call, slot, untagged(call.body.model or "", slot.adapters))
    info = model.info
    facts: dict[str, str | int] = {
        ARCHITECTURE_KEY: info.family,
        "general.parameter_count": info.num_parameters,
    }
    if info.max_seq_len is not None:
        facts[f"{info.family}.context_length"] = info.max_seq_len
    shown = ShownModel(
        details=tag.details,
        modified_at=tag.modified_at,
        capabilities=[each for each in model.capabilities if each in _CAPABILITIES],
        parameters="",
        template="",
        model_info=facts,
    )
    if isinstance(model, ServedPipeline):
        if size := model.pipeline.info.vector_size:
            facts[f"{info.family}.embedding_length"] = size
        return shown
    core = call.llm.core
    sampling = core.info.sampling.items()
    shown.parameters = "\n".join(
        f"{_PARAMETERS.get(name, name):<30} {value:g}" for name, value in sampling
    )
    if core.template is not None:
        shown.capabilities.append("tools")
        shown.template = core.template.name
    if core.reply_format.reasoning is not None:
        shown.capabilities.append("thinking")
    if infill_format(core.tokenizer, core.info.vocab_size) is not None:
        shown.capabilities.append("insert")
    return shown


def set_keep_alive(call: Call[object], keep_alive: float | str | None) -> None:
    """Keep the model of a request in memory for as long after it as the client wants.

    Where there are operators' keys, that is for them to say, as ``/models/unload`` is.

    Args:
        call: The request.
        keep_alive: Seconds, or a duration such as ``"1h30m"``; 0 is no longer, what
            is negative for ever, and None as the server was told when it started.

    Raises:
        RequestError: It is no duration.
    """
    slot = _slot_of(call)
    seconds = _seconds(keep_alive) if isinstance(keep_alive, str) else keep_alive
    if not call.is_operator:
        return
    if seconds is None:
        slot.idle_s = None
        return
    slot.idle_s = min(seconds, _LONGEST_S) if seconds >= 0 else inf


def _slot_of(call: Call[object]) -> ModelSlot:
    """The model of a request."""
    return next(each for each in call.models.slots if each.model is call.model)


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


def with_tag(name: str) -> str:
    """A model's name as Ollama has it: what has no tag is the latest."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def _tag(call: Call[object], slot: ModelSlot, adapter: str | None = None) -> Tag:
    """What is known of a model, or of it with an adapter; its figures once it was loaded."""
    info = slot.info
    base = slot.source.name
    name = adapter or base
    family = "" if info is None else info.family
    return Tag(
        name=with_tag(name),
        model=with_tag(name),
        modified_at=call.state.started.isoformat(),
        size=slot.num_bytes if info is None else info.size_bytes,
        digest=hashlib.sha256(name.encode()).hexdigest(),
        details=ModelDetails(
            family=family,
            families=[family] if family else [],
            parent_model=with_tag(base) if adapter else "",
            parameter_size="" if info is None else f"{info.num_parameters / 1e6:.1f}M",
        ),
    )
