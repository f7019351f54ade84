"""What parameters are computed in and stored as, and the memory that they take."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import torch

from blazr.core.errors import CheckpointError
from blazr.core.table import Table
from blazr.models.causal_lm import READ_AS_TENSORS, CausalLM, ModelConfig
from blazr.models.checkpoint.base import (
    ELEMENT_TYPES,
    JoinedInfo,
    LessOneInfo,
    QuantizedInfo,
    RelaidInfo,
    RowsInfo,
    TensorInfo,
    most_used_type,
    torch_dtype,
)
from blazr.models.families.rules import AsStored, Mxfp4, Squeeze, Transpose
from blazr.models.loading.plan import LoadPlan, LoadStep
from blazr.nn.device import Device
from blazr.nn.layers.embedding import Embedding
from blazr.nn.layers.linear import Linear
from blazr.nn.layers.moe import Experts
from blazr.nn.operands.packing import GROUP, PACKINGS, BlockType, Packing
from blazr.nn.ops.matmul import linear
from blazr.nn.quant import QUANTIZERS
from blazr.nn.quant.gguf import GGML_TYPES
from blazr.nn.quant.gguf.quantize import Quantizer
from blazr.nn.quant.hf.scheme import Layout
from blazr.nn.quant.packed import SHORTER, QuantizePolicy, can_pack

_ROW_SCALE_BYTES = 4  # float32, where packed blocks have no scales
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
SMALL_BYTES = 64 * 2**20  # weights of a model that is computed in float32 on a CPU
_LOADABLE = ("F16", "BF16", "F32", "F64")
_STACKS = ("gate_proj", "up_proj", "down_proj")
Storing = BlockType | Quantizer | Literal["as stored"]
Storage = Mapping[str, Storing]
"""How parameters are to be packed, by name; those that are not listed are plain tensors.

Blocks of a file stay what they are, a quantizer makes blocks of numbers, and the tensors of a
quantized checkpoint stay as they are stored.
"""


def stored_as(plan: LoadPlan) -> str:
    """What most bytes are stored in: a name of ELEMENT_TYPES or GGML_TYPES.

    Raises:
        CheckpointError: Some tensors hold no floating-point numbers.
    """
    infos = [info for step in plan.steps for info in step.sources if not _is_mxfp4(step)]
    four_bits = [info for step in plan.steps for info in step.sources if _is_mxfp4(step)]
    for info in four_bits:
        if info.dtype != "U8":
            raise CheckpointError(
                f"tensor {info.name[:100]!r} is not made of bytes, as numbers of four bits are.",
                found=info.dtype,
                expected="U8",
                hint="take the model as it was published",
            )
    for info in infos:
        if info.dtype not in _LOADABLE and not info.is_packed:
            raise CheckpointError(
                f"tensor {info.name[:100]!r} is quantized or of whole numbers.",
                found=info.dtype,
                expected=", ".join(_LOADABLE),
                hint="take the unquantized model",
            )
    return most_used_type((info.dtype, info.nbytes) for info in infos)


def _is_mxfp4(step: LoadStep) -> bool:
    return isinstance(step.transform, Mxfp4)


def stored_dtype(plan: LoadPlan) -> torch.dtype:
    """The dtype that most bytes are stored in.

    Packed blocks count as bfloat16, quantized matrices as what the tensors beside them are.

    Raises:
        CheckpointError: Some tensors hold no floating-point numbers.
    """
    name = stored_as(plan)
    if name in ELEMENT_TYPES:
        found = torch_dtype(name)
        return torch.float32 if found == torch.float64 else found
    infos = [info for step in plan.steps for info in step.sources]
    is_quantized = any(isinstance(info, QuantizedInfo) for info in infos)
    present = {info.dtype for info in infos} if is_quantized else set()
    beside = next((each for each in ("BF16", "F16", "F32") if each in present), "BF16")
    return torch_dtype(beside)


def choose_dtype(name: str, plan: LoadPlan, device: Device, config: ModelConfig) -> torch.dtype:
    """What to compute in: ``"auto"`` is the stored dtype, or float32 where that is no use.

    A CPU needs instructions for the stored dtype, or kernels, which widen numbers in registers; and
    small models are computed in float32, which costs them little. Networks that scale up their
    embeddings are not computed in float16: their sums exceed its 65,504.

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
    if nbytes <= SMALL_BYTES or not (device.supports(stored) or linear.has_kernel(stored)):
        return torch.float32
    return stored


def packable(module: CausalLM) -> frozenset[str]:
    """The parameters in whose place a packed weight may stand."""
    names = set()
    for name, part in module.named_modules():
        if isinstance(part, Linear | Embedding) and not name.endswith(READ_AS_TENSORS):
            names.add(f"{name}.weight")
        elif isinstance(part, Experts):
            names.update(f"{name}.{stack}" for stack in _STACKS)
    return frozenset(names)


def choose_storage(plan: LoadPlan, module: CausalLM, policy: QuantizePolicy) -> Storage:
    """How to hold each parameter: packed if it is stored so, or the policy says so and it can be.

    Rows can be packed that are whole blocks.
    """
    names = packable(module)
    found = dict[str, Storing]()
    head = module.head_parameter
    for step in plan.steps:
        if step.parameter not in names:
            continue
        chosen = policy.choose(step.parameter, is_head=step.parameter == head)
        if chosen and step.shape[-1] % QUANTIZERS[chosen].kind.length:
            chosen = SHORTER.get(chosen, chosen)
        storing = _storing(step, QUANTIZERS[chosen] if chosen else None)
        if storing is not None:
            found[step.parameter] = storing
    return found


