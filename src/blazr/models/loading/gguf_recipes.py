"""How the parameters of a model in GGUF's form are made of those of the model itself.

Most are the same. The others are numbers that files store otherwise: norms with their offset,
matrices with a model's multipliers. In which order rows lie is said by the rules of names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blazr.models.config import ModelConfig
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import MixerConfig
from blazr.nn.layers.decoder_layer import LayerConfig
from blazr.nn.layers.mamba2 import Mamba2Config
from blazr.nn.layers.mlp import MlpConfig
from blazr.nn.layers.norm import NormConfig
from blazr.nn.layers.parallel import ParallelMixerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a parameter is made of.

    Args:
        source: A parameter of the model.
        change: What becomes of its numbers, a whole matrix or vector at a time; None for nothing.
    """

    source: str
    change: Callable[[Tensor], Tensor] | None = None

    def times(self, factor: float) -> Recipe:
        """The same with all numbers multiplied."""
        if factor == 1:
            return self
        assert self.change is None, self.source
        return replace(self, change=lambda tensor: tensor.float() * factor)


def recipe_of(parameter: str, model: ModelConfig, target: ModelConfig) -> Recipe:
    """How a parameter of ``target`` is made of those of ``model``.

    Args:
        parameter: Its name.
        model: The config of the model.
        target: The same in GGUF's form.
    """
    first, _, rest = parameter.partition(".")
    if first == "layers":
        index, _, rest = rest.partition(".")
        made = _in_layer(rest, model.layers[int(index)], target.layers[int(index)])
        return replace(made, source=f"layers.{index}.{made.source}")
    if first == "norm":
        return _norm(parameter, model.final_norm)
    if first == "embed_tokens":
        return Recipe(source=parameter).times(
            model.embedding_multiplier / target.embedding_multiplier
        )
    source = "embed_tokens.weight" if model.tie_word_embeddings else parameter
    return Recipe(source=source).times(target.logits_scaling / model.logits_scaling)


def _norm(name: str, norm: NormConfig | None) -> Recipe:
    has_offset = norm is not None and norm.unit_offset
    return Recipe(source=name, change=_add_one if has_offset else None)


def _add_one(tensor: Tensor) -> Tensor:
    return tensor.float() + 1


def _in_layer(name: str, layer: LayerConfig, target: LayerConfig) -> Recipe:
    part, _, rest = name.partition(".")
    if part == "mixer":
        made = _in_mixer(rest, layer.mixer, target.mixer)
    elif part == "feed_forward":
        made, feed = Recipe(source=rest), layer.feed_forward
        if isinstance(feed, MlpConfig):
            factors = {"gate_proj": feed.gate_multiplier, "down_proj": feed.down_multiplier}
            made = made.times(factors.get(rest.rpartition(".")[0], 1.0))
    else:
        return _norm(name, getattr(layer, part))
    return replace(made, source=f"{part}.{made.source}")


def _in_mixer(name: str, mixer: MixerConfig, target: MixerConfig) -> Recipe:
    match mixer, target:
        case ParallelMixerConfig(), ParallelMixerConfig():
            return _in_part(name, mixer, target)
        case AttentionConfig(), _:
            is_norm = name in {"q_norm.weight", "k_norm.weight"} and mixer.norm_unit_offset
            return Recipe(source=name, change=_add_one if is_norm else None)
        case _:
            return Recipe(source=name)


def _in_part(name: str, mixer: ParallelMixerConfig, target: ParallelMixerConfig) -> Recipe:
    """Falcon-H1's multipliers go into the matrices behind which they stand."""
    _, word, rest = name.split(".", 2)
    part, other = (
        next(each for each in config.parts if each.name == word) for config in (mixer, target)
    )
    made = _in_mixer(rest, part.mixer, other.mixer)
    made = replace(made, source=f"parts.{word}.{made.source}")
    matrix, _, kind = rest.rpartition(".")
    before = part.input_multiplier / other.input_multiplier if kind == "weight" else 1.0
    if matrix in {"out_proj", "o_proj"}:
        return made.times(part.output_multiplier / other.output_multiplier)
    if isinstance(part.mixer, AttentionConfig) and isinstance(other.mixer, AttentionConfig):
        scale = part.mixer.scale / other.mixer.scale
        factors = {"q_proj": before, "k_proj": before * scale, "v_proj": before}
        factors["k_proj"] = before * scale if kind == "weight" else scale
        return made.times(factors.get(matrix, 1.0))
    if matrix == "in_proj" and isinstance(part.mixer, Mamba2Config):
        return _projected(made, part.mixer, before)
    return made


def _projected(made: Recipe, mixer: Mamba2Config, factor: float) -> Recipe:
    """A factor for the rows of z, x, B, C and dt each."""
    if mixer.multipliers is None:
        return made.times(factor)
    inner, maps = mixer.inner_size, mixer.map_size
    sizes = torch.tensor([inner, inner, maps, maps, mixer.num_heads])
    rows = torch.tensor(mixer.multipliers).repeat_interleave(sizes) * factor

    def change(tensor: Tensor) -> Tensor:
        return tensor.float() * (rows[:, None] if tensor.dim() > 1 else rows)

    return replace(made, change=change)
