"""The RG-LRU's scan: all tokens at once are what they are one by one."""

from __future__ import annotations

import pytest
import torch

from blazr.nn.ops.rg_lru import linear_scan


@pytest.mark.parametrize("length", [1, 2, 3, 7, 64])
def test_the_scan_is_the_loop(length: int) -> None:
    x, state = torch.randn(2, length, 5).double(), torch.randn(2, 5).double()
    decay = torch.rand(2, length, 5).double()
    decay[:, ::3] = 1e-30  # a divisor that would overflow
    found = linear_scan(x, decay, state)
    for t in range(length):
        state = decay[:, t] * state + x[:, t]
        torch.testing.assert_close(found[:, t], state)
