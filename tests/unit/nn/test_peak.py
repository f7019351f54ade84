"""Arithmetic in registers is counted, and really done."""

from __future__ import annotations

from time import process_time

import pytest
import torch

from blazr.nn.ops.peak import ARITHMETIC, has_kernels, multiply_in_registers

pytestmark = pytest.mark.skipif(not has_kernels(), reason="the kernels are not compiled")


@pytest.mark.parametrize("kind", ARITHMETIC)
def test_every_thread_does_as_many_as_were_asked_for(kind: str) -> None:
    done = multiply_in_registers(kind, 10**7)
    assert 10**7 * torch.get_num_threads() <= done < 1.01 * 10**7 * torch.get_num_threads()


@pytest.mark.parametrize("kind", ARITHMETIC)
def test_no_compiler_leaves_it_out(kind: str) -> None:
    started_s = process_time()
    done = multiply_in_registers(kind, 10**8)
    # no processor does so many in a second of one thread
    assert done / (process_time() - started_s) < 1e14
