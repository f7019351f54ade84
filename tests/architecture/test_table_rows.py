"""Tables are complete: rows resolve, files that should be rows are, the README knows them all."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import pytest

from blazr.core.table import Table

Load = Callable[[str], ModuleType]

# Tables of values that nobody extends by writing a file or asking in a pull request.
FIXED = {"DTYPES"}

# A directory where each file is to be a row: the table, how a row tells its module, the helpers.
EXTENSIBLE = {
    "cli": (
        "COMMANDS",
        lambda row: row.__module__,
        {
            *("app", "conversation", "model_plans", "options", "partners", "pipelines"),
            *("programs", "signals", "terminal", "tools"),
        },
    ),
    "models/families": (
        "FAMILIES",
        lambda row: row.derive.__module__,
        {"base", "oxidizr_layers", "rules", "unread"},
    ),
    "models/families/hf": (
        "FAMILIES",
        lambda row: row.derive.__module__,
        {"names", "rope", "state_space"},
    ),
    "server/anthropic": ("ROUTES", lambda row: row.handler.__module__, {"rendering"}),
    "server/ollama": ("ROUTES", lambda row: row.handler.__module__, set()),
    "server/native": ("ROUTES", lambda row: row.handler.__module__, {"llama_cpp"}),
    "server/openai": (
        "ROUTES",
        lambda row: row.handler.__module__,
        {"labels", "shared"},
    ),
    "server/openai/responses": (
        "ROUTES",
        lambda row: row.handler.__module__,
        {"items", "mcp", "rendering", "replay", "tools"},
    ),
    "text/tokenizers": (
        "TOKENIZERS",
        lambda row: row.__module__,
        {
            *("beside", "byte_pair", "character_map", "choose", "growth", "sentencepiece"),
            *("gguf_entries", "gguf_kinds", "gguf_patterns", "to_gguf"),
        },
    ),
}


@pytest.fixture(scope="module")
def tables(load_tool: Load) -> Mapping[str, Table[object]]:
    """Every table of the package by the name of its variable."""
    found = load_tool("render_reference").find_tables()
    return {place.rpartition(":")[2]: table for place, table in found}


def test_every_row_resolves(tables: Mapping[str, Table[object]]) -> None:
    assert "ENV" in tables
    for name, table in tables.items():
        assert len(table), f"{name} is empty"
        for key in table:
            assert table[key] is not None, f"{name} {key!r}"


def test_row_names_can_be_typed(tables: Mapping[str, Table[object]]) -> None:
    strange = [
        f"{name} {key!r}"
        for name, table in tables.items()
        for key in table
        if not re.fullmatch(r"[\w./{}: -]+", key)
    ]
    assert not strange


@pytest.mark.parametrize("directory", EXTENSIBLE)
def test_every_file_is_a_row(
    directory: str, tables: Mapping[str, Table[object]], root: Path
) -> None:
    name, module_of, helpers = EXTENSIBLE[directory]
    files = {path.stem for path in (root / "src/blazr" / directory).glob("*.py")}
    table = tables[name]
    modules = {module_of(row) for row in table.values()}
    modules |= {place.partition(":")[0] for place in table._lazy.values()}
    rows = {module.rpartition(".")[2] for module in modules}
    assert files - helpers - {"__init__"} <= rows, f"a file without a row in {name}"
    assert helpers <= files, "a helper that is gone"


def test_the_readme_says_how_to_add_a_row(tables: Mapping[str, Table[object]], root: Path) -> None:
    readme = (root / "README.md").read_text("utf-8")
    missing = [name for name in set(tables) - FIXED if f"` {name} |" not in readme]
    assert not missing
