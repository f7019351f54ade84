"""GGUF files: their metadata are read as a config.json, by the family of Hugging Face's models.

The metadata become keys of config.json, from which the architecture's family derives a config. What
no key says is seen from the tensors: biases, norms and sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from blazr.core.errors import ConfigError, ShapeError
from blazr.core.gguf_header import ARCHITECTURE_KEY
from blazr.models.causal_lm import ModelConfig
from blazr.models.checkpoint.base import Checkpoint
from blazr.models.families import FAMILIES
from blazr.models.families.base import Derivation, Derived, Family, Source
from blazr.models.families.gguf.architectures import LAYER_NORMS, Architecture, gguf_names
from blazr.models.families.gguf.as_config import (
    CHOSEN_SOFTMAX,
    INNER_EPS,
    LONG_FACTORS,
    METADATA_KEYS,
    ROPE_FACTORS,
    SHORT_FACTORS,
    SIGMOID,
    SOFTMAX,
    GgufFile,
    config_values,
    family_of,
)
from blazr.models.families.rules import RuleBook
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import FeedForwardConfig, LayerConfig, MixerConfig, NormedResidual
from blazr.nn.layers.lightning import LightningConfig
from blazr.nn.layers.mamba1 import Mamba1Config
from blazr.nn.layers.mamba2 import Mamba2Config
from blazr.nn.layers.mla import DeepseekMlaConfig
from blazr.nn.layers.mlp import MlpConfig
from blazr.nn.layers.moe import MoeConfig, Scoring
from blazr.nn.layers.parallel import (
    ParallelFeedForwardConfig,
    ParallelMixerConfig,
    ParallelPart,
)
from blazr.nn.layers.rope import RopeConfig, RopeScaling

_SCORINGS: Mapping[int, Scoring] = {
    SOFTMAX: "softmax",
    SIGMOID: "sigmoid",
    CHOSEN_SOFTMAX: "softmax",
}
# What llama.cpp's converter divides the frequencies of channels by that stand still.
_STILL = 1e30
# Parts that see, hear, or predict further tokens, in files that Ollama has converted; and what
# scores documents, which is no part of the network.
_OTHER_PARTS = ("v.", "a.", "mm.", "mtp.", "cls.output.")


def _derive(checkpoint: Checkpoint) -> Derivation:
    file = GgufFile(checkpoint)
    _check_supported(file)
    read_from = FAMILIES[family_of(file)].derive_from
    assert read_from is not None
    values = config_values(file)
    source = Source(
        reader=file.reader_of(values),
        tensors=checkpoint.tensors,
        rules=gguf_names(file.row),
        without_defaults={*METADATA_KEYS, *values, "partial_rotary_factor"},
    )
    derived = read_from(source)
    config = derived.config
    if not file.has(f"blk.{file.num_layers}.nextn.eh_proj.weight"):
        config = replace(config, mtp=None)  # Ollama's files may have one beside the layers
    config = as_gguf(config, file.row)
    layers = [
        replace(
            layer,
            mixer=_mixer(file, layer.mixer, index),
            feed_forward=layer.feed_forward and _feed_forward(file, layer.feed_forward, index),
            output_scale=layer.output_scale and file.has(f"blk.{index}.layer_output_scale.weight"),
            **_residuals(file, layer),
        )
        for index, layer in enumerate(config.every_layer)
    ]
    scale = file.number("logit_scale", 0.0)
    if scale and file.row.multiplies_logits:
        scale = 1 / scale
    config = replace(
        _with_layers(config, layers),
        embedding_multiplier=file.number("embedding_scale", config.embedding_multiplier),
        logits_scaling=scale or config.logits_scaling,
        logit_softcap=file.number("final_logit_softcapping", 0.0) or None,
    )
    name = Derived("architecture", file.architecture, f"the metadata: {ARCHITECTURE_KEY}")
    return Derivation(
        config,
        (name, *derived.values),
        (*derived.warnings, *_clamps(file), *_left_out(file)),
        tensor_names(file, config),
        unused_beginnings(file),
    )


def _clamps(file: GgufFile) -> list[str]:
    """Ling 3's own code leaves out the clamps that its config has and llama.cpp applies."""
    names = ("swiglu_clamp_exp", "swiglu_clamp_shexp")
    values = {name: file.metadata.get(name) for name in names}
    told = [k for k, v in values.items() if isinstance(v, memoryview) and any(v)]
    return [f"the metadata's {file.key(k)!r} is ignored: no expert is clamped." for k in told]


