"""Packed weights: nothing is lost in packing, and products are the same bits in any batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from blazr.core.errors import ShapeError
from blazr.nn.kernels.cpu import library, matmul_q
from blazr.nn.ops.packed import BLOCK_BYTES, pack, packed_linear, unpack, unpack_rows
from blazr.nn.quant.gguf import GGML_TYPES
from blazr.nn.quant.gguf.weight import GgufWeight
from blazr.nn.quant.packed import PackedWeight, pack_weights

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def _blocks(kind: str, rows: int, blocks: int) -> torch.Tensor:
    row = GGML_TYPES[kind]
    data = torch.randint(0, 256, (rows, blocks, row.nbytes), dtype=torch.uint8)
    data[..., :2] = torch.randn(rows, blocks, 1).half().view(torch.uint8)
    return data.flatten(1)


@pytest.mark.parametrize("kind", BLOCK_BYTES)
@pytest.mark.parametrize("rows", [1, 16, 37])
def test_unpacked_is_what_was_packed(kind: str, rows: int) -> None:
    blocks = _blocks(kind, rows, 3)
    packed = pack(kind, blocks)
    assert packed.shape == (-(-rows // 16), 3, BLOCK_BYTES[kind])
    decoded = GGML_TYPES[kind].decode(blocks)
    assert torch.equal(unpack(packed, rows), decoded)
    ids = torch.randint(0, rows, (9,))
    assert torch.equal(unpack_rows(packed, ids), decoded[ids])


def test_half_a_block_is_refused() -> None:
    with pytest.raises(ShapeError):
        pack("Q8_0", torch.zeros(16, 35, dtype=torch.uint8))


def test_activations_lose_less_than_a_hundredth() -> None:
    packed = pack("Q8_0", _blocks("Q8_0", 64, 8))
    x = torch.randn(10, 256)
    exact = x @ unpack(packed, 64).T
    error = (packed_linear(x, packed, 64) - exact).norm() / exact.norm()
    assert 0 < error < 0.01


@pytest.mark.skipif(bool(library.missing()), reason=library.missing())
@pytest.mark.parametrize("isa", library.ISAS)
@pytest.mark.parametrize("kind", BLOCK_BYTES)
def test_a_row_depends_on_itself_alone(kind: str, isa: str) -> None:
    if not library.use(isa):
        pytest.skip(f"this processor has no {isa}")
    before = torch.get_num_threads()
    packed, x = pack(kind, _blocks(kind, 150, 4)), torch.randn(130, 128).bfloat16()
    try:
        torch.set_num_threads(1)
        alone = torch.cat([matmul_q.packed_linear(row, packed, 150) for row in x.split(1)])
        for num_threads in (1, 2, 4):
            torch.set_num_threads(num_threads)
            for batch in (2, 3, 7, 16, 33, 130):
                got = matmul_q.packed_linear(x[-batch:], packed, 150)
                assert torch.equal(got, alone[-batch:]), (batch, num_threads)
    finally:
        torch.set_num_threads(before)
        library.use()


@pytest.mark.skipif(bool(library.missing()), reason=library.missing())
@pytest.mark.parametrize("isa", library.ISAS)
def test_every_form_rounds_activations_alike(isa: str) -> None:
    """Extremes of both operands: -128 and 127, all nibbles, blocks of zeros, what is not finite."""
    if not library.use(isa):
        pytest.skip(f"this processor has no {isa}")
    try:
        for kind in BLOCK_BYTES:
            blocks = _blocks(kind, 16, 2).view(16, 2, -1)
            blocks[..., :2] = torch.ones(1).half().view(torch.uint8)
            blocks[0, :, 2:], blocks[1, :, 2:], blocks[2, :, 2:] = 0x80, 0x7F, 0xFF
            packed = pack(kind, blocks.flatten(1))
            x = torch.stack([torch.full((64,), 3.0), -torch.arange(64.0), torch.zeros(64)])
            expected = packed_linear.reference(x.double(), packed, 16).float()
            torch.testing.assert_close(matmul_q.packed_linear(x, packed, 16), expected)
            for value in (torch.inf, torch.nan):
                x[1, 5] = value
                got = matmul_q.packed_linear(x, packed, 16)
                assert not got[1].isfinite().any()
                torch.testing.assert_close(got[[0, 2]], expected[[0, 2]])
    finally:
        library.use()


def test_what_does_not_fit_is_refused() -> None:
    packed = pack("Q8_0", _blocks("Q8_0", 20, 2))
    for arguments in ((torch.randn(1, 32), packed, 20), (torch.randn(1, 64), packed, 40)):
        with pytest.raises(ShapeError):
            matmul_q.packed_linear(*arguments)


class _Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = GgufWeight(_blocks("Q8_0", 20, 2), GGML_TYPES["Q8_0"], torch.float32)
        self.embedding = self.head
        stack = torch.stack([_blocks("Q4_0", 17, 1) for _ in range(3)])
        self.experts = GgufWeight(stack, GGML_TYPES["Q4_0"], torch.bfloat16)
        self.other = GgufWeight(
            torch.zeros(4, 210, dtype=torch.uint8), GGML_TYPES["Q6_K"], torch.float32
        )


@torch.inference_mode()
def test_a_network_is_packed_where_it_can_be() -> None:
    network = _Network()
    head, experts, other = network.head, network.experts, network.other
    pack_weights(network)
    assert isinstance(network.head, PackedWeight)
    assert network.head is network.embedding
    assert network.other is other
    for old, new in ((head, network.head), (experts, network.experts)):
        assert (new.shape, new.dtype) == (old.shape, old.dtype)
        assert torch.equal(new.dequantize(torch.float32), old.dequantize(torch.float32))
    ids = torch.tensor([[0, 19], [3, 3]])
    assert torch.equal(network.embedding.rows(ids), head.rows(ids))
    assert torch.equal(
        network.experts.select(1).dequantize(torch.float32),
        experts.select(1).dequantize(torch.float32),
    )
    x = torch.randn(5, 64)
    close = network.head.matmul(x) - head.matmul(x)
    assert close.norm() < 0.01 * head.matmul(x).norm()
