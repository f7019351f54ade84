"""What a row of KERNELS says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


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
    """

    op: str
    device: str
    dtypes: tuple[torch.dtype, ...]
    target: str
    missing: Callable[[], str]
    form: Callable[[], str]
