"""What the types of bodies and replies say to the OpenAPI document besides their fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

__all__ = ["Example", "OneOf", "Schema", "any_given", "of_type", "schema_hint"]

Schema = dict[str, Any]
Example = dict[str, Any]  # a body to try


def schema_hint(**schema: object) -> msgspec.Meta:
    """More JSON schema of a type, for the OpenAPI document only: nothing is checked by it.

    The code that refuses such values does it with a better message than a schema's.
    """
    return msgspec.Meta(extra_json_schema=schema)


def any_given(*names: str, min_length: int = 0) -> Schema:
    """One of these fields is there, not null, and at least so many characters or items long."""
    kinds = {"type": ["string", "array"], "minLength": min_length}
    return {"anyOf": [{"required": [name], "properties": {name: kinds}} for name in names]}


def of_type(*types: str, **more: object) -> Schema:
    """The field ``type`` is one of these."""
    return {"properties": {"type": {"enum": types}}, "required": ["type"], **more}


if TYPE_CHECKING:
    from typing import Union as OneOf
else:

    class OneOf:
        """A union of Structs that are sent, told apart by a field that is not their first.

        To type checkers it is `typing.Union`. msgspec tells Structs in a union apart by tags, which
        it always writes first; this one is only described, never decoded.
        """

        kinds: tuple[type[msgspec.Struct], ...]

        def __class_getitem__(cls, kinds: tuple[type[msgspec.Struct], ...]) -> type:
            return type("OneOf", (cls,), {"kinds": kinds})
