"""GGUF's hybrids: what a layer is made of, its tensors tell."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from blazr.core.errors import ShapeError
from blazr.models.families.gguf.model import GgufModel
from blazr.models.families.gguf.names import (
    ATTENTION,
    CONV,
    DELTA,
    FUSED_ATTENTION,
    KIMI,
    LATENT,
    MAMBA,
    MAMBA1,
)
from blazr.nn.layers.base import FeedForwardConfig, MixerConfig
from blazr.nn.layers.decoder_layer import LayerConfig
from blazr.nn.layers.gated_delta import GatedDeltaConfig, KimiDeltaConfig
from blazr.nn.layers.mamba1 import Mamba1Config
from blazr.nn.layers.mamba2 import Mamba2Config
from blazr.nn.layers.moe import MoeConfig
from blazr.nn.layers.norm import NormConfig
from blazr.nn.layers.parallel import ParallelMixerConfig, ParallelPart
from blazr.nn.layers.short_conv import ShortConvConfig
from blazr.nn.ops.moe import ExpertGroups

_ATTENDING = (ATTENTION, FUSED_ATTENTION, LATENT)
# llama.cpp has one eps for all norms, so that this key is ours.
INNER_EPS = "ssm.dt_b_c_rms_epsilon"
SOFTMAX, SIGMOID = 1, 2  # llama.cpp's numbers; 0 is neither


def read_mamba1(model: GgufModel, layer: int, eps: float) -> Mamba1Config:
    """Mamba-1, in FalconMamba's and Jamba's forms, too."""
    at = f"blk.{layer}."
    plain = model.reader.boolean(model.key("ssm.dt_b_c_rms"))
    norms: Literal["none", "plain", "weighted"] = "plain" if plain and plain.value else "none"
    return Mamba1Config(
        hidden_size=model.hidden_size,
        inner_size=model.size(at + "ssm_a", 0),
        state_size=model.size(at + "ssm_a", 1),
        dt_rank=model.size(at + "ssm_dt.weight", 1),
        conv_kernel=model.size(at + "ssm_conv1d.weight", 1),
        bias=model.has(at + "ssm_in.bias"),
        conv_bias=model.has(at + "ssm_conv1d.bias"),
        inner_norms="weighted" if model.has(at + "ssm_dt_norm.weight") else norms,
        norm_eps=model.number(INNER_EPS, eps),
    )


def read_mamba2(model: GgufModel, layer: int, eps: float) -> Mamba2Config:
    """Mamba-2.

    Raises:
        ShapeError: The metadata do not fit the tensors.
    """
    at = f"blk.{layer}."
    heads, inner = model.size(at + "ssm_a", 0), model.size(at + "ssm_out.weight", 1)
    states, groups = model.integer("ssm.state_size"), model.integer("ssm.group_count", 1)
    if not heads or inner % heads or not groups or heads % groups or not states:
        raise ShapeError(
            f"{at}ssm_a does not fit the metadata.",
            found=f"{heads} heads, {inner} channels, {groups} groups, {states} states"[:100],
            expected="heads that divide the channels, groups that divide the heads",
        )
    return Mamba2Config(
        hidden_size=model.hidden_size,
        num_heads=heads,
        head_dim=inner // heads,
        state_size=states,
        num_groups=groups,
        conv_kernel=model.size(at + "ssm_conv1d.weight", 1),
        norm="gate_first" if model.has(at + "ssm_norm.weight") else "none",
        norm_eps=eps,
        norm_groups=groups,
        in_bias=model.has(at + "ssm_in.bias"),
        conv_bias=model.has(at + "ssm_conv1d.bias"),
        out_bias=model.has(at + "ssm_out.bias"),
        dt_limits=(0.0, math.inf),
    )


def read_delta(model: GgufModel, layer: int, eps: float) -> GatedDeltaConfig:
    """A gated delta network, Qwen3-Next's or Qwen3.5's.

    Raises:
        ShapeError: The metadata do not fit the tensors.
    """
    at = f"blk.{layer}."
    heads, inner = model.size(at + "ssm_a", 0), model.size(at + "ssm_out.weight", 1)
    keys, states = model.integer("ssm.group_count"), model.integer("ssm.state_size")
    if not heads or inner % heads or not keys or heads % keys or not states:
        raise ShapeError(
            f"{at}ssm_a does not fit the metadata.",
            found=f"{heads} heads, {inner} channels, {keys} heads of keys of {states}"[:100],
            expected="heads that divide the channels, heads of keys that divide the heads",
        )
    grouped, told = model.has(at + "ssm_ba.weight"), model.flag("ssm.v_head_reordered")
    return GatedDeltaConfig(
        hidden_size=model.hidden_size,
        num_key_heads=keys,
        num_heads=heads,
        key_head_dim=states,
        value_head_dim=inner // heads,
        conv_kernel=model.size(at + "ssm_conv1d.weight", 1),
        norm_eps=eps,
        grouped_gates=grouped,
        tiled=not grouped if told is None else told,  # Ollama's word: convert_qwen3next.go
    )


def read_kimi(model: GgufModel, layer: int, eps: float) -> KimiDeltaConfig:
    """Kimi's delta attention.

    Raises:
        ShapeError: The metadata do not fit the tensors.
    """
    at = f"blk.{layer}."
    inner, dim = model.size(at + "ssm_dt.bias", 0), model.integer("kda.head_dim")
    if not dim or inner % dim:
        raise ShapeError(
            f"{at}ssm_dt does not fit the metadata.",
            found=f"{inner} channels, heads of {dim}"[:100],
            expected="heads that divide the channels",
        )
    convolution = model.tensors[at + KIMI].shape
    return KimiDeltaConfig(
        hidden_size=model.hidden_size,
        num_key_heads=inner // dim,
        num_heads=inner // dim,
        key_head_dim=dim,
        value_head_dim=dim,
        conv_kernel=convolution[-1],
        norm_eps=eps,
    )


def read_experts(model: GgufModel, experts: MoeConfig, at: str) -> MoeConfig:
    """Experts from plain ones: how they are scored, and what is beside them.

    Args:
        model: The file.
        experts: Their sizes.
        at: How the layer's names begin.
    """
    norm, scale = model.reader.boolean(model.key("expert_weights_norm")), "expert_weights_scale"
    latent, shared = at + "ffn_latent_down.weight", at + "ffn_down_shexp.weight"
    usual = SIGMOID if experts.scoring == "sigmoid" else SOFTMAX
    by_sigmoid = (model.integer("expert_gating_func", 0) or usual) == SIGMOID
    return replace(
        experts,
        scoring="sigmoid" if by_sigmoid else "softmax",
        norm_topk_prob=norm.value if norm else experts.norm_topk_prob,
        routed_scaling_factor=model.number(scale, 1.0),
        correction_bias=model.has(at + "exp_probs_b.bias"),
        router_bias=model.has(at + "ffn_gate_inp.bias"),
        expert_bias=model.has(at + "ffn_down_exps.bias"),
        groups=_groups(model, experts, judged_by=2 if by_sigmoid else 1),
        shared_expert_gate=model.has(at + "ffn_gate_inp_shexp.weight"),
        shared_expert=model.has(shared),
        shared_intermediate_size=model.size(shared, 1) if model.has(shared) else None,
        latent_size=model.size(latent, 0) if model.has(latent) else None,
    )


def _groups(model: GgufModel, experts: MoeConfig, *, judged_by: int) -> ExpertGroups | None:
    count = model.integer("expert_group_count", 1)
    kept = model.integer("expert_group_used_count", count)
    if not 0 < kept < count:
        return None
    chosen, size = experts.experts_per_token, experts.num_experts // count
    if experts.num_experts % count or chosen > size * kept:
        raise ShapeError(
            "the groups of experts do not fit.",
            found=f"{chosen} of {experts.num_experts} experts, {kept} of {count} groups"[:100],
            expected="groups of equal size, with experts enough",
        )
    return ExpertGroups(count, kept, judged_by)


def read_layer(
    model: GgufModel,
    index: int,
    norm: NormConfig,
    *,
    attention: Callable[[], MixerConfig],
    feed_forward: Callable[[], FeedForwardConfig],
) -> LayerConfig:
    """A layer of what its tensors show: mixers side by side, one mixer, or a feed-forward alone.

    Args:
        model: The file.
        index: Which layer.
        norm: Before its halves.
        attention: Reads attention.
        feed_forward: Reads a feed-forward.
    """
    at = f"blk.{index}."
    mixers: dict[str, MixerConfig] = {}
    is_delta = model.has(at + DELTA) or model.has(at + KIMI)
    if model.has(at + KIMI):
        mixers["delta"] = read_kimi(model, index, norm.eps)
    elif is_delta:
        mixers["delta"] = read_delta(model, index, norm.eps)
    elif model.has(at + MAMBA1):
        mixers["mamba"] = read_mamba1(model, index, norm.eps)
    elif model.has(at + MAMBA):
        mixers["mamba"] = read_mamba2(model, index, norm.eps)
    if model.has(at + CONV):
        mixers["conv"] = ShortConvConfig(
            hidden_size=model.hidden_size,
            conv_kernel=model.size(at + "shortconv.conv.weight", 1),
        )
    elif not is_delta and any(model.has(at + name) for name in _ATTENDING):
        mixers["attention"] = attention()
    feeds = model.has(at + "ffn_down.weight") or model.has(at + "ffn_gate_inp.weight")
    parts = tuple(ParallelPart(name=name, mixer=mixer) for name, mixer in mixers.items())
    return LayerConfig(
        mixer=parts[0].mixer if len(parts) == 1 else ParallelMixerConfig(parts),
        mixer_norm=norm if parts else None,
        feed_forward=feed_forward() if feeds else None,
        feed_forward_norm=norm if feeds else None,
        residual_multiplier=model.number("residual_scale", 1.0),
    )
