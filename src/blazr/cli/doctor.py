"""``blazr doctor``: what blazr sees of this machine."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

import blazr
from blazr.cli import options
from blazr.core import env
from blazr.core.table import Table

_PACKAGES = ("torch", "numpy", "safetensors", "splintr-rs", "tokenizers", "starlette", "uvicorn")
_SECRET = ("KEY", "TOKEN")


def doctor(
    *,
    tables: Annotated[bool, typer.Option("--tables", help="List every table's rows.")] = False,
    as_json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001  (its callback does it)
) -> None:
    """Show the device, versions, threads and environment; with --tables, all there is."""
    report = _report()
    if tables:
        report["tables"] = {name: ", ".join(table) for name, table in _tables()}
    if as_json:
        print(json.dumps(report, indent=2))
        return
    for section, facts in report.items():
        print(section)
        for name, value in facts.items():
            print(f"  {name:<24} {value}")


def _report() -> dict[str, dict[str, str]]:
    import torch

    from blazr.nn.device import resolve_device
    from blazr.nn.kernels.resolve import describe

    device = resolve_device("auto")
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
        "kernels": describe(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "environment": {name: _shown(name) for name in env.ENV},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _shown(name: str) -> str:
    value = env.get(name)
    return "(set)" if value and name.endswith(_SECRET) else value or "(unset)"


def _tables() -> Iterator[tuple[str, Table[object]]]:
    """Every table of the package, with where it is."""
    for module in pkgutil.walk_packages(blazr.__path__, "blazr."):
        if not module.ispkg and not module.name.endswith((".routes", ".env", ".metrics")):
            continue  # tables stand in packages, but for these
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, Table):
                yield f"{module.name}:{name}", value
