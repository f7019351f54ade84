"""The floors hold: .importlinter is kept, and it covers every package there is."""

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest
from importlinter.application import use_cases
from importlinter.configuration import configure


def test_every_contract_is_kept(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure()
    kept = use_cases.lint_imports(
        config_filename=str(root / ".importlinter"), cache_dir=None, no_logo=True
    )
    assert kept, capsys.readouterr().out


def test_init_files_hold_no_code(sources: Mapping[str, ast.Module]) -> None:
    """A docstring and at most a table: importing a package must cost nothing."""
    allowed = (ast.Expr, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.If)
    crowded = [
        f"{name}: {ast.unparse(node)[:60]}"
        for name, tree in sources.items()
        if name.endswith("__init__.py") and name.count("/") > 1
        for node in tree.body
        if not isinstance(node, allowed)
    ]
    assert not crowded
