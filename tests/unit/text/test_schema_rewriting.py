"""Schemas that are put in other words before they are compiled: what they allow stays the same."""

from __future__ import annotations

import json

import pytest
from llguidance import LLTokenizer

from blazr.text.grammars.child import make_matcher
from blazr.text.grammars.json_schema import json_schema


def takes(schema: object, value: object) -> bool:
    """Whether a value may be written under a schema."""
    matcher = make_matcher(LLTokenizer("byte"), json_schema(schema, {}))
    assert not matcher.get_error(), matcher.get_error()
    data = list(json.dumps(value, ensure_ascii=False).encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


@pytest.mark.parametrize("name", ["default", "enum", "const", "examples", "format", "$ref", "not"])
def test_a_property_may_be_called_like_a_keyword(name: str) -> None:
    inner = {"type": "string", "format": "date"}
    for schema in (
        {"type": "object", "properties": {name: inner}, "additionalProperties": False},
        {
            "type": "object",
            "$defs": {name: inner},
            "properties": {name: {"$ref": f"#/$defs/{name}"}},
        },
    ):
        assert takes(schema, {name: "2024-02-29"})
        assert not takes(schema, {name: "2023-02-29"})


def test_a_value_may_look_like_a_reference() -> None:
    schema = {"enum": [{"$ref": "#/enum/0"}], "default": {"$ref": "#/default"}}
    assert takes(schema, {"$ref": "#/enum/0"})
