"""The limits of tools/check_limits.py are kept, and the tool would notice if they were not."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

Load = Callable[[str], ModuleType]


def test_limits_are_kept(load_tool: Load) -> None:
    assert load_tool("check_limits").problems() == []


def test_packages_stay_within_their_budget(load_tool: Load) -> None:
    size = load_tool("size")
    found = size.sizes()
    over = {name: n for name, n in found.items() if n > size.BUDGETS.get(name, 100)}
    assert not over, "a package over its budget needs an ADR"


def test_kernels_stay_within_their_budget(load_tool: Load) -> None:
    size = load_tool("size")
    assert 1_000 < size.kernel_lines() < size.KERNELS_BUDGET


def test_every_package_has_a_budget(load_tool: Load, root: Path) -> None:
    packages = {path.parent.name for path in (root / "src" / "blazr").glob("*/__init__.py")}
    assert packages <= set(load_tool("size").BUDGETS) | {"data"}


@pytest.mark.parametrize(
    ("file", "source", "complaint"),
    [
        ("src/blazr/a.py", "x = 1\n" * 401, "401 lines"),
        ("src/blazr/a.py", "def f():\n" + "    x = 1\n" * 51, "the body of f has 51 lines"),
        ("src/blazr/utils.py", "", "a name that says nothing"),
        ("src/blazr/a.py", "def f():\n    global x\n", "global"),
        ("src/blazr/a.py", "y = hasattr(1, 'x')\n", "hasattr"),
        ("src/blazr/a.py", "def f(x: dict[str, Any]) -> None: ...\n", "Any in its public"),
        ("src/blazr/a.py", "seen: set[str] = set()\n", "mutable module state seen"),
        ("README.md", "x\n" * 151, "151 lines"),
        ("docs/adr/0001-x.md", "x\n" * 61, "61 lines"),
        ("examples/x.py", "x = 1\n" * 41, "41 lines"),
    ],
)
def test_limits_bite(
    load_tool: Load, tmp_path: Path, file: str, source: str, complaint: str
) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    (found,) = load_tool("check_limits").problems(tmp_path)
    assert file in found
    assert complaint in found


def test_docstrings_and_data_do_not_count(load_tool: Load, tmp_path: Path) -> None:
    path = tmp_path / "src" / "data.py"
    path.parent.mkdir()
    words = '    """Words.\n' + "    more\n" * 60 + '    """\n'
    path.write_text('"""Constants (data)."""\n' + "x = 1\n" * 500 + "def f():\n" + words)
    assert load_tool("check_limits").problems(tmp_path) == []
