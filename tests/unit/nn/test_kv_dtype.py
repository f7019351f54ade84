"""Keys and values in eight bits: what is lost, what NaN becomes, and the same bytes by kernels."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blazr.core.errors import UnknownNameError
from blazr.nn.kernels.cpu import compiled
from blazr.nn.kernels.cpu.rows import rotate_and_store
from blazr.nn.layers.cache_spec import CacheSpec, TensorSpec
from blazr.nn.operands.attention import Rotation
from blazr.nn.operands.kv_dtype import KV_DTYPES, KvDtype, read_pages, write_entries
from blazr.nn.operands.step import GRID
from tests.support.seeds import run_seed

STORED = {name: row for name, row in KV_DTYPES.items() if row.dtype is not None}


@pytest.fixture(params=STORED)
def kind(request: pytest.FixtureRequest) -> KvDtype:
    return STORED[request.param]


@given(size=st.integers(1, 600))
def test_the_size_follows_from_the_bytes(size: int) -> None:
    for row in STORED.values():
        assert row.size(row.width(size)) == size
        encoded = row.encode(torch.ones(3, size))
        assert encoded.shape == (3, row.width(size))
        assert encoded.dtype == row.dtype
        assert row.decode(encoded).shape == (3, size)


@pytest.mark.parametrize("size", [64, 33, 5])
def test_q8_0_loses_half_a_step_of_a_block(size: int) -> None:
    torch.manual_seed(run_seed(0))
    x = torch.randn(50, size) * 10 ** torch.empty(50, 1).uniform_(-2, 3)
    row = STORED["q8_0"]
    lost = (row.decode(row.encode(x)) - x).abs()
    for first in range(0, size, 32):
        block = slice(first, first + 32)
        step = x[:, block].abs().amax(-1, keepdim=True) / 127
        scale_lost = (step * 2**-11).clamp(min=2**-25)  # half a step of float16, also near zero
        assert (lost[:, block] <= 0.5001 * step + 127 * scale_lost).all()


def test_fp8_loses_a_sixteenth_and_keeps_within_its_range() -> None:
    torch.manual_seed(run_seed(0))
    row = STORED["fp8_e4m3"]
    x = torch.randn(50, 40) * 10 ** torch.empty(50, 1).uniform_(-3, 2)
    lost = (row.decode(row.encode(x)) - x).abs()
    assert (lost <= (x.abs() / 16).clamp(min=2**-10)).all()
    large = torch.tensor([[1e9, -500.0, 448.0]])
    assert row.decode(row.encode(large)).tolist() == [[448.0, -448.0, 448.0]]


def test_nan_stays_and_zeros_are_zero(kind: KvDtype) -> None:
    x = torch.zeros(2, 40)
    x[1, 3] = float("nan")
    back = kind.decode(kind.encode(x))
    assert torch.equal(back[0], x[0])
    assert back[1, 3].isnan()
    # what nobody has written is seen where it is read: tests fill free memory with these bytes
    unwritten = torch.full((1, kind.width(40)), 0xFF, dtype=torch.uint8).view(kind.dtype)
    assert kind.decode(unwritten).isnan().all()


@pytest.mark.skipif(bool(compiled.missing()), reason="kernels are not compiled")
@pytest.mark.usefixtures("kernels_as_before")
@pytest.mark.parametrize("dtype", compiled.DTYPES)
@pytest.mark.parametrize("size", [64, 33, 576])
def test_kernels_write_the_same_bytes(kind: KvDtype, size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(run_seed(0))
    tokens, heads = 70, 3
    k, v = torch.randn(2, tokens, heads, size) * 10 ** torch.empty(2, tokens, heads, 1).uniform_(
        -5, 3
    )
    k, v = k.to(dtype), v.to(dtype)
    v[0], v[1, 0, :4] = 0, torch.tensor([float("nan"), float("inf"), 1.0, -1.0])
    slots = torch.randperm(2 * GRID)[:tokens]
    angles = torch.zeros(tokens, 0)
    rotation = Rotation(cos=angles, sin=angles, interleaved=False, slots=slots)
    shape = (2, GRID, heads, kind.width(size))
    expected = torch.zeros(2, *shape, dtype=torch.uint8).view(kind.dtype)
    write_entries(expected[0], slots, k)
    write_entries(expected[1], slots, v)
    is_number = ~torch.zeros(tokens, dtype=torch.bool).index_fill(0, torch.tensor([1]), value=True)
    for isa in compiled.isas():
        compiled.use(isa)
        got = torch.zeros(2, *shape, dtype=torch.uint8).view(kind.dtype)
        rotate_and_store(k, k, v, rotation, got[0], got[1])
        assert torch.equal(got[0].view(torch.uint8), expected[0].view(torch.uint8)), isa
        read = read_pages(got[1], torch.arange(2)[None], torch.float32)[0, slots]
        wanted = read_pages(expected[1], torch.arange(2)[None], torch.float32)[0, slots]
        assert torch.equal(read[is_number], wanted[is_number]), isa
        assert read[1, 0, 0].isnan()


def test_entries_take_half_of_16_bits() -> None:
    entry = TensorSpec((2, 64), torch.bfloat16)
    plain = CacheSpec(
        paged={"k": entry, "v": entry}, checkpoint={"h": TensorSpec((5,), torch.float32)}
    )
    in_q8_0, in_fp8 = plain.stored_as("q8_0"), plain.stored_as("fp8_e4m3")
    assert plain.stored_as("auto") == plain
    assert in_q8_0.bytes_per_token / plain.bytes_per_token == 34 / 64
    assert in_fp8.bytes_per_token / plain.bytes_per_token == 1 / 2
    assert in_q8_0.checkpoint == in_fp8.checkpoint == plain.checkpoint
    with pytest.raises(UnknownNameError, match=r"(?s)auto, q8_0, fp8_e4m3.*did you mean 'q8_0'"):
        plain.stored_as("q8")
