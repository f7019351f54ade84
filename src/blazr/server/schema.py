"""What the types of bodies and replies say to the OpenAPI document besides their fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

__all__ = [
    "CHAT",
    "END",
    "Example",
    "OneOf",
    "Schema",
    "any_given",
    "of_type",
    "one_given",
    "schema_hint",
]

Schema = dict[str, Any]
Example = dict[str, Any]  # a body to try
END = r"$(?!\n)"  # of a pattern: $ alone also matches before a newline; JSON Schema has no \Z
CHAT: Example = {"messages": [{"role": "user", "content": "Tell me of a cat."}]}


def schema_hint(**schema: object) -> msgspec.Meta:
    """More JSON schema of a type, for the OpenAPI document only: nothing is checked by it.

    The code that refuses such values does it with a better message than a schema's.
    """
    return msgspec.Meta(extra_json_schema=schema)


def any_given(*names: str, min_length: int = 0) -> Schema:
    """One of these fields is there, not null, and at least so many characters or items long."""
    kinds = {"type": ["string", "array", "object"], "minLength": min_length}
    return {"anyOf": [{"required": [name], "properties": {name: kinds}} for name in names]}


def one_given(*names: str) -> Schema:
    """One of these fields is there and not null, and no other of them."""
    return {"oneOf": any_given(*names)["anyOf"]}


def of_type(*types: str, **more: object) -> Schema:
    """The field ``type`` is one of these."""
    return {"properties": {"type": {"enum": types}}, "required": ["type"], **more}


if TYPE_CHECKING:
    from typing import Union as OneOf
else:

    class OneOf:
        """A union of Structs whose ``type`` is not their first field; to type checkers, `Union`.

        It may have lists of them, too, and lists of numbers.

        msgspec allows Structs in a union only with tags, and writes a tag before all fields. What
        clients know has ``id`` first, so these have no tag: they are encoded, never decoded, and
        `blazr.server.openapi` writes the schema.
        """

        kinds: tuple[type[msgspec.Struct], ...]

        def __class_getitem__(cls, kinds: tuple[type[msgspec.Struct], ...]) -> type:
            return type("Or".join(each.__name__ for each in kinds), (cls,), {"kinds": kinds})
