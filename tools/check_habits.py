"""Check the habits that keep the tree readable; ruff checks the rest (see ruff.toml).

Habits fail the check. Lengths are printed as hints: a long file or function is worth a second
look, and splitting it for its length alone is not.

Run: python tools/check_habits.py
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CODE = ("src", "tests", "tools", "examples", "benchmarks")

FILE_LINES = 600
FUNCTION_LINES = 80
README_LINES = 150

# A file whose docstring says so holds constants, not code, and may be long.
DATA_MARK = "(data)"
# Names that say nothing about what is inside.
EMPTY_NAMES = {"utils", "util", "helpers", "common", "misc"}
# Module-level state that is meant: name, and why.
STATEFUL = {"core/log.py:_seen": "what has been said once stays said for the whole process"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def problems(root: Path = ROOT) -> list[str]:
    """Return every habit that something under `root` breaks, as ``path: what``."""
    found: list[str] = []
    for name, source in _sources(root):
        found += [f"{name}: {what}" for what in _broken_habits(name, source)]
    readme = root / "README.md"
    if (
        readme.exists()
        and (num_lines := readme.read_text(encoding="utf-8").count("\n")) > README_LINES
    ):
        found.append(f"README.md: {num_lines} lines, at most {README_LINES}")
    return found


def hints(root: Path = ROOT) -> list[str]:
    """Return what is long under `root`, as ``path: what``; nothing fails because of it."""
    found: list[str] = []
    for name, source in _sources(root):
        tree = ast.parse(source)
        num_lines = source.count("\n")
        if num_lines > FILE_LINES and DATA_MARK not in (ast.get_docstring(tree) or ""):
            found.append(f"{name}: {num_lines} lines")
        for node in ast.walk(tree):
            if isinstance(node, Function) and (length := _body_lines(node)) > FUNCTION_LINES:
                found.append(f"{name}: the body of {node.name} has {length} lines")
    return found


def _sources(root: Path) -> Iterator[tuple[str, str]]:
    for top in CODE:
        for path in sorted((root / top).rglob("*.py")):
            yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")


def _body_lines(node: Function) -> int:
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def _broken_habits(name: str, source: str) -> Iterator[str]:
    in_source = name.startswith("src/")
    if Path(name).stem in EMPTY_NAMES:
        yield "a name that says nothing; name the file after what is in it"
    if not in_source and not re.search(r"\b(?:Any|global)\b", source):
        return  # to parse it takes longer than all the rest
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, Function) and not node.name.startswith("_"):
            yield from _check_signature(node)
        elif isinstance(node, ast.Global):
            yield f"line {node.lineno}: global; give the state an owner"
        elif isinstance(node, ast.Call) and in_source and ast.unparse(node.func) == "hasattr":
            yield f"line {node.lineno}: hasattr; declare what a type can do instead of probing it"
    if in_source:
        yield from _check_module_state(tree, name)


def _check_signature(node: Function) -> Iterator[str]:
    arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    hints = [a.annotation for a in arguments] + [node.returns]
    if any(hint is not None and "Any" in re.findall(r"\w+", ast.unparse(hint)) for hint in hints):
        yield f"{node.name} has Any in its public signature"


def _check_module_state(tree: ast.Module, name: str) -> Iterator[str]:
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        # a container that starts empty is there to be filled
        if ast.unparse(node.value) in {"[]", "{}", "set()", "dict()", "list()"}:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if f"{name.removeprefix('src/blazr/')}:{ast.unparse(target)}" not in STATEFUL:
                yield f"line {node.lineno}: mutable module state {ast.unparse(target)}"


if __name__ == "__main__":
    for hint in hints():
        print(f"hint: {hint}")
    broken = problems()
    print("\n".join(broken) or "habits: all kept")
    sys.exit(bool(broken))
