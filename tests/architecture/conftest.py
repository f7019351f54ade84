"""The scripts of tools/ as modules, and the source as syntax trees."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def load_tool() -> Callable[[str], ModuleType]:
    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session")
def sources() -> Mapping[str, ast.Module]:
    """Every module of the package, parsed, by path below src."""
    base = ROOT / "src"
    return {
        path.relative_to(base).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(base.rglob("*.py"))
    }
