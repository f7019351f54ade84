"""Kernels that apply what kernels share; imported where Triton is to interpret them."""

from __future__ import annotations

import triton
import triton.language as tl

from blazr.nn.kernels.triton.numbers import softplus


@triton.jit
def apply_softplus(x_ptr, out_ptr, SIZE: tl.constexpr):
    """``out[i] = softplus(x[i])``."""
    places = tl.arange(0, SIZE)
    tl.store(out_ptr + places, softplus(tl.load(x_ptr + places)))
