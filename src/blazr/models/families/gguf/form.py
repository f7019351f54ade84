"""Configs as GGUF files say them: what is stored otherwise there, and which keys say the rest.

The reader of such files is the judge of it: what is written here it must read back as the same
config, so that nothing is said in a way of our own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace

from blazr.core.gguf_header import Value
from blazr.models.config import ModelConfig
from blazr.models.families.gguf.architectures import ARCHITECTURES, Architecture
from blazr.models.families.gguf.keys import INNER_EPS, SIGMOID, SOFTMAX
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import FeedForwardConfig, MixerConfig
from blazr.nn.layers.decoder_layer import LayerConfig
from blazr.nn.layers.gated_delta import GatedDeltaConfig, KimiDeltaConfig
from blazr.nn.layers.mamba1 import Mamba1Config
from blazr.nn.layers.mamba2 import Mamba2Config
from blazr.nn.layers.mla import DeepseekMlaConfig
from blazr.nn.layers.mlp import MlpConfig
from blazr.nn.layers.moe import MoeConfig
from blazr.nn.layers.norm import NormConfig
from blazr.nn.layers.parallel import ParallelMixerConfig, ParallelPart
from blazr.nn.layers.rope import RopeConfig, RopeScaling
from blazr.nn.layers.short_conv import ShortConvConfig

# Metadata are float32.
_CLOSE = 1e-6
# How Qwen 3.5 cuts channels between places in text and in images; text has one place.
_SECTIONS = [11, 11, 10, 0]
_ATTENDS = (AttentionConfig, DeepseekMlaConfig)

Metadata = dict[str, Value]


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
    layers = tuple(_layer(layer, row, config.final_norm.eps) for layer in config.layers)
    config = replace(config, layers=layers, final_norm=_norm(config.final_norm))
    if not row.is_folded:
        return config
    is_even = math.isclose(config.embedding_multiplier * config.logits_scaling, 1)
    tied = config.tie_word_embeddings and is_even
    return replace(config, embedding_multiplier=1.0, logits_scaling=1.0, tie_word_embeddings=tied)


def _layer(layer: LayerConfig, row: Architecture, eps: float) -> LayerConfig:
    return replace(
        layer,
        mixer=_mixer(layer.mixer, row, eps),
        mixer_norm=layer.mixer_norm and _norm(layer.mixer_norm),
        feed_forward=layer.feed_forward and _feed(layer.feed_forward, row),
        feed_forward_norm=layer.feed_forward_norm and _norm(layer.feed_forward_norm),
        mixer_post_norm=layer.mixer_post_norm and _norm(layer.mixer_post_norm),
        feed_forward_post_norm=layer.feed_forward_post_norm and _norm(layer.feed_forward_post_norm),
    )


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
            return replace(mixer, rope=mixer.rope and _rope(mixer.rope), apart=True)
        case GatedDeltaConfig() if not isinstance(mixer, KimiDeltaConfig):
            return replace(mixer, grouped=False, grouped_gates=not row.tiled, tiled=row.tiled)
        case ParallelMixerConfig():
            return ParallelMixerConfig(tuple(_part(part, row, eps) for part in mixer.parts))
        case _:
            return _state_space(mixer, eps)


def _state_space(mixer: MixerConfig, eps: float) -> MixerConfig:
    if isinstance(mixer, Mamba1Config) and mixer.inner_norms == "none":
        return replace(mixer, norm_eps=eps)
    return mixer


def _part(part: ParallelPart, row: Architecture, eps: float) -> ParallelPart:
    mixer = _mixer(part.mixer, row, eps)
    if isinstance(mixer, Mamba2Config):
        mixer = replace(mixer, multipliers=None)
    return ParallelPart(name=part.name, mixer=mixer)


def _rope(rope: RopeConfig) -> RopeConfig:
    scaling = rope.scaling
    if scaling is not None and scaling.kind == "llama3":
        plain = replace(rope, scaling=None).frequencies()
        factors: list[float] = (plain / rope.frequencies()).tolist()
        return replace(rope, scaling=RopeScaling(kind="factors", factors=tuple(factors)))
    if scaling is not None and scaling.kind == "longrope":
        return replace(rope, scaling=replace(scaling, factor=1.0))
    return rope


def _feed(feed: FeedForwardConfig, row: Architecture) -> FeedForwardConfig:
    match feed:
        case MlpConfig():
            fused = feed.fused_gate_up and row.fused_mlp
            return replace(feed, fused_gate_up=fused, gate_multiplier=1.0, down_multiplier=1.0)
        case MoeConfig():
            shared = feed.shared_intermediate_size or feed.intermediate_size
            return replace(
                feed,
                fused_gate_up=None,
                shared_fused_gate_up=False,
                shared_intermediate_size=shared if feed.shared_expert else None,
            )
        case _:
            return feed


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


def metadata_of(config: ModelConfig, row: Architecture) -> Metadata:
    """What a file says about a model, under keys without the architecture before them.

    Args:
        config: In the form of `as_gguf`.
        row: Its architecture.
    """
    eps = config.final_norm.eps  # under both names: programs differ in which one they ask for
    found: Metadata = {
        "block_count": len(config.layers),
        "context_length": config.max_seq_len,
        "embedding_length": config.hidden_size,
        "vocab_size": config.vocab_size,
        "attention.layer_norm_rms_epsilon": eps,
        "attention.layer_norm_epsilon": eps,
    }
    scale = config.hidden_size**0.5 if row.scales_embedding else 1.0
    numbers = {
        "embedding_scale": (config.embedding_multiplier, scale),
        "residual_scale": (config.layers[0].residual_multiplier, 1.0),
        "logit_scale": (config.logits_scaling, 1.0),
        "final_logit_softcapping": (config.logit_softcap or 0.0, 0.0),
    }
    found |= {key: value for key, (value, usual) in numbers.items() if value != usual}
    return found | _feeds(config) | _attention(config, row) | _recurrence(config)


def _feeds(config: ModelConfig) -> Metadata:
    feeds = [layer.feed_forward for layer in config.layers]
    sizes = [getattr(feed, "intermediate_size", 0) for feed in feeds]
    dense = [feed.intermediate_size for feed in feeds if isinstance(feed, MlpConfig)]
    is_even = all(sizes) or not any(sizes)
    size = next(iter(dense), max(sizes, default=0))
    found: Metadata = {"feed_forward_length": size if is_even else sizes}
    experts = next((feed for feed in feeds if isinstance(feed, MoeConfig)), None)
    if experts is None:
        return found
    first = next(i for i, feed in enumerate(feeds) if isinstance(feed, MoeConfig))
    found |= {
        "expert_count": experts.num_experts,
        "expert_used_count": experts.experts_per_token,
        "expert_feed_forward_length": experts.intermediate_size,
        "expert_gating_func": SIGMOID if experts.scoring == "sigmoid" else SOFTMAX,
        "expert_weights_norm": experts.norm_topk_prob,
        "expert_weights_scale": experts.routed_scaling_factor,
        "leading_dense_block_count": first if is_even else 0,
    }
    if experts.groups is not None:
        found["expert_group_count"] = experts.groups.count
        found["expert_group_used_count"] = experts.groups.kept
    if experts.shared_expert:
        shared = experts.shared_intermediate_size or experts.intermediate_size
        found["expert_shared_feed_forward_length"] = shared
        found["expert_shared_count"] = max(1, shared // experts.intermediate_size)
    if experts.latent_size is not None:
        found["moe_latent_size"] = experts.latent_size
    return found


def _attention(config: ModelConfig, row: Architecture) -> Metadata:
    layers = [mixers_of(layer) for layer in config.layers]
    attends = [next((m for m in each if isinstance(m, _ATTENDS)), None) for each in layers]
    known = [each for each in attends if each is not None]
    if not known:
        return {"attention.head_count": 0}
    first = known[0]
    kv = [0 if each is None else getattr(each, "num_kv_heads", 1) for each in attends]
    is_delta = any(type(each) is GatedDeltaConfig for mixers in layers for each in mixers)
    found: Metadata = {
        "attention.head_count": first.num_heads,
        "attention.head_count_kv": max(kv) if is_delta or len(set(kv)) == 1 else kv,
    }
    if is_delta:
        found["attention.recurrent_layers"] = [each is None for each in attends]
    if isinstance(first, DeepseekMlaConfig):
        return found | _latent(first)
    plain = [each for each in known if isinstance(each, AttentionConfig)]
    return found | _heads(plain[0]) | _windows(attends, row) | _rotation(plain, row)


def _heads(first: AttentionConfig) -> Metadata:
    found: Metadata = {
        "attention.key_length": first.head_dim,
        "attention.value_length": first.head_dim,
    }
    if first.attention_multiplier is not None:
        found["attention.scale"] = first.attention_multiplier
    if first.attn_logit_softcap is not None:
        found["attn_logit_softcapping"] = first.attn_logit_softcap
    return found


def _windows(layers: Sequence[MixerConfig | None], row: Architecture) -> Metadata:
    windows = [getattr(each, "sliding_window", None) for each in layers]
    has_window = [window is not None for window in windows]
    window = next((window for window in windows if window is not None), None)
    if window is None:
        return {}
    found: Metadata = {"attention.sliding_window": window}
    every = row.full_every
    usual = [not every or (index + 1) % every != 0 for index in range(len(layers))]
    if has_window != usual:
        found["attention.sliding_window_pattern"] = has_window
    return found


def _rotation(layers: list[AttentionConfig], row: Architecture) -> Metadata:
    rotated = [each for each in layers if each.rope is not None]
    found: Metadata = (
        {"rope.scaling.finetuned": bool(rotated)} if row.rotation == "metadata" else {}
    )
    windowed = [each for each in rotated if each.sliding_window is not None]
    whole = [each for each in rotated if each.sliding_window is None] or windowed
    if not whole or whole[0].rope is None:
        return found
    found |= _rope_keys(whole[0].rope)
    if row.plain_window and windowed and windowed[0].rope is not None:
        found["rope.freq_base_swa"] = windowed[0].rope.theta
    if row.tiled:
        found["rope.dimension_sections"] = _SECTIONS
    return found


def _rope_keys(rope: RopeConfig, *, stretches: bool = True) -> Metadata:
    found: Metadata = {"rope.dimension_count": rope.dim, "rope.freq_base": rope.theta}
    if rope.temperature is not None:
        found["attention.temperature_scale"] = rope.temperature.scale
        found["rope.scaling.original_context_length"] = rope.temperature.length
    scaling = rope.scaling
    if scaling is None or scaling.kind in {"factors", "dynamic"}:
        return found
    if scaling.kind == "longrope":
        found["rope.scaling.original_context_length"] = scaling.original_max_seq_len
        found["rope.scaling.attn_factor"] = scaling.attention_factor
        return found
    found |= {"rope.scaling.type": scaling.kind, "rope.scaling.factor": scaling.factor}
    if scaling.kind == "yarn":
        usual = 0.1 * math.log(max(scaling.factor, 1.0)) + 1 if stretches else 1.0
        found |= {
            "rope.scaling.original_context_length": scaling.original_max_seq_len,
            "rope.scaling.yarn_beta_fast": scaling.beta_fast,
            "rope.scaling.yarn_beta_slow": scaling.beta_slow,
        }
        if rope.temperature is not None and math.isclose(scaling.attention_factor, 1):
            found["rope.scaling.yarn_log_multiplier"] = 1.0  # Mistral's word for an even stretch
        elif not math.isclose(scaling.attention_factor, usual, rel_tol=_CLOSE):
            found["rope.scaling.attn_factor"] = scaling.attention_factor / usual
    return found


def _latent(first: DeepseekMlaConfig) -> Metadata:
    """One head of keys that all queries share, and what they were before."""
    whole = first.head_dim + first.rope_dim
    found: Metadata = {
        "attention.key_length": first.kv_latent + first.rope_dim,
        "attention.value_length": first.kv_latent,
        "attention.key_length_mla": whole,
        "attention.value_length_mla": first.v_head_dim,
        "attention.kv_lora_rank": first.kv_latent,
        "rope.dimension_count": first.rope_dim,
    }
    if first.q_latent is not None:
        found["attention.q_lora_rank"] = first.q_latent
    if first.rope is None:
        return found
    stretch = math.sqrt(first.scale * whole**0.5)
    scaling = first.rope.scaling
    apart = scaling is not None and not math.isclose(stretch, 1, rel_tol=_CLOSE)
    if apart and scaling is not None:
        weight = (stretch - 1) / math.log(max(scaling.factor, 1.0))
        found["rope.scaling.yarn_log_multiplier"] = weight
    return found | _rope_keys(first.rope, stretches=not apart)


def _recurrence(config: ModelConfig) -> Metadata:
    found: Metadata = {}
    for mixer in all_mixers(config):
        keys = _KEYS.get(type(mixer), {})
        found |= {key: getattr(mixer, name) for key, name in keys.items()}
        if isinstance(mixer, Mamba1Config):
            found["ssm.dt_b_c_rms"] = mixer.inner_norms == "plain"
    return found


def _ssm(*fields: str) -> dict[str, str]:
    names = ("conv_kernel", "inner_size", "state_size", "time_step_rank", "group_count")
    return {f"ssm.{name}": each for name, each in zip(names, fields, strict=False)}


# The field that each key tells, mixer by mixer.
_KEYS: Mapping[type, Mapping[str, str]] = {
    Mamba1Config: {
        **_ssm("conv_kernel", "inner_size", "state_size", "dt_rank"),
        INNER_EPS: "norm_eps",
    },
    Mamba2Config: _ssm("conv_kernel", "inner_size", "state_size", "num_heads", "num_groups"),
    GatedDeltaConfig: _ssm(
        "conv_kernel", "value_size", "key_head_dim", "num_heads", "num_key_heads"
    ),
    KimiDeltaConfig: {"ssm.conv_kernel": "conv_kernel", "kda.head_dim": "key_head_dim"},
    ShortConvConfig: {"shortconv.l_cache": "conv_kernel"},
}
