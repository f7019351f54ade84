"""A chat: messages with roles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from blazr.core.errors import RequestError

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
SYSTEM_ROLES = frozenset({"system", "developer"})  # whoever gives instructions


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a chat.

    Args:
        role: ``"system"``, ``"user"``, ``"assistant"``, ``"tool"`` or what a template knows.
        content: The text; None where an assistant only called tools.
        extra: Other fields for the template (``tool_calls``, ``tool_call_id``, ``name``, …).
    """

    role: str
    content: str | None
    extra: Mapping[str, object] | None = None


def check_roles(messages: Iterable[Message], template: str) -> None:
    """Refuse messages of nobody: many templates would write any role, which no model has seen.

    Args:
        messages: A chat.
        template: The source of the chat template, which may name roles of its own.

    Raises:
        RequestError: There is such a message.
    """
    for role in {message.role for message in messages}.difference(ROLES):
        if f"'{role}'" not in template and f'"{role}"' not in template:
            raise RequestError(
                "a message has an unknown role.",
                param="messages",
                found=repr(role)[:50],
                expected=", ".join(ROLES),
            )
