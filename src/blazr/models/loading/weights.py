"""Running a plan: read, cast, stack and place, one parameter at a time, in the order on disk.

A tensor whose dtype is wanted as it is stays a view of the mapped file, and so do packed blocks.
Everything else is copied, and the pages it was copied from are given back, so that memory holds one
copy of each weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from blazr.core.errors import CheckpointError
from blazr.core.table import Table
from blazr.models.checkpoint.base import (
    ELEMENT_TYPES,
    Checkpoint,
    QuantizedInfo,
    RelaidInfo,
    torch_dtype,
)
from blazr.models.config import ModelConfig
from blazr.models.families.rules import (
    DecayLog,
    Mxfp4,
    Pairs,
    Squeeze,
    Stack,
    Transform,
    Transpose,
)
from blazr.models.loading.kept import KeptWeights
from blazr.models.loading.packed import (
    Storage,
    is_repacked,
    packed_bytes,
    read_plain,
    read_weight,
    stays_mapped,
)
from blazr.models.loading.plan import LoadPlan, LoadStep
from blazr.nn.device import Device
from blazr.nn.ops.matmul import has_kernel
from blazr.nn.quant.weight import Weight

DTYPES: Table[torch.dtype] = Table(
    "dtype",
    {
        "float32": torch.float32,
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
        "f32": torch.float32,
        "bf16": torch.bfloat16,
        "f16": torch.float16,
    },
)
SMALL_BYTES = 64 * 2**20
_LOADABLE = ("F16", "BF16", "F32", "F64")


def stored_as(plan: LoadPlan) -> str:
    """What most bytes are stored in: a name of ELEMENT_TYPES or GGML_TYPES.

    Raises:
        CheckpointError: Some tensors hold no floating-point numbers.
    """
    sizes: dict[str, int] = {}
    for step in plan.steps:
        for info in step.sources:
            if isinstance(step.transform, Mxfp4):
                continue
            if info.dtype not in _LOADABLE and not info.is_packed:
                raise CheckpointError(
                    f"tensor {info.name[:100]!r} is quantized or of whole numbers.",
                    found=info.dtype,
                    expected=", ".join(_LOADABLE),
                    hint="take the unquantized model",
                )
            sizes[info.dtype] = sizes.get(info.dtype, 0) + info.nbytes
    return max(sizes, key=lambda key: sizes[key])


def stored_dtype(plan: LoadPlan) -> torch.dtype:
    """The dtype most bytes are stored in.

    For packed blocks it is bfloat16, for quantized matrices that of the tensors beside them.

    Raises:
        CheckpointError: Some tensors hold no floating-point numbers.
    """
    name = stored_as(plan)
    if name not in ELEMENT_TYPES:
        return _beside_packed(plan)
    found = torch_dtype(name)
    return torch.float32 if found == torch.float64 else found


def _beside_packed(plan: LoadPlan) -> torch.dtype:
    infos = [info for step in plan.steps for info in step.sources]
    if any(isinstance(info, QuantizedInfo) for info in infos):
        for name in ("BF16", "F16", "F32"):
            if any(info.dtype == name for info in infos):
                return torch_dtype(name)
    return torch.bfloat16


def choose_dtype(name: str, plan: LoadPlan, device: Device, config: ModelConfig) -> torch.dtype:
    """What to compute in: ``"auto"`` is the stored dtype, or float32 where that does not do.

    On a CPU it does where it has instructions for it, or kernels, which widen numbers in registers.
    The weights must be more than a few, or float32 costs nothing; and float16 needs a network that
    does not scale up its embeddings, whose sums go beyond 65,504.

    Raises:
        CheckpointError: Some tensors hold no floating-point numbers.
        UnknownNameError: There is no such dtype.
    """
    stored = stored_dtype(plan)
    if name != "auto":
        return DTYPES[name]
    nbytes = sum(info.nbytes for step in plan.steps for info in step.sources)
    return resolve_dtype(stored, nbytes, device, config)


def resolve_dtype(
    stored: torch.dtype, nbytes: int, device: Device, config: ModelConfig
) -> torch.dtype:
    """What to compute in with so many bytes of weights of a dtype; see `choose_dtype`."""
    if stored == torch.float16 and config.embedding_multiplier > 1:
        return torch.float32
    if device.kind != "cpu":
        return stored if device.supports(stored) else torch.float32
    if nbytes <= SMALL_BYTES or not (device.supports(stored) or has_kernel(stored)):
        return torch.float32
    return stored


@dataclass(frozen=True, slots=True)
class Weights:
    """The result of a plan.

    Args:
        tensors: By parameter name.
        not_finite: Tensors that hold NaN or infinity.
    """

    tensors: dict[str, Tensor | Weight]
    not_finite: tuple[str, ...]


def copied_bytes(plan: LoadPlan, dtype: torch.dtype, device: torch.device, storage: Storage) -> int:
    """Memory the plan will allocate: all parameters but those that stay views of a mapped file."""
    total = 0
    for step in plan.steps:
        storing = storage.get(step.parameter)
        if storing is None:
            is_mapped = _stays_mapped(step, dtype)
        else:
            is_mapped = stays_mapped(step, storing) and not is_repacked(storing, dtype)
        if device.type == "cpu" and is_mapped:
            continue
        plain = math.prod(step.shape) * dtype.itemsize
        total += plain if storing is None else packed_bytes(step, storing)
    return total


def _stays_mapped(step: LoadStep, dtype: torch.dtype) -> bool:
    (first, *more) = step.sources
    is_moved = isinstance(first, RelaidInfo) or not isinstance(step.transform, Squeeze | None)
    if more or first.is_packed or is_moved:
        return False
    return first.start % dtype.itemsize == 0 and torch_dtype(first.dtype) == dtype


def read_weights(
    plan: LoadPlan,
    checkpoint: Checkpoint,
    *,
    dtype: torch.dtype,
    device: torch.device,
    storage: Storage,
    kept: KeptWeights | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Weights:
    """Read every parameter.

    Args:
        plan: A plan that was checked.
        checkpoint: Where its tensors are.
        dtype: Of plain parameters, and of products with packed ones.
        device: Where they go.
        storage: Which are packed, and how.
        kept: Where they are taken from if they are there, and put if not.
        progress: Told the bytes that have been read, and all of them; from zero on.

    Raises:
        CheckpointError: A file has gone or changed.
    """
    tensors: dict[str, Tensor | Weight] = {}
    not_finite: list[str] = []
    total, done = sum(info.nbytes for step in plan.steps for info in step.sources), 0
    for step in plan.steps:
        if progress is not None:
            progress(done, total)
        done += sum(info.nbytes for info in step.sources)
        storing = storage.get(step.parameter)
        if storing is not None:
            weight: Weight | None = kept.find(step, dtype) if kept else None
            if weight is None:
                weight = read_weight(step, checkpoint, storing, dtype=dtype, device=device)
            tensors[step.parameter] = weight
            continue
        read = _stack if isinstance(step.transform, Stack) else _take
        tensor = read(step, checkpoint, dtype, device)
        tensors[step.parameter] = tensor
        not_finite += _not_finite(step, tensor)
    if progress is not None:
        progress(total, total)
    if kept:
        kept.keep(tensors)
    return Weights(tensors, tuple(not_finite))


def _take(
    step: LoadStep, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device
) -> Tensor:
    (info,) = step.sources
    tensor = _transformed(read_plain(info, checkpoint), step.transform)
    tensor = tensor.reshape(step.shape).to(device, dtype)
    if not (device.type == "cpu" and _stays_mapped(step, dtype)):
        checkpoint.drop(info.name)
    return tensor


def _transformed(tensor: Tensor, transform: Transform | None) -> Tensor:
    match transform:
        case Squeeze():
            return tensor.squeeze(transform.dim)
        case DecayLog():
            return (-tensor.float()).log()
        case Transpose():
            return tensor.mT.contiguous()
        case Pairs():
            return tensor[transform.rows(len(tensor))]
        case _:
            return tensor


def _stack(
    step: LoadStep, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device
) -> Tensor:
    whole = torch.empty(step.shape, dtype=dtype, device=device)
    for part, info in zip(whole, step.sources, strict=True):
        part.copy_(read_plain(info, checkpoint))
        checkpoint.drop(info.name)
    return whole


def _not_finite(step: LoadStep, tensor: Tensor) -> Iterable[str]:
    """The tensors of a step with NaN or infinity: their smallest or largest element is one.

    One pass without temporaries; a part that was cast is judged by what it was cast to.
    """
    parts = tensor if isinstance(step.transform, Stack) else (tensor,)
    for part, info in zip(parts, step.sources[: len(parts)], strict=True):
        if part.numel():
            low, high = part.aminmax()
            if not (math.isfinite(low.item()) and math.isfinite(high.item())):
                yield info.name
