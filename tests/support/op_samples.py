"""Arguments on which every kernel must agree with its operation's reference.

By operation, a function from a dtype to arguments; those must not leave out nothing, one row and
tails. Arguments of any shape are in `kernel_shapes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from blazr.nn.operands.experts import ExpertAdapters, ExpertGroups, ExpertMlps, Routing
from blazr.nn.operands.floats import ScaledFloats
from blazr.nn.operands.lora import (
    HeadLoras,
    LoraDelta,
    LoraFactors,
    LoraTable,
    empty_entries,
)
from blazr.nn.operands.packing import (
    GROUP,
    PACKINGS,
    Blocks,
    Packed,
    Packing,
    ShiftedBlocks,
)
from blazr.nn.operands.recurrent import GatedNorm, GateOrder
from blazr.nn.ops.activation import ACTIVATIONS
from blazr.nn.ops.lora import lora_shrink
from blazr.nn.quant.gguf import GGML_TYPES
from tests.support.step_samples import STEP_SAMPLES

# (rows, in, out): whole tiles, tails of each kind, a single row, nothing at all.
_LINEAR_SIZES = (
    (1, 64, 32),
    (5, 96, 16),
    (5, 0, 32),
    (3, 33, 7),
    (2, 31, 1),
    (7, 1, 5),
    (25, 40, 66),
    (130, 100, 21),
    (140, 40, 300),  # many columns for a last part of few rows
    (0, 8, 4),
    (2, 0, 3),
    (1, 300, 259),
)


def _gated_linear(dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    for rows, inner, outer in _LINEAR_SIZES:
        scale = max(1, inner) ** -0.5
        sizes = ((rows, inner), (outer, inner), (outer, inner))
        x, first, second = (torch.randn(size) for size in sizes)
        yield x.to(dtype), (first * scale).to(dtype), (second * scale).to(dtype)


def _linear(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for x, weight, _ in _gated_linear(dtype):
        yield x, weight
        yield x, weight, torch.randn(len(weight)).to(dtype)
        yield x, weight, torch.randn(2 * len(weight)).to(dtype)[::2]
    yield torch.randn(2, 3, 16).to(dtype), torch.randn(8, 16).to(dtype)
    yield torch.randn(16).to(dtype), torch.randn(8, 16).to(dtype)
    yield torch.randn(6, 4).T.to(dtype), torch.randn(9, 20).to(dtype)[:, 3:9]  # neither is dense
    yield torch.randn(4, 6).to(dtype), torch.randn(6, 9).to(dtype).T


def random_lora(
    dtype: torch.dtype, inner: int, outer: int, *, num_slots: int = 6, is_embedding: bool = False
) -> LoraTable:
    """Adapters of several ranks, one of which sets the length of rows; slots 0 and 4 are empty."""
    table = LoraTable(num_slots)
    for slot, rank in ((1, 1), (2, 16), (3, 5), (5, 130)):
        size = (inner, rank) if is_embedding else (rank, inner)
        a = torch.randn(size) * max(1, inner) ** -0.5
        gain = 1 + 0.1 * torch.randn(outer) if slot == 3 else None
        b = torch.randn(rank, outer) * rank**-0.5
        table.put(slot, LoraFactors.of(a.to(dtype), b.to(dtype), gain))
    return table


_LORA_SIZES = ((1, 64, 32), (5, 96, 16), (3, 33, 7), (26, 40, 66), (140, 31, 300), (0, 8, 4))


def random_deltas(
    dtype: torch.dtype, x: Tensor, inner: int, outer: int, *, count: int = 1
) -> list[LoraDelta]:
    slots = torch.randint(0, 6, (len(x) // (2 if len(x) % 2 == 0 else 1),))
    tables = [random_lora(dtype, inner, outer) for _ in range(count)]
    return [LoraDelta(each, slots, lora_shrink.reference(x, each, slots)) for each in tables]


def _lora_shrink(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for rows, inner, outer in _LORA_SIZES:
        x = torch.randn(rows, inner + 3).to(dtype)[:, 1 : inner + 1]
        table = of_one_rank(random_lora(dtype, inner, outer))
        yield x, table, torch.full((rows,), 2)
        if rows % 2 == 0:
            yield x, table, torch.full((rows // 2,), 2)


def _lora_rows(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    table = of_one_rank(random_lora(dtype, 50, 20, is_embedding=True))
    for rows in (1, 7, 0):
        yield torch.empty(0).to(dtype), table, torch.full((rows,), 2), torch.randint(0, 50, (rows,))


def of_one_rank(table: LoraTable) -> LoraTable:
    """Leave only slot 2: beyond a row's rank inner products may be anything."""
    for slot in (1, 3, 5):
        table.drop(slot)
    table.max_rank = 16
    return table


