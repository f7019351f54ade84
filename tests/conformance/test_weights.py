"""Every packed weight: products, rows and slices are those of the numbers it stands for."""

import pytest
import torch
from torch import Tensor

from blazr.nn.operands.packing import TILE
from blazr.nn.quant import QUANTIZERS
from blazr.nn.quant.gguf import GGML_TYPES
from blazr.nn.quant.weight import GgufWeight

PACKED = [name for name in GGML_TYPES if GGML_TYPES[name].is_packed]


def finite_blocks(name: str, count: int) -> Tensor:
    """Random blocks of ordinary size: (count, bytes of a block)."""
    kind, kept = GGML_TYPES[name], []
    while sum(map(len, kept)) < count:
        blocks = torch.randint(0, 256, (4 * count, kind.nbytes), dtype=torch.uint8)
        size = kind.decode(blocks).abs().amax(1)
        kept.append(blocks[(size > 1e-2) & (size < 10)])
    return torch.cat(kept)[:count]


def weight(name: str, *shape: int, dtype: torch.dtype = torch.float32) -> GgufWeight:
    """A weight of (..., out, blocks in a row)."""
    kind = GGML_TYPES[name]
    blocks = finite_blocks(name, torch.Size(shape).numel())
    return GgufWeight(blocks.view(*shape[:-1], shape[-1] * kind.nbytes), kind, dtype)


@pytest.mark.parametrize("name", PACKED)
def test_a_product_is_that_with_the_numbers(name: str) -> None:
    packed = weight(name, 19, 3)
    whole = packed.dequantize(torch.float64)
    assert packed.shape == whole.shape
    for rows in (0, 1, 2, 7):
        x, bias = torch.randn(rows, whole.shape[1]), torch.randn(19)
        expected = x.double() @ whole.T + bias
        torch.testing.assert_close(packed.matmul(x, bias).double(), expected, rtol=1e-4, atol=1e-4)
        without = packed.matmul(x).double() + bias
        torch.testing.assert_close(without, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", PACKED)
def test_rows_and_slices_are_those_of_the_numbers(name: str) -> None:
    packed = weight(name, 4, 6, 2)
    whole = packed.dequantize(torch.float32)
    assert torch.equal(packed.select(2).dequantize(torch.float32), whole[2])
    ids = torch.tensor([[5, 0], [3, 3]])
    assert torch.equal(packed.select(1).rows(ids), whole[1][ids])
    assert packed.nbytes == whole.numel() // packed.kind.length * packed.kind.nbytes


@pytest.mark.parametrize("name", ["Q4_0", "Q6_K"])
def test_tiles_change_nothing(name: str) -> None:
    columns = 8 * GGML_TYPES[name].length
    rows = TILE // columns + 3
    packed = weight(name, rows, 8)
    assert torch.equal(packed.dequantize(torch.float32), packed.rows(torch.arange(rows)))
    x = torch.randn(2, columns)
    halves = [
        GgufWeight(part, packed.kind, torch.float32).matmul(x)
        for part in packed.blocks.split(rows - 3)
    ]
    torch.testing.assert_close(packed.matmul(x), torch.cat(halves, -1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_comes_out_is_of_the_models_dtype(dtype: torch.dtype) -> None:
    packed = weight("Q8_0", 5, 2, dtype=dtype)
    assert packed.matmul(torch.randn(2, 64).to(dtype)).dtype == dtype
    assert packed.rows(torch.tensor([1])).dtype == dtype


@pytest.mark.parametrize("name", [name for name in QUANTIZERS if name.endswith("_0")])
def test_quantizing_what_was_decoded_changes_nothing(name: str) -> None:
    quantize = QUANTIZERS[name]
    once = quantize(torch.randn(7, 3 * quantize.kind.length))
    values = quantize.kind.decode(once)
    assert torch.equal(quantize.kind.decode(quantize(values)), values)
