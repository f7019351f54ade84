"""blazr as an MCP server: other agents chat, generate, embed and transcribe with its models.

Each tool call becomes a request to the HTTP API, of this process or of another server, with the
caller's key, so that it is validated, limited and counted like any other request of that key.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import httpx2
import msgspec
from msgspec import Meta

import blazr
from blazr.core.errors import BlazrError, EngineError, RequestError
from blazr.pipelines.kinds import COMPLETION, EMBEDDING, LANGUAGE_MODEL, TRANSCRIPTION

if TYPE_CHECKING:
    from mcp.server import Server
    from mcp.server.context import ServerRequestContext
    from mcp_types import (
        CallToolRequestParams,
        CallToolResult,
        ListToolsResult,
        PaginatedRequestParams,
    )

    AnyServer: TypeAlias = Server[Any]
    Context: TypeAlias = ServerRequestContext[Any]

R = TypeVar("R")

_KEYS = ("authorization", "x-api-key", "api-key")  # what a caller's request is passed on with
_ModelName = Annotated[
    str | None, Meta(description="Name of a model; by default one that can do this.")
]
_Language = Annotated[str | None, Meta(description="Such as en or de; detected by default.")]
_MaxTokens = Annotated[int, Meta(ge=1, description="Maximum number of tokens.")]
_Temperature = Annotated[float, Meta(ge=0, le=2, description="0 is deterministic.")] | None


class ChatArguments(msgspec.Struct, kw_only=True):
    """Ask a language model a question, and get its answer."""

    prompt: Annotated[str, Meta(description="The question.")]
    system: Annotated[str | None, Meta(description="The system prompt.")] = None
    model: _ModelName = None
    max_tokens: _MaxTokens = 1024
    temperature: _Temperature = None


class GenerateArguments(msgspec.Struct, kw_only=True):
    """Continue a text with a language model, without a chat template."""

    prompt: Annotated[str, Meta(description="The text to continue.")]
    model: _ModelName = None
    max_tokens: _MaxTokens = 256
    temperature: _Temperature = None


class EmbedArguments(msgspec.Struct, kw_only=True):
    """Embed texts as vectors; texts of similar meaning have vectors close to each other."""

    texts: Annotated[list[str], Meta(min_length=1, max_length=128)]
    model: _ModelName = None


class TranscribeArguments(msgspec.Struct, kw_only=True):
    """Transcribe the speech in a recording."""

    audio: Annotated[str, Meta(description="WAV, FLAC, OGG, MP3 or AIFF, as base64.")]
    language: _Language = None
    model: _ModelName = None


class TranscribeFileArguments(msgspec.Struct, kw_only=True):
    """Transcribe the speech in a sound file."""

    path: Annotated[str, Meta(description="WAV, FLAC, OGG, MP3 or AIFF.")]
    language: _Language = None
    model: _ModelName = None


Request: TypeAlias = Mapping[str, Any]  # of httpx: json, or data and files


@dataclass(frozen=True, slots=True)
class OwnTool:
    """A tool that blazr offers to MCP clients.

    Args:
        arguments: Type of its arguments, whose docstring is the tool's description.
        path: The HTTP endpoint that it calls.
        capability: What a model must be able to do for it.
        request: Makes the endpoint's request of the arguments.
        answer: Makes the tool's result of the endpoint's JSON.
    """

    arguments: type[msgspec.Struct]
    path: str
    capability: str
    request: Callable[[Any], Request]
    answer: Callable[[Any], str]

    @property
    def schema(self) -> dict[str, object]:
        """JSON Schema of its arguments."""
        (_, found) = msgspec.json.schema_components([self.arguments])
        return dict(found[self.arguments.__name__])


def _chat(given: ChatArguments) -> Request:
    said = [("system", given.system), ("user", given.prompt)]
    messages = [{"role": role, "content": text} for role, text in said if text is not None]
    return {"json": {**_fields(given, "model", "max_tokens", "temperature"), "messages": messages}}


def _generate(given: GenerateArguments) -> Request:
    return {"json": _fields(given, "prompt", "model", "max_tokens", "temperature")}


def _embed(given: EmbedArguments) -> Request:
    return {"json": {**_fields(given, "model"), "input": given.texts}}


def _transcribe(given: TranscribeArguments) -> Request:
    try:
        sound = base64.b64decode(given.audio.partition(",")[2] or given.audio, validate=True)
    except binascii.Error:
        raise RequestError("the recording is no base64.", param="audio") from None
    return {"data": _fields(given, "model", "language"), "files": {"file": sound}}


def _transcribe_file(given: TranscribeFileArguments) -> Request:
    try:
        sound = Path(given.path).expanduser().read_bytes()
    except OSError as error:
        raise RequestError(
            "the sound file cannot be read.", param="path", found=str(error)[:200]
        ) from None
    return {"data": _fields(given, "model", "language"), "files": {"file": sound}}


def _fields(given: msgspec.Struct, *names: str) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(given, name)) is not None}


TOOLS = {
    "chat": OwnTool(
        ChatArguments,
        "/v1/chat/completions",
        COMPLETION,
        _chat,
        lambda answer: answer["choices"][0]["message"]["content"] or "",
    ),
    "generate": OwnTool(
        GenerateArguments,
        "/v1/completions",
        COMPLETION,
        _generate,
        lambda answer: answer["choices"][0]["text"],
    ),
    "embed": OwnTool(
        EmbedArguments,
        "/v1/embeddings",
        EMBEDDING,
        _embed,
        lambda answer: json.dumps([each["embedding"] for each in answer["data"]]),
    ),
    "transcribe": OwnTool(
        TranscribeArguments,
        "/v1/audio/transcriptions",
        TRANSCRIPTION,
        _transcribe,
        lambda answer: answer["text"],
    ),
}
# A program of the same user may name a file, which needs not go through its model as base64.
FILE_TOOLS = {
    **TOOLS,
    "transcribe": replace(
        TOOLS["transcribe"], arguments=TranscribeFileArguments, request=_transcribe_file
    ),
}


def build_server(client: httpx2.AsyncClient, *, reads_files: bool) -> AnyServer:
    """Return the MCP server, not yet connected to a transport.

    Args:
        client: For requests to the HTTP API at its base URL.
        reads_files: Whether callers may name files on this machine.
    """
    from mcp.server import Server

    tools = FILE_TOOLS if reads_files else TOOLS
    handlers = _Handlers(client, tools)
    return Server(
        "blazr",
        version=blazr.__version__,
        instructions="Language models, and models for sound, that blazr serves.",
        on_list_tools=handlers.list_tools,
        on_call_tool=handlers.call_tool,
    )


class _Handlers:
    def __init__(self, client: httpx2.AsyncClient, tools: Mapping[str, OwnTool]) -> None:
        self._client = client
        self._tools = tools

    async def list_tools(
        self,
        context: Context,
        params: PaginatedRequestParams | None,  # noqa: ARG002
    ) -> ListToolsResult:
        """List the tools for which there is a model."""
        from mcp_types import ListToolsResult, Tool

        able = await self._ask("GET", "/v1/models", _keys(context), read=_capabilities)
        found = [
            Tool(name=name, description=_summary(each.arguments), input_schema=each.schema)
            for name, each in self._tools.items()
            if each.capability in able
        ]
        return ListToolsResult(tools=found)

    async def call_tool(self, context: Context, params: CallToolRequestParams) -> CallToolResult:
        """Call a tool; an error becomes a result that the caller's model can read."""
        from mcp_types import CallToolResult, TextContent

        is_error = False
        try:
            text = await self._call(params.name, params.arguments or {}, _keys(context))
        except BlazrError as error:
            text = str(error)
            is_error = True
        return CallToolResult(content=[TextContent(type="text", text=text)], is_error=is_error)

    async def _call(self, name: str, arguments: object, keys: Mapping[str, str]) -> str:
        tool = self._tools.get(name)
        if tool is None:
            raise RequestError(
                "there is no such tool.", found=repr(name)[:100], expected=", ".join(self._tools)
            )
        try:
            given = msgspec.convert(arguments, tool.arguments)
        except msgspec.ValidationError as error:
            raise RequestError("the arguments are wrong.", found=str(error)[:200]) from None
        request = tool.request(given)
        return await self._ask("POST", tool.path, keys, read=tool.answer, **request)

    async def _ask(
        self,
        method: str,
        path: str,
        keys: Mapping[str, str],
        *,
        read: Callable[[Any], R],
        **more: Any,
    ) -> R:
        """Ask the HTTP API.

        Args:
            method: As in HTTP.
            path: The endpoint.
            keys: Headers with the caller's API key.
            read: Makes the result of the JSON that is answered.
            more: The rest of the request, as httpx takes it.

        Raises:
            RequestError: The server refuses the request.
            EngineError: The server cannot be reached, or answers with something else.
        """
        try:
            answer = await self._client.request(method, path, headers=keys, **more)
            found = answer.json()
        except (httpx2.HTTPError, ValueError) as error:
            said = f"{type(error).__name__}: {str(error)[:150]}"
            raise EngineError("the server does not answer.", found=said) from None
        if not answer.is_success:
            inner = found.get("error") if isinstance(found, dict) else None
            reason = inner.get("message") if isinstance(inner, dict) else str(found)[:200]
            raise RequestError(f"the server refused: {reason}")
        try:
            return read(found)
        except (LookupError, TypeError, AttributeError):
            raise EngineError(
                "the server's answer is not understood.",
                found=str(found)[:100],
                expected=f"what OpenAI's API answers at {path}",
            ) from None


def _capabilities(models: Any) -> set[str]:
    """What the models of a list can do; those of a server that does not say generate text."""
    return {x for each in models["data"] for x in each.get("capabilities") or LANGUAGE_MODEL}


def _keys(context: Context) -> dict[str, str]:
    """Return the headers that hold the caller's API key."""
    headers = getattr(context.request, "headers", {})  # there is no request over stdio
    return {name: headers[name] for name in _KEYS if name in headers}


@cache
def _summary(arguments: type[msgspec.Struct]) -> str:
    return (arguments.__doc__ or "").partition("\n\n")[0]
