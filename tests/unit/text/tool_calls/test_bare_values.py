"""Values written without JSON's quotes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blazr.text.tool_calls.format import ToolSpec
from blazr.text.tool_calls.values import python_to_json, to_json, types_of, values_of


@pytest.mark.parametrize(
    ("text", "types", "expected"),
    [
        ("3", {"integer"}, 3),
        ("3", {"number"}, 3),
        ("3", {"string", "null"}, "3"),
        ("3", set(), 3),
        ("null", {"string", "null"}, None),
        ("True", {"boolean"}, True),
        ("None", {"integer", "null"}, None),
        ("None", set(), "None"),
        ("True", {"string"}, "True"),
        ('{"a": [1]}', {"object"}, {"a": [1]}),
        ('"x"', set(), '"x"'),
        ("two words", {"integer"}, "two words"),
        ("NaN", {"number"}, "NaN"),
        ("007", set(), "007"),
        ("", {"integer"}, ""),
        ("é\n", set(), "é\n"),
        ("{'a': [True, None]}", {"object"}, {"a": [True, None]}),
        ("['x', (1,)]", {"array", "null"}, ["x", [1]]),
        ("['x']", {"array", "string"}, "['x']"),
        ("['x']", set(), "['x']"),
        ("'x'", {"integer"}, "'x'"),
    ],
)
def test_the_schema_says_what_a_value_is(text: str, types: set[str], expected: object) -> None:
    assert json.loads(to_json(text, frozenset(types))) == expected


DEFINITIONS = {
    "unit": {"type": "string", "enum": ["c", "f"]},
    "tree": {"anyOf": [{"$ref": "#/$defs/tree"}, {"$ref": "#/$defs/tree"}, {"type": "integer"}]},
    "circle": {"$ref": "#/$defs/circle"},
}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"enum": ["a", 1, None]}, ["a", 1, None]),
        ({"anyOf": [{"$ref": "#/$defs/unit"}, {"type": "null"}]}, ["c", "f", None]),
        ({"anyOf": [{"$ref": "#/$defs/unit"}, {"type": "integer"}]}, []),
        ({"const": "a"}, ["a"]),
        ({"type": "string"}, []),
        ({"enum": "a"}, []),
        ({"enum": list(range(1001))}, []),
        ({"anyOf": [{"const": number} for number in range(100)]}, []),
        ({}, []),
    ],
)
def test_values_are_known_where_a_schema_lists_them(schema: object, expected: list[object]) -> None:
    tool = ToolSpec("f", {"properties": {"x": schema}, "$defs": DEFINITIONS})
    assert sorted(values_of(tool, "x"), key=repr) == sorted(expected, key=repr)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"enum": ["a", 1, None]}, {"string", "integer", "null"}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"string", "null"}),
        ({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/none"}]}, set()),
        ({"anyOf": [{"$ref": "#/$defs/unit"}, {"type": "null"}]}, {"string", "null"}),
        ({"allOf": [{"$ref": "#/$defs/unit"}], "default": "c"}, {"string"}),
        ({"$ref": "#/$defs/tree"}, {"integer"}),
        ({"$ref": "#/$defs/circle"}, set()),
        ({"const": "a"}, {"string"}),
        ({}, set()),
        (True, set()),
    ],
)
def test_types_are_read_from_a_schema(schema: object, expected: set[str]) -> None:
    tool = ToolSpec("f", {"properties": {"x": schema}, "$defs": DEFINITIONS})
    assert types_of(tool, "x") == expected
    assert types_of(tool, "y") == set()
    assert types_of(None, "x") == set()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[1, (2, 'a'), {'b': None}]", [1, [2, "a"], {"b": None}]),
        ("(1,)", [1]),
        ("[1, 2 , ]", [1, 2]),
        ("-1.5e3", -1500.0),
        (r"'it\'s \"q\" \x41 \u00e9 \ud83d\ude00'", 'it\'s "q" A é 😀'),
        ("true", True),
        ("{}", {}),
    ],
)
def test_python_literals_become_json(text: str, expected: object) -> None:
    found = python_to_json(text)
    assert found is not None
    assert json.loads(found) == expected


@pytest.mark.parametrize(
    "text", ["", "x", "f()", "1 2", "[1", "'a", "{1: 2}", "NaN", "a.b", "[[" * 5000, "__import__"]
)
def test_what_is_no_literal_is_refused(text: str) -> None:
    assert python_to_json(text) is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.text("aé'\"\\\n\0 ,]", max_size=5),
        lambda inner: st.lists(inner) | st.dictionaries(st.text("ab'"), inner),
        max_leaves=6,
    )
)
def test_repr_and_json_are_both_read(value: object) -> None:
    for text in (repr(value), json.dumps(value)):
        found = python_to_json(text)
        assert found is not None
        assert json.loads(found) == value
