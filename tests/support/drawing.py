"""Which test files draw: a pytest plugin for tools/seeds.py (``-p tests.support.drawing``).

A file draws where a test or a fixture of it moves a global generator of random numbers, of Python,
numpy or torch. Those are what a run's seed decides, besides what `draws_by_text` finds.
"""

from __future__ import annotations

import ast
import random
import re
import sys
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_TESTS = ROOT / "tests"
# Everything that takes its numbers from the seed of the run, or might.
_DRAWS = re.compile(r"hypothesis|run_seed|\brandom\b|rand(?:n|int|perm)?\(|normal_\(|uniform_\(")
_SEEDED_ANEW = "_seeds"  # the fixture that sets all generators before a test


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --draws."""
    parser.addoption("--draws", type=Path, help="add the files that draw to this one")


def _state() -> tuple[object, ...]:
    """Of the global generators."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    return (
        random.getstate(),
        numpy and str(numpy.random.get_state()),
        torch and torch.get_rng_state().numpy().tobytes(),
    )


def _note(config: pytest.Config, path: Path) -> None:
    with config.getoption("--draws").open("a") as file:  # one short line, in one piece
        file.write(f"{path.relative_to(ROOT)}\n")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """See whether a fixture draws; whoever uses it then does."""
    before = _state()
    found = yield
    if fixturedef.argname != _SEEDED_ANEW and _state() != before:
        for item in request.session.items:
            if fixturedef.argname in getattr(item, "fixturenames", ()):
                _note(request.config, item.path)
    return found


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """See whether a test draws."""
    before = _state()
    try:
        return (yield)
    finally:
        if _state() != before:
            _note(pyfuncitem.config, pyfuncitem.path)


def draws_by_text(path: Path) -> bool:
    """Whether a test file, a conftest.py above it, or a module of the tests it imports may draw.

    This finds what happens while files are imported, examples of Hypothesis, and what is made once
    and kept, of which only the first user would be seen to draw.
    """
    above = [each for each in path.parents if _TESTS in each.parents]
    seen: set[Path] = set()
    waiting = [path, *(each / "conftest.py" for each in above)]
    while waiting:
        each = waiting.pop()
        if each not in seen and each.exists():
            seen.add(each)
            waiting += _imported(each)
    return any(_DRAWS.search(each.read_text("utf-8")) for each in seen - {Path(__file__)})


@cache
def _imported(path: Path) -> list[Path]:
    """The modules of the tests that a file imports."""
    return [
        place
        for name in _names(ast.parse(path.read_text("utf-8")))
        for place in (
            (ROOT / name.replace(".", "/")).with_suffix(".py"),
            path.with_name(f"{name}.py"),
        )
        if _TESTS in place.parents and place.exists()
    ]


def _names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)
