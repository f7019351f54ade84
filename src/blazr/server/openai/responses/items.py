"""The items that a conversation consists of in OpenAI's newer APIs, as messages."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

from blazr.core.errors import RequestError, too_many
from blazr.server.media import NamesMedia
from blazr.server.messages import MAX_MESSAGES, unreadable_part
from blazr.server.openai.responses.tools import qualified_name
from blazr.server.schema import Schema, any_given, of_type, schema_hint
from blazr.text.images import join_parts, read_data_url
from blazr.text.messages import Message, function_call

ITEM_REFERENCE = "item_reference"  # stands for an item of a stored response
_PACKED = "blazr-text-"
_TEXT_PARTS = {"text", "input_text", "output_text", "reasoning_text", "summary_text", "refusal"}


PartType = Annotated[str, schema_hint(enum=sorted({*_TEXT_PARTS, "input_image"}))]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class ItemPart(NamesMedia):
    """One part of an item's content."""

    media_fields: ClassVar = ("image_url",)
    type: PartType
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    schema_extra: ClassVar[Schema] = {
        "anyOf": [of_type(*sorted(_TEXT_PARTS)), of_type("input_image", **any_given("image_url"))]
    }


class Item(msgspec.Struct, kw_only=True):
    """A message, a call of a tool, what came of it, or a train of thought."""

    type: str = "message"
    id: str | None = None
    role: str | None = None
    content: str | list[ItemPart] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    encrypted_content: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | list[ItemPart] | None = None
    server_label: str | None = None
    approval_request_id: str | None = None
    approve: bool | None = None
    reason: str | None = None
    error: Annotated[Any, schema_hint()] = None
    tools: Annotated[Any, schema_hint()] = None
    schema_extra: ClassVar[Schema] = {
        "anyOf": [
            {
                "properties": {"type": {"const": "message"}},
                **any_given("role", min_length=1),
            },
            of_type("function_call", "custom_tool_call", **any_given("name", min_length=1)),
            of_type("function_call_output", "custom_tool_call_output", "reasoning"),
            of_type("mcp_list_tools"),
            of_type("mcp_call", **any_given("name", min_length=1)),
            of_type("mcp_approval_request", **any_given("name", min_length=1)),
            of_type("mcp_approval_response", **any_given("approval_request_id", min_length=1)),
            of_type(ITEM_REFERENCE, **any_given("id", min_length=1)),
        ]
    }


class ShownPart(msgspec.Struct):
    """One part of an item's content; what an assistant said has a place for annotations."""

    type: PartType
    text: str | None
    refusal: str | UnsetType | None = UNSET
    annotations: list[dict[str, Any]] | UnsetType = UNSET
    image_url: str | UnsetType = UNSET


class InputItem(msgspec.Struct, kw_only=True):
    """An item of what was asked, with its content in parts."""

    id: str
    status: ItemStatus = "completed"
    type: str
    role: str | UnsetType = UNSET
    content: list[ShownPart] | UnsetType = UNSET
    call_id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    namespace: str | UnsetType = UNSET
    encrypted_content: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    input: str | UnsetType = UNSET
    output: str | list[ItemPart] | UnsetType = UNSET
    server_label: str | UnsetType = UNSET
    approval_request_id: str | UnsetType = UNSET
    approve: bool | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    error: Any = UNSET
    tools: Any = UNSET
    summary: list[dict[str, Any]] | UnsetType = UNSET


def _own_name(server: str, name: str) -> str:  # noqa: ARG001  (it is what an `Offer` has)
    return name


def to_messages(
    items: str | Iterable[Item], shown_name: Callable[[str, str], str] = _own_name
) -> list[Message]:
    """Translate items; what an assistant thought, said and called in a row is one message.

    Args:
        items: What was said and done.
        shown_name: The name that a model is shown of a tool of an MCP server, by their names.

    Raises:
        RequestError: An item is of a kind that cannot be translated, or there are too many.
    """
    if isinstance(items, str):
        return [Message(role="user", content=items)]
    messages: list[Message] = []
    for message in (each for item in items for each in _messages_of(item, shown_name)):
        last = messages[-1] if messages else None
        is_one_turn = last is not None and last.role == message.role == "assistant"
        if last is None or not is_one_turn or not (last.content is None or message.content is None):
            messages.append(message)
            continue
        before: Mapping[str, Any] = last.extra or {}
        after: Mapping[str, Any] = message.extra or {}
        extra: dict[str, Any] = {**before, **after}
        calls = [*before.get("tool_calls", ()), *after.get("tool_calls", ())]
        if calls:
            extra["tool_calls"] = calls
        content = last.content if message.content is None else message.content
        messages[-1] = Message(role="assistant", content=content, extra=extra or None)
    if len(messages) > MAX_MESSAGES:
        raise too_many(messages, MAX_MESSAGES, "items", param="input")
    return messages


