"""Render docs/reference from the code: the tables, the options, the routes, the errors.

Run: python tools/render_reference.py           write the pages
     python tools/render_reference.py --check   fail where a committed page differs
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import MISSING, Field, fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import walk_packages
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import typer
from typer.core import TyperArgument, TyperGroup, TyperOption
from typer.main import get_command

import blazr
from blazr.cli import COMMANDS
from blazr.cli.app import app
from blazr.cli.serve import variables
from blazr.core import errors
from blazr.core.docstrings import argument_docs
from blazr.core.metrics import METRICS
from blazr.core.table import Table
from blazr.engine.sampling_params import SamplingParams
from blazr.llm.options import LoadOptions
from blazr.models.families import FAMILIES
from blazr.models.families.gguf.architectures import ARCHITECTURES
from blazr.server.config import ServerConfig
from blazr.server.errors import HttpError
from blazr.server.routes import ROUTES

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.references import CASES, is_vision

# They cannot be imported without packages that are extras; they define no table.
NEEDS_EXTRAS = ("blazr.nn.kernels.triton.", "blazr.ray")
ROOT = Path(__file__).resolve().parent.parent
REFERENCE, GOLDEN = ROOT / "docs" / "reference", ROOT / "tests" / "golden"
HEADERS = (
    "Headers of releases are the names and shapes that transformers makes of their config.json. "
    "The last column says what was read of published files, which are planned as they are, or "
    "whose sums must be those of the made header."
)
CONVERTED = (
    "Each was compared with transformers: on files of llama.cpp's own converter where some are "
    "named, else on files made here with the names of its `gguf` package."
)
NATIVE = (
    "What blazr runs with networks of its own, and what each was compared with. Every other causal "
    "language model that the transformers library knows runs "
    "[through it](../how-to/models.md#everything-else-through-transformers)."
)
BY_VERIFY = "the independent reference of `blazr verify`: logits"
ELSEWHERE = {
    "oxidizr": "what its trainer recorded",
    "gguf": "see below",
    "bailing_moe": BY_VERIFY,
    "bailing_moe_linear": BY_VERIFY,
    "minimax_text_01": "transformers, by its class for `minimax`: logits",
    "minimax_m1": "transformers, by its class for `minimax`: logits",
}
NOTE = "<!-- Written by tools/render_reference.py (`make docs`); do not edit. -->"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|").replace("``", "`")


def first_line(thing: object) -> str:
    """The first sentence of its docstring."""
    return first_sentence(inspect.getdoc(thing))


def first_sentence(docstring: str | None) -> str:
    """What a docstring begins with, on one line."""
    return (docstring or "").split("\n\n")[0].replace("\n", " ")


def fields_table(cls: type) -> str:
    """The fields of a configuration class with their defaults."""
    docs = argument_docs(cls)
    return table(
        ("field", "default", "what it does"),
        ((f"`{f.name}`", f"`{_default(f)!r}`", docs[f.name]) for f in fields(cls)),
    )


def _default(field: Field[object]) -> object:
    if field.default is not MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not MISSING else "required"


def render_environment() -> str:
    """Every environment variable."""
    rows = (
        (f"`{row.name}`", f"`{row.default}`" if row.default else "", row.help)
        for row in variables()
    )
    return "# Environment variables\n\n" + table(("variable", "default", "what it does"), rows)


def render_parameters() -> str:
    """The configuration classes."""
    parts = ["# Parameters"]
    for cls in (SamplingParams, LoadOptions, ServerConfig):
        parts += [f"## {cls.__name__}", first_line(cls), fields_table(cls)]
    return "\n\n".join(parts)


def render_errors() -> str:
    """The error tree, and what each class means."""
    classes = [
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, errors.BlazrError)
    ]
    tree = (errors.__doc__ or "").split("\n\n")
    return "\n\n".join(
        (
            "# Errors",
            "What blazr raises on purpose is a `BlazrError`, from `blazr.core.errors`:",
            f"```text\n{inspect.cleandoc(tree[1])}\n```",
            _cell(tree[2]),
            table(
                ("class", "means", "over HTTP"),
                (
                    (f"`{cls.__name__}`", first_line(cls), str(HttpError.of(cls("")).status))
                    for cls in classes
                ),
            ),
            'Over HTTP: `{"error": {"message", "type", "param", "code"}}`, as OpenAI has it.',
        )
    )


def render_cli() -> str:
    """The commands and their flags."""
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    context = typer.Context(group)
    parts = [
        "# Command line",
        "Exit codes: 0 success, 1 a failure, 2 a wrong command line, 130 Ctrl+C.",
    ]
    for name in COMMANDS:
        command = group.get_command(context, name)
        assert command is not None
        params = [row for row in command.params if isinstance(row, TyperArgument | TyperOption)]
        rows = ((_flags(row), _shown_default(row.default), row.help or "") for row in params)
        parts += [
            f"## blazr {name}",
            first_line(COMMANDS[name]),
            table(("flag", "default", "what it does"), rows),
        ]
    return "\n\n".join(parts)


def _flags(row: TyperArgument | TyperOption) -> str:
    if isinstance(row, TyperArgument):
        return f"`{_argument(row)}`"
    return ", ".join(f"`{name}`" for name in (*row.opts, *row.secondary_opts))


def _argument(row: TyperArgument) -> str:
    assert row.metavar, f"{row.name} needs a metavar"
    return row.metavar + ("..." if row.nargs == -1 else "")


def _shown_default(value: object) -> str:
    return "" if value in {None, False, (), ""} else f"`{value}`"


def render_http() -> str:
    """The endpoints, their bodies, and the statuses of errors."""
    routes = list(ROUTES.values())
    parts = [
        "# HTTP",
        (
            "An unknown field is ignored, but for those that change the answers of another server: "
            "these are refused with a 400 that names them. What a field means stands under "
            "[Parameters](parameters.md)."
        ),
        table(
            ("endpoint", "what it does", "needs a key"),
            (
                (
                    f"`{row.method} {row.path}`",
                    first_line(row.handler),
                    "no" if row.is_open else "yes",
                )
                for row in routes
            ),
        ),
    ]
    for row in routes:
        if row.body is not None:
            parts += [f"## {row.method} {row.path}", _body_table(row.body)]
    parts += [
        "## Metrics",
        "Counters have `_total` after their name.",
        table(
            ("metric", "kind", "labels", "what it counts", "in vLLM"),
            (
                (
                    f"`{name}`",
                    row.kind,
                    ", ".join(row.all_labels),
                    row.help,
                    row.vllm and f"`vllm:{row.vllm}`",
                )
                for name, row in METRICS.items()
            ),
        ),
    ]
    return "\n\n".join(parts)


def _body_table(body: type[msgspec.Struct]) -> str:
    hints = get_type_hints(body, include_extras=True)
    hints = {name: hints[name] for name in body.__struct_fields__}
    shown = {name: _readable(hint).removesuffix(" | None") for name, hint in hints.items()}
    return table(("field", "type"), ((f"`{name}`", f"`{text}`") for name, text in shown.items()))


def _readable(hint: object) -> str:
    """A type as a client may read it: ``int (ge=0)`` for an annotated one."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return f"Literal{list(inner)}"
    if origin is Annotated:
        bounds = ", ".join(map("=".join, re.findall(r"(\w+)'?[=:] ?(-?\d+)", str(inner[1]))))
        return _readable(inner[0]) + (f" ({bounds})" if bounds else "")
    names = [_readable(each) for each in inner]
    if origin in {Union, UnionType}:
        return " | ".join(names)
    name = "None" if hint is NoneType else getattr(origin or hint, "__name__", str(hint))
    return f"{name}[{', '.join(names)}]" if names else name


