"""An op runs its kernel where there is one, and its reference everywhere else."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial

import pytest
import torch
from torch import Tensor

from blazr.core.table import Table
from blazr.nn.kernels.kernel import Kernel
from blazr.nn.ops import op as op_module
from blazr.nn.ops.norm import rms_norm
from blazr.nn.ops.op import Op, describe_kernels
from tests.support.without_kernels import without_kernels

pytestmark = pytest.mark.smoke

TARGET = f"{__name__}:twice_plus_one"


def twice_plus_one(x: Tensor) -> Tensor:
    return 2 * x + 1


def _twice(x: Tensor) -> Tensor:
    """Twice."""
    return 2 * x


def _op() -> Op[...]:
    return Op("twice", reference=_twice)


def _rows(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    rows = {
        str(number): Kernel("twice", "cpu", (torch.float32,), TARGET, partial(str, why), str)
        for number, why in enumerate(missing)
    }
    monkeypatch.setattr(op_module, "KERNELS", Table("kernel", rows))


@torch.inference_mode()
def test_the_kernel_stands_in_for_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    _rows(monkeypatch, "")
    assert _op()(torch.ones(1)).item() == 3


@torch.inference_mode()
def test_a_row_that_cannot_run_gives_way_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    _rows(monkeypatch, "it is Monday", "")
    assert _op()(torch.ones(1)).item() == 3


@torch.inference_mode()
def test_the_reference_runs_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    _rows(monkeypatch, "")
    assert _op()(torch.ones(1, dtype=torch.float64)).item() == 2
    assert _op()(torch.ones(1, device="meta")).is_meta
    monkeypatch.setenv("BLAZR_KERNELS", "reference")
    assert _op()(torch.ones(1)).item() == 2
    assert set(describe_kernels().values()) == {"reference (BLAZR_KERNELS)"}


@torch.inference_mode()
def test_no_reference_is_left_behind_by_a_test_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Tensor] = []
    monkeypatch.setattr(rms_norm, "reference", lambda x, *_: calls.append(x))
    ones = torch.ones(4)
    with suppress(ZeroDivisionError), without_kernels():
        rms_norm(ones, ones, 1e-6)
        raise ZeroDivisionError
    assert len(calls) == 1
    if rms_norm.has_kernel(torch.float32):
        rms_norm(ones, ones, 1e-6)
        assert len(calls) == 1


def test_the_reference_runs_where_gradients_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    _rows(monkeypatch, "")
    x = torch.ones(1, requires_grad=True)
    y = _op()(x)
    y.backward()
    assert y.item() == 2
    assert x.grad is not None


@torch.inference_mode()
def test_what_is_missing_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _rows(monkeypatch, "the moon is full")
    monkeypatch.setattr(logging.getLogger("blazr"), "propagate", True)
    monkeypatch.setattr(logging.getLogger("blazr"), "handlers", [])
    for _ in range(2):
        assert _op()(torch.ones(1)).item() == 2
    assert caplog.text.count("the moon is full") == 1
    assert "the moon is full" in describe_kernels()["0"]


def test_an_op_says_what_it_is() -> None:
    assert _op().__doc__ == "Twice."
