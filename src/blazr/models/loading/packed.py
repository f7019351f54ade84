"""Packed weights: which parameters may be one, and how they are made, a tile of rows at a time."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from blazr.models.causal_lm import CausalLM, Embedding
from blazr.models.checkpoint.base import Checkpoint, TensorInfo
from blazr.models.families.rules import DecayLog, Mxfp4, Transpose
from blazr.models.loading.plan import LoadPlan, LoadStep
from blazr.nn.layers.linear import Linear
from blazr.nn.layers.moe import Experts
from blazr.nn.quant import QUANTIZERS
from blazr.nn.quant.gguf import GGML_TYPES
from blazr.nn.quant.gguf.block_type import TILE, BlockType
from blazr.nn.quant.gguf.weight import GgufWeight
from blazr.nn.quant.policy import QuantizePolicy

# The router decides in float32; latent attention reads the others as tensors at every step.
_PLAIN = ("router", "k_up_proj", "v_up_proj", "kv_up_proj")
_STACKS = ("gate_proj", "up_proj", "gate_up_proj", "down_proj")

Storage = Mapping[str, BlockType]
"""How parameters are to be packed, by name; those that are not listed are plain tensors."""


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
    names, found = packable(module), {}
    head = "embed_tokens.weight" if module.config.tie_word_embeddings else "lm_head.weight"
    for step in plan.steps:
        if step.parameter not in names or isinstance(step.transform, DecayLog | Transpose | Mxfp4):
            continue
        chosen = policy.choose(step.parameter, is_head=step.parameter == head)
        kind = QUANTIZERS[chosen].kind if chosen else stored_kind(step)
        if kind is not None and step.shape[-1] % kind.length == 0:
            found[step.parameter] = kind
    return found


def stored_kind(step: LoadStep) -> BlockType | None:
    """The type that all tensors of a step are packed in, if there is one."""
    kinds = {info.dtype for info in step.sources}
    (first, *more) = sorted(kinds)
    return GGML_TYPES[first] if not more and step.sources[0].is_packed else None


def stays_mapped(step: LoadStep, kind: BlockType) -> bool:
    """Whether the blocks can be used where they lie in the file."""
    return len(step.sources) == 1 and step.transform is None and stored_kind(step) == kind


def read_packed(
    step: LoadStep,
    checkpoint: Checkpoint,
    kind: BlockType,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> GgufWeight:
    """Make a packed weight.

    Args:
        step: Its tensors.
        checkpoint: Where they are.
        kind: What to pack it in.
        dtype: What products with it come in.
        device: Where it goes.

    Raises:
        CheckpointError: A file has gone or changed.
    """
    if stays_mapped(step, kind):
        blocks = checkpoint.read(step.sources[0].name)
        if device.type != "cpu":
            blocks = blocks.to(device)
            checkpoint.drop(step.sources[0].name)
        return GgufWeight(blocks, kind, dtype)
    shape = (*step.shape[:-1], kind.row_bytes(step.shape[-1]))
    whole = torch.empty(shape, dtype=torch.uint8)
    parts = whole.flatten(0, -2).chunk(len(step.sources))
    for part, info in zip(parts, step.sources, strict=True):
        _fill(part, info, checkpoint, kind)
        checkpoint.drop(info.name)
    return GgufWeight(whole.to(device), kind, dtype)


def _fill(out: Tensor, info: TensorInfo, checkpoint: Checkpoint, kind: BlockType) -> None:
    """Pack one tensor into ``out``, (rows, bytes of a row), giving back what was read."""
    stored = checkpoint.read(info.name).flatten(0, -2)
    if info.dtype == kind.name:
        out.copy_(stored)
        return
    quantize = QUANTIZERS[kind.name.lower()]
    step = max(1, TILE // info.shape[-1])
    for low in range(0, len(out), step):
        tile = stored[low : low + step]
        out[low : low + step] = quantize(_numbers(tile, info))
        checkpoint.drop(info.name)


def _numbers(stored: Tensor, info: TensorInfo) -> Tensor:
    return GGML_TYPES[info.dtype].decode(stored) if info.is_packed else stored


def read_plain(info: TensorInfo, checkpoint: Checkpoint) -> Tensor:
    """A tensor as plain numbers, whatever it is stored in."""
    stored = checkpoint.read(info.name)
    if not info.is_packed:
        return stored
    whole = torch.empty(info.shape)
    flat, rows = whole.flatten(0, -2), stored.flatten(0, -2)
    kind = GGML_TYPES[info.dtype]
    for part in kind.tiles(len(rows), info.shape[-1]):
        flat[part] = kind.decode(rows[part])
    return whole


def place(module: CausalLM, tensors: Mapping[str, Tensor | GgufWeight]) -> None:
    """Put weights in the place of a network's empty parameters."""
    plain = {name: each for name, each in tensors.items() if isinstance(each, Tensor)}
    result = module.load_state_dict(plain, assign=True, strict=False)
    packed = {name: each for name, each in tensors.items() if isinstance(each, GgufWeight)}
    assert not result.unexpected_keys
    assert set(result.missing_keys) == set(packed)
    for name, weight in packed.items():
        owner, _, attribute = name.rpartition(".")
        parent: nn.Module = module.get_submodule(owner)
        delattr(parent, attribute)  # a parameter's place takes parameters only
        setattr(parent, attribute, weight)
