"""What Ollama's endpoints answer, as types. The OpenAPI document is made of them.

Durations are in nanoseconds.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType


class OllamaError(Struct):
    """An error, as Ollama writes it."""

    error: str


class OllamaVersion(Struct):
    """The version of Ollama whose API this is."""

    version: str


class PullLine(Struct):
    """How far the fetching of a model has come."""

    status: str


class ModelDetails(Struct):
    """What kind of model it is."""

    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class Tag(Struct):
    """A model; sizes are in bytes."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: ModelDetails


class TagList(Struct):
    """The models there are."""

    models: list[Tag]


class RunningModel(Tag):
    """A model in memory."""

    expires_at: str
    size_vram: int


class RunningList(Struct):
    """The models in memory."""

    models: list[RunningModel]


class ShownModel(Struct):
    """About a model."""

    details: ModelDetails
    modified_at: str
    capabilities: list[str]
    parameters: str
    template: str
    model_info: dict[str, str | int]


class _Line(Struct):
    """What every line holds; the figures are in the last one."""

    model: str
    created_at: str
    done: bool
    done_reason: Literal["stop", "length", "load", "unload"] | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class CalledTool(Struct):
    """A tool and its arguments."""

    name: str
    arguments: Any


class OllamaToolCall(Struct):
    """A call of a tool."""

    function: CalledTool


class OllamaMessage(Struct):
    """What the model says, or more of it."""

    role: Literal["assistant"]
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaToolCall] | UnsetType = UNSET


class ChatLine(_Line, kw_only=True):
    """An answer in a chat, or a line of it."""

    message: OllamaMessage


class GenerateLine(_Line, kw_only=True):
    """An answer to a prompt, or a line of it."""

    response: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaToolCall] | UnsetType = UNSET


class Vectors(Struct):
    """A vector for each text."""

    model: str
    embeddings: list[list[float]]
    prompt_eval_count: int


class Vector(Struct):
    """A vector."""

    embedding: list[float]
