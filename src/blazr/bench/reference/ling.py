"""Ling and Ring: attention, latent attention, lightning attention and delta networks."""

from __future__ import annotations

from collections.abc import Mapping

from blazr.bench.reference.attention import attention
from blazr.bench.reference.decoders import attention_sizes, latent_sizes, router_of, stack
from blazr.bench.reference.delta import DeltaSizes, kimi_delta
from blazr.bench.reference.experts import experts
from blazr.bench.reference.hf_config import Config, rotation_of
from blazr.bench.reference.latent import deepseek_attention
from blazr.bench.reference.lightning import LightningSizes, ring_attention, ring_rates
from blazr.bench.reference.mlp import mlp
from blazr.bench.reference.model import Function, ReferenceModel
from blazr.bench.reference.settings import Settings
from blazr.bench.reference.weights import Weights

_FIRST: Settings = {"norm_topk_prob": True, "routed_scaling_factor": 2.5}
_GROUPED = {
    "qkv_proj": "query_key_value",
    "o_proj": "dense",
    "q_norm": "query_layernorm",
    "k_norm": "key_layernorm",
}
DEFAULTS: Mapping[str, Settings] = {
    **dict.fromkeys(("bailing_moe", "bailing_moe_v2", "bailing_moe_linear"), _FIRST),
    "sarvam_moe": {
        **_FIRST,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "num_experts_per_tok": 6,
        "rope_theta": 8e6,
        "score_function": "sigmoid",
    },
    "bailing_hybrid": {
        "num_attention_heads": 32,
        "num_experts_per_tok": 8,
        "n_group": 8,
        "topk_group": 4,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "rope_theta": 6e6,
    },
}


def ling(w: Weights, kind: str, config: Config) -> ReferenceModel:
    """A model of its type."""
    return stack(w, kind, config, mixer_of=_mixer, feed_forward_of=_feed_forward)


def _mixer(at: Weights, kind: str, config: Config, index: int, eps: float) -> Function:
    """By the tensors that only one kind of mixer has."""
    names = {"o_proj": "dense"} if "attention.dense.weight" in at else {}
    w = at.under("attention.", names)
    if "A_log" in w:
        heads = config.get("linear_num_heads", default=config.size("num_attention_heads"))
        has_limit = config.get("kda_safe_gate", default=True)
        delta = DeltaSizes(
            key_heads=heads,
            heads=heads,
            key_dim=w.shape("q_proj.weight")[0] // heads,
            eps=eps,
            least=config.get("kda_lower_bound", default=-5.0) if has_limit else None,
        )
        return lambda x: kimi_delta(x, w, delta)
    if "g_norm.weight" in w:
        return _ring_mixer(at.under("attention."), config, index, eps)
    if "kv_a_layernorm.weight" in w:
        whole = Config({**config.own, "partial_rotary_factor": 1.0}, config.defaults)
        latent = latent_sizes(whole)
        return lambda x: deepseek_attention(x, w, latent)
    w = at.under("attention.", _GROUPED)
    sizes = attention_sizes(kind, config, index, eps)
    return lambda x: attention(x, w, sizes)


def _ring_mixer(w: Weights, config: Config, index: int, eps: float) -> Function:
    heads = config.size("num_attention_heads")
    sizes = LightningSizes(
        rates=ring_rates(heads, index, config.size("num_hidden_layers")),
        eps=eps,
        activation="silu" if config.get("linear_silu", default=False) else None,
        groups=config.get("group_norm_size", default=1),
        rotation=rotation_of(config, w.shape("dense.weight")[1] // heads),
    )
    return lambda x: ring_attention(x, w, sizes)


def _feed_forward(at: Weights, kind: str, config: Config) -> Function:
    w = at.under("mlp.")
    activation = config.get("hidden_act", default="silu")
    if "gate.weight" not in w:
        return lambda x: mlp(x, w, activation)
    usual = "softmax" if kind.startswith("bailing_moe") else "sigmoid"
    scored = config.get("score_function", default=usual)
    router = router_of("bailing_hybrid" if scored == "sigmoid" else "olmoe", config)
    return experts(w, "gate", router, activation, bias="gate.expert_bias")
