"""Packed weights: nothing is lost in packing, and products are the same bits in any batch."""

from __future__ import annotations

import pytest
import torch

from blazr.core.errors import ShapeError
from blazr.nn.kernels.cpu import compiled, matmul_q
from blazr.nn.operands.packing import PACKINGS, Packed, Packing
from blazr.nn.ops.packed import (
    interleave,
    packed_linear,
    packed_rows,
    unpack,
)
from blazr.nn.quant.gguf import GGML_TYPES
from blazr.nn.quant.packed import PackedWeight, pack_blocks, pack_weight
from blazr.nn.quant.weight import GgufWeight
from tests.support.op_samples import random_packed

GGML = [name for name in PACKINGS if name in GGML_TYPES]
needs_library = pytest.mark.skipif(bool(compiled.missing()), reason=compiled.missing())


def _blocks(name: str, rows: int, blocks: int) -> torch.Tensor:
    """Blocks of any numbers but those that are none."""
    kind = GGML_TYPES[name]
    data = torch.randint(0, 256, (8 * rows * blocks, kind.nbytes), dtype=torch.uint8)
    data = data[kind.decode(data).isfinite().all(1)]
    return data[: rows * blocks].view(rows, -1)


def _quiet(name: str, rows: int, blocks: int) -> torch.Tensor:
    """Blocks whose numbers are neither huge nor all zero."""
    kind = GGML_TYPES[name]
    data = _blocks(name, 4096, 1)
    size = kind.decode(data).abs().amax(1)
    return data[(size > 1e-2) & (size < 10)][: rows * blocks].view(rows, -1)


