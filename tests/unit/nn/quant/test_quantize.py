"""Packing plain numbers: the blocks of the gguf package, and nothing odd at the edges."""

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blazr.nn.quant import QUANTIZERS

# The package quantizes to these; each of ours is among them.
NUMBERS = {name: gguf.GGMLQuantizationType[name.upper()] for name in QUANTIZERS}


@pytest.mark.parametrize("name", QUANTIZERS)
@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([1e-4, 0.02, 1.0, 300.0]))
def test_blocks_are_those_of_the_package(name: str, seed: int, scale: float) -> None:
    values = np.random.default_rng(seed).standard_normal((6, 96), dtype=np.float32) * scale
    values = values.astype(np.float32)
    values[0] = 0
    values[1, :32] = values[1, 0]
    values[2] = np.round(values[2] / scale) * scale / 2  # ties
    expected = gguf.quants.quantize(values, NUMBERS[name])
    assert np.array_equal(QUANTIZERS[name](torch.from_numpy(values)).numpy(), expected)


@pytest.mark.parametrize("name", QUANTIZERS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_are_taken_as_the_numbers_they_are(name: str, dtype: torch.dtype) -> None:
    values = torch.randn(4, 64).to(dtype)
    assert torch.equal(QUANTIZERS[name](values), QUANTIZERS[name](values.float()))


@pytest.mark.parametrize("name", QUANTIZERS)
def test_next_to_nothing_becomes_nothing(name: str) -> None:
    quantize = QUANTIZERS[name]
    for value in (0.0, 1e-44, -1e-40, 1e-30):
        decoded = quantize.kind.decode(quantize(torch.full((1, 32), value)))
        assert torch.equal(decoded, torch.zeros(1, 32))


@pytest.mark.parametrize(("name", "limit"), [("q8_0", 0.005), ("q4_0", 0.09)])
def test_the_error_is_what_so_many_bits_cost(name: str, limit: float) -> None:
    values = torch.randn(64, 256)
    quantize = QUANTIZERS[name]
    error = quantize.kind.decode(quantize(values)) - values
    assert 0 < (error.norm() / values.norm()).item() < 1.5 * limit
