"""What is written as JSON can be read as JSON."""

from __future__ import annotations

import json
import math

import msgspec
import pytest

from blazr.core.json_text import dump_json, is_cut_off, whole_members


def test_what_json_has_no_words_for_is_null() -> None:
    value = {"a": [math.inf, (-math.inf, 1.5)], "b": {"c": math.nan, "d": "é"}, "e": None, "f": 1}
    expected = {"a": [None, [None, 1.5]], "b": {"c": None, "d": "é"}, "e": None, "f": 1}
    for options in ({}, {"indent": 2}, {"ensure_ascii": False}):
        assert msgspec.json.decode(dump_json(value, **options)) == expected
    assert dump_json(value["b"]["d"]) == '"\\u00e9"'
    assert dump_json({"a": [0.1, True]}) == json.dumps({"a": [0.1, True]})


def test_what_is_no_plain_value_is_refused() -> None:
    with pytest.raises(TypeError):
        dump_json({"a": object()})


@pytest.mark.parametrize(
    ("text", "members"),
    [
        ("", {}),
        ("{", {}),
        ('{"a', {}),
        ('{"a"', {}),
        ('{"a": "b', {}),
        ('{"a": 12', {}),
        ('{"a": 12 ,', {"a": 12}),
        ('{ "a": 12, "b": [1, 2', {"a": 12}),
        ('{"a": {"b": [1]}, "c": "d"', {"a": {"b": [1]}}),
        ('{"a": "b"}', {"a": "b"}),
        ('{"a" 1, "b": 2}', {}),
        ('{"a": ' + "[" * 100_000, {}),
        ("[1, 2]", {}),
        ("12", {}),
    ],
)
def test_members_that_came_whole(text: str, members: dict) -> None:
    assert whole_members(text) == members


@pytest.mark.parametrize(
    "text",
    [
        '{"a": [1.5e-3, {"b": "\\u00e9\\ud83d\\ude00"}], "c": -12, "d": true, "e": null}',
        ' {"a": {}}',
    ],
)
def test_every_beginning_of_an_object_is_cut_off(text: str) -> None:
    first = text.index("{") + 1
    assert all(is_cut_off(text[:place]) for place in range(first, len(text)))
    assert not is_cut_off(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "12",
        "[1",
        "not json",
        "{'a': 1",
        '{"a": 1]',
        '{"a": 1} {',
        '{"a": ' + "[" * 100_000,
    ],
)
def test_other_texts_are_not(text: str) -> None:
    assert not is_cut_off(text)
