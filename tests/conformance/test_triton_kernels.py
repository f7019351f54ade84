"""Kernels for GPUs agree with their references in Triton's interpreter, which needs no GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import fields, replace
from itertools import islice, pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from blazr.models.loading.stacks import join_stack
from blazr.nn.device import exactness
from blazr.nn.kernels import KERNELS
from blazr.nn.kernels.kernel import Kernel
from blazr.nn.operands.attention import AttentionParams, Pages
from blazr.nn.operands.experts import ExpertMlps, Stack
from blazr.nn.operands.recurrent import Mamba2Memory
from blazr.nn.operands.step import GRID, Span, StepTable
from blazr.nn.quant.exact import in_blocks
from blazr.nn.quant.hf.gptq import GptqLayout
from blazr.nn.quant.weight import StoredStack, StoredWeight
from tests.support.agreement import agree, fits, function_of, tensors_in
from tests.support.networks import Lab, build_network
from tests.support.op_samples import FLOATS, SAMPLES, random_blocks, random_floats, random_shifted
from tests.support.other_device import OTHER, other_device
from tests.support.quantized import gptq
from tests.support.step_samples import STEP_SAMPLES, sample_pages
from tests.support.without_kernels import kernels_for_gpus

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
        params=AttentionParams(scale=0.3, window=window, sinks=torch.randn(6)),
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


@pytest.mark.parametrize(("name", "exact"), [("softplus", F.softplus), ("expm1", torch.expm1)])
def test_functions_are_precise_also_where_they_are_small(
    name: str, exact: Callable[[Tensor], Tensor]
) -> None:
    from blazr.nn.kernels.triton import numbers
    from tests.support.triton_functions import apply

    small = torch.logspace(-12, 0, 256)
    x = torch.cat((torch.linspace(-80, 80, 512), small, -small))
    found = torch.empty_like(x)
    apply[1,](x, found, FUNCTION=getattr(numbers, name), SIZE=len(x))
    torch.testing.assert_close(found.double(), exact(x.double()), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("op", "cuts"),
    [
        # many tokens of a grid interval are computed together; of few, each by itself
        ("gated_delta", (0, 64, 66, 67, 76)),
        ("mamba1", (0, 40, 41, 63, 64, 76)),
        ("mamba3", (0, 40, 41, 63, 64, 76)),
        ("rg_lru", (0, 40, 41, 63, 64, 76)),
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


@pytest.mark.parametrize("op", ["linear", "wide_linear", "gated_linear", "stored_linear"])
def test_exact_products_do_not_depend_on_company(op: str) -> None:
    """A row has the same bits alone, among few rows, and among so many that others are faster."""
    weights: list[Any] = [torch.randn(70, 256).half()]
    if op == "stored_linear":
        weights = [random_blocks("Q4_K", 70, 256), random_floats("NVFP4", 70, 256)]
    run = function_of(KERNELS[f"triton.{op}"])
    x = torch.randn(300, 256).half()
    for weight in weights:
        more = (torch.randn(70, 256).half(),) if op == "gated_linear" else ()
        with exactness(is_exact=True):
            whole = run(x, weight, *more)
            for first, last in ((0, 1), (7, 8), (60, 130), (250, 300)):
                assert torch.equal(run(x[first:last], weight, *more), whole[first:last])


@pytest.mark.parametrize("has_order", [False, True])
@pytest.mark.parametrize("size", [32, 64, 128])
@pytest.mark.parametrize("bits", [3, 4, 8])
def test_experts_of_gptq_agree_with_the_reference(bits: int, size: int, has_order: bool) -> None:
    """As they are loaded: groups up to a whole row, and with act order each expert in its own."""
    row = KERNELS["triton.experts"]
    gate, up, down = (_gptq_stack(bits, size, has_order=has_order) for _ in range(3))
    mlps = ExpertMlps(gate=gate, up=up, down=down)
    # one expert is never used
    for dtype, tokens in zip(row.dtypes, (1, 5, 20), strict=True):
        x, weights = torch.randn(tokens, 128).to(dtype), torch.rand(tokens, 2)
        chosen = torch.rand(tokens, 3).argsort(-1)[:, :2] + 1
        agree(row, dtype, (x, weights, chosen, mlps), ("interpreted",))


def _gptq_stack(bits: int, size: int, *, has_order: bool) -> Stack:
    """Four matrices, (128, 128); of three bits with zero points that are no centers."""
    matrices = []
    for _ in range(4):
        numbers = torch.randn(128, 128) / 11
        parts, _ = gptq(numbers, bits=bits, size=size, zeros=bits == 3, order=has_order)
        layout = GptqLayout((128, 128), bits, size, offset=1)
        matrices.append(in_blocks(StoredWeight(layout, parts, torch.float32)))
    operand = join_stack(StoredStack(matrices), torch.device("cpu")).operand
    assert operand is not None
    assert getattr(operand, "order", None) is None or has_order
    return operand


@pytest.mark.parametrize("name", ["bfloat16", "Q4_K", "FP8 by rows", "GPTQ with act order"])
def test_experts_do_not_depend_on_company(name: str) -> None:
    run = function_of(KERNELS["triton.experts"])

    def stack() -> Stack:
        if name == "GPTQ with act order":
            return random_shifted("Q4_0", 4, 4, 256, 256, has_order=True)
        if name in FLOATS:
            return random_floats(name, 4, 256, 256)
        is_plain = name == "bfloat16"
        return torch.randn(4, 256, 256).bfloat16() if is_plain else random_blocks(name, 4, 256, 256)

    mlps = ExpertMlps(gate=stack(), up=stack(), down=stack())
    x, weights = torch.randn(90, 256).bfloat16(), torch.rand(90, 2)
    chosen = torch.rand(90, 4).argsort(-1)[:, :2]
    whole = run(x, weights, chosen, mlps)
    for rows in (slice(0, 1), slice(40, 90), slice(5, 90, 7)):
        assert torch.equal(run(x[rows], weights[rows], chosen[rows], mlps), whole[rows])


_NETWORKS = (
    ("mamba2", "mla_deepseek+moe"),
    ("gated_delta", "gqa_window+mlp"),
    ("mamba1", "mamba3", "rg_lru", "gqa+clamped"),
)


@pytest.mark.parametrize("mix", _NETWORKS, ids="-".join)
def test_networks_do_not_depend_on_company_where_that_is_asked_for(mix: tuple[str, ...]) -> None:
    """All their operations together: replies alone, in company, to prompts cut, and cached."""
    with kernels_for_gpus(exact=True) as used:
        alone, *others = _logits(mix, ["company", "cut and cached"])
        assert {"linear", "rms_norm"} <= set(used)
    assert len(others) == 3
    for each in others:
        assert torch.equal(each, alone)


def test_a_product_that_looks_at_its_company_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As cuBLAS's do, it adds up in another order where there are many rows."""

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        cut = 1 if len(x) > 1 else x.shape[-1] // 2
        halves = x[..., :cut] @ weight[:, :cut].T, x[..., cut:] @ weight[:, cut:].T
        return sum(halves) if bias is None else sum(halves) + bias

    with kernels_for_gpus(exact=True):
        monkeypatch.setattr("blazr.nn.kernels.triton.products.linear", linear)
        alone, together = _logits(_NETWORKS[0], ["company"])
    assert not torch.equal(together, alone)


