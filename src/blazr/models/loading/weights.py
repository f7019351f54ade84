"""Running a plan: read, cast, stack and place, one parameter at a time, in the order on disk.

A tensor whose dtype is wanted as it is stays a view of the mapped file. Everything else is copied,
and the pages it was copied from are given back, so that memory holds one copy of each weight.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from blazr.core.errors import CheckpointError
from blazr.core.table import Table
from blazr.models.checkpoint.base import ELEMENT_TYPES, Checkpoint
from blazr.models.families.rules import Squeeze, Stack
from blazr.models.loading.plan import LoadPlan, LoadStep
from blazr.nn.device import Device

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


def stored_dtype(plan: LoadPlan) -> torch.dtype:
    """The dtype most bytes are stored in.

    Raises:
        CheckpointError: Some tensors hold no plain floating-point numbers.
    """
    sizes: dict[str, int] = {}
    for step in plan.steps:
        for info in step.sources:
            if info.dtype not in _LOADABLE:
                raise CheckpointError(
                    f"tensor {info.name[:100]!r} is quantized or of whole numbers.",
                    found=info.dtype,
                    expected=", ".join(_LOADABLE),
                    hint="take the unquantized model",
                )
            sizes[info.dtype] = sizes.get(info.dtype, 0) + info.nbytes
    name = max(sizes, key=lambda key: sizes[key])
    found: torch.dtype = getattr(torch, ELEMENT_TYPES[name][1])
    return torch.float32 if found == torch.float64 else found


def choose_dtype(name: str, plan: LoadPlan, device: Device) -> torch.dtype:
    """What to compute in: ``"auto"`` is the stored dtype, or float32 where the device lacks it.

    On a CPU that means float32 for float16 always, and for bfloat16 without instructions for it or
    where the weights are so few that exactness costs nothing.

    Raises:
        CheckpointError: Some tensors hold no plain floating-point numbers.
        UnknownNameError: There is no such dtype.
    """
    stored = stored_dtype(plan)
    if name != "auto":
        return DTYPES[name]
    nbytes = sum(info.nbytes for step in plan.steps for info in step.sources)
    is_small = device.kind == "cpu" and nbytes <= SMALL_BYTES
    return stored if device.supports(stored) and not is_small else torch.float32


@dataclass(frozen=True, slots=True)
class Weights:
    """The result of a plan.

    Args:
        tensors: By parameter name.
        not_finite: Tensors that hold NaN or infinity.
    """

    tensors: dict[str, Tensor]
    not_finite: tuple[str, ...]


def copied_bytes(plan: LoadPlan, dtype: torch.dtype, device: torch.device) -> int:
    """Memory the plan will allocate: all parameters but those that stay views of a mapped file."""
    return sum(
        math.prod(step.shape) * dtype.itemsize
        for step in plan.steps
        if device.type != "cpu" or not _stays_mapped(step, dtype)
    )


def _stays_mapped(step: LoadStep, dtype: torch.dtype) -> bool:
    (first, *more) = step.sources
    size, name = ELEMENT_TYPES[first.dtype]
    is_aligned = first.start % size == 0
    return (
        not more
        and is_aligned
        and not isinstance(step.transform, Stack)
        and (getattr(torch, name) == dtype)
    )


def read_weights(
    plan: LoadPlan, checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device
) -> Weights:
    """Read every parameter.

    Args:
        plan: A plan that was checked.
        checkpoint: Where its tensors are.
        dtype: Of all parameters.
        device: Where they go.

    Raises:
        CheckpointError: A file has gone or changed.
    """
    tensors: dict[str, Tensor] = {}
    not_finite: list[str] = []
    for step in plan.steps:
        if isinstance(step.transform, Stack):
            tensors[step.parameter] = _stack(step, checkpoint, dtype, device)
        else:
            tensors[step.parameter] = _take(step, checkpoint, dtype, device)
        not_finite += _not_finite(step, tensors[step.parameter])
    return Weights(tensors, tuple(not_finite))


def _take(
    step: LoadStep, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device
) -> Tensor:
    (info,) = step.sources
    view = checkpoint.read(info.name)
    tensor = view.to(device, dtype)
    if isinstance(step.transform, Squeeze):
        tensor = tensor.squeeze(step.transform.dim)
    if not (device.type == "cpu" and _stays_mapped(step, dtype)):
        checkpoint.drop(info.name)
    return tensor


def _stack(
    step: LoadStep, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device
) -> Tensor:
    whole = torch.empty(step.shape, dtype=dtype, device=device)
    for part, info in zip(whole, step.sources, strict=True):
        part.copy_(checkpoint.read(info.name))
        checkpoint.drop(info.name)
    return whole


def _not_finite(step: LoadStep, tensor: Tensor) -> Iterable[str]:
    """The tensors of a step with NaN or infinity: their smallest or largest element is one.

    One pass without temporaries; a part that was cast is judged by what it was cast to.
    """
    parts = tensor if isinstance(step.transform, Stack) else (tensor,)
    for part, info in zip(parts, step.sources, strict=True):
        if part.numel():
            low, high = part.aminmax()
            if not (math.isfinite(low.item()) and math.isfinite(high.item())):
                yield info.name
