"""Kernels for GPUs agree with their references in Triton's interpreter, which needs no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import fields, replace
from itertools import islice, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from blazr.nn.kernels import KERNELS
from blazr.nn.kernels.kernel import Kernel
from blazr.nn.operands.attention import Pages
from blazr.nn.operands.recurrent import Mamba2Memory
from blazr.nn.operands.step import GRID, Span, StepTable
from tests.support.agreement import agree, fits, function_of, tensors_in
from tests.support.op_samples import SAMPLES
from tests.support.step_samples import STEP_SAMPLES, sample_pages

ROWS = [row for row in KERNELS.values() if row.device == "cuda"]

pytestmark = [
    pytest.mark.triton,
    pytest.mark.timeout(600),
    # numpy computes, and says so where a tile's unused numbers overflow
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.fixture(autouse=True, scope="module")
def _interpreter() -> Iterator[None]:
    """Triton's functions, and ours, are made for the interpreter when they are first imported."""
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setenv("TRITON_INTERPRET", "1")
        pytest.importorskip("triton", reason="Triton is not installed: pip install 'blazr[triton]'")
        yield


@pytest.mark.parametrize(
    ("row", "dtype"),
    [(row, dtype) for row in ROWS for dtype in row.dtypes],
    ids=[f"{row.op}-{dtype}" for row in ROWS for dtype in row.dtypes],
)
def test_a_kernel_agrees_with_the_reference(row: Kernel, dtype: torch.dtype) -> None:
    """Whole steps take the interpreter long: a third of their samples in each dtype."""
    samples: Iterator[tuple[object, ...]] = iter(SAMPLES[row.op](dtype))
    if row.op in STEP_SAMPLES:
        samples = islice(samples, row.dtypes.index(dtype), None, 3)
    count = 0
    for arguments in samples:
        if not fits(row, arguments):
            continue
        agree(row, dtype, arguments, ("interpreted",))
        count += 1
    assert count


def _sequences(*lengths: tuple[int, int], pages: list[list[int]]) -> StepTable:
    """Of so many tokens, each after so many in memory."""
    spans, first = [], 0
    for index, (length, start) in enumerate(lengths):
        spans.append(Span(first, length, start, start % GRID, (), index, index))
        first += length
    room = max(map(len, pages))
    tables = torch.tensor([row + [0] * (room - len(row)) for row in pages])
    return StepTable(tuple(spans), tables, sum(length == 1 for length, _ in lengths))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("window", [None, 300])
def test_attention_does_not_depend_on_company_or_cuts(
    dtype: torch.dtype, window: int | None
) -> None:
    """A token's row has the same bits in a prompt, as a reply, alone and beside others."""
    attend = function_of(KERNELS["triton.paged_attention"])
    pages = Pages(
        keys=sample_pages(dtype, 2, 16),
        values=sample_pages(dtype, 2, 16),
        scale=0.3,
        window=window,
        sinks=torch.randn(6),
    )
    q = torch.randn(700, 6, 16).to(dtype)
    own, other = [3, 5, 1, 0, 7, 2, 9, 11, 10, 8, 6], [4, 6, 4]
    whole = attend(q, pages, _sequences((700, 0), pages=[own]))
    for first, last in ((0, 37), (37, 257), (257, 700)):
        cut = attend(q[first:last], pages, _sequences((last - first, first), pages=[own]))
        assert torch.equal(cut, whole[first:last])
    for at in (63, 256, 511, 699):
        alone = attend(q[at, None], pages, _sequences((1, at), pages=[own]))
        assert torch.equal(alone[0], whole[at])
        among = torch.cat((q[5, None], q[at, None], q[20:60]))
        table = _sequences((1, 130), (1, at), (40, 90), pages=[other, own, other])
        assert torch.equal(attend(among, pages, table)[1], whole[at])


def _piece(first: int, last: int) -> StepTable:
    """Some tokens of one sequence, whose states are kept at every grid edge."""
    edges = range((first // GRID + 1) * GRID, last + 1, GRID)
    kept = tuple((edge - first, 1 + edge // GRID) for edge in edges)
    span = Span(0, last - first, first, first % GRID, kept, 1 + first // GRID, 0)
    return StepTable((span,), torch.zeros(1, 3, dtype=torch.int64), int(last - first == 1))


def test_mamba2_does_not_depend_on_cuts() -> None:
    """Rows have the same bits in a prompt that is read whole, in pieces, and by single tokens."""
    run = function_of(KERNELS["triton.mamba2"])
    _, weights, memory, _ = next(iter(SAMPLES["mamba2"](torch.float16)))
    width = 2 * weights.heads * weights.head_dim + weights.heads
    width += 2 * weights.groups * weights.state_size
    projected = torch.randn(150, width).half()

    def step(first: int, last: int, memory: Mamba2Memory) -> Tensor:
        return run(projected[first:last], weights, memory, _piece(first, last))

    whole = step(0, 150, deepcopy(memory))
    own = deepcopy(memory)
    cuts = (0, 40, 41, 63, 64, 130, 131, 150)
    parts = [step(first, last, own) for first, last in pairwise(cuts)]
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize(
    ("op", "cuts"),
    [
        # many tokens of a grid interval are computed together; of few, each by itself
        ("gated_delta", (0, 64, 66, 67, 76)),
        ("mamba1", (0, 40, 41, 63, 64, 76)),
        ("mamba3", (0, 40, 41, 63, 64, 76)),
    ],
)
def test_recurrences_do_not_depend_on_cuts(op: str, cuts: tuple[int, ...]) -> None:
    """Rows and states have the same bits in a prompt that is read whole, and in pieces."""
    run = function_of(KERNELS[f"triton.{op}"])
    samples: list[Any] = list(islice(SAMPLES[op](torch.float16), 8))
    x, rows, weights, memory, _ = max(samples, key=lambda sample: len(sample[0]))

    def step(first: int, last: int, memory: object) -> Tensor:
        own = {
            each.name: None if (made := getattr(rows, each.name)) is None else made[first:last]
            for each in fields(rows)
        }
        return run(x[first:last], replace(rows, **own), weights, memory, _piece(first, last))

    whole_memory, own = deepcopy(memory), deepcopy(memory)
    whole = step(0, cuts[-1], whole_memory)
    parts = [step(first, last, own) for first, last in pairwise(cuts)]
    assert torch.equal(torch.cat(parts), whole)
    for got, expected in zip(tensors_in(own), tensors_in(whole_memory), strict=True):
        assert torch.equal(got, expected)
