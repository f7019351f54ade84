"""Every error class is raised somewhere, drawn in its module's tree, and in the reference."""

import ast
import inspect
from collections.abc import Mapping
from pathlib import Path

import pytest

from blazr.core import errors

CLASSES = [
    name
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, errors.BlazrError)
]


@pytest.fixture(scope="module")
def made(sources: Mapping[str, ast.Module]) -> set[str]:
    """Names of everything called anywhere: an error is raised where it is made, or handed on."""
    calls = [n for tree in sources.values() for n in ast.walk(tree) if isinstance(n, ast.Call)]
    names = {call.func.id for call in calls if isinstance(call.func, ast.Name)}
    return names | {call.func.attr for call in calls if isinstance(call.func, ast.Attribute)}


@pytest.mark.parametrize("name", [name for name in CLASSES if name != "BlazrError"])
def test_is_raised_somewhere(name: str, made: set[str]) -> None:
    assert name in made, f"{name} is never raised: take it away"


@pytest.mark.parametrize("name", CLASSES)
def test_is_drawn_and_documented(name: str, root: Path) -> None:
    assert name in (errors.__doc__ or "")
    assert name in (root / "docs" / "reference" / "errors.md").read_text("utf-8")


def test_nothing_raises_a_bare_exception(sources: Mapping[str, ast.Module]) -> None:
    """Users get a BlazrError; Exception and RuntimeError say nothing."""
    vague = {"Exception", "RuntimeError", "BaseException"}
    found = [
        f"{name}:{node.lineno}"
        for name, tree in sources.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Call)
        and ast.unparse(node.exc.func) in vague
    ]
    assert not found