def to_input_item(item: Item, name: str) -> InputItem:
    """An item as lookups return it: with an id, a status, and its content in parts.

    Args:
        item: As it was sent.
        name: Its id, if it has none of its own.
    """
    fields = {
        name: value for name, value in msgspec.structs.asdict(item).items() if value is not None
    }
    if isinstance(item.content, str):
        fields["content"] = [ShownPart("input_text", item.content)]
        if item.role == "assistant":
            fields["content"] = [ShownPart("output_text", item.content, annotations=[])]
    elif item.content is not None:
        fields["content"] = [
            ShownPart(
                part.type,
                part.text,
                part.refusal,
                image_url=str(part.image_url) if part.image_url else UNSET,
            )
            for part in item.content
        ]
    if item.type == "reasoning":
        fields["summary"] = []
    return InputItem(**{"id": name, **fields})


def pack_text(text: str) -> str:
    """A text as ``encrypted_content``, which clients store and send back.

    It is encoded and not encrypted: nothing in it is secret from the client.
    """
    return _PACKED + base64.b64encode(text.encode("utf-8", "replace")).decode()


def unpack_text(packed: str | None) -> str:
    """The text of ``encrypted_content``; empty where another server has made that."""
    if packed is None or not packed.startswith(_PACKED):
        return ""
    try:
        return base64.b64decode(packed.removeprefix(_PACKED), validate=True).decode()
    except ValueError:
        return ""


def text_of(content: str | list[ItemPart] | None, *, param: str = "input") -> str:
    """The text of an item's content.

    Raises:
        RequestError: A part of it is no text.
    """
    text, images = join_parts(_parts_of(content, param=param))
    if images:
        raise unreadable_part("a part", "input_image", param=param, expected="'input_text'")
    return text


def _parts_of(
    content: str | list[ItemPart] | None, *, param: str = "input"
) -> Iterator[str | bytes]:
    if content is None or isinstance(content, str):
        yield content or ""
        return
    for part in content:
        if part.type in _TEXT_PARTS:
            yield part.text or part.refusal or ""
        elif part.type == "input_image" and part.image_url is not None:
            yield read_data_url(part.image_url, param=param)
        else:
            raise unreadable_part(
                "a part",
                part.type,
                param=param,
                expected="'input_text', or 'input_image' with an image_url",
            )


def _messages_of(item: Item, shown_name: Callable[[str, str], str]) -> Iterator[Message]:
    """An item as messages; there may be none."""
    if item.type == "mcp_list_tools":
        return
    if item.type in {"mcp_call", "mcp_approval_request"} and item.name:
        asked = item.approval_request_id
        if not asked:
            name = shown_name(item.server_label or "", item.name)
            call = function_call(item.id or "", name, item.arguments or "{}")
            yield Message(role="assistant", content=None, extra={"tool_calls": [call]})
        if item.type == "mcp_call":
            text, _ = join_parts(_parts_of(item.output))
            text = f"Error: {text_of_error(item.error)}" if item.error else text
            yield Message(role="tool", content=text, extra={"tool_call_id": asked or item.id or ""})
    elif item.type == "mcp_approval_response" and item.approval_request_id:
        if not item.approve:
            text = "Error: the user has refused this call."
            text += f" {item.reason}" if item.reason else ""
            extra = {"tool_call_id": item.approval_request_id}
            yield Message(role="tool", content=text, extra=extra)
    else:
        yield _to_message(item)


def text_of_error(error: object) -> str:
    """What an item says of a call that has failed."""
    content = error.get("content") if isinstance(error, Mapping) else error
    parts = content if isinstance(content, list) else [content]
    texts = [each.get("text") if isinstance(each, Mapping) else each for each in parts]
    return "\n".join(each for each in texts if isinstance(each, str))


def approved_of(items: str | Iterable[Item]) -> list[str]:
    """Ids of the calls that the client has agreed to."""
    if isinstance(items, str):
        return []
    return [
        each.approval_request_id
        for each in items
        if each.type == "mcp_approval_response" and each.approve and each.approval_request_id
    ]


def _to_message(item: Item) -> Message:
    if item.type == "message" and item.role:
        role = "system" if item.role == "developer" else item.role
        text, images = join_parts(_parts_of(item.content))
        return Message(role=role, content=text, images=images)
    if item.type in {"function_call", "custom_tool_call"} and item.name:
        name = qualified_name(item.namespace, item.name)
        if item.type == "function_call":
            call = function_call(item.call_id or "", name, item.arguments or "{}")
        else:
            custom = {"name": name, "input": item.input or ""}
            call = {"id": item.call_id or "", "type": "custom", "custom": custom}
        return Message(role="assistant", content=None, extra={"tool_calls": [call]})
    if item.type in {"function_call_output", "custom_tool_call_output"}:
        text, images = join_parts(_parts_of(item.output))
        extra = {"tool_call_id": item.call_id or ""}
        return Message(role="tool", content=text, images=images, extra=extra)
    if item.type == "reasoning":
        thought = text_of(item.content) or unpack_text(item.encrypted_content)
        return Message(role="assistant", content=None, extra={"reasoning_content": thought})
    raise RequestError(
        "an item is incomplete, or of a kind that this server does not know.",
        param="input",
        found=repr(item.type[:50]),
        expected="'message', 'reasoning', a call of a tool, its output, or an approval",
    )