def _left_out(file: GgufFile) -> list[str]:
    """What llama.cpp's converter leaves out of a file, and what comes of it."""
    told = []
    key = "attention.temperature_scale"
    if file.architecture == "mistral4" and key not in file.metadata:
        trained = file.integer("rope.scaling.original_context_length", 0)
        told.append(
            f"the metadata have no {file.key(key)!r}: scores behind the first {trained:,} tokens"
            " are not those of the model's safetensors."
        )
    key = "rope.scaling.attn_factor"
    if file.architecture == "phimoe" and file.has(LONG_FACTORS):
        trained = file.integer("rope.scaling.original_context_length", 0)
        longer = file.integer("context_length") / max(1, trained)
        usual = math.sqrt(1 + math.log(longer) / math.log(trained)) if longer > 1 < trained else 1.0
        if math.isclose(file.number(key, 1.0), usual, rel_tol=1e-5):
            told.append(
                f"the metadata's {file.key(key)!r} is the usual one, whatever the model's own is:"
                " scores may differ from those of its safetensors."
            )
    return told


def _residuals(file: GgufFile, layer: LayerConfig) -> dict[str, Any]:
    """The scale of what layers add, or of what residuals that leave behind the norm keep."""
    if layer.normed_residuals is None:
        return {"residual_multiplier": file.number("residual_scale", layer.residual_multiplier)}
    scale = file.number("residual_scale", 1.0)
    return {"normed_residuals": (NormedResidual(scale, 1.0), NormedResidual(scale, 1.0))}


def _check_supported(file: GgufFile) -> None:
    """Refuse values of keys that nothing else reads, and that would change the scores.

    Raises:
        ConfigError: There is one.
    """
    mscale = file.any_number("rope.scaling.mscale")
    supported = {  # Ollama's keys for YaRN
        "rope.scaling.extrapolation_factor": 1.0,
        "rope.scaling.mscale": file.any_number("rope.scaling.mscale_all_dim") or mscale,
    }
    for key, wanted in supported.items():
        found = file.any_number(key)
        if found not in {0.0, wanted}:
            raise ConfigError(
                f"the metadata's {file.key(key)!r} is not supported.",
                found=f"{found:g}",
                expected=f"{wanted:g}",
                hint="take another model: its scores would come out wrong",
            )
    for key in file.row.required:
        if key not in file.metadata:
            raise ConfigError(
                f"the metadata have no {file.key(key)!r}.",
                expected="a number",
                hint="the file is of an old converter: convert the model again",
            )
    if file.row.rotating_layers not in {0, file.num_layers}:
        raise ConfigError(
            f"{file.architecture} models of this size tell positions by ALiBi.",
            found=f"{file.num_layers} layers",
            expected=f"{file.row.rotating_layers}, which rotate",
        )
    size = file.row.chunk_size
    if size and (found := file.integer("attention.sliding_window", size)) != size:
        raise ConfigError(
            f"the metadata's {file.key('attention.sliding_window')!r} is not supported.",
            found=str(found)[:100],
            expected=f"nothing, or {size}: which layers rotate is not told otherwise",
            hint="take the model's safetensors",
        )
    if file.flag("kda.safe_gate") is False:
        raise ConfigError(
            f"the metadata's {file.key('kda.safe_gate')!r} is not supported.",
            found="false",
            expected="true: llama.cpp runs no other",
        )
    if file.flag("attention.causal") is False:
        raise ConfigError(
            f"the metadata's {file.key('attention.causal')!r} is not supported.",
            found="false",
            expected="true: only causal decoders run here",
        )


