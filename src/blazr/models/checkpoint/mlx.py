"""Checkpoints of mlx-lm: tensors become what they were in the releases that it converted.

mlx-lm keeps the names that a model was released with, but for experts: those of a layer are one
tensor (E, out, in), and so are their scales and biases. Of some types it changes more, quantized or
not, and the table below says what.

Source: the ``sanitize`` methods in GitHub ml-explore/mlx-lm, ``mlx_lm/models``, and files that it
writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from blazr.core.errors import CheckpointError
from blazr.models.checkpoint.base import Checkpoint, LessOneInfo, TensorInfo, take_rows

SETTINGS = "quantization"  # what its settings are called in config.json
_MOST_MATRICES = 4096  # of one layer: each becomes a tensor, and a small file may claim any number
_STACK = re.compile(r"(.*\.)(?:switch_mlp|experts\.switch_glu)\.(\w+)\.(weight|scales|biases)")
# The halves of DeepSeek's kv_b_proj, each a stack of one matrix for each head.
_HEADS = re.compile(r"(.*\.self_attn\.)(embed_q|unembed_out)\.(weight|scales|biases)")
# What a matrix is called in the releases, by what stands before the experts; "" for others.
_MATRICES = {
    "block_sparse_moe.": {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"},
    "": {"fc1": "up_proj", "fc2": "down_proj"},
}


class _Changes(NamedTuple):
    """What mlx-lm changes of models of one type, beside stacks of experts.

    Args:
        filters: How the names of depthwise convolutions end, which lie as (C, K, 1); those of the
            releases are (C, 1, K), the same numbers in the same order.
        names: What modules are called in the releases, by how their names end.
        norms: How the names of the norms end to which it adds one, in files with such filters.
        is_unclear: Whether files with such filters may or may not hold other changes.
    """

    filters: tuple[str, ...] = ("conv1d.weight",)
    names: Mapping[str, str] = MappingProxyType({})
    norms: tuple[str, ...] = ()
    is_unclear: bool = False


_QWEN = _Changes(
    norms=(
        *(".input_layernorm.weight", ".post_attention_layernorm.weight"),
        *("model.norm.weight", ".q_norm.weight", ".k_norm.weight"),
    )
)
_CHANGES: Mapping[str, _Changes] = {
    "mamba": _Changes(),
    "falcon_mamba": _Changes(),
    "mamba2": _Changes(),
    "granitemoehybrid": _Changes(),
    "jamba": _Changes(),
    "nemotron_h": _Changes(),
    "lfm2": _Changes((".conv.conv.weight",)),
    "lfm2_moe": _Changes(
        (".conv.conv.weight",),
        names={".gate_proj": ".w1", ".down_proj": ".w2", ".up_proj": ".w3"},
    ),
    "qwen3_next": _QWEN,
    "qwen3_5": _QWEN,
    "qwen3_5_moe": _QWEN,
    "kimi_linear": _Changes(
        ("_conv.conv.weight", "conv1d.weight"),
        names={f".{name}_conv.conv": f".{name}_conv1d" for name in "qkv"},
    ),
    # some versions multiply weights with the factors of the config, without a trace
    "falcon_h1": _Changes(is_unclear=True),
}


def as_released(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint as it was before mlx-lm converted it; itself where it has changed nothing.

    Raises:
        CheckpointError: A stack holds more matrices than any model has, or nobody can tell what
            was changed.
    """
    changes = _CHANGES.get(str(checkpoint.config.get("model_type")), _Changes(()))
    are_changed = any(_is_filter(info, changes) for info in checkpoint.tensors.values())
    if are_changed and changes.is_unclear:
        raise CheckpointError(
            "mlx-lm has converted this model, and nobody can tell whether its weights are whole.",
            found=f"the convolutions of {checkpoint.config['model_type']} as mlx-lm has them",
            expected="a type of model whose changes can be undone",
            hint="some versions multiply the weights with the config's factors, others do not:"
            " load the model as it was released",
        )
    tensors = dict[str, TensorInfo]()
    modules = dict[str, list[str]]()  # as they were released, by their names in MLX
    for name, info in checkpoint.tensors.items():
        for each in _matrices(info):
            one = _under_released_name(each, changes.names)
            if _is_filter(one, changes):
                channels, taps, _ = one.shape
                one = replace(one, shape=(channels, 1, taps))
            elif are_changed and name.endswith(changes.norms) and len(one.shape) == 1:
                place = (one.name, "F32", one.shape, one.file, one.start, one.end)
                one = LessOneInfo(*place, stored=one)
            if one.name in tensors:
                raise CheckpointError(
                    f"tensor {one.name[:100]!r} is there twice.",
                    found=f"{name[:100]!r} of mlx-lm, and another",
                )
            tensors[one.name] = one
            if one.name != name:
                of_module = modules.setdefault(name.rpartition(".")[0], [])
                of_module.append(one.name.rpartition(".")[0])
    if not (modules or are_changed):
        return checkpoint
    config = dict(checkpoint.config)
    settings = config.get(SETTINGS)
    if isinstance(settings, Mapping):  # those of some modules are named by these
        own = {
            each: settings[module]
            for module in settings.keys() & modules
            for each in modules[module]
        }
        config[SETTINGS] = {**settings, **own}
    return replace(checkpoint, tensors=tensors, config=config)


def _is_filter(info: TensorInfo, changes: _Changes) -> bool:
    is_turned = info.shape[1:2] != (1,) and info.shape[2:] == (1,)
    return is_turned and info.name.endswith(changes.filters)


def _under_released_name(info: TensorInfo, names: Mapping[str, str]) -> TensorInfo:
    module, dot, part = info.name.rpartition(".")
    end = next((each for each in names if module.endswith(each)), None)
    if end is None:
        return info
    return replace(info, name=module.removesuffix(end) + names[end] + dot + part)


def _matrices(info: TensorInfo) -> Iterator[TensorInfo]:
    found = _STACK.fullmatch(info.name) or _HEADS.fullmatch(info.name)
    if found is None or len(info.shape) != 3 or 0 in info.shape:
        yield info
        return
    if info.shape[0] > _MOST_MATRICES:
        raise CheckpointError(
            f"tensor {info.name[:100]!r} is no stack of experts or heads.",
            found=f"{info.shape[0]:,} matrices",
            expected=f"at most {_MOST_MATRICES:,}",
        )
    before, matrix, part = found.groups()
    names = next(each for end, each in _MATRICES.items() if before.endswith(end))
    at = "experts.{}." + names.get(matrix, matrix) if found.re is _STACK else matrix + ".{}"
    for index in range(info.shape[0]):
        one = take_rows(info, (range(index, index + 1),))
        name = f"{before}{at.format(index)}.{part}"
        yield replace(one, name=name, shape=info.shape[1:])
