"""What a GGUF file holds of a model: its metadata, its parameters, and what such a file cannot say.

The opposite of `as_config`: words of config.json become metadata through the table of keys. Most
parameters are the same. The others are numbers that files store otherwise: norms with their offset,
matrices with a model's multipliers. In which order rows lie is said by the rules of names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import chain

import torch
from torch import Tensor

from blazr.core.gguf_header import Value
from blazr.models.causal_lm import ModelConfig
from blazr.models.families.gguf.architectures import (
    ARCHITECTURES,
    LAYER_NORMS,
    Architecture,
    mixers_of,
)
from blazr.models.families.gguf.as_config import METADATA_KEYS, SIGMOID, SOFTMAX
from blazr.models.families.rules import split_layer
from blazr.nn.layers.altup import AltUpLayerConfig
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import LayerConfig, MixerConfig, NormConfig
from blazr.nn.layers.gated_delta import GatedDeltaConfig, KimiDeltaConfig
from blazr.nn.layers.mamba1 import Mamba1Config
from blazr.nn.layers.mamba2 import Mamba2Config
from blazr.nn.layers.mla import DeepseekMlaConfig
from blazr.nn.layers.mlp import MlpConfig
from blazr.nn.layers.moe import MoeConfig
from blazr.nn.layers.parallel import ParallelMixerConfig, feed_forwards_of
from blazr.nn.layers.rope import RopeConfig
from blazr.nn.layers.short_conv import ShortConvConfig

# Metadata are float32.
_CLOSE = 1e-6
# How Qwen 3.5 cuts channels between places in text and in images; text has one place.
_SECTIONS = [11, 11, 10, 0]
_ATTENDS = (AttentionConfig, DeepseekMlaConfig)

# Phi-3.5-MoE's choice has no number.
_SCORING_NUMBERS = {"softmax": SOFTMAX, "sigmoid": SIGMOID, "sigmoid of chosen": SIGMOID}

Metadata = dict[str, Value]
ConfigValues = dict[str, Value | None]


def architecture_of(family: str, config: ModelConfig) -> str | None:
    """The name in ``general.architecture`` for a model of this family, or None."""
    attends = all(isinstance(each, AttentionConfig) for each in all_mixers(config))
    chooses = any(isinstance(layer.feed_forward, MoeConfig) for layer in config.layers)
    words = [family, *(["attention"] if attends else []), *(["experts"] if chooses else [])]
    wanted = (" ".join(words), " ".join([family, *(["experts"] if chooses else [])]), family)
    rows = ARCHITECTURES.items()
    return next((name for each in wanted for name, row in rows if each in row.families), None)


def all_mixers(config: ModelConfig) -> Iterator[MixerConfig]:
    """Those of all layers."""
    for layer in config.layers:
        yield from mixers_of(layer)


def metadata_of(config: ModelConfig, row: Architecture) -> Metadata:
    """What a file says about a model, under keys without the architecture before them.

    Args:
        config: In GGUF's form, as `as_gguf` makes it.
        row: Its architecture.
    """
    eps = config.final_norm.eps  # under both names: programs differ in which one they ask for
    found: ConfigValues = {
        "num_layers": len(config.layers),
        "max_seq_len": config.max_seq_len,
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "rms_norm_eps": eps,
        "layer_norm_eps": eps,
    }
    if row.norm_by_key:
        del found["layer_norm_eps" if config.final_norm.kind == "rms" else "rms_norm_eps"]
    scale = config.hidden_size**0.5 if row.scales_embedding else 1.0
    numbers = {
        "embedding_multiplier": (config.embedding_multiplier, scale),
        "residual_multiplier": (config.layers[0].residual_multiplier, 1.0),
        "logits_scaling": (
            1 / config.logits_scaling if row.multiplies_logits else config.logits_scaling,
            1.0,
        ),
        "final_logit_softcapping": (config.logit_softcap or 0.0, 0.0),
    }
    found |= {key: value for key, (value, usual) in numbers.items() if value != usual}
    if row.takes_tokens:
        size = 0 if config.per_layer is None else config.per_layer.norm.size
        found["hidden_size_per_layer_input"] = size
    found |= _streams(config)
    found |= _feed_forwards(config, row) | _attention(config, row)
    for mixer in all_mixers(config):
        keys = _FIELDS.get(type(mixer), {})
        found |= {key: getattr(mixer, name) for key, name in keys.items()}
        if isinstance(mixer, Mamba1Config):
            found["normalizes_plainly"] = mixer.inner_norms == "plain"
    return {METADATA_KEYS[word]: value for word, value in found.items() if value is not None}


def _feed_forwards(config: ModelConfig, row: Architecture) -> ConfigValues:
    feeds = [feed_forwards_of(layer.feed_forward) for layer in config.layers]
    sizes = [getattr(next(iter(each), None), "intermediate_size", 0) for each in feeds]
    dense = [
        feed.intermediate_size for each in feeds for feed in each if isinstance(feed, MlpConfig)
    ]
    is_even = all(sizes) or not any(sizes)
    size = next(iter(dense), max(sizes, default=0))
    is_uniform = is_even and not len({*dense}) > 1
    found: ConfigValues = {"intermediate_size": size if is_uniform else sizes}
    mixtures = [
        (index, feed)
        for index, each in enumerate(feeds)
        for feed in each
        if isinstance(feed, MoeConfig)
    ]
    if not mixtures:
        dense_only = {"moe_intermediate_size": size, "first_k_dense_replace": len(feeds)}
        return {**found, **dense_only, "n_shared_experts": 0} if row.counts_dense else found
    first, experts = mixtures[0]
    found |= {
        "num_experts": experts.num_experts,
        "experts_per_tok": experts.experts_per_token,
        "moe_intermediate_size": experts.intermediate_size,
        "scoring_number": _SCORING_NUMBERS.get(experts.scoring),
        "norm_topk_prob": experts.norm_topk_prob,
        "routed_scaling_factor": experts.routed_scaling_factor,
        "first_k_dense_replace": first if is_even else 0,
    }
    if row.chunk_size:
        found["interleave_moe_layer_step"] = first + 1
    if experts.groups is not None:
        found["n_group"] = experts.groups.count
        found["topk_group"] = experts.groups.kept
    if experts.shared_expert:
        shared = experts.shared_intermediate_size or experts.intermediate_size
        found["shared_expert_intermediate_size"] = shared
        found["n_shared_experts"] = max(1, shared // experts.intermediate_size)
    return {**found, "moe_latent_size": experts.latent_size}


def _streams(config: ModelConfig) -> ConfigValues:
    """Of several residual streams, and the layers that compute one of them."""
    layers = [each for each in config.layers if isinstance(each, AltUpLayerConfig)]
    if not layers:
        return {}
    feeds = [layer.feed_forward for layer in layers]
    return {
        "altup_num_inputs": layers[0].num_streams,
        "altup_active_idx": layers[0].active,
        "sparsity_quantiles": [each.quantile for each in feeds if isinstance(each, MlpConfig)],
    }


def _attention(config: ModelConfig, row: Architecture) -> ConfigValues:
    layers = [mixers_of(layer) for layer in config.layers]
    attends = [next((m for m in each if isinstance(m, _ATTENDS)), None) for each in layers]
    known = [each for each in attends if each is not None]
    if not known:
        return {"num_attention_heads": 0}
    first = known[0]
    kv = [0 if each is None else getattr(each, "num_kv_heads", 1) for each in attends]
    is_delta = any(type(each) is GatedDeltaConfig for mixers in layers for each in mixers)
    found: ConfigValues = {
        "num_attention_heads": first.num_heads,
        "num_kv_heads": max(kv) if is_delta or len(set(kv)) == 1 else kv,
    }
    if is_delta:
        found["is_recurrent"] = [each is None for each in attends]
    if isinstance(first, DeepseekMlaConfig):
        return found | _latent(first)
    plain = [each for each in known if isinstance(each, AttentionConfig)]
    whole = next((each for each in plain if each.sliding_window is None), plain[0])
    found |= {
        "head_dim": whole.head_dim,
        "value_head_dim": whole.v_size,
        "attention_value_scale": whole.v_multiplier if whole.v_multiplier != 1 else None,
        "attention_multiplier": plain[0].attention_multiplier,
        "attn_logit_softcapping": plain[0].attn_logit_softcap,
    }
    small = next((each for each in plain if each.head_dim != whole.head_dim), None)
    if small is not None:
        found |= {
            "window_head_dim": small.head_dim,
            "window_value_head_dim": small.head_dim,
            "window_rotary_dim": small.rope.dim if small.rope else None,
        }
    heads = [each.num_heads for each in plain]
    if len({*heads}) > 1 and len(heads) == len(layers):
        found["num_attention_heads"] = heads
    if row.takes_tokens:
        found["num_kv_shared_layers"] = sum(each.kv_layer is not None for each in plain)
    windows = [getattr(each, "sliding_window", None) for each in attends]
    is_sliding = [window is not None for window in windows]
    window = next((window for window in windows if window is not None), None)
    if window is not None:
        found["sliding_window"] = window
        if is_sliding != [row.has_window(index) for index in range(len(windows))]:
            found["is_sliding"] = is_sliding
    return found | _rotation(plain, row)


def _rotation(layers: list[AttentionConfig], row: Architecture) -> ConfigValues:
    rotated = [each for each in layers if each.rope is not None]
    found: ConfigValues = {"rotates": bool(rotated)} if row.rotation == "metadata" else {}
    windowed = [each for each in rotated if each.sliding_window is not None]
    whole = [each for each in rotated if each.sliding_window is None] or windowed
    if not whole or whole[0].rope is None:
        return found
    found |= _rope_keys(whole[0].rope)
    if row.has_unscaled_window and windowed and windowed[0].rope is not None:
        local = windowed[0].rope
        found["rope_local_base_freq"] = local.theta
        if local.dim != whole[0].rope.dim:
            found["window_rotary_dim"] = local.dim
    if row.has_tiled_values:
        found["mrope_section"] = _SECTIONS
    return found


def _rope_keys(rope: RopeConfig, *, stretches: bool = True) -> ConfigValues:
    found: ConfigValues = {"rotary_dim": rope.dim, "rope_theta": rope.theta}
    if rope.temperature is not None:
        found["llama_4_scaling_beta"] = rope.temperature.scale
        found["original_max_position_embeddings"] = rope.temperature.length
    scaling = rope.scaling
    if scaling is None or scaling.kind in {"factors", "dynamic"}:
        return found
    if scaling.kind == "longrope":
        found["original_max_position_embeddings"] = scaling.original_max_seq_len
        found["attention_factor"] = scaling.attention_factor
        return found
    found |= {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind == "yarn":
        usual = 0.1 * math.log(max(scaling.factor, 1.0)) + 1 if stretches else 1.0
        found |= {
            "original_max_position_embeddings": scaling.original_max_seq_len,
            "beta_fast": scaling.beta_fast,
            "beta_slow": scaling.beta_slow,
        }
        if rope.temperature is not None and math.isclose(scaling.attention_factor, 1):
            found["mscale_all_dim"] = 1.0  # Mistral's word for an even stretch
        elif not math.isclose(scaling.attention_factor, usual, rel_tol=_CLOSE):
            found["attention_factor"] = scaling.attention_factor / usual
    return found


def _latent(first: DeepseekMlaConfig) -> ConfigValues:
    """One head of keys that all queries share, and what they were before."""
    whole = first.head_dim + first.rope_dim
    found: ConfigValues = {
        "head_dim": first.kv_latent + first.rope_dim,
        "value_head_dim": first.kv_latent,
        "qk_head_dim": whole,
        "v_head_dim": first.v_head_dim,
        "kv_lora_rank": first.kv_latent,
        "rotary_dim": first.rope_dim,
        "q_lora_rank": first.q_latent,
    }
    if first.rope is None:
        return found
    stretch = math.sqrt(first.scale * whole**0.5)
    scaling = first.rope.scaling
    apart = scaling is not None and not math.isclose(stretch, 1, rel_tol=_CLOSE)
    if apart and scaling is not None:
        weight = (stretch - 1) / math.log(max(scaling.factor, 1.0))
        found["mscale_all_dim"] = weight
    return found | _rope_keys(first.rope, stretches=not apart)


def _ssm(*fields: str) -> dict[str, str]:
    words = ("conv_kernel", "inner_size", "state_size", "time_step_rank", "n_groups")
    return dict(zip(words, fields, strict=False))


# The field that each word is, mixer by mixer.
_FIELDS: Mapping[type, Mapping[str, str]] = {
    Mamba1Config: {
        **_ssm("conv_kernel", "inner_size", "state_size", "dt_rank"),
        "mixer_rms_eps": "norm_eps",
    },
    Mamba2Config: _ssm("conv_kernel", "inner_size", "state_size", "num_heads", "num_groups"),
    GatedDeltaConfig: _ssm(
        "conv_kernel", "value_size", "key_head_dim", "num_heads", "num_key_heads"
    ),
    KimiDeltaConfig: {"conv_kernel": "conv_kernel", "linear_head_dim": "key_head_dim"},
    ShortConvConfig: {"conv_L_cache": "conv_kernel"},
}


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
    index, rest = split_layer(parameter)
    part, _, name = rest.partition(".")
    if index is not None:
        layer = model.layers[index]
        if part == "mixer":
            made = _mixer_recipe(name, layer.mixer, target.layers[index].mixer)
        elif part in LAYER_NORMS:
            made = _norm_recipe(name, getattr(layer, part))
        elif part != "feed_forward":
            return Recipe(source=parameter)
        elif isinstance(feed := layer.feed_forward, MlpConfig):
            factors = {"gate_proj": feed.gate_multiplier, "down_proj": feed.down_multiplier}
            made = Recipe(source=name).times(factors.get(name.rpartition(".")[0], 1.0))
        else:
            made = Recipe(source=name)
        return replace(made, source=f"layers.{index}.{part}.{made.source}")
    if part in {"per_layer", "streams"}:
        return Recipe(source=parameter)
    if part == "norm":
        return _norm_recipe(parameter, model.final_norm)
    if part == "embed_tokens":
        return Recipe(source=parameter).times(
            model.embedding_multiplier / target.embedding_multiplier
        )
    source = "embed_tokens.weight" if model.tie_word_embeddings else parameter
    return Recipe(source=source).times(target.logits_scaling / model.logits_scaling)


def _norm_recipe(name: str, norm: NormConfig | None) -> Recipe:
    has_offset = norm is not None and norm.unit_offset and name.endswith("weight")
    return Recipe(source=name, change=_add_one if has_offset else None)


def _add_one(tensor: Tensor) -> Tensor:
    return tensor.float() + 1


def _mixer_recipe(name: str, mixer: MixerConfig, target: MixerConfig) -> Recipe:
    if isinstance(mixer, AttentionConfig):
        is_norm = name in {"q_norm.weight", "k_norm.weight"} and mixer.norm_unit_offset
        return Recipe(source=name, change=_add_one if is_norm else None)
    if not isinstance(mixer, ParallelMixerConfig) or not isinstance(target, ParallelMixerConfig):
        return Recipe(source=name)
    # Falcon-H1's multipliers go into the matrices behind which they stand
    _, word, rest = name.split(".", 2)
    part, other = (
        next(each for each in config.parts if each.name == word) for config in (mixer, target)
    )
    made = _mixer_recipe(rest, part.mixer, other.mixer)
    made = replace(made, source=f"parts.{word}.{made.source}")
    matrix, _, kind = rest.rpartition(".")
    before = part.input_multiplier if kind == "weight" else 1.0
    behind = part.output_multiplier
    factors = {"in_proj": before, "out_proj": behind, "o_proj": behind}
    own = part.mixer
    if isinstance(own, AttentionConfig) and isinstance(other.mixer, AttentionConfig):
        scale = own.scale / other.mixer.scale
        factors |= {"q_proj": before, "k_proj": before * scale, "v_proj": before}
    if matrix != "in_proj" or not isinstance(own, Mamba2Config) or own.multipliers is None:
        return made.times(factors.get(matrix, 1.0))
    # a factor for the rows of z, x, B, C and dt each
    sizes = torch.tensor([own.inner_size] * 2 + [own.map_size] * 2 + [own.num_heads])
    rows = torch.tensor(own.multipliers).repeat_interleave(sizes) * before

    def change(tensor: Tensor) -> Tensor:
        return tensor.float() * (rows[:, None] if tensor.dim() > 1 else rows)

    return replace(made, change=change)


def unsupported_by_llama_cpp(config: ModelConfig, row: Architecture) -> str | None:
    """What llama.cpp would not load, or would compute otherwise, of this model; None for nothing.

    The architecture says which parts that program knows, whatever else a file may hold.
    """
    return next(chain(_unread_head(config, row), _unread_layers(config, row)), None)


def _unread_head(config: ModelConfig, row: Architecture) -> Iterator[str]:
    if row.head == "own" and config.tie_word_embeddings:
        yield "its embedding is also its output matrix, which llama.cpp wants apart"
    if row.head == "tied" and not config.tie_word_embeddings:
        yield "its output matrix is not its embedding, which llama.cpp takes for it"
    if "head" in row.biases and not config.head_bias:
        yield "its output matrix has no bias, which llama.cpp wants"


def _unread_layers(config: ModelConfig, row: Architecture) -> Iterator[str]:
    sparse = [isinstance(layer.feed_forward, MoeConfig) for layer in config.layers]
    step = sparse.index(True) + 1 if any(sparse) else len(sparse) + 1
    by_turns = [(index + 1) % step == 0 for index in range(len(sparse))]
    if row.chunk_size and not (any(sparse) and sparse == by_turns):
        yield "it has no experts in every n-th layer, where llama.cpp wants them"
    for index, layer in enumerate(config.layers):
        feed = layer.feed_forward
        if isinstance(feed, MoeConfig) and not row.reads_weights_norm:
            usual = row.norm_topk_prob
            if feed.norm_topk_prob != usual:
                yield f"layer {index}: norm_topk_prob, which llama.cpp takes for {usual}"
        for name, has_bias in _biases(layer):
            if has_bias and name not in row.biases:
                yield f"layer {index}: biases of {name}, which llama.cpp does not load"
            if not has_bias and name in row.biases and row.needs_biases:
                yield f"layer {index}: no biases of {name}, which llama.cpp wants"


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
