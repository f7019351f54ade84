"""Adapters in GGUF files, as llama.cpp's ``convert_lora_to_gguf.py`` writes them.

Tensors are called as those of the base model in a GGUF file, followed by ``.lora_a`` or
``.lora_b``.
Source: llama.cpp, ``src/llama-adapter.cpp``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from blazr.core.errors import CheckpointError, ConfigError
from blazr.core.gguf_header import ARCHITECTURE_KEY, Value
from blazr.models.adapters.file import (
    AdapterFile,
    LowRankChange,
    check_scaled,
    hash_of,
    pair_of,
    read_numbers,
)
from blazr.models.causal_lm import ModelConfig
from blazr.models.checkpoint.gguf import read_header
from blazr.models.families import FAMILIES
from blazr.models.families.gguf.architectures import ARCHITECTURES, written_names
from blazr.models.families.gguf.as_file import architecture_of
from blazr.models.families.rules import RuleBook

_ALPHA = "adapter.lora.alpha"
_ENDS = (".lora_a", ".lora_b")
_EMBEDDING = "token_embd.weight"
_MATRIX, _STACK = 2, 3  # dimensions


def read_gguf(path: Path) -> AdapterFile:
    """Read an adapter.

    Args:
        path: The file.

    Raises:
        CheckpointError: It is no GGUF file, or does not hold pairs of matrices.
        ConfigError: It is no adapter, or of a kind that is not supported.
    """
    header = read_header(path)
    metadata = header.metadata
    alpha = _check_metadata(path, metadata)
    parts: dict[str, dict[str, Tensor]] = {}
    for name, numbers in read_numbers(path, header.tensors):
        base, end = name[: -len(_ENDS[0])], name[-len(_ENDS[0]) :]
        if end not in _ENDS:
            raise CheckpointError(
                f"{path}: tensor {name[:100]!r} is of a kind of adapter that is not supported.",
                expected="names that end in " + " and ".join(_ENDS),
            )
        parts.setdefault(base, {})[end] = numbers
    if not parts:
        raise CheckpointError(f"{path} holds no tensors.", expected=" and ".join(_ENDS))
    return AdapterFile(
        path=path,
        base=str(metadata.get("general.base_model.0.name") or metadata[ARCHITECTURE_KEY])[:300],
        architecture=str(metadata[ARCHITECTURE_KEY])[:100],
        fingerprint=hash_of(path.read_bytes()),
        low_rank=tuple(_change(path, name, pair, alpha) for name, pair in parts.items()),
    )


def _rules_for_peft(metadata: Mapping[str, Value], adapter: AdapterFile) -> RuleBook:
    """The rules from the names of PEFT's tensors to the parameters of a network from a GGUF file.

    Args:
        metadata: Of the network's file.
        adapter: The adapter, for messages.

    Raises:
        CheckpointError: The names in the file's architecture differ from model to model.
    """
    row = ARCHITECTURES[str(metadata[ARCHITECTURE_KEY])]
    name = next(iter(row.families or row.read_by.values())).partition(" ")[0]
    if row.is_folded or row.is_hybrid:
        raise CheckpointError(
            f"{adapter.path}: PEFT adapters are not supported beside such a GGUF file.",
            found=f"{ARCHITECTURE_KEY} {metadata[ARCHITECTURE_KEY]!r}",
            hint="convert the adapter with llama.cpp's convert_lora_to_gguf.py",
        )
    return FAMILIES[name].rules


def rules_for_adapter(
    adapter: AdapterFile,
    *,
    family: str,
    config: ModelConfig,
    metadata: Mapping[str, Value],
    rules: RuleBook,
) -> RuleBook:
    """The rules from the names of an adapter's tensors to those of a network's parameters.

    Args:
        adapter: The adapter.
        family: Family of the network.
        config: Configuration of the network.
        metadata: Of the network's GGUF file; empty where it was loaded from another kind of file.
        rules: From the names in the network's own files.

    Raises:
        CheckpointError: The adapter is of another architecture; or it is a PEFT adapter, and the
            network is from a GGUF file whose tensors are too different.
    """
    if not adapter.architecture:
        return _rules_for_peft(metadata, adapter) if metadata else rules
    own = metadata.get(ARCHITECTURE_KEY) if metadata else architecture_of(family, config)
    row = ARCHITECTURES.get(adapter.architecture)
    if own != adapter.architecture or row is None:
        raise CheckpointError(
            f"{adapter.path}: the adapter is of another model.",
            found=f"{ARCHITECTURE_KEY} {adapter.architecture!r}",
            expected=repr(own) if own else f"a PEFT adapter, as for other {family} models",
        )
    if metadata:
        return rules
    if row.is_folded:  # what it changes was multiplied, as the matrices of such files are
        raise CheckpointError(
            f"{adapter.path}: the adapter fits the model's GGUF file alone.",
            found=f"{ARCHITECTURE_KEY} {adapter.architecture!r}, whose files are scaled",
            hint="serve that file, or the adapter as PEFT saved it",
        )
    return written_names(row, config)


def _check_metadata(path: Path, metadata: Mapping[str, Value]) -> float:
    """Alpha; 0 where changes are not scaled.

    Raises:
        ConfigError: It is no adapter, or of a kind that is not supported.
    """
    for key, wanted in (("general.type", "adapter"), ("adapter.type", "lora")):
        if metadata.get(key) != wanted:
            raise ConfigError(
                f"{path} is no adapter of low rank.",
                found=f"{key} {str(metadata.get(key))[:50]!r}",
                expected=repr(wanted),
                hint="a model is served by its path, without --adapter",
            )
    if "adapter.alora.invocation_tokens" in metadata:
        raise ConfigError(
            f"{path}: adapters that begin within a text (aLoRA) are not supported.",
            hint="train it as an ordinary LoRA",
        )
    alpha = metadata.get(_ALPHA, 0.0)
    own = metadata.get(ARCHITECTURE_KEY)
    if not isinstance(own, str) or not own or not isinstance(alpha, float):
        raise ConfigError(
            f"{path} does not say what it is an adapter of, or how it is scaled.",
            expected=f"{ARCHITECTURE_KEY}, a text, and {_ALPHA}, a number",
        )
    return alpha


def _change(path: Path, name: str, pair: Mapping[str, Tensor], alpha: float) -> LowRankChange:
    a, b = pair_of(path, name, pair, _ENDS)
    is_embedding = name == _EMBEDDING
    if is_embedding and a.dim() == _MATRIX:
        a = a.T  # files have a row for each token
    is_stack = a.dim() == b.dim() == _STACK and len(a) == len(b) and "_exps." in name
    is_pair = is_stack or a.dim() == b.dim() == _MATRIX
    if not is_pair or a.shape[-2] != b.shape[-1] or not b.shape[-1]:
        raise CheckpointError(
            f"{path}: the matrices of {name[:100]} do not fit each other.",
            found=f"lora_a {list(pair[_ENDS[0]].shape)}, lora_b {list(b.shape)}",
            expected="lora_a (rank, in) and lora_b (out, rank), of rank 1 or more",
        )
    rank = b.shape[-1]
    scale = alpha / rank if alpha else 1.0
    check_scaled(path, name, b, scale)
    if is_stack:
        a, b = a.flatten(0, 1), b.movedim(0, -1).flatten(1)
    return LowRankChange(
        name=name,
        a=a,
        b=b,
        scale=scale,
        rank=rank,
        is_flipped=is_embedding,
    )
