"""Other functions in the place of the kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import NoReturn

import pytest
import torch
from torch import Tensor

from blazr.nn.device import exactness, is_exact
from blazr.nn.kernels import KERNELS
from blazr.nn.ops import OPS
from tests.support.agreement import function_of


@contextmanager
def without_kernels() -> Iterator[None]:
    """Within, operations run on their references."""
    with _chosen_anew(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("BLAZR_KERNELS", "reference")
        yield


@contextmanager
def kernels_for_gpus(*, exact: bool) -> Iterator[Counter[str]]:
    """Within, operations on the CPU run as kernels for GPUs do in Triton's interpreter.

    Args:
        exact: Whether no number may depend on company; torch's own products are then refused, as
            cuBLAS's depend on it.

    Yields:
        How often each has run.
    """
    used: Counter[str] = Counter()

    def resolve(name: str, _: str, dtype: torch.dtype) -> Callable[..., Tensor] | None:
        rows = (row for row in KERNELS.values() if (row.op, row.device) == (name, "cuda"))
        row = next(rows, None)
        if row is None or dtype not in row.dtypes or (row.is_for_exact and not is_exact()):
            return None
        function = function_of(row)

        @wraps(function)  # and what it is limited to
        def counted(*args: object, **kwargs: object) -> Tensor:
            used[name] += 1
            return function(*args, **kwargs)

        return counted

    with (
        _chosen_anew(),
        pytest.MonkeyPatch.context() as patch,
        exactness(is_exact=exact),
    ):
        patch.setattr("blazr.nn.ops.op.resolve_kernel", resolve)
        for name in _PRODUCTS if exact else ():
            patch.setattr(name, _refuse)
        yield used


_PRODUCTS = ("torch.bmm", "torch.matmul", "torch.einsum", "torch.nn.functional.linear")


def _refuse(*_: object, **__: object) -> NoReturn:
    raise AssertionError("a product of torch's, which is cuBLAS's on a GPU")


@contextmanager
def _chosen_anew() -> Iterator[None]:
    """Within, and afterwards, operations choose again what they run on.

    Afterwards also where a test fails within: an operation keeps what it has chosen, so all later
    tests of the process would run on it, and their replies would depend on company.
    """
    _forget()
    try:
        yield
    finally:
        _forget()


def _forget() -> None:
    for op in OPS.values():
        op._chosen.clear()
