"""Torch in the place of the kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from blazr.nn.ops import OPS
from blazr.nn.ops.sequence import attention_kernel, mamba2_kernel, recurrences, store_kernel


@contextmanager
def without_kernels() -> Iterator[None]:
    """Within, operations run on their references, and mixers as they are written down."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BLAZR_KERNELS", "reference")
        _forget()
        yield
    _forget()


def _forget() -> None:
    for op in OPS.values():
        op._chosen.clear()
    for choice in (attention_kernel, mamba2_kernel, recurrences, store_kernel):
        choice.cache_clear()
