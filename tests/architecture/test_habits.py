"""The habits of tools/check_habits.py are kept, and the tool would notice if they were not."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

Load = Callable[[str], ModuleType]


def test_habits_are_kept(load_tool: Load) -> None:
    assert load_tool("check_habits").problems() == []


@pytest.mark.parametrize(
    ("file", "source", "complaint"),
    [
        ("src/blazr/utils.py", "", "a name that says nothing"),
        ("src/blazr/a.py", "def f():\n    global x\n", "global"),
        ("src/blazr/a.py", "y = hasattr(1, 'x')\n", "hasattr"),
        ("src/blazr/a.py", "def f(x: dict[str, Any]) -> None: ...\n", "Any in its public"),
        ("src/blazr/a.py", "seen: set[str] = set()\n", "mutable module state seen"),
        ("README.md", "x\n" * 151, "151 lines"),
    ],
)
def test_a_broken_habit_is_found(
    load_tool: Load, tmp_path: Path, file: str, source: str, complaint: str
) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    (found,) = load_tool("check_habits").problems(tmp_path)
    assert file in found
    assert complaint in found


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("x = 1\n" * 601, ["601 lines"]),
        ("def f():\n" + "    x = 1\n" * 81, ["the body of f has 81 lines"]),
        ('"""Constants (data)."""\n' + "x = 1\n" * 700, []),
        ('def f():\n    """Words.\n' + "    more\n" * 90 + '    """\n', []),
    ],
)
def test_lengths_are_hints(load_tool: Load, tmp_path: Path, source: str, hint: list[str]) -> None:
    path = tmp_path / "src" / "blazr" / "a.py"
    path.parent.mkdir(parents=True)
    path.write_text(source)
    tool = load_tool("check_habits")
    assert tool.problems(tmp_path) == []
    assert [found.partition(": ")[2] for found in tool.hints(tmp_path)] == hint
