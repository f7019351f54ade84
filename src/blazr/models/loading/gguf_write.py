"""Writing the tensors of a GGUF file, each a tile of rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from blazr.models.checkpoint.base import (
    ELEMENT_TYPES,
    Checkpoint,
    QuantizedInfo,
    TensorInfo,
    torch_dtype,
)
from blazr.models.checkpoint.write import TensorWriter
from blazr.models.families.gguf.as_file import Recipe
from blazr.models.families.rules import Mxfp4, TiledColumns, Transpose
from blazr.models.loading.gguf_plan import GgufJob, GgufPlan
from blazr.models.loading.plan import LoadStep
from blazr.models.loading.weights import read_plain, stored_weight, tiles_of
from blazr.nn.quant.exact import mxfp4_blocks, plain_blocks
from blazr.nn.quant.gguf.block_type import TILE


def write_gguf(
    plan: GgufPlan,
    checkpoint: Checkpoint,
    writer: TensorWriter,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Write the tensors of a plan.

    Args:
        plan: The plan.
        checkpoint: Where the model is.
        writer: The file, whose header is written.
        progress: Told the bytes written so far, and all of them; before the first, too.
    """
    total = sum(entry.nbytes for entry in plan.entries.values())
    done = 0
    report = progress or (lambda _done, _total: None)
    report(done, total)
    for name, tensor in plan.factors.items():
        writer.write(name, tensor)
        done += tensor.nbytes
    for job in plan.jobs:
        tiles = _in_parts(job, checkpoint)
        for tile in tiles if job.order is None else (torch.cat(list(tiles))[job.order],):
            writer.write(job.name, tile)
            done += tile.nbytes
            report(done, total)


Matrix = Tensor | TensorInfo


def _in_parts(job: GgufJob, checkpoint: Checkpoint) -> Iterator[Tensor]:
    """One parameter's rows after the other's."""
    for part in job.parts:
        for matrix in _matrices(job, part.step, checkpoint):
            yield from _tiles(job, part.recipe, matrix, checkpoint)
            for info in part.step.sources:
                checkpoint.drop(info)


def _matrices(job: GgufJob, step: LoadStep, checkpoint: Checkpoint) -> Iterator[Matrix]:
    """What a tensor is made of: one matrix or vector, or that of every expert.

    Blocks that are kept come as bytes.
    """
    is_kept = job.entry.dtype not in ELEMENT_TYPES and job.quantizer is None
    if isinstance(step.transform, Mxfp4):
        numbers, exponents = (checkpoint.view(info) for info in step.sources)
        for own, scales in zip(numbers, exponents, strict=True):
            yield mxfp4_blocks(own, scales)
        return
    for info in step.sources:
        if is_kept and not isinstance(info, QuantizedInfo):
            yield checkpoint.view(info)
        elif is_kept:
            assert isinstance(info, QuantizedInfo)
            found = plain_blocks(stored_weight(info, checkpoint, torch.float32))
            assert found is not None
            yield found.blocks
        elif info.is_packed and not isinstance(step.transform, Transpose):
            yield info
        else:
            tensor = step.transform.read(read_plain(info, checkpoint))
            if len(step.sources) == 1:
                is_stack = ".experts." in step.parameter
                yield from tensor if is_stack else (tensor.reshape(step.shape),)
            else:
                yield tensor


def _tiles(
    job: GgufJob, recipe: Recipe, matrix: Matrix, checkpoint: Checkpoint
) -> Iterator[Tensor]:
    """A matrix as it is written, some rows at a time."""
    if isinstance(matrix, TensorInfo):
        if recipe.change is None and not isinstance(job.transform, TiledColumns):
            for _, tile in tiles_of(matrix, checkpoint):
                yield _encoded(job, tile)
            return
        matrix = read_plain(matrix, checkpoint)
    if recipe.change is not None:
        matrix = recipe.change(matrix)
    matrix = job.transform.write(matrix)
    step = max(1, TILE // max(1, matrix[0].numel())) if len(matrix) else 1
    for tile in matrix.split(step):
        yield _encoded(job, tile)


def _encoded(job: GgufJob, tile: Tensor) -> Tensor:
    if job.quantizer is not None:
        return job.quantizer(tile)
    if job.entry.dtype not in ELEMENT_TYPES:
        return tile
    return tile.to(torch_dtype(job.entry.dtype))
