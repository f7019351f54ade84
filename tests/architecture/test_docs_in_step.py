"""Documents say what the code does: generated pages are current, links lead somewhere."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import typer
from typer.core import TyperGroup

from blazr.cli.app import app
from blazr.models.families.gguf.architectures import ARCHITECTURES
from blazr.pipelines.encoders.gguf_architectures import ENCODERS
from blazr.pipelines.mmproj import PROJECTORS
from blazr.text.tool_calls.rows import TOOL_FORMATS
from tests.integration.clients import table as clients

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MODULES = [f"/{path.relative_to(ROOT)}" for path in (ROOT / "src").rglob("*.py")]
SCRIPTS = ("benchmarks", "tools")
NAMES = [path.relative_to(ROOT).as_posix() for path in DOCUMENTS]


def test_the_reference_is_current(load_tool: Callable[[str], ModuleType]) -> None:
    assert load_tool("render_reference").stale() == [], "run `make docs`"


def test_no_cell_of_the_reference_is_half_a_name() -> None:
    for path in (ROOT / "docs" / "reference").glob("*.md"):
        assert "| ` |" not in path.read_text("utf-8"), path.name


def test_the_table_of_clients_is_current() -> None:
    page = (ROOT / "docs" / "how-to" / "clients.md").read_text("utf-8")
    assert clients.render() in page, (
        f"write this table in docs/how-to/clients.md:\n{clients.render()}"
    )


@pytest.mark.parametrize(
    ("page", "rows"),
    [
        ("tools", TOOL_FORMATS),
        ("gguf", ARCHITECTURES),
        ("images", PROJECTORS),
        ("embeddings", ENCODERS),
    ],
)
def test_a_page_that_lists_what_is_read_lists_all_of_it(page: str, rows: Iterable[str]) -> None:
    """Readers take what is left out for what is not supported."""
    text = (ROOT / "docs" / "how-to" / f"{page}.md").read_text("utf-8")
    assert [name for name in rows if f"`{name}`" not in text] == []


def _outside_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    path = ROOT / name
    for target in re.findall(r"\]\(([^)\s]+)\)", _outside_code(path.read_text("utf-8"))):
        if not re.match(r"https?:|mailto:|#", target):
            assert (path.parent / target.split("#")[0]).exists(), target


@pytest.mark.parametrize("name", NAMES)
def test_code_blocks_are_python(name: str) -> None:
    for block in re.findall(r"```python\n(.*?)```", (ROOT / name).read_text("utf-8"), re.DOTALL):
        compile(block, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def _named_files(text: str) -> Iterator[str]:
    yield from re.findall(r"`((?:src|tests|tools|docs|examples|benchmarks)/[\w./-]+)`", text)


@pytest.mark.parametrize("name", NAMES)
def test_files_named_in_the_text_exist(name: str) -> None:
    for file in _named_files((ROOT / name).read_text("utf-8")):
        assert (ROOT / file).exists(), file


@pytest.mark.parametrize("name", ["README.md", "docs/explanation/life-of-a-request.md"])
def test_modules_named_in_the_text_exist(name: str) -> None:
    """`nn/layers/x.py` stands for any file; other paths must be real ones below src/blazr."""
    text = (ROOT / name).read_text("utf-8")
    for file in set(re.findall(r"`((?:\w+/)*\w+\.py)`", text)):
        if file.endswith(("/x.py", "__init__.py")) or (ROOT / file).exists():
            continue
        assert (ROOT / "src" / "blazr" / file).exists(), file


def _commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Benchmarks and tools that are run, and the options that they are given on the same line."""
    pattern = r"python (?:-m )?((?:benchmarks|tools)[./][\w./]*\w)([^`\n|]*)"
    for script, rest in re.findall(pattern, text.replace("\\\n", " ")):
        yield script.removesuffix(".py").replace(".", "/"), re.findall(r"--[\w-]+", rest)


WITH_COMMANDS = [
    *DOCUMENTS,
    ROOT / "Makefile",
    *(path for folder in SCRIPTS for path in (ROOT / folder).rglob("*.md")),
    *(path for folder in SCRIPTS for path in (ROOT / folder).rglob("*.py")),
]


@pytest.mark.parametrize("name", [path.relative_to(ROOT).as_posix() for path in WITH_COMMANDS])
def test_benchmarks_and_tools_take_the_options_that_they_are_given(name: str) -> None:
    for script, options in _commands((ROOT / name).read_text("utf-8")):
        files = [ROOT / f"{script}.py", ROOT / script / "__main__.py"]
        source = next((file.read_text("utf-8") for file in files if file.exists()), None)
        assert source is not None, f"there is no {script}"
        for option in {each.replace("--no-", "--") for each in options} - {"--help"}:
            assert f'"{option}"' in source, f"{script}: {option}"


# Decisions and the changelog say what was, CONTRIBUTING what somebody might write.
PRESENT = [name for name in NAMES if not re.match(r"docs/adr/|CHANGELOG|CONTRIBUTING", name)]


@cache
def _flags() -> dict[str, set[str]]:
    """The flags of each command of ``blazr``."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    context = typer.Context(group)
    rows = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return {
        name: {"-h", "--help", *(o for each in row.params for o in each.opts + each.secondary_opts)}
        for name, row in rows.items()
        if row is not None
    }


@pytest.mark.parametrize("name", PRESENT)
def test_commands_take_the_flags_that_they_are_given(name: str) -> None:
    text = (ROOT / name).read_text("utf-8").replace("\\\n", " ")
    for command, rest in re.findall(r"\bblazr (\w+)([^`\n|#;]*)", text):
        known = _flags().get(command)
        if known is not None:  # else prose
            own = rest.partition(" -- ")[0]  # behind it they are another program's
            assert {*re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", own)} <= known, command


@pytest.mark.parametrize("name", PRESENT)
def test_modules_named_anywhere_exist(name: str) -> None:
    """Their paths may begin at any folder of src/blazr."""
    for file in set(re.findall(r"`((?:\w+/)+\w+\.py)`", (ROOT / name).read_text("utf-8"))):
        is_there = any(module.endswith(f"/{file}") for module in MODULES) or (ROOT / file).exists()
        assert is_there or file.endswith("/x.py"), file


def test_the_readme_has_the_command_that_ci_runs() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    commands = re.findall(r"^python3 -m venv \.venv && .*pytest$", readme, re.MULTILINE)
    assert len(commands) == 1
