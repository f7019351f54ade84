"""Chat messages as clients send them, shared by the endpoints that take them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from blazr.core.errors import RequestError
from blazr.server.params import EmptyList
from blazr.server.schema import Schema, any_given, schema_hint
from blazr.text.messages import Message

MAX_MESSAGES = 4096


class ContentPart(msgspec.Struct):
    """One part of a message's content."""

    type: Annotated[str, schema_hint(enum=["text"])]
    text: str | None = None
    schema_extra: ClassVar[Schema] = any_given("text")


class ChatMessage(msgspec.Struct):
    """One message."""

    role: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    thinking: str | None = None
    images: EmptyList | None = None


class InputTokens(msgspec.Struct, kw_only=True):
    """How many tokens there are."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


def to_messages(messages: list[ChatMessage]) -> list[Message]:
    """Translate messages.

    Raises:
        RequestError: There are too many, or one has a part that is no text.
    """
    if len(messages) > MAX_MESSAGES:
        raise RequestError(
            "there are too many messages.",
            param="messages",
            found=str(len(messages)),
            expected=f"at most {MAX_MESSAGES}",
        )
    found = []
    for message in messages:
        if message.images:
            raise RequestError("this model reads only text.", param="messages", found="images")
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
        found.append(Message(role=role, content=_text_of(message.content), extra=extra or None))
    return found


def _text_of(content: str | list[ContentPart] | None) -> str | None:
    """The text of a message's content; None where it has none."""
    if not isinstance(content, list):
        return content
    text = ""
    for part in content:
        if part.type != "text" or part.text is None:
            raise RequestError(
                "a part of a message is not text; this model reads only text.",
                param="messages",
                found=repr(part.type[:50]),
                expected="'text'",
            )
        text += part.text
    return text
