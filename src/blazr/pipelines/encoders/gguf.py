"""Encoders in GGUF files: their tensors as the library's, and what the file says of vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from blazr.core.errors import CheckpointError
from blazr.pipelines.encoders.gguf_architectures import CLS, LAST, MEAN, EncoderFile
from blazr.pipelines.encoders.gguf_texts import GgufTexts
from blazr.pipelines.encoders.modules import Modules, first_state, last_state, mean_state
from blazr.pipelines.encoders.post_norm import PostNormBert, PostNormConfig
from blazr.pipelines.network import decoded, network_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from blazr.models.checkpoint.base import Checkpoint

_POOLINGS = {MEAN: mean_state, CLS: first_state, LAST: last_state}
_NONE, _RANK = 0, 4
# Layers over vectors, by their folders in sentence-transformers.
_DENSE = ("dense_2", "dense_3")
_HINT = "fetch the file again, or take the same model as safetensors"
_BUFFERS = ("rope_freqs.weight",)


def gguf_network(
    checkpoint: Checkpoint, auto: str, *, dtype: str, unused: tuple[str, ...]
) -> torch.nn.Module:
    """The network of a file, ready to run; packed weights become plain ones.

    Args:
        checkpoint: The file.
        auto: The class of transformers that knows networks of its kind.
        dtype: What to compute in; ``auto`` is float32.
        unused: What the names of tensors begin with that may be missing.

    Raises:
        CheckpointError: A tensor or a value is missing, is not known, or has another form.
        Exception: What transformers raises where it cannot.
    """
    import transformers

    file = EncoderFile(checkpoint)
    _check_rotation(file)
    values = {**file.common, **file.row.config(file)}
    if file.row.is_ours:
        sizes = PostNormConfig.of({**values, "model_type": file.row.model_type})
        found = PostNormBert(sizes, _tensors(file, "")).eval()
        return found.to(torch.float32 if dtype == "auto" else getattr(torch, dtype))
    has_head = auto.endswith("ForSequenceClassification")
    if has_head:
        values |= _labels(file)
    make: Any = transformers.CONFIG_MAPPING[file.row.model_type]
    config = make(**values)
    with torch.device("meta"):
        known: Any = getattr(transformers, auto)
        kind = type(known.from_config(config))
    prefix = f"{kind.base_model_prefix}." if has_head else ""
    return network_of(
        kind,
        config,
        _tensors(file, prefix),
        "float32" if dtype == "auto" else dtype,
        of=checkpoint.path.name,
        hint=_HINT,
        unused=unused,
    )


def gguf_modules(checkpoint: Checkpoint) -> Modules:
    """What follows the network: the file's pooling and its dense layers, and then length 1.

    Raises:
        CheckpointError: The pooling is not known, or there is none for vectors.
    """
    file = EncoderFile(checkpoint)
    number = checkpoint.metadata.get(f"{file.architecture}.pooling_type", _NONE)
    if number not in {_NONE, *_POOLINGS}:
        raise CheckpointError(
            f"{checkpoint.path.name} makes no vectors of texts in a way that is known.",
            found=f"pooling_type {number!r:.20}",
            expected=", ".join(map(str, [_NONE, *_POOLINGS])),
            hint="a model that ranks texts has cls.output.weight, which is missing"
            if number == _RANK
            else "",
        )
    tensors = {
        name: decoded(checkpoint, info)
        for name, info in checkpoint.tensors.items()
        if name.startswith(_DENSE)
    }
    return Modules(
        # where the file has none, as where a folder has no modules.json
        poolings=[_POOLINGS[MEAN if number == _NONE else int(number)]],
        dense=[_dense(tensors, name) for name in _DENSE if f"{name}.weight" in tensors],
        normalizes=True,
    )


def gguf_texts(checkpoint: Checkpoint) -> GgufTexts:
    """The tokenizer of a file.

    Raises:
        CheckpointError: It has none that is known.
    """
    file = EncoderFile(checkpoint)
    return GgufTexts(
        checkpoint.metadata,
        name=checkpoint.path.stem,
        max_tokens=file.max_tokens,
        num_types=file.num_types,
        pad_id=file.pad_id,
    )


def _check_rotation(file: EncoderFile) -> None:
    """Refuse rotation that is stretched, which no network here is told of.

    Raises:
        CheckpointError: It is.
    """
    key = f"{file.architecture}.rope.scaling.type"
    found = file.checkpoint.metadata.get(key, "none")
    if found not in {"none", ""} and file.number("rope.scaling.factor", 1.0) != 1:
        raise CheckpointError(
            f"{file.checkpoint.path.name} has positions that are stretched.",
            found=f"{key} {found!r:.30}",
            expected="'none'",
            hint="take the same model as safetensors",
        )


def _labels(file: EncoderFile) -> dict[str, object]:
    """The labels of the config, as many as the head has rows."""
    if not file.has("cls.weight"):
        raise CheckpointError(
            f"{file.checkpoint.path.name} lacks the layer before its labels, so its scores mean"
            " nothing.",
            found="cls.output.weight without cls.weight",
            hint="llama.cpp's converter leaves out BERT's pooler: take the model as safetensors",
        )
    names = file.texts("classifier.output_labels")
    count = file.size("cls.output.weight", 0)
    if len(names) != count:
        names = [f"LABEL_{place}" for place in range(count)]
    return {"num_labels": count, "id2label": dict(enumerate(names))}


def _tensors(file: EncoderFile, prefix: str) -> dict[str, Tensor]:
    """All tensors of a file by the library's names, float32.

    Args:
        file: The file.
        prefix: What the library's names begin with, but for those of the head.

    Raises:
        CheckpointError: There is one that nothing here has a place for.
    """
    found = {}
    for name, info in file.checkpoint.tensors.items():
        stem, _, kind = name.rpartition(".")
        if name.startswith(_DENSE) or name in _BUFFERS:
            continue
        if stem in file.row.head:
            if prefix:
                found[f"{file.row.head[stem]}.{kind}"] = decoded(file.checkpoint, info)
            continue
        names = file.row.names_of(name)
        if not names:
            raise CheckpointError(
                f"{file.checkpoint.path.name} holds a tensor that blazr has no place for.",
                found=f"{name[:100]!r} in a model of architecture {file.architecture!r}",
                hint="its vectors would come out wrong: take the same model as safetensors",
            )
        whole = decoded(file.checkpoint, info)
        if file.row.zero_centered and stem.endswith("_norm"):
            whole = whole - 1
        for own, part in zip(names, whole.chunk(len(names)), strict=True):
            found[prefix + own] = part
    return found


def _dense(tensors: Mapping[str, Tensor], name: str) -> torch.nn.Module:
    weight, bias = tensors[f"{name}.weight"], tensors.get(f"{name}.bias")
    with torch.device("meta"):
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    state = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    layer.load_state_dict(state, assign=True)
    return layer.eval().requires_grad_(requires_grad=False)
