"""Schemas that are put in other words before they are compiled: what they allow stays the same."""

from __future__ import annotations

import json

import pytest
from llguidance import LLTokenizer

from blazr.text.grammars.child import make_matcher
from blazr.text.grammars.json_schema import json_schema, schema_source


def takes(schema: object, value: object) -> bool:
    """Whether a value may be written under a schema."""
    matcher = make_matcher(LLTokenizer("byte"), json_schema(schema, {}))
    assert not matcher.get_error(), matcher.get_error()
    data = list(json.dumps(value, ensure_ascii=False).encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "array", "uniqueItems": False}, [1, 1], {}),
        ({"type": "object", "propertyNames": {"type": "string"}}, {"a": 1}, []),  # of zod's records
        ({"items": {"propertyNames": {}}, "type": "array"}, [{"a": 1}], {}),
        ({"type": "object", "unevaluatedProperties": True}, {"a": 1}, []),
        ({"type": "object", "dependentRequired": {}, "dependentSchemas": {}}, {"a": 1}, []),
        ({"type": "string", "not": False}, "a", 1),
    ],
)
def test_a_keyword_that_allows_everything_says_nothing(
    schema: object, right: object, wrong: object
) -> None:
    assert takes(schema, right)
    assert not takes(schema, wrong)


NUMBERS = {"type": "object", "additionalProperties": {"type": "integer"}}


@pytest.mark.parametrize(
    "names",
    [
        {"enum": ["a", "b"]},
        {"type": "string", "enum": ["a", "b"], "title": "Letter"},
        {"pattern": "^[ab]$"},
        {"$ref": "#/$defs/Letter"},
    ],
)
def test_names_that_are_listed_are_properties(names: object) -> None:
    """As pydantic and zod write a mapping from an enum."""
    definitions = {"Letter": {"enum": ["a", "b"], "title": "Letter", "type": "string"}}
    schema = {**NUMBERS, "propertyNames": names, "$defs": definitions}
    assert takes(schema, {})
    assert takes(schema, {"a": 1, "b": 2})
    assert not takes(schema, {"c": 1})
    assert not takes(schema, {"a": "x"})
    assert takes({**schema, "required": ["a"]}, {"a": 1})
    assert not takes({**schema, "required": ["a"]}, {"b": 1})


@pytest.mark.parametrize(
    "names",
    [
        {"minLength": 2},
        {"enum": ["a"], "minLength": 2},
        {"type": "integer", "enum": ["a"]},
        {"enum": [1]},
        {"$ref": "#/$defs/Letter", "minLength": 2},
        {"$ref": "#/$defs/none"},
    ],
)
def test_other_names_are_left_to_be_refused(names: object) -> None:
    schema = {"$defs": {"Letter": {"enum": ["a"]}}, "items": {**NUMBERS, "propertyNames": names}}
    assert "propertyNames" in json.loads(schema_source(schema))["items"]


def test_names_beside_properties_are_left_to_be_refused() -> None:
    schema = {**NUMBERS, "propertyNames": {"enum": ["a"]}, "properties": {"b": {}}}
    assert "propertyNames" in json.loads(schema_source(schema))


@pytest.mark.parametrize(
    "uri",
    [
        "https://json-schema.org/draft-07/schema#",
        "http://json-schema.org/draft-07/schema",
        "http://json-schema.org/draft/2020-12/schema",
        "http://json-schema.org/schema#",
        "https://example.com/ours",
    ],
)
def test_a_metaschema_may_be_named_inexactly_or_be_another(uri: str) -> None:
    schema = {"$schema": uri, "properties": {"a": {"$schema": uri, "type": "string"}}}
    assert takes(schema, {"a": "x"})
    assert not takes(schema, {"a": 1})


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
