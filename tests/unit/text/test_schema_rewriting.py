"""Schemas that are put in other words before they are compiled: what they allow stays the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import pytest
from llguidance import LLTokenizer

from blazr.core.errors import GrammarError
from blazr.text.grammars import schema_rewriting
from blazr.text.grammars.child import make_matcher
from blazr.text.grammars.json_schema import json_schema, schema_source
from blazr.text.grammars.schema_rewriting import as_rust


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


@pytest.mark.parametrize("form", ["password", "path", "binary", "int64", "x-ours"])
def test_a_format_that_no_draft_defines_is_an_annotation(form: str) -> None:
    schema = {"type": ["string", "integer"], "format": form, "maxLength": 2}
    assert takes(schema, "ab")
    assert takes(schema, 1)
    assert not takes(schema, "abc")


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        ("^[a[b]c]$", ["ac]", "[c]"], ["a", "c]"]),
        ("^[[:alpha:]]$", ["[]", "p]"], ["p", "z]"]),
        ("^[^[]$", ["a", "]"], ["["]),
        ("^[a&&b]$", ["a", "b", "&"], [""]),
        ("^[^a~~b]$", ["c"], ["a", "~"]),
        ("^[+--]$", ["+", ",", "-"], ["."]),
        ("^[--/]$", ["-", ".", "/"], ["+"]),
        ("^[-+]$", ["-", "+"], [","]),
        (r"^[\w.-]+$", ["a.-"], ["[", "+"]),
        ("^[^]$", ["a", "\n"], ["", "ab"]),
        (r"^\$\{.+}$", ["${a}"], ["{a}"]),
        ("^{[a-z]{2}}$", ["{ab}"], ["{a}"]),
        ("^a{,2}$", ["a{,2}"], ["aa"]),
        ("^a{1,}b{2}$", ["abb"], ["ab"]),
        (r"^\p{Lu}\x{41}\u{42}$", ["ZAB"], ["zAB"]),
        (r"^\[[^\]\[]*\]$", ["[a]"], ["[[]"]),
    ],
)
def test_patterns_are_those_of_javascript(pattern: str, right: list[str], wrong: list[str]) -> None:
    schema = {"type": "string", "pattern": pattern}
    names = {"type": "object", "patternProperties": {pattern: {}}, "additionalProperties": False}
    assert [text for text in right if not takes(schema, text)] == []
    assert [text for text in wrong if takes(schema, text)] == []
    assert [text for text in right if not takes(names, {text: 1})] == []
    assert [text for text in wrong if takes(names, {text: 1})] == []


@pytest.mark.parametrize("part", ["[", "[\\", "{", "\\p{", "[^"])
def test_a_long_pattern_is_read_in_linear_time(part: str) -> None:
    assert len(as_rust(part * 300_000)) >= len(part) * 300_000


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


def tagged(tag: object, **properties: object) -> dict[str, object]:
    """An object that a property tells from others, which may be left out."""
    all_of_them = {"kind": {"const": tag, "default": tag}, **properties}
    return {"type": "object", "properties": all_of_them, "additionalProperties": False}


DEFINITIONS = {
    "Cat": tagged("cat", lives={"type": "integer"}),
    "Dog": {**tagged("dog", bark={"type": "string"}), "required": ["kind", "bark"]},
    "Pair": {**tagged("pair", left={"$ref": "#/$defs/Any"}), "required": ["kind", "left"]},
    "Any": {"oneOf": [{"$ref": "#/$defs/Pair"}, {"$ref": "#/$defs/Leaf"}], "title": "Any"},
    "Leaf": tagged("leaf"),
    "Kind": {"enum": ["fish", "bird"]},
    "Late": {"allOf": [{"$ref": "#/$defs/Base"}, {"properties": {"kind": {"const": "late"}}}]},
    "Base": {"type": "object", "properties": {"kind": {"type": "string"}}},
    "Early": {"type": "object", "properties": {"kind": {"enum": ["early", "dawn"]}}},
    "Animal": {"type": "object", "properties": {"kind": {"$ref": "#/$defs/Kind"}}},
}


def one_of(*names: str, **others: object) -> dict[str, object]:
    references = [{"$ref": f"#/$defs/{name}"} for name in names]
    return {"$defs": DEFINITIONS, "oneOf": references, **others}


def test_a_union_with_a_discriminator_has_it() -> None:
    """As pydantic writes one, with references and defaults."""
    schema = one_of("Cat", "Dog", discriminator={"propertyName": "kind", "mapping": {}})
    assert takes(schema, {"kind": "cat", "lives": 9})
    assert takes(schema, {"kind": "dog", "bark": "b"})
    for wrong in ({"lives": 9}, {}, {"kind": "dog"}, {"kind": "bird"}, {"kind": "cat", "bark": ""}):
        assert not takes(schema, wrong), wrong
    assert "required" not in DEFINITIONS["Cat"], "what was given stays as it is"


def test_a_union_may_be_recursive() -> None:
    discriminator = {"propertyName": "kind"}
    schema = {"$defs": DEFINITIONS, "$ref": "#/$defs/Any", "discriminator": discriminator}
    leaf: object = {"kind": "leaf"}
    for _ in range(3):
        assert takes(schema, leaf)
        leaf = {"kind": "pair", "left": leaf}
    assert not takes(schema, {"kind": "pair", "left": {}})


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (one_of("Late", "Early"), [{"kind": "late"}, {"kind": "dawn"}], [{}, {"kind": "x"}]),
        (one_of("Animal", "Cat"), [{"kind": "fish"}, {"kind": "cat"}], [{"kind": "dog"}]),
        (one_of("Kind", "Cat"), ["fish", {"kind": "cat"}, {}], ["cat"]),
        ({"oneOf": [{"const": 1}, {"enum": [2, True]}]}, [1, 2, True], [3, False]),
        (
            {"oneOf": [{"type": "object", "properties": {"": {"const": x}}} for x in "ab"]},
            [{"": "a"}, {"": "b"}],
            [{}, {"": "c"}],
        ),
        ({"oneOf": [{"type": "integer"}, {"type": ["null", "string"]}]}, [1, None, "a"], [[]]),
        (
            {"oneOf": [{"type": "string"}, {"type": "null"}], "anyOf": [{"maxLength": 1}]},
            ["a", None],
            ["ab"],
        ),
    ],
)
def test_alternatives_that_exclude_each_other_are_told_apart(
    schema: object, right: list[object], wrong: list[object]
) -> None:
    assert [value for value in right if not takes(schema, value)] == []
    assert [value for value in wrong if takes(schema, value)] == []


@pytest.mark.parametrize(
    "schema",
    [
        one_of("Cat", "Cat"),
        one_of("Cat", "Base"),
        one_of("Cat", "none"),
        {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        {"oneOf": [{"const": 1}, {"const": 1.0}]},
        {"oneOf": [{"properties": {"a": {"const": 1}}}, {"properties": {"a": {"const": 2}}}]},
        {"oneOf": [{}, {"type": "null"}]},
        {"oneOf": [{"const": number} for number in range(99)]},
    ],
)
def test_other_alternatives_are_left_to_be_refused(schema: object) -> None:
    assert "oneOf" in json.loads(schema_source(schema))


def test_many_unions_of_many_take_no_time() -> None:
    """Counted in pairs that are compared, not in seconds."""
    definitions = {f"d{n}": tagged(n) for n in range(64)}
    union = {"oneOf": [{"$ref": f"#/$defs/d{n}"} for n in range(64)]}
    unions = {f"u{n}": union for n in range(50)}
    compared = 0
    compare = schema_rewriting._difference

    def counted(*facts: schema_rewriting._Facts) -> tuple[str, ...] | None:
        nonlocal compared
        compared += 1
        return compare(*facts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema_rewriting, "_difference", counted)
        schema_source({"$defs": definitions, "properties": unions})
    assert compared == 64 * 63 // 2


def row_of_references(count: int) -> dict[str, object]:
    """Many names that are looked for behind many references, which lead from one to the next."""
    rows: dict[str, object] = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(count)}
    names = {"propertyNames": {"$ref": "#/$defs/d0"}}
    return {"$defs": rows, "properties": {f"p{n}": names for n in range(count)}}


def many_conditions(count: int) -> dict[str, object]:
    """Many alternatives, each of many conditions."""
    conditions: dict[str, object] = {f"d{n}": tagged(n) for n in range(count)}
    whole = {"allOf": [{"$ref": f"#/$defs/d{n}"} for n in range(count)]}
    unions = {f"u{n}": {"oneOf": [{**whole, "title": n}, {**whole}]} for n in range(count)}
    return {"$defs": conditions, "properties": unions}


@pytest.mark.parametrize("make", [row_of_references, many_conditions])
def test_references_are_looked_up_a_bounded_number_of_times(
    make: Callable[[int], dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up = 0
    resolve = schema_rewriting.resolve

    def counted(root: Mapping[str, object], pointer: str) -> object:
        nonlocal looked_up
        looked_up += 1
        return resolve(root, pointer)

    monkeypatch.setattr(schema_rewriting, "resolve", counted)
    schema_rewriting.rewrite(make(300))
    assert looked_up < 300 * 2 * 66


@pytest.mark.parametrize(
    ("bounds", "right", "wrong"),
    [
        ({"minimum": -(2**63), "maximum": 2**63 - 1}, [-(2**63) + 1024, 0, 2**60 + 1], 2**63),
        ({"minimum": 2**60}, [2**60, 2**60 + 1], 2**60 - 1),
        ({"maximum": -(10**18)}, [-(10**18)], -(10**18) + 1),
        ({"minimum": 2**53 + 1}, [2**53 + 2], 2**53),
        ({"maximum": 2**53 + 1}, [2**53], 2**53 + 2),
        ({"exclusiveMinimum": 2**53, "maximum": 2**54}, [2**53 + 2, 2**54], 2**53),
        ({"exclusiveMinimum": -1, "exclusiveMaximum": 2**64}, [0, 2**62], -1),
    ],
)
def test_bounds_of_long_integers_are_kept(
    bounds: dict[str, object], right: list[int], wrong: int
) -> None:
    for types in ("integer", ["integer", "null"]):
        schema = {"type": types, **bounds}
        assert all(takes(schema, each) for each in right)
        assert not takes(schema, wrong)


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"const": 2**60 + 1}, "const"),
        ({"enum": [1, {"id": [-(2**53) - 1]}]}, "enum"),
        ({"enum": [2**64]}, "enum"),
        ({"type": "integer", "minimum": 2**63}, "minimum"),
        ({"type": "integer", "minimum": 10**400}, "minimum"),
        ({"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 1}, "minimum"),
    ],
)
def test_integers_that_would_become_others_are_refused(schema: object, keyword: str) -> None:
    with pytest.raises(GrammarError, match=f"cannot be enforced: see {keyword}"):
        json_schema({"properties": {"x": schema}}, {})


def test_integers_that_a_double_holds_are_kept() -> None:
    for value in (2**53, -(2**53), 2**60, 10**18):
        assert takes({"const": value}, value)
