"""What follows the network in a model of sentence-transformers, by its ``modules.json``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from blazr.core.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

_MAX_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Modules:
    """What follows the network, and what goes before a text.

    Args:
        poolings: From hidden states to vectors, which are put one behind the other.
        pools_prompt: Whether the tokens of a prompt are among these states.
        dense: Layers over the vectors.
        normalizes: Whether the vectors get length 1.
        max_tokens: Longest text; None is as the network has it.
        lowers: Whether texts are read in small letters.
        prompts: What may stand before a text, by name.
        default_prompt: The name of what does where nothing is said.
    """

    poolings: Sequence[Callable[[Tensor, Tensor], Tensor]]
    pools_prompt: bool = True
    dense: Sequence[torch.nn.Module] = ()
    normalizes: bool = False
    max_tokens: int | None = None
    lowers: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None

    @property
    def pooling(self) -> str:
        """What sentence-transformers calls the way from states to vectors; several with a plus."""
        names = {function: name for _, name, function in _POOLINGS}
        return "+".join(names[each] for each in self.poolings)

    def pool(self, states: Tensor, mask: Tensor) -> Tensor:
        """Vectors (B, C) of hidden states (B, T, C), of which a mask (B, T) says what counts."""
        return torch.cat([pooling(states, mask) for pooling in self.poolings], -1)


def first_state(states: Tensor, mask: Tensor) -> Tensor:
    """The state (B, C) of the first token that counts; see `Modules.pool`."""
    place = mask.argmax(1)  # the first that counts
    return states[torch.arange(len(states)), place]


def last_state(states: Tensor, mask: Tensor) -> Tensor:
    """The state (B, C) of the last token that counts; see `Modules.pool`."""
    place = mask.shape[1] - 1 - mask.flip(1).argmax(1)
    return states[torch.arange(len(states)), place]


def _max(states: Tensor, mask: Tensor) -> Tensor:
    return states.masked_fill(mask[..., None] == 0, -torch.inf).amax(1)


def _sum(states: Tensor, mask: Tensor) -> Tensor:
    return (states * mask[..., None].to(states.dtype)).sum(1)


def mean_state(states: Tensor, mask: Tensor) -> Tensor:
    """The mean (B, C) of the states that count; see `Modules.pool`."""
    return _sum(states, mask) / mask.sum(1, keepdim=True).clamp(min=1)


def _mean_sqrt(states: Tensor, mask: Tensor) -> Tensor:
    return _sum(states, mask) / mask.sum(1, keepdim=True).clamp(min=1).sqrt()


def _weighted_mean(states: Tensor, mask: Tensor) -> Tensor:
    weights = mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)
    return mean_state(states, weights)


# As sentence-transformers orders them: its older key, and its newer name.
_POOLINGS: tuple[tuple[str, str, Callable[[Tensor, Tensor], Tensor]], ...] = (
    ("pooling_mode_cls_token", "cls", first_state),
    ("pooling_mode_max_tokens", "max", _max),
    ("pooling_mode_mean_tokens", "mean", mean_state),
    ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", _mean_sqrt),
    ("pooling_mode_weightedmean_tokens", "weightedmean", _weighted_mean),
    ("pooling_mode_lasttoken", "lasttoken", last_state),
)
_ACTIVATIONS = {
    "torch.nn.modules.activation.Tanh": torch.nn.Tanh,
    "torch.nn.modules.activation.ReLU": torch.nn.ReLU,
    "torch.nn.modules.activation.GELU": torch.nn.GELU,
    "torch.nn.modules.activation.Sigmoid": torch.nn.Sigmoid,
    "torch.nn.modules.linear.Identity": torch.nn.Identity,
}


def read_modules(directory: Path) -> Modules:
    """Read what follows the network; without ``modules.json`` that is the mean of hidden states.

    Raises:
        CheckpointError: A module is unknown, or its files are not understood.
    """
    rows = _read(directory / "modules.json", [])
    try:
        return _from_rows(directory, rows)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            "modules.json or one of its folders is not understood.",
            found=f"{type(error).__name__}: {str(error)[:200]}",
            expected="a folder with the files of sentence-transformers' save_pretrained",
        ) from error


def _from_rows(directory: Path, rows: Sequence[Mapping[str, Any]]) -> Modules:
    poolings: Sequence[Callable[[Tensor, Tensor], Tensor]] = [mean_state]
    pools_prompt, normalizes = True, False
    dense = []
    for place, row in enumerate(rows):
        name = str(row["type"]).rpartition(".")[2]
        folder = _inside(directory, str(row["path"]))
        if name == "Transformer" and place == 0 and folder == directory.resolve():
            continue
        if name == "Pooling":
            config = _read(folder / "config.json", {})
            poolings = _poolings_of(config)
            pools_prompt = bool(config.get("include_prompt", True))
        elif name == "Dense":
            dense.append(_dense(folder))
        elif name == "Normalize" and place == len(rows) - 1:
            normalizes = True
        else:
            raise CheckpointError(
                "the model has a module that is not known, or not in that place.",
                found=f"{name[:50]} at place {place}",
                expected="Transformer, Pooling, Dense, and Normalize at the end",
            )
    text = _read(directory / "sentence_bert_config.json", {})
    own = _read(directory / "config_sentence_transformers.json", {})
    longest = text.get("max_seq_length")
    if longest is not None and int(longest) < 1:
        raise CheckpointError(
            "sentence_bert_config.json leaves no room for a text.",
            found=f"max_seq_length {str(longest)[:20]}",
            expected="1 or more",
        )
    prompts = {str(name): str(prompt) for name, prompt in (own.get("prompts") or {}).items()}
    default = own.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise CheckpointError(
            "config_sentence_transformers.json lacks the prompt that it names as the default.",
            found=repr(default)[:50],
            expected=", ".join(prompts)[:200] or "none, as there are no prompts",
        )
    return Modules(
        poolings=poolings,
        pools_prompt=pools_prompt,
        dense=dense,
        normalizes=normalizes,
        max_tokens=None if longest is None else int(longest),
        lowers=bool(text.get("do_lower_case", False)),
        prompts=prompts,
        default_prompt=default,
    )


def _poolings_of(config: Mapping[str, Any]) -> list[Callable[[Tensor, Tensor], Tensor]]:
    named = config.get("pooling_mode", ())
    names = {named} if isinstance(named, str) else set(named)
    unknown = names - {name for _, name, _ in _POOLINGS}
    chosen = [how for key, name, how in _POOLINGS if config.get(key) or name in names]
    if unknown or not chosen:
        raise CheckpointError(
            "1_Pooling/config.json names no pooling that is known.",
            found=", ".join(sorted(unknown))[:100] or "none",
            expected=", ".join(name for _, name, _ in _POOLINGS),
        )
    return chosen


def _dense(folder: Path) -> torch.nn.Module:
    from safetensors.torch import load

    config = _read(folder / "config.json", {})
    has_bias = bool(config.get("bias", True))
    layer = torch.nn.Linear(int(config["in_features"]), int(config["out_features"]), bias=has_bias)
    file = folder / "model.safetensors"
    if not file.is_file():
        raise CheckpointError(f"{folder.name} holds no model.safetensors.")
    found = load(file.read_bytes())
    layer.load_state_dict({key.removeprefix("linear."): value for key, value in found.items()})
    activation = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    if activation not in _ACTIVATIONS:
        raise CheckpointError(
            "a layer has an activation that is not known.",
            found=activation[:100],
            expected=", ".join(_ACTIVATIONS),
        )
    whole = torch.nn.Sequential(layer, _ACTIVATIONS[activation]())
    return whole.eval().requires_grad_(requires_grad=False)


def _inside(directory: Path, path: str) -> Path:
    found = (directory / path).resolve()
    if not found.is_relative_to(directory.resolve()):
        raise CheckpointError("a module lies outside of the model.", found=path[:100])
    return found


def _read(file: Path, default: Any) -> Any:
    """A JSON file whose value is like the default, which stands for one that is not there."""
    if not file.is_file():
        return default
    if file.stat().st_size > _MAX_BYTES:
        raise CheckpointError(f"{file.name} is too large.", expected=f"at most {_MAX_BYTES} bytes")
    found = json.loads(file.read_bytes())
    if not isinstance(found, type(default)):
        raise CheckpointError(f"{file.name} is not understood.", found=type(found).__name__)
    return found
