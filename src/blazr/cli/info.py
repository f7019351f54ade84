"""``blazr info``: what a checkpoint holds, from its headers alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from blazr.cli import options


def info(
    model_argument: options.ModelArgument = None,
    *,
    model: options.Model = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001  (its callback does it)
) -> None:
    """Show a model's configuration, its sizes, and where each value came from."""
    from blazr.models.loading.describe import describe

    report = describe(options.pick_model(model, model_argument))
    if as_json:
        print(json.dumps(report, indent=2))
        return
    for line in _screen(report):
        print(line)


def _screen(report: Mapping[str, object]) -> Iterator[str]:
    """The report for people: the config as JSON, the rest as lines."""
    for key in ("name", "path", "family", "dtype"):
        yield f"{key:<10} {report[key]}"
    yield f"config     {json.dumps(report['config'], indent=2)}"
    for section in ("parameters", "memory"):
        yield section
        for name, value in _items(report[section]):
            yield f"  {name.replace('_', ' '):<32} {value:>16,}"
    yield "derivation"
    for each in _rows(report["derivation"]):
        origin = ": ".join(str(each[key]) for key in ("source", "note") if each[key])
        yield f"  {each['name']!s:<28} {each['value']!s:<12} {origin}"
    for warning in _rows(report["warnings"]):
        yield f"warning    {warning}"


def _items(section: object) -> Iterator[tuple[str, int]]:
    assert isinstance(section, Mapping)
    yield from section.items()


def _rows(section: object) -> Iterator[Mapping[str, object]]:
    assert isinstance(section, list)
    yield from section