@pytest.mark.parametrize("mix", _NETWORKS, ids="-".join)
def test_networks_on_a_device_whose_tensors_do_not_mix_with_the_cpus(mix: tuple[str, ...]) -> None:
    with other_device(), kernels_for_gpus(exact=False) as used:
        (expected,) = _logits(mix, [])
        used.clear()
        (found,) = _logits(mix, [], OTHER)
        assert {"rms_norm", "likeliest"} <= set(used)
        assert torch.equal(found.cpu(), expected)


def _logits(mix: tuple[str, ...], ways: list[str], device: str = "cpu") -> list[Tensor]:
    """Of one reply alone, and of the same in other ways."""
    model = build_network(mix).half().to(device)
    prompt = [(7 * place) % 53 for place in range(70)]
    found = []
    for way in ["alone", *ways]:
        lab = Lab(model, replay=False, budget=17 if way == "cut and cached" else 256)
        asked = [lab.ask(prompt, max_tokens=4)]
        if way == "company":
            lab.ask(list(range(30)), max_tokens=4)
            lab.ask([3, 1, 4, 1, 5] * 9, max_tokens=4)
        lab.run()
        if way == "cut and cached":
            asked.append(lab.ask(prompt, max_tokens=4))
            lab.run()
            assert lab.cached[asked[1]] == GRID
        found += [lab.answer(each)[1] for each in asked]
    return found
