"""Kernels that apply what kernels share; imported where Triton is to interpret them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def apply(x_ptr, out_ptr, FUNCTION: tl.constexpr, SIZE: tl.constexpr):
    """``out[i] = FUNCTION(x[i])``."""
    places = tl.arange(0, SIZE)
    tl.store(out_ptr + places, FUNCTION(tl.load(x_ptr + places)))
