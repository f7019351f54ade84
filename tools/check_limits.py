"""Check the limits that keep the tree readable; ruff checks the rest (see ruff.toml).

Run: python tools/check_limits.py
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CODE = ("src", "tests", "tools", "examples", "benchmarks")

FILE_LINES = 400
FUNCTION_LINES = 50
PUBLIC_METHODS = 12
MODULES_PER_DIRECTORY = 20
DOCUMENT_LINES = {"README.md": 150, "AGENTS.md": 60, "docs/adr/*.md": 60, "examples/*.py": 40}

# A file whose docstring says so holds constants, not code, and may be long.
DATA_MARK = "(data)"
# Names that say nothing about what is inside.
EMPTY_NAMES = {"utils", "util", "helpers", "common", "misc"}
# Module-level state that is meant: name, and why.
STATEFUL = {"core/log.py:_seen": "what has been said once stays said for the whole process"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def problems(root: Path = ROOT) -> list[str]:
    """Every limit that something under `root` crosses, as ``path: what``."""
    found: list[str] = []
    for top in CODE:
        for path in sorted((root / top).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            found += [f"{name}: {what}" for what in _check_file(path, name)]
    found += _check_directories(root)
    found += _check_documents(root)
    return found


def _check_file(path: Path, name: str) -> Iterator[str]:
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    num_lines = source.count("\n")
    if num_lines > FILE_LINES and DATA_MARK not in (ast.get_docstring(tree) or ""):
        yield f"{num_lines} lines, at most {FILE_LINES}"
    if path.stem in EMPTY_NAMES:
        yield "a name that says nothing; name the file after what is in it"
    for node in ast.walk(tree):
        yield from _check_node(node, name)
    if name.startswith("src/"):
        yield from _check_module_state(tree, name)


def _check_node(node: ast.AST, name: str) -> Iterator[str]:
    in_source = name.startswith("src/")
    if isinstance(node, Function):
        yield from _check_function(node, is_kernel="/kernels/triton/" in name)
    elif isinstance(node, ast.ClassDef):
        methods = [n.name for n in node.body if isinstance(n, Function)]
        num_public = sum(not method.startswith("_") for method in methods)
        if num_public > PUBLIC_METHODS and in_source:
            yield f"class {node.name} has {num_public} public methods, at most {PUBLIC_METHODS}"
    elif isinstance(node, ast.Global):
        yield f"line {node.lineno}: global; give the state an owner"
    elif isinstance(node, ast.Call) and in_source and ast.unparse(node.func) == "hasattr":
        yield f"line {node.lineno}: hasattr; declare what a type can do instead of probing it"


def _check_function(node: Function, *, is_kernel: bool) -> Iterator[str]:
    # the limit is on the body: flags in a signature and words in a docstring are free
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    num_lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
    if num_lines > FUNCTION_LINES and not is_kernel:
        yield f"the body of {node.name} has {num_lines} lines, at most {FUNCTION_LINES}"
    if node.name.startswith("_"):
        return
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


def _check_directories(root: Path) -> Iterator[str]:
    for package in sorted(path.parent for path in (root / "src").rglob("__init__.py")):
        num_modules = sum(path.name != "__init__.py" for path in package.glob("*.py"))
        if num_modules > MODULES_PER_DIRECTORY:
            name = package.relative_to(root).as_posix()
            yield f"{name}: {num_modules} modules, at most {MODULES_PER_DIRECTORY}"


def _check_documents(root: Path) -> Iterator[str]:
    for pattern, limit in DOCUMENT_LINES.items():
        for path in sorted(root.glob(pattern)):
            num_lines = path.read_text(encoding="utf-8").count("\n")
            if num_lines > limit:
                yield f"{path.relative_to(root).as_posix()}: {num_lines} lines, at most {limit}"


if __name__ == "__main__":
    crossed = problems()
    print("\n".join(crossed) or "limits: all kept")
    sys.exit(bool(crossed))
