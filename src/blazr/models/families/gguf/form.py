"""Models in the form that GGUF files have: configs, parameters, and what such files cannot say.

Most parameters are the same. The others are numbers that files store otherwise: norms with their
offset, matrices with a model's multipliers. In which order rows lie is said by the rules of names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace

import torch
from torch import Tensor

from blazr.models.config import ModelConfig
from blazr.models.families.gguf.architectures import ARCHITECTURES, Architecture
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import FeedForwardConfig, MixerConfig
from blazr.nn.layers.decoder_layer import LayerConfig
from blazr.nn.layers.mamba1 import Mamba1Config
from blazr.nn.layers.mamba2 import Mamba2Config
from blazr.nn.layers.mla import DeepseekMlaConfig
from blazr.nn.layers.mlp import MlpConfig
from blazr.nn.layers.moe import MoeConfig
from blazr.nn.layers.norm import NormConfig
from blazr.nn.layers.parallel import ParallelMixerConfig, ParallelPart
from blazr.nn.layers.rope import RopeConfig, RopeScaling

# Metadata are float32.
_CLOSE = 1e-6


def architecture_of(family: str, config: ModelConfig) -> str | None:
    """The name in ``general.architecture`` for a model of this family, or None."""
    attends = all(isinstance(each, AttentionConfig) for each in all_mixers(config))
    chooses = any(isinstance(layer.feed_forward, MoeConfig) for layer in config.layers)
    words = [family, *(["attention"] if attends else []), *(["experts"] if chooses else [])]
    wanted = (" ".join(words), " ".join([family, *(["experts"] if chooses else [])]), family)
    rows = ARCHITECTURES.items()
    return next((name for each in wanted for name, row in rows if each in row.families), None)


def mixers_of(layer: LayerConfig) -> tuple[MixerConfig, ...]:
    """The mixers of a layer, side by side or one."""
    if isinstance(layer.mixer, ParallelMixerConfig):
        return tuple(part.mixer for part in layer.mixer.parts)
    return (layer.mixer,)


def all_mixers(config: ModelConfig) -> Iterator[MixerConfig]:
    """Those of all layers."""
    for layer in config.layers:
        yield from mixers_of(layer)


def as_gguf(config: ModelConfig, row: Architecture) -> ModelConfig:
    """The same model, in the form that files of this architecture have."""
    eps = config.final_norm.eps
    layers = tuple(
        replace(
            layer,
            mixer=_mixer(layer.mixer, row, eps),
            mixer_norm=layer.mixer_norm and _norm(layer.mixer_norm),
            feed_forward=layer.feed_forward and _feed_forward(layer.feed_forward),
            feed_forward_norm=layer.feed_forward_norm and _norm(layer.feed_forward_norm),
            mixer_post_norm=layer.mixer_post_norm and _norm(layer.mixer_post_norm),
            feed_forward_post_norm=layer.feed_forward_post_norm
            and _norm(layer.feed_forward_post_norm),
        )
        for layer in config.layers
    )
    config = replace(config, layers=layers, final_norm=_norm(config.final_norm))
    if not row.is_folded:
        return config
    is_even = math.isclose(config.embedding_multiplier * config.logits_scaling, 1)
    tied = config.tie_word_embeddings and is_even
    return replace(config, embedding_multiplier=1.0, logits_scaling=1.0, tie_word_embeddings=tied)


def _norm(norm: NormConfig) -> NormConfig:
    return replace(norm, unit_offset=False)


def _mixer(mixer: MixerConfig, row: Architecture, eps: float) -> MixerConfig:
    match mixer:
        case AttentionConfig():
            is_usual = row.is_folded or math.isclose(mixer.scale, mixer.head_dim**-0.5)
            return replace(
                mixer,
                rope=mixer.rope and _rope(mixer.rope),
                qk_norm_all_heads=mixer.qk_norm_all_heads and mixer.num_heads > 1,
                norm_unit_offset=False,
                attention_multiplier=None if is_usual else mixer.scale,
            )
        case DeepseekMlaConfig():
            return replace(mixer, rope=mixer.rope and _rope(mixer.rope))
        case ParallelMixerConfig():
            parts = tuple(
                ParallelPart(name=part.name, mixer=_mixer(part.mixer, row, eps))
                for part in mixer.parts
            )
            return ParallelMixerConfig(parts)
        case Mamba2Config():
            return replace(mixer, multipliers=None)
        case Mamba1Config() if mixer.inner_norms == "none":
            return replace(mixer, norm_eps=eps)
        case _:
            return mixer


def _rope(rope: RopeConfig) -> RopeConfig:
    scaling = rope.scaling
    if scaling is not None and scaling.kind == "llama3":
        plain = replace(rope, scaling=None).frequencies()
        factors: list[float] = (plain / rope.frequencies()).tolist()
        return replace(rope, scaling=RopeScaling(kind="factors", factors=tuple(factors)))
    if scaling is not None and scaling.kind == "longrope":
        return replace(rope, scaling=replace(scaling, factor=1.0))
    return rope


def _feed_forward(feed: FeedForwardConfig) -> FeedForwardConfig:
    match feed:
        case MlpConfig():
            return replace(feed, gate_multiplier=1.0, down_multiplier=1.0)
        case MoeConfig():
            shared = feed.shared_intermediate_size or feed.intermediate_size
            return replace(
                feed,
                shared_intermediate_size=shared if feed.shared_expert else None,
            )
        case _:
            return feed


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
        return _norm_recipe(parameter, model.final_norm)
    if first == "embed_tokens":
        return Recipe(source=parameter).times(
            model.embedding_multiplier / target.embedding_multiplier
        )
    source = "embed_tokens.weight" if model.tie_word_embeddings else parameter
    return Recipe(source=source).times(target.logits_scaling / model.logits_scaling)


def _norm_recipe(name: str, norm: NormConfig | None) -> Recipe:
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
        return _norm_recipe(name, getattr(layer, part))
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


def unreadable(config: ModelConfig, row: Architecture) -> str | None:
    """What llama.cpp would not load, or would compute otherwise, of this model; None for nothing.

    The architecture says which parts that program knows, whatever else a file may hold.
    """
    if row.head == "own" and config.tie_word_embeddings:
        return "its embedding is also its output matrix, which llama.cpp wants apart"
    if row.head == "tied" and not config.tie_word_embeddings:
        return "its output matrix is not its embedding, which llama.cpp takes for it"
    for index, layer in enumerate(config.layers):
        feed = layer.feed_forward
        if isinstance(feed, MoeConfig) and not row.reads_weights_norm:
            usual = row.norm_topk_prob
            if feed.norm_topk_prob != usual:
                return f"layer {index}: norm_topk_prob, which llama.cpp takes for {usual}"
        for name, has_bias in _biases(layer):
            if has_bias and name not in row.biases:
                return f"layer {index}: biases of {name}, which llama.cpp does not load"
            if not has_bias and name in row.biases and row.needs_biases:
                return f"layer {index}: no biases of {name}, which llama.cpp wants"
    return None


def _biases(layer: LayerConfig) -> Iterator[tuple[str, bool]]:
    """Which parts of a layer might have biases, and whether they do."""
    for mixer in mixers_of(layer):
        match mixer:
            case AttentionConfig():
                yield from (("qkv", mixer.qkv_bias), ("o", mixer.o_bias))
            case DeepseekMlaConfig():
                yield "latent attention", mixer.bias
            case Mamba2Config():
                yield "ssm", mixer.in_bias or mixer.out_bias
            case Mamba1Config():
                yield "ssm", mixer.bias
    if isinstance(layer.feed_forward, MlpConfig):
        yield "mlp", layer.feed_forward.bias


def difference(wanted: object, found: object, path: str = "") -> str | None:
    """Where two configs differ first by more than metadata round, or None."""
    if is_dataclass(wanted) and type(wanted) is type(found):
        each = (
            (f".{f.name}", getattr(wanted, f.name), getattr(found, f.name)) for f in fields(wanted)
        )
    elif isinstance(wanted, tuple) and isinstance(found, tuple) and len(wanted) == len(found):
        each = ((f"[{i}]", a, b) for i, (a, b) in enumerate(zip(wanted, found, strict=True)))
    else:
        is_number = isinstance(wanted, float) and isinstance(found, float)
        is_same = math.isclose(wanted, found, rel_tol=_CLOSE) if is_number else wanted == found  # type: ignore[arg-type]
        return None if is_same else f"{path.lstrip('.')}: {wanted!r} becomes {found!r}"
    return next((d for end, a, b in each if (d := difference(a, b, path + end))), None)
