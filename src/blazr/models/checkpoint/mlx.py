"""Checkpoints of mlx-lm: stacks of experts become matrices under the names of the releases.

mlx-lm keeps the names that a model was released with, but for experts: those of a layer are one
tensor (E, out, in), and so are their scales and biases.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from blazr.core.errors import CheckpointError
from blazr.models.checkpoint.base import Checkpoint, TensorInfo, take_rows

SETTINGS = "quantization"  # what its settings are called in config.json
_MOST_EXPERTS = 4096  # of one layer: each becomes a tensor, and a small file may claim any number
_STACK = re.compile(r"(.*\.)switch_mlp\.(\w+)\.(weight|scales|biases)")
# What a matrix is called in the releases, by what stands before the experts; "" for others.
_MATRICES = {
    "block_sparse_moe.": {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"},
    "": {"fc1": "up_proj", "fc2": "down_proj"},
}


def take_stacks_apart(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with one tensor for each expert; itself where no experts lie as in MLX.

    Raises:
        CheckpointError: A stack holds more experts than any model has.
    """
    tensors = dict[str, TensorInfo]()
    modules = dict[str, list[str]]()  # of one expert each, by that of the stack
    for name, info in checkpoint.tensors.items():
        for one in _matrices(info):
            tensors[one.name] = one
            if one.name != name:
                of_stack = modules.setdefault(name.rpartition(".")[0], [])
                of_stack.append(one.name.rpartition(".")[0])
    if not modules:
        return checkpoint
    config = dict(checkpoint.config)
    settings = config.get(SETTINGS)
    if isinstance(settings, Mapping):  # those of some stacks are named by these
        own = {
            each: settings[stack] for stack in settings.keys() & modules for each in modules[stack]
        }
        config[SETTINGS] = {**settings, **own}
    return replace(checkpoint, tensors=tensors, config=config)


def _matrices(info: TensorInfo) -> Iterator[TensorInfo]:
    found = _STACK.fullmatch(info.name)
    if found is None or len(info.shape) != 3 or 0 in info.shape:
        yield info
        return
    if info.shape[0] > _MOST_EXPERTS:
        raise CheckpointError(
            f"tensor {info.name[:100]!r} is no stack of experts.",
            found=f"{info.shape[0]:,} matrices",
            expected=f"at most {_MOST_EXPERTS:,}",
        )
    before, matrix, part = found.groups()
    names = next(each for end, each in _MATRICES.items() if before.endswith(end))
    for expert in range(info.shape[0]):
        one = take_rows(info, (range(expert, expert + 1),))
        name = f"{before}experts.{expert}.{names.get(matrix, matrix)}.{part}"
        yield replace(one, name=name, shape=info.shape[1:])
