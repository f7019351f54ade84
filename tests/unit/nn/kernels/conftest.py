"""Kernels of each instruction set."""

from __future__ import annotations

import pytest

from blazr.nn.kernels.cpu import compiled


@pytest.fixture(autouse=True)
def _as_before(kernels_as_before: None) -> None:
    """Tests here change instruction sets and threads at will."""


@pytest.fixture(params=compiled.ISAS)
def isa(request: pytest.FixtureRequest) -> str:
    """Which one runs."""
    if not compiled.use(request.param):
        pytest.skip(f"this processor has no {request.param}")
    return request.param
