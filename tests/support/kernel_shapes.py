"""Arguments of any shape for the operations that have kernels: tails, one row, nothing at all.

By operation, a function of sizes that are drawn and a dtype. Laws that hold for every shape are in
tests/conformance/test_kernels.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch
from hypothesis import strategies as st
from torch import Tensor

from blazr.nn.operands.experts import ExpertGroups, ExpertMlps, Routing
from blazr.nn.operands.packing import PACKINGS, Packed
from blazr.nn.ops.activation import ACTIVATIONS
from tests.support.op_samples import (
    FLOATS,
    of_one_rank,
    random_deltas,
    random_floats,
    random_lora,
    random_packed,
)
from tests.support.seeds import run_seed

T = TypeVar("T")
Arguments = tuple[object, ...]

# Few, and beyond what one part of a product takes.
ROWS = st.one_of(st.integers(0, 40), st.sampled_from((1, 96, 97, 121, 250)))


class Sizes:
    """What is drawn for one example; torch's numbers follow from it, too.

    Args:
        data: Draws.
        is_large: Whether sizes may be the largest that there are.
    """

    def __init__(self, data: st.DataObject, *, is_large: bool = False) -> None:
        self._data = data
        self._is_large = is_large
        torch.manual_seed(run_seed(data.draw(st.integers(0, 99))))

    def rows(self) -> int:
        """Perhaps none."""
        return self._data.draw(ROWS)

    def size(self, most: int = 140, *, limit: int = 0) -> int:
        """From one up; perhaps the limit, which is costly."""
        usual = st.integers(1, most)
        is_large = limit and self._is_large
        return self._data.draw(st.one_of(usual, st.just(limit)) if is_large else usual)

    def one_of(self, *choices: T) -> T:
        """Any of these."""
        return self._data.draw(st.sampled_from(choices))

    def tensor(self, dtype: torch.dtype, *shape: int) -> Tensor:
        """Normal numbers, perhaps a part of a wider tensor."""
        gap = self.one_of(0, 0, 3)
        return torch.randn(*shape[:-1], shape[-1] + gap).to(dtype)[..., gap:]


def _linear(sizes: Sizes, dtype: torch.dtype, *, gated: bool = False) -> Arguments:
    inner, outer = sizes.size(300), sizes.size()
    scale = inner**-0.5
    x, first = sizes.tensor(dtype, sizes.rows(), inner), sizes.tensor(dtype, outer, inner) * scale
    if gated:
        return x, first, torch.randn(outer, inner).to(dtype) * scale
    return x, first, sizes.one_of(None, torch.randn(outer).to(dtype))


def _lora_shrink(sizes: Sizes, dtype: torch.dtype) -> Arguments:
    rows, inner = sizes.rows(), sizes.size(300)
    table = of_one_rank(random_lora(dtype, inner, 8))
    return sizes.tensor(dtype, rows, inner), table, torch.full((rows,), 2)


def _lora_rows(sizes: Sizes, dtype: torch.dtype) -> Arguments:
    rows, vocabulary = sizes.rows(), sizes.size(300)
    table = of_one_rank(random_lora(dtype, vocabulary, 8, is_embedding=True))
    ids = torch.randint(0, vocabulary, (rows,))
    return sizes.tensor(dtype, rows, 8), table, torch.full((rows,), 2), ids


def _lora_expand(sizes: Sizes, dtype: torch.dtype) -> Arguments:
    rows, inner, outer = sizes.rows(), sizes.size(), sizes.size(300)
    x, y = sizes.tensor(dtype, rows, inner), torch.randn(rows, outer).to(dtype)
    (delta,) = random_deltas(dtype, x, inner, outer)
    return y, delta, sizes.one_of(None, torch.randn(outer).to(dtype))


def _linear_heads(sizes: Sizes, dtype: torch.dtype) -> Arguments:
    heads, inner, outer = sizes.size(5), sizes.size(), sizes.size()
    weight = sizes.tensor(dtype, heads, outer, inner) * inner**-0.5
    return sizes.tensor(dtype, sizes.rows(), heads, inner), weight


def _packed(sizes: Sizes, most: int = 70) -> Packed:
    packing = PACKINGS[sizes.one_of(*PACKINGS)]
    return random_packed(packing, sizes.size(most), sizes.size(3))


def _packed_linear(sizes: Sizes, dtype: torch.dtype) -> Arguments:
    packed = _packed(sizes)
    x = sizes.tensor(dtype, sizes.rows(), packed.columns)
    return x, packed, sizes.one_of(None, torch.randn(packed.rows).to(dtype))


def _packed_gated_linear(sizes: Sizes, dtype: torch.dtype) -> Arguments:
    gate = _packed(sizes)
    up = random_packed(gate.packing, gate.rows, gate.blocks.shape[1])
    return sizes.tensor(dtype, sizes.rows(), gate.columns), gate, up


def _packed_rows(sizes: Sizes, dtype: torch.dtype) -> Arguments:
    packed, count = _packed(sizes), sizes.rows()
    ids = torch.randint(0, packed.rows, (count,))
    return torch.empty(count, packed.columns, dtype=dtype), packed, ids


def _decode_floats(sizes: Sizes, dtype: torch.dtype) -> Arguments:
    name, rows, first = sizes.one_of(*FLOATS), sizes.size(), sizes.size(9) - 1
    columns = 32 * sizes.size(12) if FLOATS[name][0] == torch.uint8 else sizes.size(300)
    floats = random_floats(name, first + rows + sizes.size(9) - 1, columns)
    return torch.empty(rows, columns, dtype=dtype), floats, first


def _choose_experts(sizes: Sizes, dtype: torch.dtype) -> Arguments:
    tokens, groups, size = sizes.rows(), sizes.size(6), sizes.size(9)
    scoring = sizes.one_of("softmax", "sigmoid", "softmax of chosen")
    kept, is_free = sizes.size(groups), scoring == "softmax of chosen"
    grouped = ExpertGroups(groups, kept, judged_by=sizes.size(3))
    top = sizes.size(kept * size)
    routing = Routing(
        top,
        scoring,
        normalize=sizes.one_of(False, True),
        groups=None if is_free else sizes.one_of(None, grouped),
        scale=sizes.one_of(1.0, 2.5),
    )
    bias = None if is_free else sizes.one_of(None, torch.randn(groups * size))
    logits = 3 * torch.randn(tokens, groups * size).to(dtype)
    return logits, torch.empty(tokens, top, dtype=torch.int64), routing, bias


def _experts(sizes: Sizes, dtype: torch.dtype) -> Arguments:
    """Nothing is below zero, so that what is rounded between the products stays small."""

    def numbers(*shape: int) -> Tensor:
        return (torch.rand(shape) / shape[-1] ** 0.5).to(dtype)

    count, tokens, size, inner = sizes.size(6), sizes.rows(), sizes.size(80), sizes.size(80)
    top = sizes.size(count)
    up, down = numbers(count, inner, size), numbers(count, size, inner)
    mlps = sizes.one_of(
        ExpertMlps(gate=numbers(count, inner, size), up=up, down=down),
        ExpertMlps(up=up, down=down, activation=sizes.one_of(*ACTIVATIONS)),
        ExpertMlps(
            gate=numbers(count, inner, size),
            up=up,
            down=down,
            limit=0.7,
            alpha=1.7,
            gate_bias=numbers(count, inner),
            up_bias=numbers(count, inner),
            down_bias=numbers(count, size),
        ),
    )
    chosen = torch.rand(tokens, count).argsort(-1)[:, :top]
    return numbers(tokens, size), torch.rand(tokens, top), chosen, mlps


def _norm(sizes: Sizes, dtype: torch.dtype, *, biased: bool = False) -> Arguments:
    size = sizes.size(300)
    shape = sizes.one_of((sizes.rows(), size), (sizes.rows(), sizes.size(4), size))
    weight = torch.randn(size).to(dtype)
    bias = (torch.randn(size).to(dtype),) if biased else ()
    return sizes.tensor(dtype, *shape), weight, *bias, sizes.one_of(1e-6, 0.1)


def _rotary_tables(sizes: Sizes, dtype: torch.dtype) -> Arguments:
    positions = torch.randint(0, 100_000, (sizes.rows(),))
    return torch.rand(sizes.size(70)).to(dtype), positions, sizes.one_of(1.0, 1.25)


def _shape(sizes: Sizes) -> tuple[int, int]:
    """A row may be more than one part."""
    return sizes.one_of((sizes.rows(), sizes.size()), (sizes.size(2), sizes.one_of(16384, 16385)))


def _one(sizes: Sizes, dtype: torch.dtype, *more: Callable[[Sizes], object]) -> Arguments:
    return sizes.tensor(dtype, *_shape(sizes)), *(each(sizes) for each in more)


def _two(sizes: Sizes, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    shape = _shape(sizes)
    return sizes.tensor(dtype, *shape), sizes.tensor(dtype, *shape)


def _add(sizes: Sizes, dtype: torch.dtype) -> Arguments:
    return *_two(sizes, dtype), sizes.one_of(1.0, 0.22)


def _activate(sizes: Sizes, dtype: torch.dtype) -> Arguments:
    a, b = _two(sizes, dtype)
    return 4 * a, sizes.one_of(*ACTIVATIONS), sizes.one_of(None, b)


def _sigmoid_gate(sizes: Sizes, dtype: torch.dtype) -> Arguments:
    a, gate = _two(sizes, dtype)
    return a, sizes.one_of(gate, gate[:, :1])


def _embedding(sizes: Sizes, dtype: torch.dtype) -> Arguments:
    rows = sizes.size()
    return sizes.tensor(dtype, rows, sizes.size()), torch.randint(0, rows, (sizes.rows(),))


def _take_columns(sizes: Sizes, dtype: torch.dtype) -> Arguments:
    count, size = sizes.size(9), sizes.size(20)
    order = torch.randint(0, count, (sizes.size(9),))
    return sizes.tensor(dtype, sizes.rows(), count * size), order, size


def _scores(sizes: Sizes, dtype: torch.dtype) -> Tensor:
    width = sizes.one_of(sizes.size(1200), 511, 512, 513, 8193)
    scores = 4 * sizes.tensor(dtype, sizes.size(5), width)
    return sizes.one_of(scores, scores.bfloat16().to(dtype))


def _best(sizes: Sizes, dtype: torch.dtype) -> Arguments:
    scores = _scores(sizes, dtype)
    return scores, sizes.size(min(40, scores.shape[1]))


ANY_SHAPE: dict[str, Callable[[Sizes, torch.dtype], Arguments]] = {
    "linear": _linear,
    "wide_linear": _linear,
    "gated_linear": partial(_linear, gated=True),
    "lora_shrink": _lora_shrink,
    "lora_rows": _lora_rows,
    "lora_expand": _lora_expand,
    "linear_heads": _linear_heads,
    "packed_linear": _packed_linear,
    "packed_gated_linear": _packed_gated_linear,
    "packed_rows": _packed_rows,
    "decode_floats": _decode_floats,
    "choose_experts": _choose_experts,
    "experts": _experts,
    "rms_norm": _norm,
    "layer_norm": partial(_norm, biased=True),
    "rotary_tables": _rotary_tables,
    "add": _add,
    "scale": lambda sizes, dtype: _one(sizes, dtype, lambda _: 12.5),
    "widen": lambda sizes, dtype: _one(
        sizes, dtype, lambda each: each.one_of(1.0, 8.0), lambda each: each.one_of(None, 30.0)
    ),
    "activate": _activate,
    "sigmoid_gate": _sigmoid_gate,
    "embedding": _embedding,
    "take_columns": _take_columns,
    "likeliest": lambda sizes, dtype: (_scores(sizes, dtype),),
    "best": _best,
}