def _lora_expand(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for rows, inner, outer in _LORA_SIZES:
        y, x = torch.randn(rows, outer).to(dtype), torch.randn(rows, inner).to(dtype)
        (delta,) = random_deltas(dtype, x, inner, outer)
        yield y, delta
        yield y, delta, torch.randn(outer).to(dtype)


def _linear_with_lora(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    yield from _linear(dtype)
    for rows, inner, outer in _LORA_SIZES:
        x, weight = torch.randn(rows, inner).to(dtype), torch.randn(outer, inner) * inner**-0.5
        (delta,) = random_deltas(dtype, x, inner, outer)
        yield x, weight.to(dtype), None, delta
        yield x, weight.to(dtype), torch.randn(outer).to(dtype), delta


def _gated_linear_with_lora(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    yield from _gated_linear(dtype)
    for rows, inner, outer in _LORA_SIZES:
        x = torch.randn(rows, inner).to(dtype)
        gate, up = ((torch.randn(outer, inner) * inner**-0.5).to(dtype) for _ in range(2))
        first, second = random_deltas(dtype, x, inner, outer, count=2)
        yield x, gate, up, (first, second)
        yield x, gate, up, (None, second)


def _linear_heads(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    sizes = ((1, 16, 64, 512), (5, 3, 40, 33), (33, 2, 7, 130), (2, 1, 1, 5), (100, 2, 32, 18))
    for rows, heads, inner, outer in (*sizes, (0, 2, 8, 4)):
        weight = (torch.randn(heads, outer, inner) * inner**-0.5).to(dtype)
        x = torch.randn(rows, heads, inner).to(dtype)
        yield x, weight
        tables = {head: random_lora(dtype, inner, outer) for head in range(0, heads, 2)}
        loras = HeadLoras(tables, torch.randint(0, 6, (rows,)))
        yield x, weight, None, loras
        room = torch.empty(rows, heads, outer + 3, dtype=dtype)
        yield x, weight, room[..., 1 : outer + 1], loras
    wide = torch.randn(4, 3, 20).to(dtype), torch.randn(3, 10, 9).to(dtype)
    yield wide[0][..., 5:12], wide[1][:, 2:, 1:8]
    yield wide[0][..., :10], wide[1].transpose(1, 2)


def random_packed(packing: Packing, rows: int, supers: int, *stack: int) -> Packed:
    """A matrix of random codes with ordinary scales, or a stack of such."""
    size = (*stack, -(-rows // GROUP), supers)
    blocks = torch.randint(0, 256, (*size, packing.nbytes), dtype=torch.uint8)
    # the first two rows of 16 in a superblock are its float16 numbers, if it has any
    sizes = {"half, minimum": 64, "minimum": 64, "exponent": 0, "none": 0}
    halves = {**sizes, "halves": packing.scale_bytes}.get(packing.scales, 32)
    largest = 2e-4 if packing.parts * packing.blocks > 1 else 1e-2
    scales = (torch.rand(*size, halves // 2) * largest).half()
    blocks[..., :halves] = scales.view(torch.uint8)
    if packing.scales == "exponent":
        blocks[..., :GROUP] = torch.randint(115, 125, (*size, GROUP))
    row_scales = torch.rand(*stack, rows) * 0.01 if packing.scales == "none" else None
    return Packed(packing, blocks, rows, row_scales)


# (rows of x, superblocks, rows of the weight)
_PACKED_SIZES = ((1, 2, 32), (5, 3, 7), (26, 1, 50), (140, 2, 300), (0, 1, 4))


def _packed_linear(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for packing in PACKINGS.values():
        for count, supers, rows in _PACKED_SIZES:
            packed = random_packed(packing, rows, supers)
            x = torch.randn(count, packed.columns).to(dtype)
            yield x, packed
            yield x * 1e-4, packed, torch.randn(rows).to(dtype)
            (delta,) = random_deltas(dtype, x, packed.columns, rows)
            yield x, packed, torch.randn(rows).to(dtype), delta
        yield torch.zeros(2, 3, packed.columns).to(dtype), packed


# GGML types for which there are kernels, and where their blocks have float16 numbers.
_HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "IQ4_NL": (0,),
    "MXFP4": (),
    "IQ4_XS": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}


def random_blocks(name: str, *shape: int) -> Blocks:
    """A matrix, or a stack, of random codes with ordinary scales."""
    kind, (*rows, columns) = GGML_TYPES[name], shape
    size = (*rows, columns // kind.length, kind.nbytes)
    blocks = torch.randint(0, 256, size, dtype=torch.uint8)
    for place in _HALVES[name]:
        scales = (torch.rand(*size[:-1], 1) * (2e-4 if kind.length > 32 else 1e-2)).half()
        blocks[..., place : place + 2] = scales.view(torch.uint8)
    if name == "MXFP4":
        blocks[..., 0] = torch.randint(115, 125, size[:-1])
    return Blocks(kind, blocks.flatten(-2))


def random_shifted(
    name: str, groups: int, *shape: int, has_scale: bool = False, has_order: bool = False
) -> ShiftedBlocks:
    """The same with numbers added by group, as of GPTQ and AWQ; or with a scale for each row.

    Or with columns in another order, as of GPTQ's act order.
    """
    *rows, columns = shape
    scale = 0.5 + torch.rand(rows) if has_scale else None
    shift = torch.randn(*rows, groups) * 0.05 if groups else None
    order = torch.rand(*rows[:-1], columns).argsort(-1) if has_order else None
    return ShiftedBlocks(random_blocks(name, *shape), scale, shift, order)


_E4M3, _E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
# By what people call it: the numbers' type, a block (None for as much as there is), the scales'
# type, and what is done to all scales.
FLOATS: dict[str, tuple[torch.dtype, tuple[int | None, int | None], torch.dtype, str]] = {
    "FP8 by blocks": (_E4M3, (128, 128), torch.float32, ""),
    "FP8 by rows": (_E4M3, (1, None), torch.bfloat16, ""),
    "FP8 E5M2": (_E5M2, (None, None), torch.float16, ""),
    "NVFP4": (torch.uint8, (1, 16), _E4M3, "multiplied"),
    "NVFP4 divided": (torch.uint8, (1, 16), _E4M3, "divided"),
    "MXFP4": (torch.uint8, (1, 32), torch.float8_e8m0fnu, ""),
    "MXFP8": (_E4M3, (1, 32), torch.float8_e8m0fnu, ""),
    "NF4": (torch.uint8, (1, 64), torch.float32, ""),
}


def random_floats(name: str, *shape: int) -> ScaledFloats:
    """A matrix, or a stack, of small floats with scales."""
    dtype, (height, width), scale_dtype, whole = FLOATS[name]
    *stack, rows, columns = shape
    height, width = height or rows, width or columns
    if dtype == torch.uint8:
        numbers = torch.randint(0, 256, (*stack, rows, columns // 2), dtype=torch.uint8)
    else:
        numbers = (torch.randn(shape) * 3).to(dtype)
    scales = 0.01 + torch.rand(*stack, -(-rows // height), -(-columns // width)) * 0.1
    every = torch.rand(stack) + 0.5 if whole else None
    table = torch.randn(16) if name == "NF4" else None
    return ScaledFloats(
        numbers, scales.to(scale_dtype), (height, width), every, whole == "divided", table
    )


def _decode_floats(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for name in FLOATS:
        for rows, columns, first, count in ((200, 256, 0, 200), (7, 144, 3, 1), (50, 48, 9, 0)):
            yield (
                torch.empty(count, columns, dtype=dtype),
                random_floats(name, rows, columns),
                first,
            )
    for name in ("FP8 by rows", "FP8 E5M2"):
        yield torch.empty(8, 50, dtype=dtype), random_floats(name, 9, 50), 1
    for scale_dtype in (torch.float8_e8m0fnu, torch.float8_e4m3fn, torch.float64):
        floats = random_floats("FP8 by rows", 9, 50)
        other = floats._replace(scales=floats.scales.float().to(scale_dtype))
        yield torch.empty(9, 50, dtype=dtype), other, 0


def _stored_linear(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for name in _HALVES:
        for count, supers, rows in ((1, 2, 32), (5, 1, 7), (70, 1, 50), (300, 1, 40), (0, 1, 4)):
            weight = random_blocks(name, rows, 256 * supers)
            x = torch.randn(count, 256 * supers + 3).to(dtype)[:, 3:]
            yield x, weight
            yield x * 1e-2, weight, torch.randn(rows).to(dtype)
        weight = random_blocks(name, 9, GGML_TYPES[name].length)
        yield torch.randn(2, 3, GGML_TYPES[name].length).to(dtype), weight
    for name in FLOATS:
        for count, columns, rows in ((1, 256, 200), (5, 144, 7), (300, 48, 50), (0, 16, 4)):
            floats = random_floats(name, rows, columns)
            x = torch.randn(count, columns + 3).to(dtype)[:, 3:]
            yield x, floats
            yield x * 1e-2, floats, torch.randn(rows).to(dtype)
    for name, columns, groups in (("Q4_0", 256, 2), ("Q8_0", 96, 3), ("Q4_0", 64, 0)):
        for count in (3, 300):
            x = torch.randn(count, columns).to(dtype)
            yield x, random_shifted(name, groups, 37, columns), torch.randn(37).to(dtype)
            ordered = random_shifted(name, groups, 37, columns, has_order=True)
            yield x, ordered, torch.randn(37).to(dtype)
    yield torch.randn(2, 64).to(dtype), random_shifted("Q8_0", 1, 9, 64, has_scale=True)
    yield torch.randn(2, 50).to(dtype), random_floats("FP8 by rows", 9, 50)
    yield torch.randn(2, 50).to(dtype), random_floats("FP8 E5M2", 9, 50)


def _packed_gated_linear(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for packing in PACKINGS.values():
        for count, supers, rows in ((1, 1, 33), (9, 2, 16), (0, 1, 4)):
            gate, up = (random_packed(packing, rows, supers) for _ in range(2))
            x = torch.randn(count, gate.columns).to(dtype)
            yield x, gate, up
            yield x, gate, up, tuple(random_deltas(dtype, x, gate.columns, rows, count=2))


def _packed_rows(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for packing in PACKINGS.values():
        for count, supers, rows in ((1, 1, 1), (70, 2, 33), (0, 1, 4)):
            packed = random_packed(packing, rows, supers)
            out = torch.empty(count, packed.columns, dtype=dtype)
            yield out, packed, torch.randint(0, rows, (count,))


_ROUTINGS = (
    Routing(1, "softmax of chosen"),
    Routing(5, "softmax of chosen"),
    Routing(2),
    Routing(3, "softmax", normalize=False, scale=2.5),
    Routing(2, "sigmoid", groups=ExpertGroups(3, 2)),
    Routing(4, "sigmoid", groups=ExpertGroups(4, 2, judged_by=2), scale=0.5),
    Routing(100, "sigmoid", normalize=False),
)


def _choose_experts(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for routing in _ROUTINGS:
        for tokens, count in ((1, 12), (70, 24), (0, 12)):
            chosen = torch.empty(tokens, min(routing.k, count), dtype=torch.int64)
            logits = 3 * torch.randn(tokens, count).to(dtype)
            yield logits, chosen, routing
            if routing.scoring != "softmax of chosen":
                yield logits, chosen, routing, torch.randn(count)


# (tokens, experts, experts per token, hidden, inner)
_EXPERT_SIZES = (
    (1, 4, 2, 40, 33),
    (9, 5, 1, 16, 20),
    (70, 3, 3, 31, 9),
    (130, 2, 1, 8, 300),
    (0, 4, 2, 8, 8),
)


def random_expert_adapters(
    dtype: torch.dtype, tokens: int, count: int, *, size: int, inner: int, names: Sequence[str]
) -> ExpertAdapters:
    """Adapters that change matrices of some experts, and add to them; slots 0 and 3 are empty.

    Args:
        dtype: Of the factors.
        tokens: How many have a slot.
        count: Experts.
        size: C.
        inner: I.
        names: Which matrices.
    """
    num_slots = 5
    entries = {name: empty_entries(count, num_slots) for name in names}
    tables: dict[tuple[str, int], LoraTable] = {}
    for name, expert in product(names, range(0, count, 2)):
        table = tables[name, expert] = LoraTable(num_slots)
        table.move(entries[name][expert])
        columns, rows = (inner, size) if name == "down" else (size, inner)
        for slot, rank in ((1, 1), (2, 16), (4, 5)):
            if (slot + expert) % 3:
                a, b = torch.rand(rank, columns) / columns, torch.rand(rank, rows) / rank
                table.put(slot, LoraFactors.of(a.to(dtype), b.to(dtype)))
    return ExpertAdapters(tables, entries, torch.randint(0, num_slots, (tokens,)))


def _experts(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    """Nothing is below zero, so that what is rounded between the products stays small."""

    def numbers(*shape: int) -> Tensor:
        return (torch.rand(shape) / max(1, shape[-1]) ** 0.5).to(dtype)

    for tokens, count, top, size, inner in _EXPERT_SIZES:
        chosen = torch.rand(tokens, count).argsort(-1)[:, :top]
        up, down = numbers(count, inner, size), numbers(count, size, inner)
        usual = ExpertMlps(gate=numbers(count, inner, size), up=up, down=down)
        clamped = replace(usual, limit=0.7, alpha=1.7)
        inner_bias = numbers(count, inner)
        for mlps in (
            usual,
            replace(usual, activation="gelu", gate_bias=numbers(count, inner)),
            ExpertMlps(up=up, down=down, activation="relu2"),
            clamped,
            replace(
                clamped,
                gate_bias=inner_bias,
                up_bias=1 - inner_bias,
                down_bias=numbers(count, size),
            ),
        ):
            yield numbers(tokens, size), torch.rand(tokens, top), chosen, mlps
            names = ("up", "down") if mlps.gate is None else ("gate", "up", "down")
            for changed in (names, names[-1:]):
                adapters = random_expert_adapters(
                    dtype, tokens, count, size=size, inner=inner, names=changed
                )
                x, weights = numbers(tokens, size), torch.rand(tokens, top)
                yield x, weights, chosen, replace(mlps, adapters=adapters)
    wide = numbers(3, 20, 2 * 8)
    mlps = ExpertMlps(gate=wide[..., :8], up=wide[..., 8:], down=numbers(3, 20, 8).transpose(1, 2))
    yield numbers(5, 16)[:, ::2], torch.rand(5, 1), torch.randint(0, 3, (5, 1)), mlps
    # as files store them, not all in one way
    for tokens, gate, up, down in (
        (1, "Q4_K", "Q4_K", "Q6_K"),
        (70, "Q8_0", "Q4_0", "Q5_K"),
        (5, "MXFP4", "MXFP4", "MXFP4"),
        (9, "Q2_K", "IQ4_XS", "Q3_K"),
        (0, "Q4_0", "Q4_0", "Q4_0"),
    ):
        mlps = ExpertMlps(
            gate=random_blocks(gate, 3, 256, 256),
            up=random_blocks(up, 3, 256, 256),
            down=random_blocks(down, 3, 256, 256),
            gate_bias=numbers(3, 256),
        )
        chosen = torch.rand(tokens, 3).argsort(-1)[:, :2]
        yield torch.randn(tokens, 256).to(dtype), torch.rand(tokens, 2), chosen, mlps
    mlps = ExpertMlps(
        gate=random_shifted("Q4_0", 2, 3, 160, 128),
        up=random_shifted("Q4_0", 1, 3, 160, 128, has_scale=True),
        down=random_shifted("Q8_0", 5, 3, 128, 160),
    )
    chosen = torch.rand(9, 3).argsort(-1)[:, :2]
    yield torch.randn(9, 128).to(dtype), torch.rand(9, 2), chosen, mlps
    # one token leaves most experts unused
    for tokens, name, groups in ((1, "Q4_0", 4), (70, "Q8_0", 2), (9, "Q4_0", 0), (0, "Q4_0", 1)):
        gate, up, down = (
            random_shifted(name, groups, 4, *shape, has_order=True)
            for shape in ((256, 128), (256, 128), (128, 256))
        )
        mlps = ExpertMlps(gate=gate, up=up, down=down, down_bias=numbers(4, 128))
        x, weights = torch.randn(tokens, 136).to(dtype)[:, 8:], torch.rand(tokens, 2)
        chosen = torch.rand(tokens, 4).argsort(-1)[:, :2]
        yield x, weights, chosen, mlps
        if tokens == 9:
            yield x, weights, chosen, replace(mlps, gate=random_blocks("Q4_0", 4, 256, 128))
            yield x, weights, chosen, replace(mlps, gate=None, activation="relu2")
    for tokens, name in ((1, "FP8 by blocks"), (70, "FP8 by rows"), (5, "NVFP4")):
        mlps = ExpertMlps(
            gate=random_floats(name, 3, 160, 144),
            up=random_floats(name, 3, 160, 144),
            down=random_floats(name, 3, 144, 160),
        )
        chosen = torch.rand(tokens, 3).argsort(-1)[:, :2]
        yield torch.randn(tokens, 144).to(dtype), torch.rand(tokens, 2), chosen, mlps


def _rms_norm(dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor, float]]:
    for rows, size in ((1, 16), (3, 40), (2, 7), (5, 1), (0, 8), (300, 300)):
        yield torch.randn(rows, size).to(dtype), torch.randn(size).to(dtype), 1e-5
    yield torch.randn(2, 3, 24).to(dtype), torch.randn(24).to(dtype), 0.1
    yield torch.randn(4, 20).to(dtype)[:, 3:12], torch.randn(9).to(dtype), 1e-6
    yield torch.zeros(2, 8).to(dtype), torch.randn(8).to(dtype), 1e-6


def _add_rms_norm(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for x, weight, eps in _rms_norm(dtype):
        yield x, torch.randn(x.shape).to(dtype), weight, eps
        yield x, torch.randn(x.shape).to(dtype), weight, eps, 0.5


def _layer_norm(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for x, weight, eps in _rms_norm(dtype):
        yield x + 3, weight, torch.randn(len(weight)).to(dtype), eps


def _gated_norm(dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor, GatedNorm]]:
    orders: tuple[GateOrder, ...] = ("gate_first", "norm_first", "norm_sigmoid")
    for rows, size, groups in ((1, 16, 1), (3, 40, 5), (2, 7, 1), (0, 8, 2), (70, 300, 3)):
        x, gate = torch.randn(rows, size).to(dtype), torch.randn(rows, 2 * size).to(dtype)
        for order in orders:
            yield x, gate[:, size:], GatedNorm(order, torch.randn(size), 1e-5, groups)
        yield x, gate[:, :size], GatedNorm("none", None, 1e-5)


_SHAPES = ((1, 16), (3, 40), (2, 7), (5, 1), (0, 8), (2, 3, 24), (3, 20000))


def _pairs(dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    for shape in _SHAPES:
        yield 2 * torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    wide = torch.randn(4, 20).to(dtype)
    yield wide[:, 3:12], wide[:, 10:19]


def _add(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for a, b in _pairs(dtype):
        yield a, b
        yield a, b, 0.22


def _scale(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for a, _ in _pairs(dtype):
        yield a, 12.5


def _widen(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for a, _ in _pairs(dtype):
        yield (a,)
        yield a * 10, 8.0
        yield a * 10, 1.0, 30.0


def _activate(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for kind in ACTIVATIONS:
        for a, b in _pairs(dtype):
            yield 4 * a, kind
            yield 4 * a, kind, b
        yield torch.tensor([[0.0, -0.0, 50, -50, 1e-4, -1e-4]]).to(dtype), kind


def _sigmoid_gate(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for a, b in _pairs(dtype):
        yield a, b
        yield a, b[..., :1]


def _embedding(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for rows, width, count in ((5, 8, 3), (40, 7, 70), (3, 16, 0), (1, 5, 1)):
        yield torch.randn(rows, width).to(dtype), torch.randint(0, rows, (count,))
    yield torch.randn(9, 20).to(dtype)[:, 2:7], torch.randint(0, 9, (2, 3))


def _take_columns(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for shape, size in (((3, 24), 4), ((1, 5), 1), ((2, 3, 12), 6), ((0, 8), 2)):
        x = torch.randn(shape).to(dtype)
        yield x, torch.randperm(shape[-1] // size), size
    yield torch.randn(4, 20).to(dtype)[:, 2:14], torch.tensor([2, 0]), 3


def _rotary_tables(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for count, pairs in ((1, 1), (3, 32), (0, 4), (40, 7)):
        positions = torch.randint(0, 100_000, (count,))
        yield 10000 ** -torch.rand(pairs).to(dtype), positions
        yield torch.rand(pairs).to(dtype), positions, 1.25


_SCORE_SHAPES = ((1, 1), (2, 3), (3, 511), (1, 512), (2, 1300), (0, 5), (1, 70_001))


def _rows_of_scores(dtype: torch.dtype) -> Iterator[Tensor]:
    for shape in _SCORE_SHAPES:
        yield (4 * torch.randn(shape)).to(dtype)
        yield (2 * torch.randn(shape)).bfloat16().to(dtype)  # many equals
    wide = torch.randn(4, 900).to(dtype)
    yield wide[:, 100:800]
    wide[1, 150:] = float("-inf")
    wide[2], wide[3, 700] = float("-inf"), float("inf")
    yield wide
    yield torch.zeros(2, 600).to(dtype)


def _and_with_nan(dtype: torch.dtype) -> Iterator[Tensor]:
    yield from _rows_of_scores(dtype)
    for place in (0, 3, 599):
        scores = torch.randn(3, 600).to(dtype)
        scores[1, place] = float("nan")
        yield scores


def _penalize(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for rows, size, length in ((1, 5, 3), (4, 300, 40), (3, 1500, 1100), (2, 9, 0), (0, 8, 2)):
        scores = torch.randn(rows, size + 2)[:, 1:-1].to(dtype)
        scores[:, size // 2] = float("-inf")
        ids = torch.randint(0, size, (rows, length)) // 2  # some come often
        ends = torch.randint(0, length + 1, (rows, 2)).sort(1).values
        penalties = torch.rand(rows, 3) + torch.tensor([0.5, -0.5, 0])
        penalties[1::2] = torch.tensor([1.0, 0.0, 0.0])  # a row that nobody penalizes
        yield scores, ids, ends, penalties.to(dtype)


def _likeliest(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for scores in _and_with_nan(dtype):
        yield (scores,)


def _best(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for scores in _rows_of_scores(dtype):
        for count in {1, min(20, scores.shape[1])}:
            yield scores, count


def _draw(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for scores in _and_with_nan(dtype):
        wishes = torch.rand(len(scores), 5, dtype=torch.float64)
        yield scores, wishes * torch.tensor([2, 0, 1, 0.1, 1])
        wishes[:, 0], wishes[:, 1] = 1, (wishes[:, 1] * 60).floor()
        yield scores, wishes


def _encode_q4_k(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for count in (201, 2, 1, 0):
        yield (torch.randn(count, 256, dtype=dtype) * torch.rand(count, 1),)


def _pack(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for name, packing in PACKINGS.items():
        source = {"int8": "Q8_0"}.get(name, "Q4_0" if name.startswith("int4") else name)
        nbytes = GGML_TYPES[source].row_bytes(packing.columns)
        for rows, supers in ((1, 1), (16, 3), (37, 2), (0, 1)):
            blocks = torch.randint(0, 256, (rows, supers * nbytes), dtype=dtype)
            yield blocks, name, supers, None
            yield blocks, name, supers, torch.randint(0, 256, (rows, supers), dtype=dtype)


SAMPLES: dict[str, Callable[[torch.dtype], Iterable[tuple[object, ...]]]] = {
    "gated_linear": _gated_linear_with_lora,
    "linear": _linear_with_lora,
    "wide_linear": _linear,
    "linear_heads": _linear_heads,
    "lora_shrink": _lora_shrink,
    "lora_rows": _lora_rows,
    "lora_expand": _lora_expand,
    "decode_floats": _decode_floats,
    "stored_linear": _stored_linear,
    "packed_linear": _packed_linear,
    "packed_gated_linear": _packed_gated_linear,
    "packed_rows": _packed_rows,
    "choose_experts": _choose_experts,
    "experts": _experts,
    "rms_norm": _rms_norm,
    "add_rms_norm": _add_rms_norm,
    "layer_norm": _layer_norm,
    "gated_norm": _gated_norm,
    "add": _add,
    "scale": _scale,
    "widen": _widen,
    "activate": _activate,
    "sigmoid_gate": _sigmoid_gate,
    "embedding": _embedding,
    "take_columns": _take_columns,
    "rotary_tables": _rotary_tables,
    "penalize": _penalize,
    "likeliest": _likeliest,
    "best": _best,
    "draw": _draw,
    "encode_q4_k": _encode_q4_k,
    "pack": _pack,
    **STEP_SAMPLES,
}
