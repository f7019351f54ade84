"""Running a plan: what weights are computed in and kept as, and reading them, one at a time.

They are read in the order on disk. A tensor whose dtype is wanted as it is stays a view of the
mapped file, and so do packed blocks. Everything else is copied, and the pages it was copied from
are given back, so that memory holds one copy of each weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from blazr.core.errors import CheckpointError
from blazr.core.table import Table
from blazr.models.causal_lm import CausalLM, Embedding, ModelConfig
from blazr.models.checkpoint.base import (
    ELEMENT_TYPES,
    Checkpoint,
    QuantizedInfo,
    RelaidInfo,
    RowsInfo,
    TensorInfo,
    torch_dtype,
)
from blazr.models.families.rules import (
    AsStored,
    Mxfp4,
    Squeeze,
    Stack,
    TiledColumns,
    Transform,
    Transpose,
    in_order,
)
from blazr.models.loading.kept import KeptWeights
from blazr.models.loading.plan import LoadPlan, LoadStep
from blazr.nn.device import Device
from blazr.nn.layers.linear import Linear
from blazr.nn.layers.moe import Experts
from blazr.nn.ops.matmul import linear
from blazr.nn.quant import QUANTIZERS
from blazr.nn.quant.exact import ShiftedWeight, in_blocks, mxfp4_blocks
from blazr.nn.quant.gguf import GGML_TYPES
from blazr.nn.quant.gguf.block_type import TILE, BlockType
from blazr.nn.quant.gguf.quantize import Quantizer
from blazr.nn.quant.packed import can_pack, pack_weight
from blazr.nn.quant.policy import SHORTER, QuantizePolicy
from blazr.nn.quant.weight import GgufWeight, PlainWeight, StoredStack, StoredWeight, Weight

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
# The router decides in float32; latent attention reads the others as tensors at every step.
_PLAIN = ("router", "k_up_proj", "v_up_proj")
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
    if name in ELEMENT_TYPES:
        found = torch_dtype(name)
        return torch.float32 if found == torch.float64 else found
    infos = [info for step in plan.steps for info in step.sources]
    is_quantized = any(isinstance(info, QuantizedInfo) for info in infos)
    present = {info.dtype for info in infos} if is_quantized else set()
    beside = next((each for each in ("BF16", "F16", "F32") if each in present), "BF16")
    return torch_dtype(beside)


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
    if nbytes <= SMALL_BYTES or not (device.supports(stored) or linear.has_kernel(stored)):
        return torch.float32
    return stored


def packable(module: CausalLM) -> frozenset[str]:
    """The parameters in whose place a packed weight may stand."""
    names = set()
    for name, part in module.named_modules():
        if isinstance(part, Linear | Embedding) and not name.endswith(_PLAIN):
            names.add(f"{name}.weight")
        elif isinstance(part, Experts):
            names.update(f"{name}.{stack}" for stack in _STACKS)
    return frozenset(names)


def choose_storage(plan: LoadPlan, module: CausalLM, policy: QuantizePolicy) -> Storage:
    """Pack what is stored packed, and what the policy names where its rows are whole blocks."""
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
    if isinstance(step.transform, Mxfp4):
        return stored  # nothing is smaller
    if wanted is not None and wanted.kind != stored and step.shape[-1] % wanted.kind.length == 0:
        return wanted
    if isinstance(step.transform, Transpose):
        return None
    if stored is not None:
        return stored if step.shape[-1] % stored.length == 0 else None
    is_quantized = any(isinstance(info, QuantizedInfo) for info in step.sources)
    return "as stored" if is_quantized else None


def dequantize_if_room(plan: LoadPlan, storage: Storage, dtype: torch.dtype, room: int) -> Storage:
    """Let floats and tables become plain numbers where there is room, as those are far faster.

    Args:
        plan: A plan that was checked.
        storage: What was chosen.
        dtype: Of plain parameters.
        room: Bytes that they may take in all.
    """
    steps = [
        step
        for step in plan.steps
        if storage.get(step.parameter) == "as stored"
        and any(isinstance(i, QuantizedInfo) and not i.layout.is_grid for i in step.sources)
    ]
    if sum(math.prod(step.shape) for step in steps) * dtype.itemsize > room:
        return storage
    opened = {step.parameter for step in steps}
    return {name: each for name, each in storage.items() if name not in opened}


def stored_kind(step: LoadStep) -> BlockType | None:
    """The type that all tensors of a step are packed in, if there is one."""
    if isinstance(step.transform, Mxfp4):
        return GGML_TYPES["MXFP4"]
    kinds = {info.dtype for info in step.sources}
    (first, *more) = sorted(kinds)
    is_of_gguf = not isinstance(step.sources[0], QuantizedInfo) and step.sources[0].is_packed
    return GGML_TYPES[first] if not more and is_of_gguf and first in GGML_TYPES else None


def stored_bytes(step: LoadStep, storing: Storing | None, dtype: torch.dtype) -> int:
    """What a parameter takes, packed or plain in a dtype."""
    if storing is None:
        return math.prod(step.shape) * dtype.itemsize
    if isinstance(storing, Quantizer):
        storing = storing.kind
    if isinstance(storing, BlockType):
        return math.prod(step.shape) // storing.length * storing.nbytes
    return sum(info.nbytes for info in step.sources)


def copied_bytes(plan: LoadPlan, dtype: torch.dtype, device: torch.device, storage: Storage) -> int:
    """Memory the plan will allocate: all parameters but those that stay views of a mapped file."""
    total = 0
    for step in plan.steps:
        storing = storage.get(step.parameter)
        # on a CPU blocks are copied to the order that its kernels read
        is_repacked = isinstance(storing, BlockType) and can_pack(storing, dtype)
        if device.type == "cpu" and _stays_mapped(step, storing, dtype) and not is_repacked:
            continue
        total += stored_bytes(step, storing, dtype)
    return total


def _stays_mapped(step: LoadStep, storing: Storing | None, dtype: torch.dtype) -> bool:
    """Whether a parameter, plain or packed, can be used where it lies in the file."""
    (first, *more) = step.sources
    if more or isinstance(first, RelaidInfo):
        return False
    if storing is not None:
        is_kept = isinstance(step.transform, AsStored) and isinstance(storing, BlockType)
        return is_kept and not isinstance(first, RowsInfo) and stored_kind(step) == storing
    if isinstance(first, RowsInfo) and not first.is_view:
        return False
    if first.is_packed or not isinstance(step.transform, AsStored | Squeeze):
        return False
    return first.start % dtype.itemsize == 0 and torch_dtype(first.dtype) == dtype


@dataclass(frozen=True, slots=True)
class Weights:
    """The result of a plan.

    Args:
        tensors: By parameter name.
        not_finite: Tensors that hold NaN or infinity.
    """

    tensors: dict[str, Tensor | Weight]
    not_finite: tuple[str, ...]


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
    total = sum(info.nbytes for step in plan.steps for info in step.sources)
    done = 0
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
        tensor = _read_tensor(step, checkpoint, dtype, device)
        tensors[step.parameter] = tensor
        parts = tensor if isinstance(step.transform, Stack) else (tensor,)
        for part, info in zip(parts, step.sources[: len(parts)], strict=True):
            # the smallest or the largest element tells, in one pass without temporaries; a part
            # that was cast is judged by what it was cast to
            if part.numel() and not all(math.isfinite(each.item()) for each in part.aminmax()):
                not_finite.append(info.name)
    if progress is not None:
        progress(total, total)
    if kept:
        kept.keep(tensors)
    return Weights(tensors, tuple(not_finite))


def _read_tensor(
    step: LoadStep, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Make a plain tensor."""
    if isinstance(step.transform, Stack):
        whole = torch.empty(step.shape, dtype=dtype, device=device)
        for part, info in zip(whole, step.sources, strict=True):
            part.copy_(read_plain(info, checkpoint))
            checkpoint.drop(info)
        return whole
    (info,) = step.sources
    tensor = step.transform.read(read_plain(info, checkpoint))
    tensor = tensor.reshape(step.shape).to(device, dtype)
    if device.type == "cpu" and _stays_mapped(step, None, dtype):
        return tensor
    tensor = tensor.contiguous()
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
    if storing == "as stored":
        found = [read_matrix(info, checkpoint, dtype, device) for info in step.sources]
        read = StoredStack(found) if isinstance(step.transform, Stack) else found[0]
    else:
        read = _read_blocks(step, checkpoint, storing, dtype=dtype, device=device)
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
    if _stays_mapped(step, storing, dtype):
        blocks = checkpoint.view(first)
        if device.type != "cpu":
            blocks = blocks.to(device)
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
        for part, numbers in zip(whole, checkpoint.view(first), strict=True):
            part.copy_(storing(numbers.mT.contiguous()))
            checkpoint.drop(first)
    else:
        parts = whole.flatten(0, -2).chunk(len(step.sources))
        for part, info in zip(parts, step.sources, strict=True):
            _fill(part, info, checkpoint, storing=storing, transform=step.transform)
    stored = GgufWeight(whole.to(device), kind, dtype)
    if isinstance(step.transform, TiledColumns) and isinstance(storing, BlockType):
        return _with_columns_moved(stored, step.transform)
    return stored


