"""The tree speaks of itself alone, and no half-finished work stands in it."""

import re
from pathlib import Path

import pytest

KINDS = {".py", ".md", ".toml", ".ini", ".yaml", ".yml", ".json", ".cfg", ""}
HIDDEN_BUT_OURS = {".ci", ".github", ".importlinter", ".pre-commit-config.yaml", ".gitignore"}

FORBIDDEN = {
    "a path on somebody's machine": r"(?<![\w.~])/(?:home|root|work|mnt|Users|tmp/\w)/",
    "an unfinished place without an issue number": r"\bTODO\b(?!\(#\d+\))|\bFIXME\b|\bXXX\b",
    "a merge mark": r"^(?:<{7}|>{7}) ",
}
IN_SOURCE_ONLY = {"a stub": r"\braise NotImplementedError\b"}


def _files(root: Path) -> list[Path]:
    return [
        path
        for path in root.rglob("*")
        if path.suffix in KINDS and path.is_file() and _is_ours(path.relative_to(root).parts)
    ]


def _is_ours(parts: tuple[str, ...]) -> bool:
    is_built = parts[0] in {"dist", "build"} or "golden" in parts
    return not is_built and all(p in HIDDEN_BUT_OURS or not p.startswith(".") for p in parts)


def _find(pattern: str, files: list[Path], root: Path) -> list[str]:
    found = []
    for path in files:
        text = path.read_text("utf-8", "replace")
        if path == Path(__file__) or not re.search(pattern, text, re.MULTILINE):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if re.search(pattern, line):
                found.append(f"{path.relative_to(root)}:{number}: {line.strip()[:80]}")
    return found


@pytest.fixture(scope="module")
def files(root: Path) -> list[Path]:
    return _files(root)


@pytest.mark.parametrize("what", FORBIDDEN)
def test_nothing_forbidden_is_said(what: str, files: list[Path], root: Path) -> None:
    assert not _find(FORBIDDEN[what], files, root), what


@pytest.mark.parametrize("what", IN_SOURCE_ONLY)
def test_nothing_is_left_undone(what: str, root: Path) -> None:
    found = _find(IN_SOURCE_ONLY[what], list((root / "src").rglob("*.py")), root)
    assert not found, what


def test_no_class_is_called_base() -> None:
    source = Path(__file__).resolve().parents[2] / "src"
    assert not _find(r"^class Base[A-Z]", list(source.rglob("*.py")), source)
