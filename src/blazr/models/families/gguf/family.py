"""GGUF files: one map of tensor names and metadata keys for every architecture.

llama.cpp names the parts of all models alike, so architectures differ in few words: how channels
that are rotated together lie, where norms stand, which layers have a window. What they differ in
otherwise their tensors show.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

from blazr.core.errors import ConfigError, ShapeError
from blazr.models.checkpoint.base import Checkpoint
from blazr.models.config import ModelConfig
from blazr.models.families.base import Derivation, Family, Ledger, read_max_seq_len
from blazr.models.families.config_reader import ConfigReader
from blazr.models.families.gguf.architectures import ARCHITECTURES, Architecture
from blazr.models.families.gguf.hybrid import read_experts, read_layer
from blazr.models.families.gguf.latent import read_latent
from blazr.models.families.gguf.model import GgufModel
from blazr.models.families.gguf.names import gguf_names
from blazr.models.families.rules import Pairs, RuleBook
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import FeedForwardConfig, MixerConfig
from blazr.nn.layers.decoder_layer import LayerConfig
from blazr.nn.layers.mlp import MlpConfig
from blazr.nn.layers.moe import MoeConfig
from blazr.nn.layers.norm import NormConfig
from blazr.nn.layers.rope import RopeConfig, RopeScaling
from blazr.nn.ops.sequence import AttentionTemperature

LONG_CONTEXT = 131_072
ROPE_FACTORS = "rope_freqs.weight"
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)", re.ASCII)
SHORT_FACTORS, LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"
# Parts that see, hear, or predict further tokens, in files that Ollama has converted.
_PARTS_BESIDE = ("v.", "a.", "mm.", "mtp.")


def _attention(model: GgufModel, row: Architecture, layer: int) -> AttentionConfig:
    at = f"blk.{layer}."
    heads, kv_heads, dim = _heads(model, at, layer)
    window = _window(model, row, layer)
    is_still = bool(row.still_every) and (layer + 1) % row.still_every == 0
    scale = model.number("attention.scale", 0.0)
    if row.wide_scale_layers == model.num_layers:
        scale = (model.hidden_size / heads) ** -0.5
    norm = at + "attn_q_norm.weight"
    gated = model.has(at + "attn_q.weight") and model.size(at + "attn_q.weight", 0) != heads * dim
    return AttentionConfig(
        hidden_size=model.hidden_size,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        rope=None if is_still else _rope(model, row, dim, has_window=window > 0),
        qkv_bias=model.has(at + "attn_q.bias") or model.has(at + "attn_qkv.bias"),
        o_bias=model.has(at + "attn_output.bias"),
        fused_qkv=model.has(at + "attn_qkv.weight"),
        qk_norm=model.has(norm),
        qk_norm_all_heads=model.has(norm) and model.size(norm, 0) != dim,
        norm_eps=_eps(model, row),
        sliding_window=window or None,
        attention_multiplier=scale or None,
        attn_logit_softcap=model.number("attn_logit_softcapping", 0.0) or None,
        output_gate=gated,
        sinks=model.has(at + "attn_sinks.weight"),
    )


def _window(model: GgufModel, row: Architecture, layer: int) -> int:
    """How many tokens a layer sees; 0 for all."""
    window = model.integer("attention.sliding_window", 0)
    told = model.flag("attention.sliding_window_pattern", layer=layer)
    is_full = bool(row.full_every) and (layer + 1) % row.full_every == 0
    return window if (told if told is not None else not is_full) else 0


def _heads(model: GgufModel, at: str, layer: int) -> tuple[int, int, int]:
    """Query heads, key/value heads and their size, as metadata and tensors both have them."""
    heads = model.integer("attention.head_count", layer=layer)
    kv_heads = model.integer("attention.head_count_kv", heads, layer=layer)
    dim = model.integer("attention.key_length", model.hidden_size // max(1, heads))
    if model.has(at + "attn_qkv.weight"):
        rows, wanted = model.size(at + "attn_qkv.weight", 0), (heads + 2 * kv_heads) * dim
    else:
        rows, wanted = model.size(at + "attn_q.weight", 0), heads * dim
        # a gate of the output may lie behind each head's queries
        rows = rows // 2 if model.has(at + "attn_k.weight") and rows == 2 * wanted else rows
    if rows != wanted or not kv_heads or not dim or dim % 2 or heads % kv_heads:
        raise ShapeError(
            f"{at}attn_q does not fit the metadata.",
            found=f"{rows} rows; {heads} and {kv_heads} heads of {dim}"[:100],
            expected="heads of one even size, key/value heads that divide the query heads",
        )
    if model.integer("attention.value_length", dim) != dim:
        raise ConfigError(
            f"the metadata's {model.key('attention.value_length')!r} is not supported.",
            found=str(model.integer("attention.value_length", dim))[:100],
            expected=f"{dim}, the size of a key",
        )
    return heads, kv_heads, dim


def _rope(
    model: GgufModel, row: Architecture, head_dim: int, *, has_window: bool
) -> RopeConfig | None:
    is_still = row.rotation == "told" and model.flag("rope.scaling.finetuned") is False
    if row.rotation == "never" or is_still:
        return None
    dim = model.integer("rope.dimension_count", head_dim)
    if not 0 < dim <= head_dim or dim % 2:
        raise ConfigError(
            f"the metadata's {model.key('rope.dimension_count')!r} does not fit the heads.",
            found=str(dim)[:100],
            expected=f"an even number up to {head_dim}",
        )
    said = model.number("rope.freq_base", 0.0)
    theta = said or row.theta
    if has_window and row.plain_window:
        return RopeConfig(dim, model.number("rope.freq_base_swa", row.window_theta or theta))
    scaling = _scaling(model, dim)
    if scaling is not None and not row.whole_ramp:
        scaling = replace(scaling, truncate=False)
    is_long = row.long_factor != 1 and model.integer("context_length", 0) >= LONG_CONTEXT
    if not said and scaling is None and is_long:
        scaling = RopeScaling(kind="linear", factor=row.long_factor)
    return RopeConfig(dim, theta, scaling, row.rotates_pairs, _temperature(model))


def _temperature(model: GgufModel) -> AttentionTemperature | None:
    """How scores grow with the position: Ministral 3's, and Mistral Large 3's."""
    scale = model.any_number("attention.temperature_scale")
    said = ("attention.temperature_length", "rope.scaling.original_context_length")
    length = next(filter(None, (model.integer(key, 0) for key in (*said, "context_length"))), 1)
    return AttentionTemperature(scale, length) if scale else None


def _scaling(model: GgufModel, dim: int) -> RopeScaling | None:
    if model.has(ROPE_FACTORS):
        return RopeScaling(kind="factors", factors=_factors(model, ROPE_FACTORS, dim))
    trained = model.integer("rope.scaling.original_context_length", 0)
    attention = model.number("rope.scaling.attn_factor", 1.0)
    if model.has(LONG_FACTORS):
        return RopeScaling(
            kind="longrope",
            factors=_factors(model, SHORT_FACTORS, dim),
            long_factors=_factors(model, LONG_FACTORS, dim),
            original_max_seq_len=trained or model.integer("context_length"),
            attention_factor=attention,
        )
    kind = model.reader.text(model.key("rope.scaling.type"))
    name = kind.value if kind else "linear"  # what llama.cpp takes a factor alone for
    if name in {"none", "", "default"}:  # Ollama writes the latter two
        return None
    factor = model.number("rope.scaling.factor", model.number("rope.scale_linear", 1.0))
    if factor == 1:
        return None
    if name == "linear":
        return RopeScaling(kind="linear", factor=factor)
    if name == "yarn" and trained:
        # where queries and keys are stretched by a factor of their own, the tables are not
        is_apart = bool(model.any_number("rope.scaling.yarn_log_multiplier"))
        usual = 1 if is_apart else 0.1 * math.log(max(factor, 1.0)) + 1
        # OLMo 3's converters do not leave out what this is usually
        stretched = attention if math.isclose(attention, usual, rel_tol=1e-6) else attention * usual
        own = model.any_number("rope.scaling.yarn_attn_factor")  # 1 where nothing was said
        return RopeScaling(
            kind="yarn",
            factor=factor,
            original_max_seq_len=trained,
            beta_fast=model.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=model.number("rope.scaling.yarn_beta_slow", 1.0),
            attention_factor=own if own > 0 and own != 1 else stretched,
        )
    raise ConfigError(
        f"the metadata's {model.key('rope.scaling.type')!r} is not supported.",
        found=repr(name)[:100],
        expected="linear, yarn with its original_context_length, none, or factors in a tensor",
    )


def _factors(model: GgufModel, name: str, dim: int) -> tuple[float, ...]:
    size, info = model.size(name, 0), model.tensors[name]
    if info.dtype != "F32" or info.shape != (dim // 2,):
        raise ShapeError(
            f"tensor {name} does not fit the heads.",
            found=f"{info.dtype} {size}"[:100],
            expected=f"F32 {dim // 2}",
        )
    factors: list[float] = model.checkpoint.read(name).tolist()
    return tuple(factors)


def _feed_forward(model: GgufModel, row: Architecture, layer: int) -> FeedForwardConfig:
    at = f"blk.{layer}."
    if model.has(at + "ffn_gate_inp.weight"):
        experts = model.size(at + "ffn_gate_inp.weight", 0)
        stacked = model.has(at + "ffn_down_exps.weight")
        names = at + "ffn_down_exps.weight", at + "ffn_down.0.weight"
        config = MoeConfig(
            hidden_size=model.hidden_size,
            intermediate_size=model.size(names[0], 2) if stacked else model.size(names[1], 1),
            num_experts=model.ledger.record("num_experts", experts, f"tensor {at}ffn_gate_inp"),
            experts_per_token=min(model.integer("expert_used_count"), experts),
            activation=row.activation,
            scoring="sigmoid" if row.by_sigmoid else "softmax",
            norm_topk_prob=row.norm_topk_prob,
            gated=model.has(at + ("ffn_gate_exps.weight" if stacked else "ffn_gate.0.weight")),
        )
        if row.swiglu is not None:
            config = replace(config, swiglu_alpha=row.swiglu[0], swiglu_limit=row.swiglu[1])
        return read_experts(model, config, at)
    inner, upward = model.size(at + "ffn_down.weight", 1), model.size(at + "ffn_up.weight", 0)
    is_fused = upward == 2 * inner
    return MlpConfig(
        hidden_size=model.hidden_size,
        intermediate_size=inner,
        activation=row.activation,
        gated=is_fused or model.has(at + "ffn_gate.weight"),
        bias=model.has(at + "ffn_down.bias"),
        fused_gate_up=is_fused,
    )


def _eps(model: GgufModel, row: Architecture) -> float:
    keys = ["attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"]
    first, second = keys if row.norm_kind == "rms" else keys[::-1]  # some converters mix them up
    return model.number(first, 0.0) or model.number(second, row.eps)


def _any_attention(model: GgufModel, row: Architecture, index: int) -> MixerConfig:
    if model.has(f"blk.{index}.attn_kv_a_mqa.weight"):
        return read_latent(model, index, lambda dim: _rope(model, row, dim, has_window=False))
    return _attention(model, row, index)


def _layer(model: GgufModel, row: Architecture, norm: NormConfig, index: int) -> LayerConfig:
    before = norm if row.norms != "behind" else None
    behind = norm if row.norms != "before" else None
    if row.hybrid:
        return read_layer(
            model,
            index,
            norm,
            attention=lambda: _any_attention(model, row, index),
            feed_forward=lambda: _feed_forward(model, row, index),
        )
    return LayerConfig(
        mixer=_any_attention(model, row, index),
        mixer_norm=before,
        mixer_post_norm=behind,
        feed_forward=_feed_forward(model, row, index),
        feed_forward_norm=before,
        feed_forward_post_norm=behind,
        residual_multiplier=model.number("residual_scale", 1.0),
    )


def _derive(checkpoint: Checkpoint) -> Derivation:
    row = _architecture(checkpoint)
    model = GgufModel(checkpoint)
    _refuse_what_changes(model)
    ledger, tied = model.ledger, not model.has("output.weight")
    ledger.record("architecture", model.architecture, "the metadata: general.architecture")
    ledger.record("hidden_size", model.hidden_size, "tensor token_embd.weight")
    norm = NormConfig(model.hidden_size, _eps(model, row), row.norm_kind)
    context = ConfigReader(
        {"max_seq_len": model.integer("context_length", 4096)}, model.key("context_length")
    )
    scale = model.hidden_size**0.5 if row.scales_embedding else 1.0
    config = ModelConfig(
        vocab_size=ledger.record(
            "vocab_size", model.size("token_embd.weight", 0), "tensor token_embd.weight"
        ),
        hidden_size=model.hidden_size,
        max_seq_len=read_max_seq_len(context, Ledger()),
        layers=tuple(_layer(model, row, norm, index) for index in range(model.num_layers)),
        final_norm=norm,
        tie_word_embeddings=ledger.record("tie_word_embeddings", tied, "tensor output.weight"),
        embedding_multiplier=model.number("embedding_scale", scale),
        logits_scaling=model.number("logit_scale", 1.0),
        logit_softcap=model.number("final_logit_softcapping", 0.0) or None,
    )
    return Derivation(config, tuple(ledger.values.values()), tuple(ledger.warnings))


def _refuse_what_changes(model: GgufModel) -> None:
    """Keys with another value than the one that changes no scores."""
    all_dim = model.any_number("rope.scaling.mscale_all_dim")
    usual = {
        "rope.scaling.extrapolation_factor": 1.0,  # both are Ollama's of YaRN
        "rope.scaling.mscale": all_dim or model.any_number("rope.scaling.mscale"),
    }
    for name, wanted in usual.items():
        if model.any_number(name) not in {0.0, wanted}:
            raise ConfigError(
                f"the metadata's {model.key(name)!r} is not supported.",
                found=f"{model.any_number(name):g}",
                expected=f"{wanted:g}",
                hint="take another model: its scores would come out wrong",
            )


def _architecture(checkpoint: Checkpoint) -> Architecture:
    name = checkpoint.metadata.get("general.architecture")
    row = ARCHITECTURES.get(name) if isinstance(name, str) else None
    if row is None:
        raise ConfigError(
            f"{checkpoint.path}: models of this architecture are not supported in GGUF.",
            found=repr(name)[:100],
            expected=", ".join(ARCHITECTURES),
            hint="where the model is also there as safetensors, try that",
        )
    return row


def _rules_of(checkpoint: Checkpoint) -> RuleBook:
    """The names of one file's tensors."""
    row, layers = _architecture(checkpoint), dict[str, set[str]]()
    for name in checkpoint.tensors:
        found = _BLOCK.fullmatch(name)
        if found:
            layers.setdefault(found[1], set()).add(found[2])
    up, down = (checkpoint.tensors.get(f"blk.0.ffn_{name}.weight") for name in ("up", "down"))
    is_fused = up is not None and down is not None and up.shape[:1] == (2 * down.shape[-1],)
    pairs = _pairs(GgufModel(checkpoint), row) if row.pairs_rows else None
    return gguf_names(row, layers, fused=is_fused, pairs=pairs)


def _pairs(model: GgufModel, row: Architecture) -> Pairs:
    """Converters of a model whose attention may not rotate put whole heads in pairs."""
    heads = max(model.integer("attention.head_count", layer=i) for i in range(model.num_layers))
    dim = model.integer("attention.key_length", model.hidden_size // max(1, heads))
    rotated = dim if row.rotation == "told" else model.integer("rope.dimension_count", dim)
    return Pairs(max(1, dim), min(rotated, dim) // 2 * 2)


def _unused(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Layers that predict further tokens, which come after the others, and parts of other use."""
    model = GgufModel(checkpoint)
    more = model.integer("nextn_predict_layers", 0)
    behind = (f"blk.{model.num_layers + index}." for index in range(min(more, 100)))
    return (*behind, *_PARTS_BESIDE)


GGUF = Family(
    name="gguf",
    matches=lambda checkpoint: "general.architecture" in checkpoint.metadata,
    derive=_derive,
    rules=gguf_names(Architecture(), {}),
    rules_of=_rules_of,
    ignored=(ROPE_FACTORS, SHORT_FACTORS, LONG_FACTORS),
    unused=_unused,
)
