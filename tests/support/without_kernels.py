"""Torch in the place of the kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from blazr.nn.ops import OPS


@contextmanager
def without_kernels() -> Iterator[None]:
    """Within, operations run on their references."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BLAZR_KERNELS", "reference")
        _forget()
        yield
    _forget()


def _forget() -> None:
    for op in OPS.values():
        op._chosen.clear()
