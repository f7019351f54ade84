"""Hugging Face's hybrids named ``model.``: attention beside Mamba, convolutions, delta networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from blazr.bench.reference.attention import AttentionSizes, attention
from blazr.bench.reference.convolution import short_convolution
from blazr.bench.reference.decoders import (
    attention_sizes,
    feed_forward,
    granite_experts,
    latent_sizes,
    router_of,
    stack,
)
from blazr.bench.reference.delta import DeltaSizes, gated_delta, kimi_delta, olmo_delta
from blazr.bench.reference.experts import NUMBERED, experts
from blazr.bench.reference.hf_config import Config
from blazr.bench.reference.latent import deepseek_attention
from blazr.bench.reference.mamba1 import mamba1
from blazr.bench.reference.mamba2 import Mamba2Sizes, mamba2
from blazr.bench.reference.mlp import mlp
from blazr.bench.reference.model import Function, ReferenceModel
from blazr.bench.reference.settings import Setting, Settings, as_like
from blazr.bench.reference.weights import Weights

_MAMBA2: Settings = {"mamba_d_state": 256, "mamba_n_heads": 128, "mamba_n_groups": 1}
_LFM2: Settings = {"num_key_value_heads": 8, "rope_theta": 1e6, "norm_eps": 1e-5}
_QWEN: Settings = {
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "norm_topk_prob": True,
}
DEFAULTS: Mapping[str, Settings] = {
    "bamba": {
        **_MAMBA2,
        "num_key_value_heads": 8,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-5,
    },
    "granitemoehybrid": _MAMBA2,
    "falcon_h1": {**_MAMBA2, "num_key_value_heads": 8, "rms_norm_eps": 1e-5},
    "jamba": {"num_key_value_heads": 8, "num_experts_per_tok": 2},
    "lfm2": _LFM2,
    "lfm2_moe": {**_LFM2, "num_experts_per_tok": 4, "norm_topk_prob": True},
    "lfm3": {
        "num_key_value_heads": 4,
        "head_dim": 128,
        "norm_eps": 1e-5,
        "rope_theta": 1e6,
        "sliding_window": 256,
        "rope_parameters": {
            "sliding_attention": {"rope_theta": 10_000.0},
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": 1e6,
                "partial_rotary_factor": 0.5,
            },
        },
    },
    "qwen3_next": _QWEN,
    "qwen3_5_text": _QWEN,
    "qwen3_5_moe_text": _QWEN,
    "kimi_linear": {
        "rms_norm_eps": 1e-5,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.446,
        "topk_group": 1,
        "num_experts_per_tok": 8,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "kv_lora_rank": 512,
        "v_head_dim": 128,
    },
}


def hybrid(w: Weights, kind: str, config: Config) -> ReferenceModel:
    """A model of ``model_type`` ``kind``."""
    return stack(w, kind, config, mixer_of=_mixer, feed_forward_of=_feed_forward)


def _mixer(at: Weights, kind: str, config: Config, index: int, eps: float) -> Function:
    """By the tensors that only one kind of mixer has."""
    w = at.under("self_attn.")
    mamba = at.under("mamba.")
    attend = attention_sizes(kind, config, index, eps)
    if kind == "falcon_h1":
        return _falcon_h1_mixer(mamba, w, config, attend)
    if "mamba.x_proj.weight" in at:
        return lambda x: mamba1(x, mamba, inner_eps=eps)
    if "mamba.A_log" in at:
        sizes = mamba2_sizes(config, eps)
        return lambda x: mamba2(x, mamba, sizes, -mamba["A_log"].exp())
    if "conv.conv.weight" in at:
        return lambda x: short_convolution(x, at.under("conv."))
    if kind == "olmo_hybrid" and "linear_attn.A_log" in at:
        heads = config.size("num_attention_heads")
        key_heads = config.get("linear_num_key_heads", default=heads)
        usual = int(0.75 * config.size("hidden_size") / key_heads)
        delta = DeltaSizes(
            key_heads=key_heads,
            heads=config.get("linear_num_value_heads", default=heads),
            key_dim=config.get("linear_key_head_dim", default=usual),
            eps=1e-5,
            beta=2.0 if config.get("linear_allow_neg_eigval", default=True) else 1.0,
        )
        return lambda x: olmo_delta(x, at.under("linear_attn."), delta)
    if "linear_attn.A_log" in at:
        delta = DeltaSizes(
            key_heads=config.size("linear_num_key_heads"),
            heads=config.size("linear_num_value_heads"),
            key_dim=config.size("linear_key_head_dim"),
            eps=eps,
        )
        return lambda x: gated_delta(x, at.under("linear_attn."), delta)
    if "A_log" in w:  # Kimi
        usual = config.get("linear_num_heads", default=32)
        heads = config.section("linear_attn_config").get("num_heads", default=usual)
        rows = w.shape("q_proj.weight")[0]
        delta = DeltaSizes(key_heads=heads, heads=heads, key_dim=rows // heads, eps=eps)
        return lambda x: kimi_delta(x, w, delta)
    if kind == "kimi_linear":
        latent = latent_sizes(config, rotates=False)
        return lambda x: deepseek_attention(x, w, latent)
    if kind.startswith("lfm2"):
        w = at.under(
            "self_attn.", {"o_proj": "out_proj", "q_norm": "q_layernorm", "k_norm": "k_layernorm"}
        )
    return lambda x: attention(x, w, attend)


def limits_of(config: Config) -> tuple[float, float]:
    """The least and the most of a step size; infinity is spelled in several ways."""
    key = "time_step_limit"
    usual: Sequence[Setting] = (0.0, "Infinity")
    limits = config.get(key, default=usual)
    spelled = (each["__float__"] if isinstance(each, Mapping) else each for each in limits)
    least, most = (
        float(each) if isinstance(each, str) else as_like(each, 0.0, key) for each in spelled
    )
    return least, most


def mamba2_sizes(config: Config, eps: float) -> Mamba2Sizes:
    """A Mamba-2 mixer under the names that hybrids have."""
    groups = config.size("mamba_n_groups")
    return Mamba2Sizes(
        states=config.size("mamba_d_state"),
        groups=groups,
        limits=limits_of(config),
        eps=eps,
        norm_groups=groups,
    )


def _falcon_h1_mixer(
    mamba: Weights, w: Weights, config: Config, attend: AttentionSizes
) -> Function:
    """Mamba-2 and attention of the same input, added [arXiv:2507.22448]."""
    usual: Sequence[float] = (1.0,) * 5
    sizes = replace(
        mamba2_sizes(config, attend.eps),
        gate_first=not config.get("mamba_norm_before_gate", default=True),
        multipliers=tuple(config.get("ssm_multipliers", default=usual)),
    )
    key = config.get("key_multiplier", default=1.0)
    attend = replace(attend, scale=attend.dim**-0.5 * key)
    into = [config.get(f"{n}_in_multiplier", default=1.0) for n in ("ssm", "attention")]
    out = [config.get(f"{n}_out_multiplier", default=1.0) for n in ("ssm", "attention")]

    def apply(x: Tensor) -> Tensor:
        first = mamba2(x * into[0], mamba, sizes, -mamba["A_log"].exp())
        return first * out[0] + attention(x * into[1], w, attend) * out[1]

    return apply


def _feed_forward(at: Weights, kind: str, config: Config) -> Function:
    activation = config.get("hidden_act", default="silu")
    router = router_of(kind, config)
    match kind:
        case "granitemoehybrid":
            names = {"gate_up_proj": "input_linear", "down_proj": "output_linear"}
            shared = at.under("shared_mlp.", names)
            if "mlp.gate_proj.weight" in at:  # mlx-lm's, where there are no experts
                shared = at.under("mlp.")
            if "block_sparse_moe.router.layer.weight" not in at:
                return lambda x: mlp(x, shared, activation)
            mixed = granite_experts(at, config)
            return lambda x: mixed(x) + mlp(x, shared, activation)
        case "bamba" | "falcon_h1" | "jamba":
            w = at.under("feed_forward.")
            if "router.weight" in w:
                return experts(w, "router", router, activation)
            gate, down = config.get("mlp_multipliers", default=(1.0, 1.0))
            return lambda x: mlp(x, w, activation, gate_scale=gate, scale=down)
        case "lfm2" | "lfm2_moe" | "lfm3":
            w = at.under("feed_forward.", {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"})
            if "gate.weight" not in w:
                return lambda x: mlp(x, w)
            return experts(w, "gate", router, names=NUMBERED, bias="expert_bias")
        case "kimi_linear":
            w = at.under("block_sparse_moe." if "mlp.down_proj.weight" not in at else "mlp.")
            if "gate.weight" not in w:
                return lambda x: mlp(x, w, activation)
            return experts(w, "gate", router, activation, NUMBERED)
        case _:
            return feed_forward(at, kind, config)