def _mixer(file: GgufFile, mixer: MixerConfig, index: int) -> MixerConfig:
    """A mixer with what its tensors tell: biases and norms."""
    at = f"blk.{index}."
    match mixer:
        case ParallelMixerConfig():
            parts = (replace(p, mixer=_mixer(file, p.mixer, index)) for p in mixer.parts)
            return ParallelMixerConfig(tuple(parts))
        case AttentionConfig():
            return _attention(file, mixer, index)
        case DeepseekMlaConfig():
            return replace(mixer, bias=file.has(at + "attn_kv_a_mqa.bias"))
        case Mamba1Config():
            norms: Literal["none", "plain", "weighted"] = "none"
            if file.has(at + "ssm_dt_norm.weight"):
                norms = "weighted"
            elif file.flag("ssm.dt_b_c_rms"):
                norms = "plain"
            return replace(
                mixer,
                bias=file.has(at + "ssm_in.bias"),
                conv_bias=file.has(at + "ssm_conv1d.bias"),
                inner_norms=norms,
                norm_eps=file.number(INNER_EPS, file.eps),
            )
        case Mamba2Config():
            return replace(
                mixer,
                norm="gate_first" if file.has(at + "ssm_norm.weight") else "none",
                in_bias=file.has(at + "ssm_in.bias"),
                conv_bias=file.has(at + "ssm_conv1d.bias"),
                out_bias=file.has(at + "ssm_out.bias"),
            )
        case _:
            return mixer


def _attention(file: GgufFile, mixer: AttentionConfig, index: int) -> AttentionConfig:
    at = f"blk.{index}."
    heads = mixer.num_heads
    dim = mixer.head_dim
    is_fused = file.has(at + "attn_qkv.weight")
    norm = at + "attn_q_norm.weight"
    has_own = file.has(norm) and len(file.tensors[norm].shape) == 2  # each head has weights
    has_keys = mixer.kv_layer is None
    has_values = is_fused or file.has(at + "attn_v.weight")
    rows = file.size(at + ("attn_qkv.weight" if is_fused else "attn_q.weight"), 0)
    wanted = heads * dim
    if is_fused:
        wanted += mixer.num_kv_heads * (dim + mixer.v_size)
    # a gate of the output may lie behind each head's queries
    is_gated = not is_fused and rows == 2 * wanted
    if dim % 2 or not (rows == wanted or is_gated):
        raise ShapeError(
            f"{at}attn_q does not fit the metadata.",
            found=f"{rows} rows; {heads} and {mixer.num_kv_heads} heads of {dim}"[:100],
            expected="heads of one even size, key/value heads that divide the query heads",
        )
    rope = mixer.rope
    if file.row.has_neighbours and rope is not None:
        rope = replace(rope, interleaved=True)
    scale = file.number("attention.scale", file.row.attention_scale)
    if file.row.wide_scale_layers == file.num_layers:
        scale = (file.hidden_size / heads) ** -0.5
    return replace(
        mixer,
        rope=rope,
        qkv_bias=file.has(at + "attn_q.bias") or file.has(at + "attn_qkv.bias"),
        o_bias=file.has(at + "attn_output.bias"),
        qk_norm=file.has(norm) or not mixer.qk_norm_weight,
        qk_norm_all_heads=file.has(norm) and not has_own and file.size(norm, 0) != dim,
        qk_layer_norm=has_own,
        sliding_window=file.window(index) or None,
        attention_multiplier=scale or None,
        attn_logit_softcap=file.number("attn_logit_softcapping", 0.0) or None,
        output_gate=is_gated,
        values_are_keys=mixer.values_are_keys or (mixer.v_norm and has_keys and not has_values),
        sinks=file.has(at + "attn_sinks.weight"),
    )


