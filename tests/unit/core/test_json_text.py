"""What is written as JSON can be read as JSON."""

from __future__ import annotations

import json
import math

import msgspec
import pytest

from blazr.core.json_text import dump_json


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
