"""What the scripts of benchmarks and tools take from blazr and from the tests is there."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NANO = ROOT / "tools" / "nano"
SCRIPTS = [
    path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
    for folder in ("benchmarks", "tools")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
SLOW = {"benchmarks.random_hybrid"}  # transformers takes long to import
OPTIONAL = {"playwright", "triton"}  # of extras that the tests do without


@pytest.fixture
def _beside_nano(monkeypatch: pytest.MonkeyPatch):
    """Those of nano find each other, as they do when they are run, and nobody does afterwards."""
    monkeypatch.setattr(sys, "path", [str(NANO), *sys.path])
    yield
    for path in NANO.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.mark.usefixtures("_beside_nano")
@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=[pytest.mark.slow] * (each in SLOW)) for each in SCRIPTS],
)
def test_it_can_be_imported(name: str) -> None:
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in OPTIONAL:
            raise
        pytest.skip(f"{error.name} is not installed")
