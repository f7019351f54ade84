"""Mixture of experts: ``csrc/experts.hpp`` behind the ops' signatures."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from blazr.core.errors import ShapeError
from blazr.nn.kernels.cpu.compiled import DTYPES, Call, shape_error
from blazr.nn.kernels.cpu.matmul_q import ROOM
from blazr.nn.kernels.cpu.pointwise import ACTIVATIONS
from blazr.nn.kernels.cpu.structures import Float32, Int64, Pointer, structure
from blazr.nn.kernels.kernel import limited_to
from blazr.nn.operands.experts import ExpertAdapters, ExpertMlps, Routing, Stack
from blazr.nn.operands.packing import GROUP, Packed

# As kernels.hpp numbers them.
_SCORINGS = {"softmax": 0, "sigmoid": 1, "softmax of chosen": 2}
_PLAIN = -1


@structure
class _Route(Call, entry="route"):
    """``Route`` of kernels.hpp."""

    logits: Pointer
    bias: Pointer
    weights: Pointer
    ids: Pointer
    room: Pointer
    m: Int64
    experts: Int64
    top: Int64
    scoring: Int64
    normalize: Int64
    groups: Int64
    kept: Int64
    judged_by: Int64
    scale: Float32


@structure
class _Stack(ctypes.Structure):
    """``ExpertStack`` of kernels.hpp."""

    w: Pointer = None
    row_scales: Pointer = None
    bias: Pointer = None
    packing: Int64 = -1
    stride: Int64 = 0
    ldw: Int64 = 0
    n: Int64 = 0


@structure
class _Loras(ctypes.Structure):
    """``ExpertLoras`` of kernels.hpp."""

    gate_entries: Pointer = None
    up_entries: Pointer = None
    down_entries: Pointer = None
    slots: Pointer = None
    row_slots: Pointer = None
    inner: Pointer = None
    num_slots: Int64 = 0
    stride: Int64 = 0


@structure
class _Experts(Call, entry="experts"):
    """``Experts`` of kernels.hpp."""

    x: Pointer
    ids: Pointer
    weights: Pointer
    gate: _Stack
    up: _Stack
    down: _Stack
    y: Pointer
    table: Pointer
    x_rows: Pointer
    sums: Pointer
    hidden: Pointer
    int8_room: Pointer
    dtype: Int64
    m: Int64
    top: Int64
    k: Int64
    inner: Int64
    experts: Int64
    activation: Int64
    alpha: Float32
    limit: Float32
    loras: _Loras


def choose_experts(
    logits: Tensor, chosen: Tensor, routing: Routing, bias: Tensor | None = None
) -> Tensor:
    """See ``blazr.nn.ops.moe.choose_experts``."""
    (tokens, experts), groups = logits.shape, routing.groups
    top = min(routing.k, experts)
    if chosen.shape != (tokens, top) or chosen.dtype != torch.int64:
        raise _shape_error(chosen, f"({tokens}, {top}) int64")
    if bias is not None and bias.shape != (experts,):
        raise _shape_error(bias, f"({experts},)")
    # what comes in other formats is copied
    logits = logits.float().contiguous()
    bias = None if bias is None else bias.float().contiguous()
    weights = torch.empty(tokens, top)
    room = torch.empty(tokens, 3 * experts + 1)
    _Route(
        logits.data_ptr(),
        None if bias is None else bias.data_ptr(),
        weights.data_ptr(),
        chosen.data_ptr(),
        room.data_ptr(),
        tokens,
        experts,
        top,
        _SCORINGS[routing.scoring],
        routing.normalize,
        0 if groups is None else groups.count,
        0 if groups is None else groups.kept,
        0 if groups is None else groups.judged_by,
        routing.scale,
    ).run()
    return weights


def _fits(_: Tensor, __: Tensor, ___: Tensor, mlps: ExpertMlps) -> bool:
    stacks = (mlps.up, mlps.down, mlps.gate)
    return all(each is None or isinstance(each, Tensor | Packed) for each in stacks)


@limited_to(_fits)
def experts(x: Tensor, weights: Tensor, chosen: Tensor, mlps: ExpertMlps) -> Tensor:
    """See ``blazr.nn.ops.moe.experts``; a row's result depends on that row alone."""
    (tokens, size), (count, _, inner) = x.shape, _shape(mlps.down)
    gate = _stack(x, mlps.gate, mlps.gate_bias, (count, inner, size))
    up = _stack(x, mlps.up, mlps.up_bias, (count, inner, size))
    down = _stack(x, mlps.down, mlps.down_bias, (count, size, inner))
    top = chosen.shape[-1]
    if not chosen.shape == weights.shape == (tokens, top) or chosen.dtype != torch.int64:
        raise _shape_error(chosen, f"({tokens}, {top}) int64, with weights")
    x, weights, chosen = (each.contiguous() for each in (x, weights, chosen))
    rows = tokens * top
    y = torch.empty(tokens, size, dtype=x.dtype)
    x_rows = torch.empty(rows, size, dtype=x.dtype)
    table = torch.empty(2 * (rows + count + 1), dtype=torch.int64)
    sums = torch.empty(rows, max(size, 2 * inner))
    hidden = torch.empty(rows, inner, dtype=x.dtype)
    int8_room = torch.empty(rows * max(size, inner) * ROOM // 8, dtype=torch.uint8)
    loras = _loras(mlps.adapters, tokens, rows)
    _Experts(
        x.data_ptr(),
        chosen.data_ptr(),
        weights.data_ptr(),
        gate.call,
        up.call,
        down.call,
        y.data_ptr(),
        table.data_ptr(),
        x_rows.data_ptr(),
        sums.data_ptr(),
        hidden.data_ptr(),
        int8_room.data_ptr(),
        DTYPES[x.dtype],
        tokens,
        top,
        size,
        inner,
        count,
        ACTIVATIONS[mlps.activation],
        mlps.alpha,
        mlps.limit or 0.0,
        loras.call,
    ).run()
    return y


_Part = TypeVar("_Part")


@dataclass(frozen=True, slots=True)
class _Given(Generic[_Part]):
    """A part of a call, and what it points into."""

    call: _Part
    tensors: tuple[Tensor | None, ...] = ()


def _loras(adapters: ExpertAdapters | None, tokens: int, rows: int) -> _Given[_Loras]:
    if adapters is None:
        return _Given(_Loras())
    slots, entries = adapters.slots, adapters.entries
    if slots.shape != (tokens,) or slots.dtype != torch.int64:
        raise _shape_error(slots, f"({tokens},) int64, as slots of adapters")
    slots = slots.contiguous()
    row_slots = torch.empty(rows, dtype=torch.int64)
    inner = torch.empty(2, rows, adapters.max_rank)
    gate, up, down = (
        entries[name].data_ptr() if name in entries else None for name in ("gate", "up", "down")
    )
    call = _Loras(
        gate,
        up,
        down,
        slots.data_ptr(),
        row_slots.data_ptr(),
        inner.data_ptr(),
        next(iter(entries.values())).shape[1],
        adapters.max_rank,
    )
    return _Given(call, (slots, row_slots, inner))


def _shape(stack: Stack) -> tuple[int, ...]:
    if isinstance(stack, Tensor):
        return tuple(stack.shape)
    if isinstance(stack, Packed):
        return (len(stack.blocks), stack.rows, stack.columns)
    raise ShapeError(
        "kernels read no such weight.", found=type(stack).__name__, expected="plain or packed"
    )


def _stack(
    x: Tensor, stack: Stack | None, bias: Tensor | None, shape: tuple[int, ...]
) -> _Given[_Stack]:
    if stack is None:
        return _Given(_Stack(packing=_PLAIN))
    if _shape(stack) != shape or (bias is not None and bias.shape != shape[:2]):
        raise _shape_error(x, f"to go with matrices {_shape(stack)}")
    bias = None if bias is None else bias.to(x.dtype).contiguous()
    bias_at = None if bias is None else bias.data_ptr()
    if isinstance(stack, Tensor):
        if stack.dtype != x.dtype:
            raise _shape_error(x, f"to go with matrices in {stack.dtype}")
        if stack.stride(2) != 1 or stack.stride(1) < shape[2]:  # copied at every call, but right
            stack = stack.contiguous()
        step = stack.stride(0) * stack.element_size()
        call = _Stack(stack.data_ptr(), None, bias_at, _PLAIN, step, stack.stride(1), shape[1])
        return _Given(call, (stack, bias))
    assert isinstance(stack, Packed)  # as _shape has seen
    blocks = stack.blocks.contiguous()
    scales = stack.row_scales
    if blocks.shape[1] != -(-shape[1] // GROUP):
        raise _shape_error(x, f"to go with {shape[1]} packed rows")
    scales = None if scales is None else scales.contiguous()
    call = _Stack(
        blocks.data_ptr(),
        None if scales is None else scales.data_ptr(),
        bias_at,
        stack.packing.number,
        blocks.stride(0),
        0,
        shape[1],
    )
    return _Given(call, (blocks, scales, bias))


def _shape_error(other: Tensor, expected: str) -> ShapeError:
    return shape_error("experts do not fit what they are used with.", other, expected)