@pytest.mark.parametrize("name", GGML)
@pytest.mark.parametrize("rows", [1, 16, 37])
def test_unpacked_is_what_was_packed(name: str, rows: int) -> None:
    kind, blocks = GGML_TYPES[name], _blocks(name, rows, 3)
    packed = Packed(PACKINGS[name], pack_blocks(name, blocks), rows)
    assert packed.blocks.shape == (-(-rows // 16), 3, PACKINGS[name].nbytes)
    decoded = kind.decode(blocks)
    assert torch.equal(unpack(packed), decoded)
    ids = torch.randint(0, rows, (9,))
    out = torch.empty(9, 3 * kind.length)
    assert torch.equal(packed_rows.reference(out, packed, ids), decoded[ids])
    if not compiled.missing():
        assert torch.equal(matmul_q.packed_rows(out.zero_(), packed, ids), decoded[ids])


def test_packing_costs_little_memory() -> None:
    for name in ("Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4"):
        packing, kind = PACKINGS[name], GGML_TYPES[name]
        assert packing.columns == kind.length
        assert kind.nbytes <= packing.nbytes / 16 <= 1.03 * kind.nbytes


def test_half_a_block_is_refused() -> None:
    codes = torch.zeros(16, 48, dtype=torch.uint8)
    with pytest.raises(ShapeError):
        interleave(PACKINGS["Q8_0"], codes, [torch.zeros(16, 1, 1, 2, dtype=torch.uint8)])


def test_activations_lose_less_than_a_hundredth() -> None:
    packed = random_packed(PACKINGS["Q8_0"], 64, 8)
    x = torch.randn(10, 256)
    exact = x @ unpack(packed).T
    error = (packed_linear(x, packed) - exact).norm() / exact.norm()
    assert 0 < error < 0.01


@pytest.mark.sample
@needs_library
@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("name", PACKINGS)
@pytest.mark.parametrize("gated", [False, True])
def test_a_row_depends_on_itself_alone(name: str, *, gated: bool) -> None:
    blocks = 1 + 600 // PACKINGS[name].columns  # more than kernels go through at a time
    weights = [random_packed(PACKINGS[name], 150, blocks) for _ in range(1 + gated)]
    function = matmul_q.packed_gated_linear if gated else matmul_q.packed_linear
    x = torch.randn(130, weights[0].columns).bfloat16()
    torch.set_num_threads(1)
    alone = torch.cat([function(row, *weights) for row in x.split(1)])
    for num_threads, batches in ((1, (2, 3, 7, 16, 33, 50)), (2, (1, 7, 130)), (4, (16, 33, 64))):
        torch.set_num_threads(num_threads)
        for batch in batches:
            got = function(x[-batch:], *weights)
            assert torch.equal(got, alone[-batch:]), (batch, num_threads)


def _codes_of_one(packing: Packing, code: int) -> torch.Tensor:
    """The bytes of a block whose codes are all the same."""
    lines = []
    for bits in packing.fields:
        largest = 2**bits - 1
        lines.append(torch.full((64 * bits,), (code & largest) * (255 // largest)).byte())
        code >>= bits
    return torch.cat(lines)


@needs_library
@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("name", PACKINGS)
def test_sums_of_the_largest_codes_do_not_overflow(name: str) -> None:
    """One end of every code in a whole superblock, and activations that are all alike."""
    packed = random_packed(PACKINGS[name], 16, 1)
    x = torch.tensor([[3.0], [-3.0]]).repeat(1, packed.columns)
    values = packed.packing.table or range(2**packed.packing.bits)
    for end in (min, max):
        codes = [_codes_of_one(packed.packing, values.index(end(values)))] * packed.packing.blocks
        packed.blocks[..., packed.packing.scale_bytes :] = torch.cat(codes)
        expected = packed_linear.reference(x.double(), packed).float()
        near = {"rtol": 1e-5, "atol": 1e-6 * float(expected.abs().max())}
        torch.testing.assert_close(matmul_q.packed_linear(x, packed), expected, **near)


@needs_library
@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q6_K", "IQ4_NL", "int8"])
def test_every_form_rounds_activations_alike(name: str) -> None:
    """Extremes of both operands: the ends of every code, blocks of zeros, what is not finite."""
    packed = random_packed(PACKINGS[name], 16, 2)
    codes = packed.blocks[..., packed.packing.scale_bytes :]
    codes[..., ::4], codes[..., 1::4] = 0, 0xFF
    columns = packed.columns
    x = torch.stack([torch.full((columns,), 3.0), -torch.arange(columns), torch.zeros(columns)])
    expected = packed_linear.reference(x.double(), packed).float()
    near = {"rtol": 1e-5, "atol": 1e-6 * float(expected.abs().max())}
    torch.testing.assert_close(matmul_q.packed_linear(x, packed), expected, **near)
    for value in (torch.inf, torch.nan):
        x[1, 5] = value
        got = matmul_q.packed_linear(x, packed)
        assert not got[1].isfinite().any()
        torch.testing.assert_close(got[[0, 2]], expected[[0, 2]], **near)


@needs_library
@pytest.mark.parametrize("name", PACKINGS)
def test_instruction_sets_differ_in_the_last_bits_of_sums(name: str) -> None:
    """Activations are rounded alike, and blocks are whole numbers; only float32 sums differ."""
    packed = random_packed(PACKINGS[name], 40, 2)
    x = torch.randn(5, packed.columns)
    made = {}
    for isa in compiled.isas():
        compiled.use(isa)
        made[isa] = matmul_q.packed_linear(x, packed)
    magnitudes = x.abs() @ unpack(packed).abs().T
    first, *others = made.values()
    for other in others:
        assert ((first - other).abs() <= 2**-20 * magnitudes).all()
    # a lane is a row in each of them, and a product and a sum are rounded once
    fused = [found for isa, found in made.items() if isa != "portable"]
    assert all(torch.equal(each, fused[0]) for each in fused)


def test_what_does_not_fit_is_refused() -> None:
    packed, other = (random_packed(PACKINGS[name], 20, 2) for name in ("Q8_0", "Q4_0"))
    x = torch.randn(1, 64)
    for arguments in ((x[:, :32], packed), (x, packed._replace(rows=40)), (x, packed, x[0])):
        with pytest.raises(ShapeError):
            matmul_q.packed_linear(*arguments)
    with pytest.raises(ShapeError):
        matmul_q.packed_gated_linear(x, packed, other)
    for ids in ([20], [-1], [0, 1]):
        with pytest.raises(ShapeError):
            matmul_q.packed_rows(torch.empty(1, 64), packed, torch.tensor(ids))


@needs_library
@torch.inference_mode()
@pytest.mark.parametrize("name", ["Q8_0", "Q4_K"])
def test_weights_are_packed_alone_and_in_stacks(name: str) -> None:
    kind = GGML_TYPES[name]
    stack = GgufWeight(_quiet(name, 3 * 20, 2).view(3, 20, -1), kind, torch.bfloat16)
    packed = pack_weight(stack)
    for old, new in ((stack, packed), (stack.select(1), packed.select(1))):
        assert isinstance(new, PackedWeight)
        assert (new.shape, new.dtype) == (old.shape, old.dtype)
        assert torch.equal(new.dequantize(torch.float32), old.dequantize(torch.float32))
    old, new, up = stack.select(1), packed.select(1), packed.select(2)
    ids = torch.tensor([[0, 19], [3, 3]])
    assert torch.equal(new.rows(ids), old.rows(ids))
    x = torch.randn(5, old.shape[1]).bfloat16()
    exact = old.matmul(x).float()
    assert (new.matmul(x) - exact).norm() < 0.02 * exact.norm()
    exact = old.gated(x, stack.select(2)).float()
    assert (new.gated(x, up) - exact).norm() < 0.05 * exact.norm()
    assert (new.gated(x, stack.select(2)) - exact).norm() < 0.05 * exact.norm()


@needs_library
def test_what_kernels_cannot_have_stays_as_it_is() -> None:
    kind = GGML_TYPES["Q8_0"]
    weight = GgufWeight(torch.zeros(4, kind.nbytes, dtype=torch.uint8), kind, torch.float64)
    assert pack_weight(weight) is weight


@pytest.mark.usefixtures("reference_ops")
def test_the_reference_packs_nothing() -> None:
    weight = GgufWeight(_quiet("Q8_0", 4, 1), GGML_TYPES["Q8_0"], torch.float32)
    assert pack_weight(weight) is weight