def _feed_forward(file: GgufFile, feed: FeedForwardConfig, index: int) -> FeedForwardConfig:
    """A feed-forward with what its tensors tell: sizes, biases, what is beside experts."""
    at = f"blk.{index}."
    match feed:
        case MlpConfig():
            inner = file.size(at + "ffn_down.weight", 1)
            is_fused = file.size(at + "ffn_up.weight", 0) == 2 * inner
            return replace(
                feed,
                intermediate_size=inner,
                gated=is_fused or file.has(at + "ffn_gate.weight"),
                bias=file.has(at + "ffn_down.bias"),
            )
        case ParallelFeedForwardConfig():
            parts = (
                replace(part, feed_forward=_feed_forward(file, part.feed_forward, index))
                for part in feed.parts
            )
            return ParallelFeedForwardConfig(tuple(parts))
        case MoeConfig():
            latent = at + "ffn_latent_down.weight"
            shared = at + "ffn_down_shexp.weight"
            stacked = file.has(at + "ffn_down_exps.weight")
            gates = ("gate_exps", "gate_up_exps") if stacked else ("gate.0",)
            scored = file.integer("expert_gating_func", 0)
            if scored and scored not in _SCORINGS:
                raise ConfigError(
                    f"the metadata's {file.key('expert_gating_func')!r} is not supported.",
                    found=str(scored)[:100],
                    expected=", ".join(map(str, _SCORINGS)),
                    hint="take another model: its experts would be weighted wrongly",
                )
            normalizes = scored == CHOSEN_SOFTMAX or file.flag("expert_weights_norm")
            return replace(
                feed,
                gated=any(file.has(f"{at}ffn_{each}.weight") for each in gates),
                scoring=_scoring(feed, scored),
                norm_topk_prob=file.row.norm_topk_prob if normalizes is None else normalizes,
                routed_scaling_factor=file.number("expert_weights_scale", 1.0),
                correction_bias=file.has(at + "exp_probs_b.bias"),
                router_bias=file.has(at + "ffn_gate_inp.bias"),
                expert_bias=file.has(at + "ffn_down_exps.bias"),
                shared_expert_gate=file.has(at + "ffn_gate_inp_shexp.weight"),
                shared_expert=file.has(shared),
                shared_intermediate_size=file.size(shared, 1) if file.has(shared) else None,
                latent_size=file.size(latent, 0) if file.has(latent) else None,
            )
        case _:
            return feed


def _scoring(feed: MoeConfig, number: int) -> Scoring:
    """By llama.cpp's number, or that of the family where both come to the same."""
    said = _SCORINGS.get(number, feed.scoring)
    return feed.scoring if feed.scoring.startswith(said) else said


def as_gguf(config: ModelConfig, row: Architecture) -> ModelConfig:
    """The same model, in the form that files of this architecture have."""
    eps = config.final_norm.eps
    layers = []
    for layer in config.every_layer:
        present = {name: norm for name in LAYER_NORMS if (norm := getattr(layer, name)) is not None}
        norms = {name: replace(norm, unit_offset=False) for name, norm in present.items()}
        mixer = _mixer_in_gguf(layer.mixer, row, eps)
        feed = layer.feed_forward
        if isinstance(feed, MlpConfig):
            feed = replace(feed, gate_multiplier=1.0, down_multiplier=1.0)
        elif isinstance(feed, MoeConfig):
            shared = feed.shared_intermediate_size or feed.intermediate_size
            feed = replace(feed, shared_intermediate_size=shared if feed.shared_expert else None)
        layers.append(replace(layer, mixer=mixer, feed_forward=feed, **norms))
    config = _with_layers(config, layers)
    final_norm = replace(config.final_norm, unit_offset=False)
    mtp = config.mtp and replace(config.mtp, norm=final_norm)
    config = replace(config, final_norm=final_norm, mtp=mtp)
    if not row.is_folded:
        return config
    is_even = math.isclose(config.embedding_multiplier * config.logits_scaling, 1)
    tied = config.tie_word_embeddings and is_even
    return replace(config, embedding_multiplier=1.0, logits_scaling=1.0, tie_word_embeddings=tied)


def _with_layers(config: ModelConfig, layers: Sequence[LayerConfig]) -> ModelConfig:
    """A config with these in the place of its layers; the last is that of MTP, if there is one."""
    mtp = config.mtp and replace(config.mtp, layer=layers[-1])
    return replace(config, layers=tuple(layers[: len(config.layers)]), mtp=mtp)


