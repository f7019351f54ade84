"""Which kernel runs an op here, or why none does."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module

import torch
from torch import Tensor

from blazr.core import env, log
from blazr.nn.kernels import KERNELS
from blazr.nn.kernels.cpu.compiled import explain

_LOG = logging.getLogger(__name__)


def resolve(op: str, device: str, dtype: torch.dtype) -> Callable[..., Tensor] | None:
    """The first row of KERNELS that can run ``op`` on ``device`` in ``dtype``, or None.

    Where a row is there but cannot run, that is said once in this process.
    """
    if env.get("BLAZR_KERNELS") == "reference":
        return None
    for row in KERNELS.values():
        if row.op != op or row.device != device or dtype not in row.dtypes:
            continue
        why = row.missing()
        if not why:
            module, _, name = row.target.partition(":")
            function: Callable[..., Tensor] = getattr(import_module(module), name)
            return function
        log.once(_LOG, logging.WARNING, f"torch's operations run, not blazr's faster ones: {why}")
    return None


def describe() -> dict[str, str]:
    """Every row by name, and what runs in its place on this machine, for people."""
    if env.get("BLAZR_KERNELS") == "reference":
        return dict.fromkeys(KERNELS, "reference (BLAZR_KERNELS)")
    found = {"cpu": explain()}
    for name, row in KERNELS.items():
        why = row.missing()
        dtypes = ", ".join(str(dtype).removeprefix("torch.") for dtype in row.dtypes)
        found[name] = f"reference: {why}" if why else f"{row.form()} ({dtypes})"
    return found
