"""Print the lines of code of each package, and how many functions are helpers used once.

The figures show a trend; no test holds them. Code lines leave out blank lines, comments and
docstrings, as cloc counts them.

Run: python tools/size.py [--helpers models/loading]
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "blazr"
KERNELS = SOURCE / "nn" / "kernels" / "cpu" / "csrc"

Function = ast.FunctionDef | ast.AsyncFunctionDef


def code_lines(source: str) -> int:
    """Lines of Python that are neither blank, nor a comment, nor part of a docstring."""
    docstring_lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, Function | ast.ClassDef | ast.Module):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            docstring_lines.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in docstring_lines
        for number, line in enumerate(source.splitlines(), 1)
    )


def sizes(source: Path = SOURCE) -> dict[str, int]:
    """Code lines by package; the files at the top are one entry."""
    found: Counter[str] = Counter()
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).parts
        found[parts[0] if len(parts) > 1 else "(top)"] += code_lines(path.read_text("utf-8"))
    return dict(found)


def kernel_lines(folder: Path = KERNELS) -> int:
    """Lines of C++ with something before a comment."""
    lines = (line for file in folder.iterdir() for line in file.read_text("utf-8").splitlines())
    return sum(bool(line.partition("//")[0].strip()) for line in lines)


def helpers_used_once(source: Path = SOURCE) -> tuple[list[str], list[str], int]:
    """The private functions whose name appears in one other place of their file.

    Returns:
        Those that are called there; those that are named there as values, as rows of tables and
        callbacks are, or that a decorator takes; and how many functions there are in all.
    """
    num_functions = 0
    called: list[str] = []
    named: list[str] = []
    for path in sorted(source.rglob("*.py")):
        text = path.read_text("utf-8")
        words = Counter(re.findall(r"\w+", text))
        nodes = list(ast.walk(ast.parse(text)))
        functions = [node for node in nodes if isinstance(node, Function)]
        num_functions += len(functions)
        calls = {
            node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            for node in nodes
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name)
        }
        for node in functions:
            is_private = node.name.startswith("_") and not node.name.startswith("__")
            if is_private and words[node.name] == 2:
                is_called = node.name in calls and not node.decorator_list
                place = f"{path.relative_to(source)}:{node.lineno} {node.name}"
                (called if is_called else named).append(place)
    return called, named, num_functions


def main() -> None:
    """Print the figures, or the list that `--helpers` asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--helpers", metavar="PREFIX", help="list those that are called, below it")
    prefix = parser.parse_args().helpers
    called, named, num_functions = helpers_used_once()
    if prefix is not None:
        print(*(line for line in called if line.startswith(prefix)), sep="\n")
        return
    found = sizes()
    for package, num_lines in found.items():
        print(f"{package:<10} {num_lines:>7,} code lines")
    print(f"{'total':<10} {sum(found.values()):>7,} code lines")
    print(f"{'C++':<10} {kernel_lines():>7,} code lines")
    print(
        f"private helpers called from one place: {len(called)} of {num_functions} functions,"
        f" {len(called) / num_functions:.1%}; named in one place as a value: {len(named)}"
    )


if __name__ == "__main__":
    main()