def find_tables() -> Iterator[tuple[str, Table[object]]]:
    """Every table of the package with the place of its definition, ``module:NAME``."""
    for name in module_names():
        if name.startswith(NEEDS_EXTRAS):
            continue
        module = import_module(name)
        for variable in inspect.get_annotations(module):
            value = getattr(module, variable, None)
            if isinstance(value, Table):
                yield f"{name}:{variable}", value


def module_names() -> list[str]:
    """Every module of the package but the one whose import is a run."""
    names = [info.name for info in walk_packages(blazr.__path__, "blazr.")]
    return ["blazr", *(name for name in names if not name.endswith("__main__"))]


def render_modules() -> str:
    """Every module by package, with its first sentence."""
    parts = ["# Modules", "Every file of the package, in its own words."]
    by_package: dict[str, list[tuple[str, str]]] = {}
    for name in module_names():
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        package = name if spec.submodule_search_locations else name.rpartition(".")[0]
        docstring = ast.get_docstring(ast.parse(Path(spec.origin).read_text("utf-8")))
        by_package.setdefault(package, []).append((name, first_sentence(docstring)))
    for package, rows in by_package.items():
        parts += [f"## {package}", rows[0][1]]
        if len(rows) > 1:
            short = ((f"`{name.rpartition('.')[2]}`", says) for name, says in rows[1:])
            parts.append(table(("module", "what it is"), short))
    return "\n\n".join(parts)


