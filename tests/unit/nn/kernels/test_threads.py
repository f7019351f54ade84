"""The kernels' own threads: the same bits with any number of them, whoever else computes."""

from __future__ import annotations

import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from blazr.nn.kernels.cpu import compiled, matmul

pytestmark = pytest.mark.skipif(bool(compiled.missing()), reason=compiled.missing())


@pytest.fixture
def product() -> tuple[Tensor, Tensor, Tensor]:
    """Two factors and their product, computed by one thread."""
    torch.set_num_threads(1)
    x, weight = torch.randn(40, 512), torch.randn(600, 512)
    return x, weight, matmul.linear(x, weight)


def test_more_threads_than_cores_give_the_same_bits(product: tuple[Tensor, Tensor, Tensor]) -> None:
    """Some of them are late to every loop."""
    x, weight, expected = product
    for num_threads in (2, 17, 3):
        torch.set_num_threads(num_threads)
        for _ in range(50):
            assert torch.equal(matmul.linear(x, weight), expected)


def test_numbers_below_the_smallest_normal_one_become_zeros_in_kernels_alone(isa: str) -> None:
    """Such results take hundreds of cycles; what the caller computes is as exact as before."""
    if "neon" in compiled.isas():
        pytest.skip("on Arm they take no longer than others, and are kept")
    x, weight = torch.full((40, 1), 1e-30), torch.full((600, 1), 1e-10)
    for num_threads in (1, 3):
        torch.set_num_threads(num_threads)
        assert not matmul.linear(x, weight).any()
        assert np.float32(1e-30) * np.float32(1e-10) > 0


def test_two_callers_do_not_disturb_each_other(product: tuple[Tensor, Tensor, Tensor]) -> None:
    x, weight, expected = product
    halves = {0: slice(0, 300), 1: slice(300, 600)}

    def compute(number: int) -> bool:
        torch.set_num_threads(3)
        rows = halves[number % 2]
        return torch.equal(matmul.linear(x, weight[rows]), expected[:, rows])

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(compute, range(200)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_process_has_threads_of_its_own(product: tuple[Tensor, Tensor, Tensor]) -> None:
    """Its parent's do not exist there."""
    x, weight, expected = product
    torch.set_num_threads(3)
    assert torch.equal(matmul.linear(x, weight), expected)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if child == 0:
        out = matmul.linear(x, weight)
        os._exit(0 if torch.equal(out, expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are not listed")
def test_threads_are_kept_for_the_next_call(product: tuple[Tensor, Tensor, Tensor]) -> None:
    x, weight, _ = product
    torch.set_num_threads(3)
    matmul.linear(x, weight)
    before = _threads()
    for _ in range(20):
        matmul.linear(x, weight)
    assert _threads() <= before


def _threads() -> set[str]:
    return {path.name for path in Path("/proc/self/task").iterdir()}
