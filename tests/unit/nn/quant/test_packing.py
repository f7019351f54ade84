"""Packing by kernels: the same bits as in torch, and nothing kept twice that is the same."""

from __future__ import annotations

import pytest
import torch

from blazr.nn.kernels.cpu import blocks as kernel
from blazr.nn.kernels.cpu import compiled
from blazr.nn.operands.packing import PACKINGS
from blazr.nn.quant import QUANTIZERS
from blazr.nn.quant.exact import ShiftedWeight, make_blocks
from blazr.nn.quant.gguf import GGML_TYPES
from blazr.nn.quant.gguf.kquantize import encode_q4_k
from blazr.nn.quant.packed import PackedWeight, pack, pack_weight
from blazr.nn.quant.weight import GgufWeight, PlainWeight, StoredStack
from tests.support.op_samples import SAMPLES

pytestmark = pytest.mark.skipif(bool(compiled.missing()), reason=compiled.missing())


def test_the_kernel_packs_as_the_reference_does() -> None:
    for arguments in SAMPLES["pack"](torch.uint8):
        expected = pack.reference(*arguments)
        assert torch.equal(kernel.pack(*arguments), expected), arguments[1]


def _grouped(columns: int, size: int, *, zeros: bool) -> tuple[GgufWeight, torch.Tensor | None]:
    """Rows in four bits with groups of so many columns; what is added to the groups."""
    scales = (torch.rand(37, columns // size) + 0.1).half()
    scales[0, 0] = 0
    codes = torch.randint(0, 16, (37, columns))
    blocks = make_blocks(GGML_TYPES["Q4_0"], codes, scales)
    shift = (8 - torch.randint(0, 17, scales.shape)) * scales.float() if zeros else None
    return GgufWeight(blocks, GGML_TYPES["Q4_0"], torch.float32), shift


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(
    ("columns", "size", "name"),
    [
        (384, 32, "int4 by 32"),
        (384, 64, "int4 by 64"),
        (384, 96, "int4 by 32"),
        (384, 128, "int4 by 128"),
        (1024, 256, "int4 by 128"),
        (384, 192, "int4 by 64"),
        (384, 384, "int4 by 128"),
    ],
)
def test_groups_keep_one_scale(columns: int, size: int, name: str, *, zeros: bool) -> None:
    inner, shift = _grouped(columns, size, zeros=zeros)
    weight = inner if shift is None else ShiftedWeight(inner, shift=shift)
    expected = weight.dequantize(torch.float32)
    packed = pack_weight(weight)
    assert isinstance(packed, PackedWeight)
    # without zero points, a scale for each block is less than one and a code
    expects = "Q4_0" if size in {32, 96} and not zeros else name
    assert packed.packing is PACKINGS[expects]
    assert torch.equal(packed.dequantize(torch.float32), expected)
    assert torch.equal(packed.rows(torch.tensor([36, 0, 5])), expected[[36, 0, 5]])


def test_rows_with_a_scale_of_their_own_keep_it() -> None:
    inner, _ = _grouped(256, 256, zeros=False)
    inner.blocks.unflatten(1, (-1, 18))[..., :2] = torch.tensor([0, 0x3C])  # one, in float16
    scale = torch.rand(37)
    shift = torch.randint(-8, 9, (37, 1)) * scale[:, None]
    order = torch.randperm(256)
    for more, is_ordered in ((None, False), (shift, False), (shift, True)):
        weight = ShiftedWeight(inner, scale=scale, shift=more, order=order if is_ordered else None)
        packed = pack_weight(weight)
        assert isinstance(packed, ShiftedWeight if is_ordered else PackedWeight)
        found, expected = packed.dequantize(torch.float32), weight.dequantize(torch.float32)
        # the difference of codes is multiplied once, where the sum was of two products
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_experts_of_one_packing_become_one_weight() -> None:
    parts = [_grouped(256, 64, zeros=True) for _ in range(3)]
    each = [ShiftedWeight(inner, shift=shift) for inner, shift in parts]
    rows = [each[0], ShiftedWeight(parts[1][0], scale=torch.rand(37))]
    plain = [each[0], PlainWeight(torch.randn(37, 256)), each[1]]
    for matrices, is_one in ((each, True), (rows, False), (plain, False)):
        stack = StoredStack(matrices)
        expected = stack.dequantize(torch.float32)
        packed = pack_weight(stack)
        assert isinstance(packed, PackedWeight if is_one else StoredStack)
        assert torch.equal(packed.dequantize(torch.float32), expected)
        assert torch.equal(packed.select(1).dequantize(torch.float32), expected[1])


def test_what_is_no_code_of_zero_is_added_after_the_product() -> None:
    inner, shift = _grouped(256, 64, zeros=True)
    assert shift is not None
    weight = ShiftedWeight(inner, shift=shift + 0.01)
    expected = weight.dequantize(torch.float32)
    packed = pack_weight(weight)
    assert isinstance(packed, ShiftedWeight)
    assert isinstance(packed.inner, PackedWeight)
    assert torch.equal(packed.dequantize(torch.float32), expected)


@pytest.mark.parametrize(
    ("quantize", "name", "bits"),
    [("int8", "int8", 8.125), ("int4", "int4 by 128", 4.1875), ("q8_0", "Q8_0", 8.5)],
)
@pytest.mark.parametrize("stack", [(), (3,)])
def test_quantized_at_load(quantize: str, name: str, bits: float, stack: tuple[int, ...]) -> None:
    quantizer = QUANTIZERS[quantize]
    for rows in (32, 40):
        blocks = quantizer(torch.randn(*stack, rows, 256))
        weight = GgufWeight(blocks, quantizer.kind, torch.bfloat16)
        packed = pack_weight(weight)
        assert isinstance(packed, PackedWeight)
        assert packed.packing is PACKINGS[name]
        assert packed.shape == weight.shape
        if rows == 32:
            assert packed.nbytes * 8 == bits * packed.numel()
        assert torch.equal(packed.dequantize(torch.float32), weight.dequantize(torch.float32))
        one, same = (each.select(1) if stack else each for each in (packed, weight))
        x = torch.randn(3, 256).bfloat16()
        error = one.matmul(x).float() - x.float() @ same.dequantize(torch.float32).T
        assert error.norm() < 0.02 * (one.matmul(x).float()).norm()
        up = one.gated(x, one)
        assert torch.isfinite(up).all()


@pytest.mark.usefixtures("kernels_as_before")
def test_q4_k_is_the_same_blocks_everywhere_and_as_good_as_the_reference() -> None:
    kind = GGML_TYPES["Q4_K"]
    for (x,) in SAMPLES["encode_q4_k"](torch.float32):
        found = []
        for isa in compiled.isas():
            compiled.use(isa)
            found.append(kernel.encode_q4_k(x))
        assert all(torch.equal(found[0], each) for each in found)
        reference = encode_q4_k.reference(x)
        assert found[0].shape == reference.shape
        if len(x) > 2:
            assert (found[0] != reference).float().mean() < 0.02  # where two are as good
            ours, theirs = (((kind.decode(b) - x) ** 2).sum() for b in (found[0], reference))
            assert 0.999 < ours / theirs < 1.001


def test_q4_k_takes_any_numbers() -> None:
    x = torch.randn(3, 256)
    x[0, 3], x[0, 40], x[1, 7], x[2] = torch.nan, torch.inf, -torch.inf, 0
    blocks = kernel.encode_q4_k(x)
    assert not GGML_TYPES["Q4_K"].decode(blocks[2:]).any()