def render_tables() -> str:
    """Every table and the names of its rows."""
    parts = [
        "# Tables",
        "What can be extended is a row of one of these. The README says which file goes with it.",
    ]
    for place, rows in sorted(find_tables(), key=lambda pair: pair[1].name):
        parts += [f"## {rows.name}", f"In `{place}`.", ", ".join(f"`{key}`" for key in rows)]
    return "\n\n".join(parts)


def render_models() -> str:
    """Every family: what runs it, and what its network was compared with."""
    headers, published = _recorded("headers/*.json", _model_type), _published()
    gguf = _recorded("gguf/converted/*.gguf.xz", lambda path: path.name.partition(".")[0])
    heads = ("family", "compared with", "headers of releases that plan", "read of published files")
    families = (
        (
            f"`{name}`",
            _compared_with(name),
            ", ".join(headers.get(name, ())),
            "; ".join(f"{m}: {', '.join(what)}" for m, what in published.get(name, {}).items())
            or ("" if name in {"oxidizr", "gguf"} else "nothing"),
        )
        for name in FAMILIES
    )
    architectures = (
        (
            f"`{name}`",
            ", ".join(each for each in gguf if _architecture(each) == name)
            or "by the names of the gguf package",
        )
        for name in ARCHITECTURES
    )
    return "\n\n".join(
        (
            "# Models",
            NATIVE,
            "## Families",
            HEADERS,
            table(heads, families),
            "## Architectures in GGUF",
            CONVERTED,
            table(("architecture", "files compared"), architectures),
        )
    )


def _compared_with(family: str) -> str:
    """What a family's network was compared with, as tests/conformance does it."""
    if any(family == kind for kind, _ in CASES.values()):
        return "transformers: logits, greedy tokens"
    if is_vision(family):
        return "transformers: logits of text"
    return ELSEWHERE.get(family, "itself, cut and converted")


def _recorded(pattern: str, key: Callable[[Path], str]) -> dict[str, list[str]]:
    """Golden files by a key, as their names without suffixes."""
    found: dict[str, list[str]] = {}
    for path in sorted(GOLDEN.glob(pattern)):
        name = path.name.removesuffix(".json").removesuffix(".gguf.xz")
        found.setdefault(key(path), []).append(name)
    return found


def _model_type(path: Path) -> str:
    return str(json.loads(path.read_text(encoding="utf-8"))["config"]["model_type"])


def _published() -> dict[str, dict[str, list[str]]]:
    """What was read of published files, by family and model."""
    read: dict[str, dict[str, list[str]]] = {}
    for path in sorted((GOLDEN / "headers" / "recorded").glob("*.json")):
        rows = json.loads(path.read_text(encoding="utf-8"))
        models = rows if path.stem in {"names", "totals"} else {path.stem: rows}
        for model, row in models.items():
            read.setdefault(_family_of(row, model), {}).setdefault(model, []).extend(_what(row))
    return read


def _family_of(row: dict[str, Any], model: str) -> str:
    if "metadata" in row and "header" not in row:
        return ARCHITECTURES[row["metadata"]["general.architecture"]].families[0]
    made = GOLDEN / "headers" / f"{row.get('header', model)}.json"
    return _model_type(made) if made.exists() else str(row["config"]["model_type"])


def _what(row: dict[str, Any]) -> Iterator[str]:
    said = row.get("says", row)
    if isinstance(row.get("tensors"), list):
        has_shapes = any(shape is not None for _, _, shape, *_ in row["tensors"])
        part = "" if row.get("whole", True) else " of some layers"
        yield f"names and shapes{part}" if has_shapes else f"names{part}"
    elif "names" in row:
        yield "names"
    names = {"tensors": "number of tensors", "parameters": "parameters", "bytes": "bytes"}
    yield from (words for key, words in names.items() if isinstance(said.get(key), int))
    if "billions" in row:
        yield "bytes, rounded"


def _architecture(name: str) -> str:
    """Of a golden file: the longest architecture its name begins with."""
    return max((each for each in ARCHITECTURES if f"{name}-".startswith(f"{each}-")), key=len)


PAGES: dict[str, Callable[[], str]] = {
    "cli": render_cli,
    "environment": render_environment,
    "errors": render_errors,
    "http": render_http,
    "models": render_models,
    "modules": render_modules,
    "parameters": render_parameters,
    "tables": render_tables,
}


def pages() -> dict[Path, str]:
    """The text of every page by its path."""
    return {REFERENCE / f"{name}.md": f"{NOTE}\n\n{render()}\n" for name, render in PAGES.items()}


def stale() -> list[str]:
    """Names of the pages that are not as committed."""
    return [
        path.name
        for path, text in pages().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or with --check compare them."""
    if "--check" in arguments:
        names = stale()
        print(f"out of date: {', '.join(names)}; run make docs" if names else "docs in step")
        return bool(names)
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
