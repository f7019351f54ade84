"""``blazr info``: what a checkpoint holds, from its headers alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blazr.cli import options
from blazr.core.json_text import dump_json
from blazr.core.sizes import size_text

if TYPE_CHECKING:
    from blazr.models.loading.fit import Fit


def info(  # noqa: PLR0913  (one argument per flag)
    model_argument: options.ModelArgument = None,
    *,
    model: options.Model = None,
    fit: Annotated[
        bool,
        typer.Option(
            "--fit", help="Show the memory it needs here, with each kind of quantization."
        ),
    ] = False,
    revision: options.Revision = None,
    kv_dtype: options.KvDtype = "auto",
    state_dtype: options.StateDtype = "auto",
    device: Annotated[
        str, typer.Option("--device", help="Where --fit measures what is free: auto, cpu, cuda.")
    ] = "auto",
    as_json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001  (its callback does it)
) -> None:
    """Show a model's configuration, its sizes, and where each value came from."""
    name = options.pick_model(model, model_argument)
    if fit:
        from blazr.models.loading.fit import fit as measure_fit
        from blazr.nn.device import resolve_device
        from blazr.pipelines.fallback import own_networks_only

        with own_networks_only("blazr info --fit", name):
            found = measure_fit(
                name,
                resolve_device(device),
                revision=revision,
                kv_dtype=kv_dtype,
                state_dtype=state_dtype,
            )
        lines = _fit_lines(found, kv_dtype)
        print(dump_json(asdict(found), indent=2) if as_json else "\n".join(lines))
        return
    from blazr.llm.defaults import sampling_defaults_at
    from blazr.llm.describe import describe_model

    report = describe_model(name, revision=revision, kv_dtype=kv_dtype, state_dtype=state_dtype)
    report["sampling"] = sampling_defaults_at(Path(str(report["path"])))
    print(dump_json(report, indent=2) if as_json else "\n".join(_report_lines(report)))


def _fit_lines(found: Fit, kv_dtype: str) -> Iterator[str]:
    """The memory that a model needs, in lines for people."""
    yield f"{found.device}: {size_text(found.free_bytes)} free"
    if found.bytes_per_token:
        stored = found.dtype if kv_dtype == "auto" else kv_dtype
        yield f"{found.bytes_per_token:,} bytes a token, in {stored}"
    if found.state_bytes:
        yield f"{found.state_bytes:,} bytes a sequence, whatever its length"
    yield f"{'--quantize':<12} {'weights':>12} {'context':>14}"
    for each in found.choices:
        context = f"{each.context:,}" if each.context else "does not fit"
        yield f"{each.quantization:<12} {size_text(each.weights_bytes):>12} {context:>14}"


def _report_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The report for people, in lines; programs read ``--json``."""
    for key in ("name", "path", "family", "dtype"):
        yield f"{key:<10} {report[key]}"
    vocabulary = report["vocabulary"]
    yield f"{'vocabulary':<10} {vocabulary['name'] or 'none'}: {vocabulary['reason']}"
    for section in ("parameters", "memory"):
        yield section
        for name, value in report[section].items():
            yield f"  {name.replace('_', ' '):<32} {value:>16,}"
    if report["sampling"]:
        yield "sampling defaults"
        for name, value in report["sampling"].items():
            yield f"  {name:<32} {value:>16}"
    yield "config, and where each value came from"
    for each in report["derivation"]:
        origin = ": ".join(str(each[key]) for key in ("source", "note") if each[key])
        yield f"  {each['name']!s:<28} {each['value']!s:<12} {origin}"
    known = {each["name"] for each in report["derivation"]}
    for name, value in report["config"].items():
        if name not in known:
            yield f"  {name:<28} {json.dumps(value)}"
    for warning in report["warnings"]:
        yield f"warning    {warning}"
