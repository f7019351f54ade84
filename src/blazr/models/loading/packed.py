"""Packed weights: which parameters may be one, and how they are made, a tile of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from blazr.models.causal_lm import CausalLM, Embedding
from blazr.models.checkpoint.base import Checkpoint, QuantizedInfo, RelaidInfo, TensorInfo
from blazr.models.families.rules import DecayLog, Mxfp4, Pairs, Stack, Transpose
from blazr.models.loading.plan import LoadPlan, LoadStep
from blazr.nn.layers.linear import Linear
from blazr.nn.layers.moe import Experts
from blazr.nn.quant import QUANTIZERS
from blazr.nn.quant.exact import in_blocks
from blazr.nn.quant.gguf import GGML_TYPES
from blazr.nn.quant.gguf.block_type import TILE, BlockType
from blazr.nn.quant.gguf.quantize import Quantizer
from blazr.nn.quant.gguf.weight import GgufWeight
from blazr.nn.quant.mxfp4 import mxfp4_blocks
from blazr.nn.quant.packed import can_pack, pack_weight
from blazr.nn.quant.policy import SHORTER, QuantizePolicy
from blazr.nn.quant.stored import PlainWeight, StoredStack, StoredWeight
from blazr.nn.quant.weight import Weight

# The router decides in float32; latent attention reads the others as tensors at every step.
_PLAIN = ("router", "k_up_proj", "v_up_proj", "kv_up_proj")
_STACKS = ("gate_proj", "up_proj", "gate_up_proj", "down_proj")

Storing = BlockType | Quantizer | Literal["as stored"]
Storage = Mapping[str, Storing]
"""How parameters are to be packed, by name; those that are not listed are plain tensors.

