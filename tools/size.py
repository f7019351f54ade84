"""Print the lines of each package beside its budget. Passing one takes an ADR, not a bigger number.

Run: python tools/size.py
"""

from __future__ import annotations

from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "blazr"

# Lines at full scope, docstrings and blanks included.
BUDGETS = {
    "core": 810,
    "nn": 10_840,
    "models": 10_500,
    "text": 8_700,
    "engine": 4_100,
    "pipelines": 400,
    "llm": 1_750,
    "server": 8_900,
    "bench": 1_700,
    "cli": 2_300,
}
# Lines of C++ that are more than a comment.
KERNELS, KERNELS_BUDGET = SOURCE / "nn" / "kernels" / "cpu" / "csrc", 3_500


def lines_of(path: Path) -> int:
    """Lines of a file, or of all Python files below a directory."""
    files = path.rglob("*.py") if path.is_dir() else [path]
    return sum(file.read_text(encoding="utf-8").count("\n") for file in files)


def kernel_lines(folder: Path = KERNELS) -> int:
    """Lines of C++ with something before a comment."""
    lines = (line for file in folder.iterdir() for line in file.read_text("utf-8").splitlines())
    return sum(bool(line.partition("//")[0].strip()) for line in lines)


def sizes(source: Path = SOURCE) -> dict[str, int]:
    """Lines by package, the files at the top as one entry."""
    by_package = {name: lines_of(source / name) for name in BUDGETS if (source / name).is_dir()}
    return {"(top)": sum(map(lines_of, source.glob("*.py"))), **by_package}


if __name__ == "__main__":
    found = sizes()
    for package, num_lines in found.items():
        budget = BUDGETS.get(package)
        share = f"of {budget:>6,}  {num_lines / budget:>5.0%}" if budget else ""
        print(f"{package:<8} {num_lines:>6,} lines {share}".rstrip())
    print(f"{'total':<8} {sum(found.values()):>6,} lines")
    print(f"C++      {kernel_lines():>6,} lines of {KERNELS_BUDGET:>6,}, comments and blanks aside")