def _mixer_in_gguf(mixer: MixerConfig, row: Architecture, eps: float) -> MixerConfig:
    match mixer:
        case AttentionConfig():
            is_usual = row.is_folded or math.isclose(mixer.scale, mixer.head_dim**-0.5)
            return replace(
                mixer,
                rope=mixer.rope and _rope_in_gguf(mixer.rope),
                qk_norm_all_heads=mixer.qk_norm_all_heads and mixer.num_heads > 1,
                norm_unit_offset=False,
                attention_multiplier=None if is_usual else mixer.scale,
            )
        case DeepseekMlaConfig():
            return replace(mixer, rope=mixer.rope and _rope_in_gguf(mixer.rope))
        case ParallelMixerConfig():
            parts = tuple(
                ParallelPart(name=part.name, mixer=_mixer_in_gguf(part.mixer, row, eps))
                for part in mixer.parts
            )
            return ParallelMixerConfig(parts)
        case Mamba2Config():
            return replace(mixer, multipliers=None)
        case LightningConfig() | Mamba1Config(inner_norms="none"):
            return replace(mixer, norm_eps=eps)
        case _:
            return mixer


def _rope_in_gguf(rope: RopeConfig) -> RopeConfig:
    scaling = rope.scaling
    if scaling is not None and scaling.kind == "llama3":
        plain = replace(rope, scaling=None).frequencies()
        factors: list[float] = (plain / rope.frequencies()).tolist()
        return replace(rope, scaling=RopeScaling(kind="factors", factors=tuple(factors)))
    if scaling is not None and scaling.kind == "factors":
        factors = [min(each, _STILL) for each in scaling.factors]
        return replace(rope, scaling=replace(scaling, factors=tuple(factors)))
    if scaling is not None and scaling.kind == "longrope":
        return replace(rope, scaling=replace(scaling, factor=1.0))
    return rope


def tensor_names(file: GgufFile, config: ModelConfig) -> RuleBook:
    """The names of one file's tensors, which depend on what the file has."""
    shared = next(iter(file.layers_with("ffn_up_shexp.weight")), 0)
    joins_gates = bool(file.layers_with("ssm_ba.weight"))
    reordered = file.flag("ssm.v_head_reordered")  # Ollama's word: convert_qwen3next.go
    names = gguf_names(
        file.row,
        config.every_layer,
        has_fused_mlp=_is_fused(file, "blk.0.ffn_{}.weight"),
        has_fused_shared=_is_fused(file, f"blk.{shared}.ffn_{{}}_shexp.weight"),
        is_tiled=not joins_gates if reordered is None else reordered,
        joins_gates=joins_gates,
    )
    return names if config.mtp is None else names.with_mtp(f"blk.{file.num_layers}.")


def _is_fused(file: GgufFile, name: str) -> bool:
    """Whether the matrix of this name, with "up" in it, has the rows of another above its own."""
    up, down = (file.tensors.get(name.format(each)) for each in ("up", "down"))
    return up is not None and down is not None and up.shape[:1] == (2 * down.shape[-1],)


def unused_beginnings(file: GgufFile) -> tuple[str, ...]:
    """How names begin of tensors that are not used: further layers, and parts that see or hear.

    The layers that predict further tokens come after all others.
    """
    more = min(file.integer("nextn_predict_layers", 0), 100)
    behind = (f"blk.{file.num_layers + index}." for index in range(more))
    first = max(file.num_layers - file.integer("attention.shared_kv_layers", 0), 0)
    shared = (
        f"blk.{index}.attn_{name}."
        for index in range(first, file.num_layers)
        for name in ("k", "v", "k_norm")
    )
    return (*behind, *shared, *_OTHER_PARTS)


GGUF = Family(
    name="gguf",
    matches=lambda checkpoint: ARCHITECTURE_KEY in checkpoint.metadata,
    derive=_derive,
    rules=gguf_names(Architecture()),
    ignored=(ROPE_FACTORS, SHORT_FACTORS, LONG_FACTORS),
)
