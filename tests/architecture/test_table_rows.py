"""Tables are complete: every lazy row resolves, every file that should be a row is one."""

import importlib
import pkgutil
from collections.abc import Mapping

import pytest

import blazr
from blazr.core.table import Table


@pytest.fixture(scope="module")
def tables() -> Mapping[str, Table]:
    """Every table of the package, by module and name."""
    found: dict[str, Table] = {}
    for info in pkgutil.walk_packages(blazr.__path__, "blazr."):
        if info.name.endswith("__main__"):
            continue  # importing it is running it
        for name, value in vars(importlib.import_module(info.name)).items():
            if isinstance(value, Table) and not any(value is table for table in found.values()):
                found[f"{info.name}:{name}"] = value
    return found


def test_there_are_tables(tables: Mapping[str, Table]) -> None:
    assert tables


def test_every_row_resolves(tables: Mapping[str, Table]) -> None:
    for name, table in tables.items():
        assert len(table), f"{name} is empty"
        for key in table:
            assert table[key] is not None, f"{name}[{key!r}]"
