"""What a row of KERNELS says, and what a kernel has room for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class Kernel:
    """A faster form of one op on one kind of device.

    Args:
        op: The op it stands in for.
        device: ``"cpu"`` or ``"cuda"``.
        dtypes: Of the op's first argument.
        target: ``"module:function"`` with the op's signature, imported when it is chosen.
        missing: Says why it cannot run here; an empty string where it can.
        form: Says in which form it runs, for people.
        is_for_exact: Whether it runs only where exactness is asked for (``nn/device.py``).
    """

    op: str
    device: str
    dtypes: tuple[torch.dtype, ...]
    target: str
    missing: Callable[[], str]
    form: Callable[[], str]
    is_for_exact: bool = False


def limited_to(fits: Callable[..., bool]) -> Callable[[Function], Function]:
    """For a kernel that has room for some arguments only.

    Args:
        fits: Takes what the kernel takes; where it says no, the op's reference runs.
    """

    def mark(function: Function) -> Function:
        function.fits = fits  # type: ignore[attr-defined]  # functions have attributes
        return function

    return mark
