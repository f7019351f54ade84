"""Op: a tensor function with a reference anyone can read, and kernels that may stand in for it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from typing import Generic, ParamSpec

import torch
from torch import Tensor

from blazr.core import env, log
from blazr.nn.device import is_exact
from blazr.nn.kernels import KERNELS
from blazr.nn.kernels.cpu.compiled import explain

_log = logging.getLogger(__name__)

P = ParamSpec("P")
# What runs, and whether it has room for the arguments; None where it takes any (see `limited_to`).
_Choice = tuple[Callable[P, Tensor], Callable[P, bool] | None]


class Op(Generic[P]):
    """A named tensor function.

    Calling it runs the kernel that KERNELS has for the first argument's device and dtype, or the
    reference: looked up once, remembered after. The reference also stands in where arguments are
    larger than the kernel has room for, as ``limited_to`` says, and where gradients are being
    recorded, as kernels compute none.

    Args:
        name: Its name in OPS and KERNELS.
        reference: The definition, in plain torch. Its first argument decides which kernel runs.
    """

    def __init__(self, name: str, *, reference: Callable[P, Tensor]) -> None:
        self.name = name
        self.reference = reference
        self.__doc__ = reference.__doc__
        # by device, dtype and exactness of the first argument
        self._chosen: dict[tuple[torch.device, torch.dtype, bool], _Choice[P]] = {}

    def has_kernel(self, dtype: torch.dtype, device: str = "cpu") -> bool:
        """Whether this machine has a kernel for a first argument of this dtype."""
        return resolve_kernel(self.name, device, dtype) is not None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Tensor:
        """Run it."""
        if torch.is_grad_enabled():
            return self.reference(*args, **kwargs)
        first: Tensor = args[0]  # type: ignore[assignment]  # the contract of `reference`
        key = (first.device, first.dtype, is_exact())
        choice = self._chosen.get(key)
        if choice is None:
            kernel = resolve_kernel(self.name, first.device.type, first.dtype) or self.reference
            choice = self._chosen[key] = kernel, getattr(kernel, "fits", None)
        kernel, fits = choice
        if fits is not None and not fits(*args, **kwargs):
            return self.reference(*args, **kwargs)
        return kernel(*args, **kwargs)


def op(reference: Callable[P, Tensor]) -> Op[P]:
    """Make an operation of its reference, under the reference's name."""
    return Op(reference.__name__, reference=reference)


def resolve_kernel(op: str, device: str, dtype: torch.dtype) -> Callable[..., Tensor] | None:
    """The first row of KERNELS that can run ``op`` on ``device`` in ``dtype``, or None.

    Where a row is there but cannot run, that is said once in this process.
    """
    if env.get("BLAZR_KERNELS") == "reference":
        return None
    for row in KERNELS.values():
        if row.op != op or row.device != device or dtype not in row.dtypes:
            continue
        if row.is_for_exact and not is_exact():
            continue
        why = row.missing()
        if not why:
            module, _, name = row.target.partition(":")
            function: Callable[..., Tensor] = getattr(import_module(module), name)
            return function
        log.once(_log, logging.WARNING, f"torch's operations run, not blazr's faster ones: {why}")
    return None


def describe_kernels() -> dict[str, str]:
    """Every row of KERNELS by name, and what runs in its place on this machine, for people."""
    if env.get("BLAZR_KERNELS") == "reference":
        return dict.fromkeys(KERNELS, "reference (BLAZR_KERNELS)")
    found = {"cpu": explain()}
    for name, row in KERNELS.items():
        why = row.missing()
        dtypes = ", ".join(str(dtype).removeprefix("torch.") for dtype in row.dtypes)
        found[name] = f"reference: {why}" if why else f"{row.form()} ({dtypes})"
    return found
