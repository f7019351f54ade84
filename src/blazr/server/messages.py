"""Messages of a chat as OpenAI has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar

import msgspec

from blazr.core.errors import RequestError, too_many
from blazr.server.media import NamesMedia
from blazr.server.schema import Schema, any_given, of_type, schema_hint
from blazr.server.tool_choice import ToolCall
from blazr.text.images import Image, Sound, decode_base64, join_parts, read_data_url, read_video_url
from blazr.text.messages import Message, function_call

MAX_MESSAGES = 4096


class ImageUrl(NamesMedia):
    """An image within its URL, ``data:image/png;base64,...``; others need a flag."""

    media_fields: ClassVar = ("url",)
    url: str
    detail: str | None = None  # each model has one size


class VideoUrl(msgspec.Struct):
    """Frames of a video, one a second, in a URL: ``data:video/jpeg;base64,<frame>,<frame>``."""

    url: str


class InputAudio(msgspec.Struct):
    """A sound file in base64."""

    data: str
    format: str | None = None  # the file says it itself


def _with_field(name: str, json_type: str | list[str]) -> Schema:
    """A part that has the field of its type."""
    properties = {"type": {"const": name}, name: {"type": json_type}}
    return {"properties": properties, "required": ["type", name]}


class ContentPart(NamesMedia):
    """One part of a message's content."""

    media_fields: ClassVar = ("image_url",)
    type: Annotated[
        str, schema_hint(enum=["text", "refusal", "image_url", "video_url", "input_audio"])
    ]
    text: str | None = None
    refusal: str | None = None  # what another server's model has said
    image_url: ImageUrl | str | None = None
    video_url: VideoUrl | None = None
    input_audio: InputAudio | None = None
    schema_extra: ClassVar[Schema] = {
        "anyOf": [
            of_type("text", **any_given("text")),
            _with_field("refusal", "string"),
            _with_field("image_url", ["string", "object"]),
            _with_field("video_url", "object"),
            _with_field("input_audio", "object"),
        ]
    }


class McpCallSent(msgspec.Struct, kw_only=True):
    """A call that this server has run before a reply went on, as the reply told of it."""

    id: str
    name: str
    arguments: str = "{}"
    output: str | None = None


class ChatMessage(msgspec.Struct):
    """One message."""

    role: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None  # as base64, where Ollama has them
    mcp_calls: list[McpCallSent] | None = None


def to_messages(messages: list[ChatMessage]) -> list[Message]:
    """Translate messages.

    Raises:
        RequestError: There are too many, or one has a part that is neither text nor an image.
    """
    if len(messages) > MAX_MESSAGES:
        raise too_many(messages, MAX_MESSAGES, "messages", param="messages")
    found: list[Message] = []
    for message in messages:
        extra = {
            name: getattr(message, name)
            for name in ("name", "tool_calls", "tool_call_id")
            if getattr(message, name) is not None
        }
        thought = message.reasoning_content or message.reasoning or message.thinking
        if thought:
            extra["reasoning_content"] = thought
        # templates know no developers
        role = "system" if message.role == "developer" else message.role
        content = message.refusal if message.content is None else message.content
        images = first_images(message.images)
        if isinstance(content, list):
            content, more = join_parts(map(_read_part, content))
            images += more
        found += _messages_of_calls(message.mcp_calls or ())
        found.append(Message(role=role, content=content, images=images, extra=extra or None))
    return found


def _messages_of_calls(calls: Sequence[McpCallSent]) -> Iterator[Message]:
    """Calls that were run before a reply went on, and what came of each."""
    if not calls:
        return
    made = [function_call(each.id, each.name, each.arguments) for each in calls]
    yield Message(role="assistant", content=None, extra={"tool_calls": made})
    for each in calls:
        extra = {"tool_call_id": each.id, "name": each.name}
        yield Message(role="tool", content=each.output or "", extra=extra)


def first_images(given: Sequence[str] | None, *, param: str = "messages") -> tuple[Image, ...]:
    """Images in base64 that stand before a message's text, as Ollama has them."""
    return tuple(Image(0, decode_base64(each, param=param)) for each in given or ())


def _read_part(part: ContentPart) -> str | bytes:
    if part.type == "text" and part.text is not None:
        return part.text
    if part.type == "refusal" and part.refusal is not None:
        return part.refusal
    if part.type == "image_url" and part.image_url is not None:
        given = part.image_url
        return read_data_url(given if isinstance(given, str) else given.url)
    if part.type == "video_url" and part.video_url is not None:
        return read_video_url(part.video_url.url)
    if part.type == "input_audio" and part.input_audio is not None:
        return Sound(decode_base64(part.input_audio.data, noun="a sound"))
    raise unreadable_part(
        "a part of a message",
        part.type,
        expected="'text', 'image_url', 'video_url' or 'input_audio'",
    )


def unreadable_part(
    what: str, kind: str, *, param: str = "messages", expected: str = "'text'"
) -> RequestError:
    """The error for a part of a message that is of another kind, or has nothing in it."""
    return RequestError(
        f"{what} is neither text nor an image, video or sound that can be read.",
        param=param,
        found=repr(kind[:50]),
        expected=expected,
    )