def _storing(step: LoadStep, wanted: Quantizer | None) -> Storing | None:
    stored = stored_kind(step)
    if _is_mxfp4(step):
        return stored  # nothing is smaller
    if wanted is not None and wanted.kind != stored and step.shape[-1] % wanted.kind.length == 0:
        return wanted
    if isinstance(step.transform, Transpose):
        return None
    if stored is not None:
        return stored if step.shape[-1] % stored.length == 0 else None
    is_quantized = any(isinstance(info, QuantizedInfo) for info in step.sources)
    return "as stored" if is_quantized else None


def stored_kind(step: LoadStep) -> BlockType | None:
    """The type of GGML blocks that all tensors of a step are stored in, or None."""
    if _is_mxfp4(step):
        return GGML_TYPES["MXFP4"]
    kinds = {info.dtype for info in step.sources}
    (first, *more) = sorted(kinds)
    is_of_gguf = not isinstance(step.sources[0], QuantizedInfo) and step.sources[0].is_packed
    return GGML_TYPES[first] if not more and is_of_gguf and first in GGML_TYPES else None


def dequantize_if_room(
    plan: LoadPlan,
    storage: Storage,
    dtype: torch.dtype,
    room: int,
    *,
    has_kernels: bool = False,
    is_on_cpu: bool = False,
    lies_there: Callable[[str], bool] = lambda _: True,
) -> Storage:
    """Dequantize float formats and tables if there is room, as plain numbers are far faster.

    Args:
        plan: A plan that was checked.
        storage: What was chosen.
        dtype: Of plain parameters.
        room: Bytes that these may take in all.
        has_kernels: Whether kernels read the float formats; then those stay.
        is_on_cpu: Whether these are a CPU's parameters, which packs some formats.
        lies_there: Which parameters go where the room is; others stay as they are.
    """

    def is_slow(step: LoadStep) -> bool:
        layouts = [each.layout for each in step.sources if isinstance(each, QuantizedInfo)]
        return any(
            not (
                each.is_grid
                or (each.is_float and has_kernels)
                or (is_on_cpu and _packing(each, dtype))
            )
            for each in layouts
        )

    steps = [
        step
        for step in plan.steps
        if storage.get(step.parameter) == "as stored"
        and lies_there(step.parameter)
        and is_slow(step)
    ]
    if sum(math.prod(step.shape) for step in steps) * dtype.itemsize > room:
        return storage
    opened = {step.parameter for step in steps}
    return {name: each for name, each in storage.items() if name not in opened}


def _packing(layout: Layout, dtype: torch.dtype) -> Packing | None:
    """What a CPU packs a quantized matrix in that is no whole numbers; None where it does not."""
    if not layout.packed_as or not can_pack(GGML_TYPES[layout.packed_as], dtype):
        return None
    return PACKINGS[layout.packed_as]


def stored_bytes(
    step: LoadStep, storing: Storing | None, dtype: torch.dtype, *, is_on_cpu: bool
) -> int:
    """What a parameter takes, packed or plain in a dtype."""
    count = round(math.prod(step.shape) * step.share)
    if storing is None:
        return count * dtype.itemsize
    if isinstance(storing, Quantizer):
        if is_on_cpu and storing.packed_as is not None and can_pack(storing.kind, dtype):
            columns = step.shape[-1]
            packing = PACKINGS[storing.packed_as(columns)]
            row_scales = 0 if packing.scales != "none" else count // columns * _ROW_SCALE_BYTES
            return _packed_bytes(packing, count) + row_scales
        storing = storing.kind
    if isinstance(storing, BlockType):
        if is_on_cpu and can_pack(storing, dtype):  # in the order of its kernels
            return _packed_bytes(PACKINGS[storing.name], count)
        return count // storing.length * storing.nbytes

    def as_stored(info: TensorInfo) -> int:
        packing = None
        if is_on_cpu and isinstance(info, QuantizedInfo):
            packing = _packing(info.layout, dtype)
        return info.nbytes if packing is None else _packed_bytes(packing, math.prod(info.shape))

    return round(sum(map(as_stored, step.sources)) * step.share)


def _packed_bytes(packing: Packing, count: int) -> int:
    """What so many numbers take, packed."""
    return count // packing.columns * packing.nbytes // GROUP


def weight_bytes(
    steps: Iterable[LoadStep], dtype: torch.dtype, storage: Storage, *, is_on_cpu: bool
) -> int:
    """Memory that parameters will take."""
    return sum(
        stored_bytes(step, storage.get(step.parameter), dtype, is_on_cpu=is_on_cpu)
        for step in steps
    )


def is_as_stored(step: LoadStep, storing: Storing | None, dtype: torch.dtype) -> bool:
    """Whether a parameter, plain or packed, is what lies in the file, byte by byte."""
    (first, *more) = step.sources
    if more or isinstance(first, RelaidInfo | JoinedInfo | LessOneInfo):
        return False
    if storing is not None:
        is_kept = isinstance(step.transform, AsStored) and isinstance(storing, BlockType)
        return is_kept and not isinstance(first, RowsInfo) and stored_kind(step) == storing
    if isinstance(first, RowsInfo) and not first.is_view:
        return False
    if first.is_packed or not isinstance(step.transform, AsStored | Squeeze):
        return False
    return torch_dtype(first.dtype) == dtype
