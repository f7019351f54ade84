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


@pytest.mark.parametrize("name", ["models/families/rules.py", "engine/request.py"])
def test_tensors_are_named_in_annotations_alone(
    name: str, sources: Mapping[str, ast.Module]
) -> None:
    """The imports of torch that .importlinter lets pass are for type checkers."""
    tree = sources[f"blazr/{name}"]
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    assert ast.unparse(checked.test) == "TYPE_CHECKING"
    for_checkers = set(map(id, ast.walk(checked)))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    when_run = [ast.unparse(node) for node in imports if id(node) not in for_checkers]
    assert when_run
    assert not any("torch" in line for line in when_run)


def test_init_files_hold_at_most_one_table(sources: Mapping[str, ast.Module]) -> None:
    """And re-export nothing: what a name is for is said where it is defined."""
    for name, tree in sources.items():
        if not name.endswith("__init__.py") or name == "blazr/__init__.py":
            continue
        annotated = [n for n in tree.body if isinstance(n, ast.AnnAssign)]
        tables = [n for n in annotated if ast.unparse(n.annotation).startswith("Table[")]
        assert len(tables) <= 1, name
        assert ast.get_docstring(tree), name
        assert "__all__" not in ast.unparse(tree), name


def test_no_import_is_tried(sources: Mapping[str, ast.Module]) -> None:
    """An optional dependency is a lazy row; `try: import` hides which of two programs runs."""
    tried = [
        f"{name}:{node.lineno}"
        for name, tree in sources.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Try)
        and any(isinstance(inner, ast.Import | ast.ImportFrom) for inner in node.body)
    ]
    assert not tried
