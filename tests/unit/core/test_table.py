"""Rows by name: order, laziness, and answers to a wrong name."""

import math
import sys

import pytest

from blazr.core.errors import UnknownNameError
from blazr.core.table import Table

pytestmark = pytest.mark.smoke


def test_rows_come_in_the_order_given() -> None:
    table = Table("fruit", {"pear": 1, "apple": 2}, lazy={"fig": "math:pi"})
    assert list(table) == ["pear", "apple", "fig"]
    assert len(table) == 3


def test_a_lazy_row_is_imported_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    table: Table[object] = Table("module", {}, lazy={"colour": "colorsys:rgb_to_hsv"})
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    assert "colour" in table
    assert "colorsys" not in sys.modules
    assert callable(table["colour"])
    assert "colorsys" in sys.modules
    assert list(table) == ["colour"]
    assert len(table) == 1


def test_a_wrong_name_is_answered_with_the_closest() -> None:
    table = Table("vocabulary", {"llama3": 1, "cl100k_base": 2})
    with pytest.raises(UnknownNameError) as raised:
        table["lama3"]
    assert raised.value.hint == "did you mean 'llama3'?"
    assert raised.value.expected == "llama3, cl100k_base"
    assert "lama3" not in table


def test_a_long_name_is_not_echoed() -> None:
    with pytest.raises(UnknownNameError) as raised:
        Table("vocabulary", {"llama3": 1})["x" * 10_000]
    assert len(str(raised.value)) < 300


def test_an_empty_table_says_so() -> None:
    with pytest.raises(UnknownNameError, match="the table is empty"):
        Table("thing", {})["x"]


def test_resolving_a_row_keeps_the_order() -> None:
    table = Table("thing", {"a": print}, lazy={"b": "math:floor", "c": "math:ceil"})
    assert table["c"] is math.ceil
    assert list(table) == ["a", "b", "c"]