def _with_columns_moved(stored: GgufWeight, columns: TiledColumns) -> Weight:
    """Blocks in another order; where they hold columns of several heads, inputs in theirs."""
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
    """Put the blocks of one tensor in ``out``, (rows, bytes of a row), dropping what was read."""
    if isinstance(storing, BlockType):
        out.copy_(checkpoint.view(info).flatten(0, -2))
    else:
        for rows, numbers in tiles_of(info, checkpoint):
            out[rows] = storing(transform.read(numbers))
            checkpoint.drop(info)
    checkpoint.drop(info)


def tiles_of(info: TensorInfo, checkpoint: Checkpoint) -> Iterator[tuple[slice, Tensor]]:
    """The rows of a tensor as plain numbers, some at a time, whatever it is stored in."""
    if isinstance(info, QuantizedInfo):
        weight = stored_weight(info, checkpoint, torch.float32)
        for part in weight.tiles():
            yield part, weight.layout.decode(weight.parts, part)
        return
    tensor = checkpoint.view(info)
    # matrices of a stack that is cut are made contiguous a tile at a time
    is_apart = tensor.dim() == 3 and not tensor.is_contiguous()
    step = max(1, TILE // max(1, info.shape[-1]))
    first = 0
    for rows in tensor if is_apart else (tensor.flatten(0, -2),):
        for low in range(0, len(rows), step):
            tile = rows[low : low + step].contiguous()
            numbers = GGML_TYPES[info.dtype].decode(tile) if info.is_packed else tile
            yield slice(first + low, first + low + len(tile)), numbers
        first += len(rows)


def stored_weight(info: QuantizedInfo, checkpoint: Checkpoint, dtype: torch.dtype) -> StoredWeight:
    """A quantized matrix whose tensors stay in the file."""
    parts = {key: checkpoint.view(part) for key, part in info.parts.items()}
    return StoredWeight(info.layout, parts, dtype)


def read_matrix(
    info: TensorInfo, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device
) -> Weight:
    """In blocks of GGUF files where those stand for the same numbers; as stored elsewhere."""
    if not isinstance(info, QuantizedInfo):
        return PlainWeight(checkpoint.view(info).to(device, dtype))
    stored = stored_weight(info, checkpoint, dtype)
    found = in_blocks(stored)
    if found is not stored:
        checkpoint.drop(info)
        return found.to(device)
    if device.type == "cpu":
        return stored
    parts = {key: part.to(device) for key, part in stored.parts.items()}
    checkpoint.drop(info)
    return StoredWeight(stored.layout, parts, dtype)


def read_plain(info: TensorInfo, checkpoint: Checkpoint) -> Tensor:
    """A tensor as plain numbers, whatever it is stored in."""
    if not info.is_packed:
        return checkpoint.view(info)
    whole = torch.empty(info.shape)
    flat = whole.flatten(0, -2)
    for part, numbers in tiles_of(info, checkpoint):
        flat[part] = numbers
    return whole


def place(module: CausalLM, tensors: Mapping[str, Tensor | Weight]) -> None:
    """Put weights in the place of a network's empty parameters."""
    plain = {name: each for name, each in tensors.items() if isinstance(each, Tensor)}
    result = module.load_state_dict(plain, assign=True, strict=False)
    packed = {name: each for name, each in tensors.items() if isinstance(each, Weight)}
    assert not result.unexpected_keys
    assert set(result.missing_keys) == set(packed)
    for name, weight in packed.items():
        owner, _, attribute = name.rpartition(".")
        parent: nn.Module = module.get_submodule(owner)
        delattr(parent, attribute)  # a parameter's place takes parameters only
        setattr(parent, attribute, weight)
