"""Reads the weights of a plan, one at a time.

They are read in the order on disk, in memory of their own: a model that serves does not depend on
what becomes of its files. What is converted on the way is read through a map, and the pages that it
was made of are given back, so that memory holds one copy of each weight.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from blazr.models.checkpoint.base import Checkpoint, QuantizedInfo, TensorInfo
from blazr.models.families.rules import Mxfp4, Stack, TiledColumns, Transform, Transpose, in_order
from blazr.models.loading.kept import KeptWeights
from blazr.models.loading.parts import part_of_tensor, part_of_weight
from blazr.models.loading.plan import LoadPlan, LoadStep
from blazr.models.loading.stacks import join_stack
from blazr.models.loading.storage import Storage, Storing, is_as_stored
from blazr.models.loading.upload import upload
from blazr.nn.operands.packing import TILE, BlockType
from blazr.nn.quant.exact import ShiftedWeight, in_blocks, mxfp4_blocks
from blazr.nn.quant.gguf import GGML_TYPES
from blazr.nn.quant.gguf.quantize import Quantizer
from blazr.nn.quant.packed import can_pack, pack_weight
from blazr.nn.quant.weight import (
    FloatWeight,
    GgufWeight,
    PlainWeight,
    StoredStack,
    StoredWeight,
    Weight,
)

_log = logging.getLogger(__name__)
# Told the bytes done so far and the bytes in all; first before anything is done.
Progress = Callable[[int, int], None]
_LISTED_NAMES = 5  # in a message
_CPU = torch.device("cpu")


def no_progress(_done: int, _total: int) -> None:
    """The `Progress` that nobody is told of."""


def read_weights(
    plan: LoadPlan,
    checkpoint: Checkpoint,
    *,
    dtype: torch.dtype,
    device: torch.device,
    storage: Storage,
    stays: Callable[[str], bool] = lambda _: False,
    kept: KeptWeights | None = None,
    progress: Progress | None = None,
) -> dict[str, Tensor | Weight]:
    """Every parameter by name; there is a warning of those that hold NaN or infinity.

    Args:
        plan: A plan that was checked.
        checkpoint: Where its tensors are.
        dtype: Of plain parameters, and of products with packed ones.
        device: Where they go.
        storage: Which are packed, and how.
        stays: Which go to the CPU instead.
        kept: Where they are taken from if they are there, and put if not.
        progress: Told the bytes that have been read, and all of them.

    Raises:
        CheckpointError: A file has gone or changed.
    """
    tensors: dict[str, Tensor | Weight] = {}
    extremes: list[tuple[str, Tensor]] = []  # the smallest and the largest element of each tensor
    total = sum(info.nbytes for step in plan.steps for info in step.sources)
    done = 0
    report = progress or no_progress
    for step in plan.steps:
        report(done, total)
        done += sum(info.nbytes for info in step.sources)
        storing = storage.get(step.parameter)
        where = _CPU if stays(step.parameter) else device
        if storing is not None:
            weight: Weight | None = None
            if kept and where.type == "cpu":  # by its kernels, which read what is kept
                weight = kept.find(step, dtype)
            if weight is None:
                weight = read_weight(step, checkpoint, storing, dtype=dtype, device=where)
            tensors[step.parameter] = weight
            continue
        tensor = _read_tensor(step, checkpoint, dtype, where)
        if step.held is not None:
            tensor = part_of_tensor(tensor, step.held)
        tensors[step.parameter] = tensor
        parts = tensor if isinstance(step.transform, Stack) else (tensor,)
        for part, info in zip(parts, step.sources[: len(parts)], strict=True):
            # these tell in one pass without temporaries; a part that was cast is judged by what it
            # was cast to
            if part.numel():
                extremes.append((info.name, torch.stack(part.aminmax())))
    # asked at the end, because a GPU would be waited for
    not_finite = [name for name, both in extremes if not all(map(math.isfinite, both.tolist()))]
    if not_finite:
        names = ", ".join(name[:100] for name in not_finite[:_LISTED_NAMES])
        _log.warning("%d tensors hold NaN or infinity: %s", len(not_finite), names)
    checkpoint.check_unchanged()
    report(total, total)
    if kept:
        kept.keep(tensors)
    return tensors


def _read_tensor(
    step: LoadStep, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Make a plain tensor."""
    if isinstance(step.transform, Stack):
        whole = torch.empty(step.shape, dtype=dtype, device=device)
        for part, info in zip(whole, step.sources, strict=True):
            part.copy_(_placed(read_plain(info, checkpoint), device))
            checkpoint.drop(info)
        return whole
    (info,) = step.sources
    if device.type == "cpu" and is_as_stored(step, None, dtype):
        return step.transform.read(checkpoint.own(info)).reshape(step.shape)
    tensor = step.transform.read(read_plain(info, checkpoint))
    tensor = _placed(tensor.reshape(step.shape), device).to(dtype).contiguous()
    checkpoint.drop(info)
    return tensor


