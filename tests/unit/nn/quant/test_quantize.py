"""Packing plain numbers: the blocks of the gguf package, and nothing odd at the edges."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blazr.nn.quant import QUANTIZERS

GOLDEN = Path(__file__).parents[3] / "golden" / "gguf"
# The package quantizes to these; each of ours is among them.
THEIRS = {"q8_0", "q4_0"}
NUMBERS = {name: gguf.GGMLQuantizationType[name.upper()] for name in THEIRS}


def q4_k_numbers(name: str) -> np.ndarray:
    """What the blocks of tests/golden/gguf/q4_k.npz were made from."""
    draw = np.random.Generator(np.random.PCG64(7))
    size = (16, 256)
    found = {
        "normal": lambda: draw.standard_normal(size),
        "heavy_tailed": lambda: 0.02 * draw.standard_t(4, size),
        "positive": lambda: draw.random(size),
    }[name]()
    return found.astype(np.float32)


@pytest.mark.parametrize("name", sorted(THEIRS))
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
    values = torch.randn(4, 256).to(dtype)
    assert torch.equal(QUANTIZERS[name](values), QUANTIZERS[name](values.float()))


@pytest.mark.parametrize("name", QUANTIZERS)
def test_next_to_nothing_becomes_nothing(name: str) -> None:
    quantize = QUANTIZERS[name]
    length = max(32, quantize.kind.length)
    for value in (0.0, 1e-44, -1e-40, 1e-30):
        decoded = quantize.kind.decode(quantize(torch.full((1, length), value)))
        assert torch.equal(decoded, torch.zeros(1, length))


@pytest.mark.parametrize(
    ("name", "limit"),
    [("q8_0", 0.005), ("q4_0", 0.09), ("int8", 0.008), ("int4", 0.115), ("q4_k", 0.071)],
)
def test_the_error_is_what_so_many_bits_cost(name: str, limit: float) -> None:
    values = torch.randn(64, 256)
    quantize = QUANTIZERS[name]
    error = quantize.kind.decode(quantize(values)) - values
    assert 0 < (error.norm() / values.norm()).item() < 1.5 * limit


@pytest.mark.parametrize(
    ("name", "columns", "group"),
    [("int8", 96, 96), ("int8", 512, 512), ("int4", 512, 128), ("int4", 96, 32)],
)
def test_groups_share_a_scale_that_bfloat16_holds(name: str, columns: int, group: int) -> None:
    quantize = QUANTIZERS[name]
    blocks = quantize(torch.randn(5, columns)).view(5, -1, quantize.kind.nbytes)
    scales = blocks[..., :2].clone(memory_format=torch.contiguous_format).view(torch.float16)
    groups = scales.view(5, columns // group, -1)
    assert (groups == groups[..., :1]).all()
    assert torch.equal(groups, groups.bfloat16().half())
    assert len(groups.unique()) > 1


def test_q4_k_errs_no_more_than_llama_cpp() -> None:
    """Blocks of its own quantizer for the same numbers; the error as both weigh it, and plain."""
    kind = QUANTIZERS["q4_k"].kind
    for name, blocks in np.load(GOLDEN / "q4_k.npz").items():
        numbers = torch.from_numpy(q4_k_numbers(name))
        ours, theirs = (
            kind.decode(each) - numbers
            for each in (QUANTIZERS["q4_k"](numbers), torch.from_numpy(blocks))
        )
        groups = numbers.view(-1, 32)
        weights = groups.abs() + groups.square().mean(-1, keepdim=True).sqrt()
        for weight in (weights, torch.ones_like(weights)):
            errors = [(weight * each.view(-1, 32) ** 2).sum() for each in (ours, theirs)]
            assert 0.8 * errors[1] < errors[0] < errors[1], name


def test_q4_k_keeps_what_it_can_hold() -> None:
    """Numbers that stand on sixteen even steps from 0."""
    numbers = torch.randint(0, 16, (4, 256)).float()
    numbers[:, ::32], numbers[:, 1::32] = 0, 15
    quantize = QUANTIZERS["q4_k"]
    assert (quantize.kind.decode(quantize(numbers)) - numbers).abs().max() < 0.01
