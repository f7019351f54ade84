"""Products with weights: the same bits whatever else runs, and only what fits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from blazr.core.errors import ShapeError
from blazr.nn.kernels.cpu import compiled, lora, matmul
from blazr.nn.operands.lora import HeadLoras, LoraDelta
from tests.support.op_samples import random_lora

DTYPES = (torch.bfloat16, torch.float16, torch.float32)

pytestmark = pytest.mark.skipif(bool(compiled.missing()), reason=compiled.missing())


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_depends_on_itself_alone(dtype: torch.dtype) -> None:
    """Whatever the batch, its place in it, and the threads."""
    inner, outer = 203, 150
    x, gate, up = (torch.randn(size, inner).to(dtype) for size in (130, outer, outer))
    bias = torch.randn(outer).to(dtype)
    torch.set_num_threads(1)
    plain = torch.cat([matmul.linear(row, gate, bias) for row in x.split(1)])
    gated = torch.cat([matmul.gated_linear(row, gate, up) for row in x.split(1)])
    for num_threads in (1, 2, 4):
        torch.set_num_threads(num_threads)
        for batch in (*range(2, 10), 16, 33, 64, 130):
            rows = slice(130 - batch, 130)
            assert torch.equal(matmul.linear(x[rows], gate, bias), plain[rows]), batch
            assert torch.equal(matmul.gated_linear(x[rows], gate, up), gated[rows]), batch


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
def test_so_does_a_row_with_an_adapter(dtype: torch.dtype) -> None:
    inner, outer = 203, 150
    x, gate, up = (torch.randn(size, inner).to(dtype) for size in (130, outer, outer))
    first, second = (random_lora(dtype, inner, outer) for _ in range(2))
    slots = torch.arange(130) % 6

    def products(rows: slice) -> tuple[Tensor, Tensor]:
        one, two = (
            LoraDelta(each, slots[rows], lora.lora_shrink(x[rows], each, slots[rows]))
            for each in (first, second)
        )
        own = x[rows]
        return matmul.linear(own, gate, None, one), matmul.gated_linear(own, gate, up, (one, two))

    torch.set_num_threads(1)
    alone = [
        torch.cat(every)
        for every in zip(*(products(slice(i, i + 1)) for i in range(130)), strict=True)
    ]
    for num_threads in (1, 2, 4):
        torch.set_num_threads(num_threads)
        for batch in (2, 9, 33, 130):
            rows = slice(130 - batch, 130)
            for got, expected in zip(products(rows), alone, strict=True):
                assert torch.equal(got, expected[rows]), (batch, num_threads)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inner", [8200, 22_000])
def test_so_does_a_long_row(dtype: torch.dtype, inner: int) -> None:
    """More numbers than are widened at once."""
    x, gate, up = (torch.randn(size, inner).to(dtype) for size in (100, 6, 6))
    alone = torch.cat([matmul.gated_linear(row, gate, up) for row in x.split(1)])
    for batch in (3, 5, 20, 100):
        assert torch.equal(matmul.gated_linear(x[-batch:], gate, up), alone[-batch:]), batch


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_number_of_a_row_counts(dtype: torch.dtype) -> None:
    """Also those behind the last whole step."""
    for inner in range(1, 100):
        ones = torch.ones(1, inner, dtype=dtype)
        assert matmul.linear(ones, ones).item() == inner, inner


@pytest.mark.usefixtures("isa")
def test_a_column_depends_on_its_own_weights_alone() -> None:
    """So that a matrix may be cut among devices, or concatenated."""
    x, weight = torch.randn(5, 77), torch.randn(141, 77)
    whole = matmul.linear(x, weight)
    assert torch.equal(torch.cat([matmul.linear(x, w) for w in weight.split(9)], 1), whole)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_stays_so(dtype: torch.dtype) -> None:
    weight = torch.eye(9).to(dtype)
    huge = torch.finfo(dtype).max
    x = torch.tensor([[torch.inf, -torch.inf, torch.nan, huge, -huge, 0.0, -0.0, 1.0, 2.0]])
    got = matmul.linear(x[:, 3:].to(dtype), weight[3:, 3:])
    assert torch.equal(got, x[:, 3:].to(dtype))
    assert matmul.linear(x[:, 2:3].to(dtype), weight[2:3, 2:3]).isnan().all()
    assert torch.equal(matmul.linear(x[:, :1].to(dtype), weight[:1, :1]).float(), x[:, :1])
    too_large = matmul.linear(torch.full((1, 4), huge, dtype=dtype), torch.ones(1, 4, dtype=dtype))
    assert too_large.isinf().all()


@pytest.mark.usefixtures("isa")
def test_small_numbers_round_as_torch_rounds_them() -> None:
    """Subnormal halves, ties, and the step to infinity."""
    values = torch.cat([torch.logspace(-9, 5, 4000), torch.arange(1, 200) * 2.0**-25])
    one = torch.ones(1, 1)
    got = matmul.linear(torch.ones(1, 1, dtype=torch.float16), values.half()[:, None])
    assert torch.equal(got[0], values.half())
    bias = torch.ones(len(values), dtype=torch.float16)
    got = matmul.linear(torch.ones(1, 1, dtype=torch.float16), values.half()[:, None], bias)
    assert torch.equal(got[0], (values.half().float() + one[0]).half())


def test_what_does_not_fit_is_refused() -> None:
    x, weight = torch.randn(2, 8), torch.randn(4, 8)
    for arguments in (
        (x[:, :7], weight),
        (x.bfloat16(), weight),
        (x, weight, torch.randn(5)),
        (x, weight, torch.randn(4).bfloat16()),
    ):
        with pytest.raises(ShapeError):
            matmul.linear(*arguments)
    with pytest.raises(ShapeError):
        matmul.gated_linear(x, weight, weight[:3])


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_of_rows_without_an_adapter_keep_their_bits(dtype: torch.dtype) -> None:
    """With adapters each head is a call of its own."""
    tables = {head: random_lora(dtype, 40, 33) for head in (0, 2)}
    weight = torch.randn(3, 33, 40).to(dtype)
    for rows in (1, 7, 130):
        x = torch.randn(rows, 3, 40).to(dtype)
        slots = torch.arange(1, rows + 1) % 6
        changed = matmul.linear_heads(x, weight, None, HeadLoras(tables, slots))
        plain = matmul.linear_heads(x, weight)
        is_empty = (slots == 0) | (slots == 4)
        assert torch.equal(changed[is_empty], plain[is_empty])
        assert torch.equal(changed[:, 1], plain[:, 1])
        assert not torch.equal(changed, plain)
        first = matmul.linear_heads(x[:1], weight, None, HeadLoras(tables, slots[:1]))
        assert torch.equal(changed[:1], first)
