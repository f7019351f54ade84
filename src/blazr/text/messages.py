"""A chat: messages with roles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from blazr.text.images import Image, openai_content

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
SYSTEM_ROLES = frozenset({"system", "developer"})  # whoever gives instructions


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a chat.

    Args:
        role: ``"system"``, ``"user"``, ``"assistant"``, ``"tool"`` or what a template knows.
        content: The text; None where an assistant only called tools.
        images: What stands between the characters of its content, in order.
        extra: Other fields for the template (``tool_calls``, ``tool_call_id``, ``name``, …).
    """

    role: str
    content: str | None
    images: tuple[Image, ...] = ()
    extra: Mapping[str, object] | None = None


def function_call(call_id: str, name: str, arguments: object) -> dict[str, object]:
    """A call as one of the ``tool_calls`` of an assistant's message.

    Args:
        call_id: By which its result is found.
        name: The function's.
        arguments: An object, or the text of one.
    """
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def function_tool(
    name: str, description: str, parameters: Mapping[str, object]
) -> dict[str, object]:
    """A function as one of the tools of a chat; its parameters are JSON schema."""
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def openai_message(message: Message) -> dict[str, object]:
    """A message as OpenAI's API takes it, images and all."""
    content = openai_content(message.content, message.images)
    return {"role": message.role, "content": content, **(message.extra or {})}