Blocks of a file stay what they are, a quantizer makes blocks of numbers, and the tensors of a
quantized checkpoint stay as they are stored.
"""


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
    names, found = packable(module), dict[str, Storing]()
    head = "embed_tokens.weight" if module.config.tie_word_embeddings else "lm_head.weight"
    for step in plan.steps:
        if step.parameter not in names or isinstance(step.transform, DecayLog):
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


def open_up(plan: LoadPlan, storage: Storage, dtype: torch.dtype, room: int) -> Storage:
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
    if sum(torch.Size(step.shape).numel() for step in steps) * dtype.itemsize > room:
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


def stays_mapped(step: LoadStep, storing: Storing) -> bool:
    """Whether the blocks can be used where they lie in the file."""
    is_kept = step.transform is None and isinstance(storing, BlockType)
    is_kept = is_kept and not isinstance(step.sources[0], RelaidInfo)
    return is_kept and len(step.sources) == 1 and stored_kind(step) == storing


def packed_bytes(step: LoadStep, storing: Storing) -> int:
    """What a packed weight takes."""
    if isinstance(storing, Quantizer):
        storing = storing.kind
    if isinstance(storing, BlockType):
        return torch.Size(step.shape).numel() // storing.length * storing.nbytes
    return sum(info.nbytes for info in step.sources)


def is_repacked(storing: Storing, dtype: torch.dtype) -> bool:
    """Whether on a CPU a weight is copied to the order that its kernels read."""
    return isinstance(storing, BlockType) and can_pack(storing, dtype)


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
        read = _read_stored(step, checkpoint, dtype=dtype, device=device)
    else:
        read = _read_packed(step, checkpoint, storing, dtype=dtype, device=device)
    weight = pack_weight(read)
    if weight is not read:
        for info in step.sources:
            checkpoint.drop(info.name)
    return weight


def _read_packed(
    step: LoadStep,
    checkpoint: Checkpoint,
    storing: BlockType | Quantizer,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> GgufWeight:
    kind = storing.kind if isinstance(storing, Quantizer) else storing
    if stays_mapped(step, storing):
        blocks = checkpoint.read(step.sources[0].name)
        if device.type != "cpu":
            blocks = blocks.to(device)
            checkpoint.drop(step.sources[0].name)
        return GgufWeight(blocks, kind, dtype)
    shape = (*step.shape[:-1], kind.row_bytes(step.shape[-1]))
    whole = torch.empty(shape, dtype=torch.uint8)
    if isinstance(step.transform, Mxfp4):
        _fill_mxfp4(whole, step, checkpoint)
        return GgufWeight(whole.to(device), kind, dtype)
    if isinstance(step.transform, Transpose):
        assert isinstance(storing, Quantizer)
        _fill_transposed(whole, step.sources[0], checkpoint, storing)
        return GgufWeight(whole.to(device), kind, dtype)
    parts = whole.flatten(0, -2).chunk(len(step.sources))
    for part, info in zip(parts, step.sources, strict=True):
        _fill(part, info, checkpoint, storing)
        checkpoint.drop(info.name)
    if isinstance(step.transform, Pairs):
        whole = whole[step.transform.rows(len(whole))]
    return GgufWeight(whole.to(device), kind, dtype)


def _fill(out: Tensor, info: TensorInfo, checkpoint: Checkpoint, storing: Storing) -> None:
    """Pack one tensor into ``out``, (rows, bytes of a row), giving back what was read."""
    if not isinstance(storing, Quantizer):
        out.copy_(checkpoint.read(info.name).flatten(0, -2))
        return
    for part, numbers in tiles_of(info, checkpoint):
        out[part] = storing(numbers)
        checkpoint.drop(info.name)


def _fill_mxfp4(out: Tensor, step: LoadStep, checkpoint: Checkpoint) -> None:
    numbers, exponents = (checkpoint.read(info.name) for info in step.sources)
    for part, own, scales in zip(out, numbers, exponents, strict=True):
        part.copy_(mxfp4_blocks(own, scales))
        for info in step.sources:
            checkpoint.drop(info.name)


def _fill_transposed(
    out: Tensor, info: TensorInfo, checkpoint: Checkpoint, storing: Quantizer
) -> None:
    """Pack experts that the file has with columns for rows, one after the other."""
    for part, numbers in zip(out, checkpoint.read(info.name), strict=True):
        part.copy_(storing(numbers.mT.contiguous()))
        checkpoint.drop(info.name)


def tiles_of(info: TensorInfo, checkpoint: Checkpoint) -> Iterator[tuple[slice, Tensor]]:
    """The rows of a tensor as plain numbers, some at a time, whatever it is stored in."""
    if isinstance(info, QuantizedInfo):
        weight = stored_weight(info, checkpoint, torch.float32)
        for part in weight.tiles():
            yield part, weight.layout.decode(weight.parts, part)
        return
    rows = checkpoint.read(info.name).flatten(0, -2)
    step = max(1, TILE // max(1, info.shape[-1]))
    for low in range(0, len(rows), step):
        part = slice(low, min(low + step, len(rows)))
        yield part, GGML_TYPES[info.dtype].decode(rows[part]) if info.is_packed else rows[part]


def stored_weight(info: QuantizedInfo, checkpoint: Checkpoint, dtype: torch.dtype) -> StoredWeight:
    """A quantized matrix whose tensors stay in the file."""
    parts = {key: checkpoint.view(part) for key, part in info.parts.items()}
    return StoredWeight(info.layout, parts, dtype)


def _read_stored(
    step: LoadStep, checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device
) -> Weight:
    """In blocks of GGUF files where those stand for the same numbers; as stored elsewhere."""
    found = [_read_matrix(info, checkpoint, dtype, device) for info in step.sources]
    return StoredStack(found) if isinstance(step.transform, Stack) else found[0]


def _read_matrix(
    info: TensorInfo, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device
) -> Weight:
    if not isinstance(info, QuantizedInfo):
        return PlainWeight(checkpoint.read(info.name).to(device, dtype))
    stored = stored_weight(info, checkpoint, dtype)
    found = in_blocks(stored)
    if found is not stored:
        checkpoint.drop(info.name)
        return found.to(device)
    if device.type == "cpu":
        return stored
    parts = {key: part.to(device) for key, part in stored.parts.items()}
    checkpoint.drop(info.name)
    return StoredWeight(stored.layout, parts, dtype)


def read_plain(info: TensorInfo, checkpoint: Checkpoint) -> Tensor:
    """A tensor as plain numbers, whatever it is stored in."""
    if not info.is_packed:
        return checkpoint.read(info.name)
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
