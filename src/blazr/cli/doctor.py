"""``blazr doctor``: whether blazr works on this machine, and what it sees of it."""

from __future__ import annotations

import importlib
import os
import pkgutil
import platform
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from time import perf_counter
from typing import Annotated

import typer

import blazr
from blazr.cli import options
from blazr.cli.serve import variables
from blazr.core import env
from blazr.core.json_text import dump_json
from blazr.core.table import Table

_PACKAGES = ("torch", "numpy", "safetensors", "splintr-rs", "tokenizers", "starlette", "uvicorn")
_SECRET_SUFFIXES = ("KEY", "TOKEN")  # of variables whose values are not shown
# Enough for a recorded decode step to be made, checked and repeated.
_TRIAL_TOKENS = 32

_Report = dict[str, dict[str, str]]


def doctor(
    *,
    tables: Annotated[
        bool, typer.Option("--tables", help="List the rows of every table too.")
    ] = False,
    as_json: options.Json = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Show every kernel, package and environment variable."
        ),
    ] = False,
) -> None:
    """Check this installation: run the built-in model, and say what is slow or wrong.

    Exits with 1 where the built-in model does not run.
    """
    report = _inspect_machine()
    failure = _run_built_in_model(report)
    if tables:
        listed = report["tables"] = {}
        modules = pkgutil.walk_packages(blazr.__path__, "blazr.")
        # tables are defined in packages' __init__.py, and in these modules
        ends = (".routes", ".env", ".metrics")
        for module in (each for each in modules if each.ispkg or each.name.endswith(ends)):
            held = vars(importlib.import_module(module.name)).items()
            listed |= {
                f"{module.name}:{name}": ", ".join(value)
                for name, value in held
                if isinstance(value, Table)
            }
    kernels = report["kernels"].get("cpu", "reference (BLAZR_KERNELS)")
    is_slow = kernels.startswith(("torch's operations", "reference"))
    verdict = "everything works."
    if failure:
        verdict = f"blazr does not work here: {failure}"
    elif is_slow and report["device"]["auto"].startswith("cpu"):
        verdict = f"blazr works, but slowly: {kernels}"
    if as_json:
        print(dump_json({**report, "verdict": verdict}, indent=2))
    else:
        lines = _all_lines(report) if verbose else _summary_lines(report, kernels)
        print(*lines, f"verdict: {verdict}", sep="\n")
    if failure:
        raise typer.Exit(1)


def _run_built_in_model(report: _Report) -> str:
    """Generate with the built-in model, and report the speed; the failure, empty without one."""
    from blazr.engine.sampling_params import SamplingParams
    from blazr.llm.llm import LLM

    trial = report["trial"] = {"model": options.BUILT_IN}
    params = SamplingParams(temperature=0, max_tokens=_TRIAL_TOKENS, ignore_eos=True)
    try:
        started_s = perf_counter()
        with LLM(options.BUILT_IN) as llm:
            trial["load"] = f"{perf_counter() - started_s:.1f} s"
            llm.generate("Once upon a time", params)  # the first reply also warms up
            started_s = perf_counter()
            (reply,) = llm.generate("Once upon a time", params)
            trial["speed"] = f"{len(reply.token_ids) / (perf_counter() - started_s):,.0f} tokens/s"
    except Exception as error:  # noqa: BLE001  (whatever it is, it is what the user must read)
        failure = f"{type(error).__name__}: {error}"[:500]
        trial["failure"] = failure
        return failure
    return "" if reply.finish_reason == "length" else f"the reply ended with {reply.error}"


def _all_lines(report: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Every section and fact, a line each."""
    for section, facts in report.items():
        yield section
        for name, value in facts.items():
            yield f"  {name:<24} {value}"


def _summary_lines(report: _Report, kernels: str) -> Iterator[str]:
    """What most questions are about: a line each; and the tables, if they are asked for."""
    about = report["blazr"]
    device = report["device"]
    trial = report["trial"]
    torch = report["packages"]["torch"]
    yield f"blazr    {about['version']} with torch {torch}, Python {about['python']}"
    yield f"device   {device['auto']}, {device['free memory']} free"
    yield f"kernels  {kernels}"
    if "speed" in trial:
        yield f"trial    {trial['model']} loaded in {trial['load']} and wrote {trial['speed']}"
    given = report["environment"]
    changed = [
        f"{row.name}={given[row.name]}"
        for row in variables()
        if given[row.name] not in ("(unset)", row.default)
    ]
    if changed:
        yield f"set      {' '.join(changed)}"
    if "tables" in report:
        yield from _all_lines({"tables": report["tables"]})


def _inspect_machine() -> _Report:
    import torch

    from blazr.nn.device import resolve_device
    from blazr.nn.ops.op import describe_kernels

    device = resolve_device("auto")
    packages = dict.fromkeys(_PACKAGES, "not installed")
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
    environment = {}
    given = env.inherited()
    for row in variables():
        value = given.get(row.name, row.default)
        is_secret = value and row.name.endswith(_SECRET_SUFFIXES)
        environment[row.name] = "(set)" if is_secret else value or "(unset)"
    return {
        "blazr": {
            "version": blazr.__version__,
            "python": platform.python_version(),
            "system": platform.platform(),
        },
        "device": {
            "auto": str(device),
            "free memory": f"{device.free_bytes() / 2**30:.1f} GiB",
            "bfloat16": "yes" if device.supports(torch.bfloat16) else "no",
            "processors": str(len(os.sched_getaffinity(0))),
            "torch threads": str(torch.get_num_threads()),
        },
        "kernels": describe_kernels(),
        "packages": packages,
        "environment": environment,
    }