def read_weight(
    step: LoadStep,
    checkpoint: Checkpoint,
    storing: Storing,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> Weight:
    """Make a weight that is no plain tensor, in the order that kernels read where they can.

    Args:
        step: Its tensors.
        checkpoint: Where they are.
        storing: What it is to be.
        dtype: What products with it come in.
        device: Where it goes.

    Raises:
        CheckpointError: A file has gone or changed.
    """
    if storing != "as stored":
        read = _read_blocks(step, checkpoint, storing, dtype=dtype, device=device)
        if isinstance(storing, BlockType):  # else the factors are in the numbers
            read = _with_scales(read, step, checkpoint)
    elif isinstance(step.transform, Stack):
        read = StoredStack([read_matrix(each, checkpoint, dtype, _CPU) for each in step.sources])
    else:
        read = read_matrix(step.sources[0], checkpoint, dtype, device)
    if step.held is not None:
        read = part_of_weight(read, step.held)
    if isinstance(read, StoredStack) and device.type != "cpu":
        weight = join_stack(read, device)
    else:
        weight = pack_weight(read)
    if weight is not read:
        for info in step.sources:
            checkpoint.drop(info)
    return weight


def _read_blocks(
    step: LoadStep,
    checkpoint: Checkpoint,
    storing: BlockType | Quantizer,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> Weight:
    kind = storing.kind if isinstance(storing, Quantizer) else storing
    first = step.sources[0]
    if is_as_stored(step, storing, dtype):
        is_copied = device.type != "cpu" or can_pack(kind, dtype)
        blocks = checkpoint.view(first) if is_copied else checkpoint.own(first)
        if device.type != "cpu":
            blocks = upload(blocks, device)
            checkpoint.drop(first)
        return GgufWeight(blocks, kind, dtype)
    whole = torch.empty((*step.shape[:-1], kind.row_bytes(step.shape[-1])), dtype=torch.uint8)
    if isinstance(step.transform, Mxfp4):
        each = (checkpoint.view(info) for info in step.sources)
        for part, codes, exponents in zip(whole, *each, strict=True):
            part.copy_(mxfp4_blocks(codes, exponents))
            for info in step.sources:
                checkpoint.drop(info)
    elif isinstance(step.transform, Transpose):
        assert isinstance(storing, Quantizer)
        # one matrix, or a stack of them
        both = whole, checkpoint.view(first)
        matrices = (each.reshape(-1, *each.shape[-2:]) for each in both)
        for part, numbers in zip(*matrices, strict=True):
            part.copy_(storing(numbers.mT.contiguous()))
            checkpoint.drop(first)
    else:
        parts = whole.flatten(0, -2).chunk(len(step.sources))
        for part, info in zip(parts, step.sources, strict=True):
            _fill(part, info, checkpoint, storing=storing, transform=step.transform)
    stored = GgufWeight(_placed(whole, device), kind, dtype)
    if isinstance(step.transform, TiledColumns) and isinstance(storing, BlockType):
        return _with_columns_moved(stored, step.transform)
    return stored


def _with_scales(stored: Weight, step: LoadStep, checkpoint: Checkpoint) -> Weight:
    """Blocks, and what their rows are multiplied with where the file says so."""
    scales = [checkpoint.row_scales(info) for info in step.sources]
    if all(each is None for each in scales):
        return stored
    rows = math.prod(step.shape[:-1]) // len(scales)
    each = [torch.ones(rows) if one is None else one for one in scales]
    whole = _placed(torch.cat(each).view(step.shape[:-1]), stored.device)
    if isinstance(stored, ShiftedWeight):  # columns in another order
        return ShiftedWeight(stored.inner, scale=whole, order=stored.order, piece=stored.piece)
    return ShiftedWeight(stored, scale=whole)


def _placed(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on the device."""
    return tensor if device.type == "cpu" else upload(tensor, device)


def _with_columns_moved(stored: GgufWeight, columns: TiledColumns) -> Weight:
    """Blocks with their columns in the network's order.

    Where a block holds columns of several heads it stays where it is, and inputs are reordered.
    """
    piece = stored.shape[-1] // columns.heads.heads
    kind = stored.kind
    if piece % kind.length == 0:
        return GgufWeight(in_order(stored.blocks, columns.heads.order()), kind, stored.dtype)
    order = torch.tensor(columns.heads.stored_order(), device=stored.device)
    return ShiftedWeight(stored, order=order, piece=piece)


def _fill(
    out: Tensor,
    info: TensorInfo,
    checkpoint: Checkpoint,
    *,
    storing: BlockType | Quantizer,
    transform: Transform,
) -> None:
    """Write a tensor's blocks to ``out``, (rows, bytes of a row), and drop the pages it was in."""
    if isinstance(storing, BlockType):
        out.copy_(checkpoint.view(info).flatten(0, -2))
    else:
        for rows, numbers in tiles_of(info, checkpoint):
            out[rows] = storing(transform.read(numbers))
            checkpoint.drop(info)
    checkpoint.drop(info)


def _rows_of(tensor: Tensor) -> Tensor:
    """The tensor as a matrix of all its rows; a vector, which some files have in blocks, is one."""
    return tensor.flatten(0, -2) if tensor.dim() > 1 else tensor[None]


def tiles_of(info: TensorInfo, checkpoint: Checkpoint) -> Iterator[tuple[slice, Tensor]]:
    """The rows of a tensor as plain numbers, some at a time, whatever it is stored in."""
    if isinstance(info, QuantizedInfo):
        weight = stored_weight(info, checkpoint, torch.float32)
        for part in weight.tiles():
            yield part, weight.layout.decode(weight.parts, part)
        return
    tensor, scales = checkpoint.view(info), checkpoint.row_scales(info)
    # matrices of a stack that is cut are made contiguous a tile at a time
    is_apart = tensor.dim() == 3 and not tensor.is_contiguous()
    step = max(1, TILE // max(1, info.shape[-1]))
    first = 0
    for rows in tensor if is_apart else (_rows_of(tensor),):
        for low in range(0, len(rows), step):
            tile = rows[low : low + step].contiguous()
            part = slice(first + low, first + low + len(tile))
            numbers = GGML_TYPES[info.dtype].decode(tile) if info.is_packed else tile
            if scales is not None:
                numbers = numbers * scales[part, None]
            yield part, numbers
        first += len(rows)


def stored_weight(info: QuantizedInfo, checkpoint: Checkpoint, dtype: torch.dtype) -> StoredWeight:
    """A quantized matrix whose tensors stay in the file."""
    parts = {key: checkpoint.view(part) for key, part in info.parts.items()}
    return StoredWeight(info.layout, parts, dtype)


def read_matrix(
    info: TensorInfo, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device
) -> Weight:
    """A matrix as GGML blocks where these stand for the same numbers, else as it is stored."""
    if not isinstance(info, QuantizedInfo):
        return PlainWeight(_placed(checkpoint.own(info), device).to(dtype))
    parts = {key: checkpoint.own(part) for key, part in info.parts.items()}
    stored = StoredWeight(info.layout, parts, dtype)
    found = in_blocks(stored)
    if found is not stored:
        return found.to(device)
    floats = info.layout.floats(parts)
    if floats is not None:  # of several parameters' tensors each uploads its own rows
        moved = floats.map(lambda each: _placed(each.contiguous(), device))
        return FloatWeight(moved, info.layout.name, dtype)
    uploaded = {key: _placed(part, device) for key, part in parts.items()}
    return StoredWeight(stored.layout, uploaded, dtype)


def read_plain(info: TensorInfo, checkpoint: Checkpoint) -> Tensor:
    """A tensor as plain numbers, whatever it is stored in."""
    if not info.is_packed:
        return checkpoint.view(info)
    whole = torch.empty(info.shape)
    flat = _rows_of(whole)
    for part, numbers in tiles_of(info, checkpoint):
        flat[part] = numbers
    return whole
