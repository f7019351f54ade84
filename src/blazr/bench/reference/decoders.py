"""Hugging Face's decoders of attention, with an MLP or experts in every layer.

Written from the modeling files of transformers: what each type of model does otherwise than Llama.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from blazr.bench.reference.attention import Attention, attention
from blazr.bench.reference.experts import Router, clamped_expert, expert_mlp, mixture, route
from blazr.bench.reference.hf_config import FULL, SLIDING, Config, rotation_of
from blazr.bench.reference.latent import Latent, deepseek_attention
from blazr.bench.reference.mlp import mlp
from blazr.bench.reference.model import (
    Function,
    Half,
    Layer,
    ReferenceModel,
    layer_of,
    model_of,
    norm_of,
)
from blazr.bench.reference.rotation import Rotation, mscale
from blazr.bench.reference.settings import Setting, Settings
from blazr.bench.reference.weights import Weights, linear

_GEMMA: Settings = {
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_act": "gelu_pytorch_tanh",
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "sliding_window": 4096,
}
_GLM: Settings = {"head_dim": 128, "partial_rotary_factor": 0.5}
_QWEN: Settings = {"sliding_window": 4096, "max_window_layers": 28}
_DEEPSEEK: Settings = {"first_k_dense_replace": 0, "n_shared_experts": 2}
# What the classes take where a config is silent, beside Llama's.
DEFAULTS: Mapping[str, Settings] = {
    "mistral": {"sliding_window": 4096, "num_key_value_heads": 8},
    "ministral3": {"head_dim": 128, "rms_norm_eps": 1e-5, "num_key_value_heads": 8},
    "qwen2": _QWEN,
    "qwen3": {**_QWEN, "head_dim": 128},
    "gemma": {"head_dim": 256, "hidden_act": "gelu_pytorch_tanh"},
    "gemma2": {**_GEMMA, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
    "gemma3_text": {**_GEMMA, "rope_theta": 1e6},
    "olmo2": {"rms_norm_eps": 1e-5},
    "olmo3": {"rms_norm_eps": 1e-5, "sliding_window": 4096, "rope_theta": 500_000.0},
    "smollm3": {"num_key_value_heads": 4, "rope_theta": 2e6},
    "starcoder2": {"num_key_value_heads": 2, "hidden_act": "gelu_pytorch_tanh"},
    "glm": _GLM,
    "glm4": _GLM,
    "mixtral": {
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "rope_theta": 1e6,
        "rms_norm_eps": 1e-5,
    },
    "qwen2_moe": _QWEN,
    "qwen3_moe": {"sliding_window": 4096},
    "olmoe": {"rms_norm_eps": 1e-5, "num_experts": 64, "num_experts_per_tok": 8},
    "glm4_moe": {
        "partial_rotary_factor": 0.5,
        "first_k_dense_replace": 1,
        "rms_norm_eps": 1e-5,
        "norm_topk_prob": True,
        "n_shared_experts": 1,
    },
    "gpt_oss": {"rms_norm_eps": 1e-5, "rope_theta": 150_000.0, "sliding_window": 128},
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": {
        "n_group": 8,
        "topk_group": 4,
        "norm_topk_prob": True,
        "first_k_dense_replace": 3,
        "n_shared_experts": 1,
        "routed_scaling_factor": 2.5,
    },
}
# Names of norms: before the mixer, behind it, before the feed-forward, behind it.
_NORMS: Mapping[str, tuple[str, str, str, str]] = {
    **dict.fromkeys(
        ("gemma2", "gemma3_text"),
        (
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "post_feedforward_layernorm",
        ),
    ),
    "glm4": (
        "input_layernorm",
        "post_self_attn_layernorm",
        "post_attention_layernorm",
        "post_mlp_layernorm",
    ),
    **dict.fromkeys(
        ("olmo2", "olmo3"), ("", "post_attention_layernorm", "", "post_feedforward_layernorm")
    ),
}
LLAMA_NORMS = ("input_layernorm", "", "post_attention_layernorm", "")
# Those whose norms store their weights less one.
_OFFSET = ("gemma", "gemma2", "gemma3_text")
_CAPPED = ("gemma2", "gemma3_text")
_LATENT = ("deepseek_v2", "deepseek_v3")

# Names of an expert's matrices, upward ones first: Mixtral's, and everybody else's.
NUMBERED = tuple(f"experts.{{}}.{name}.weight" for name in ("w1", "w3", "w2"))
NAMED = tuple(f"experts.{{}}.{name}_proj.weight" for name in ("gate", "up", "down"))


def root_of(w: Weights) -> str:
    """What the names of a language model begin with: models that see have it in a part."""
    roots = ("model.", "language_model.model.", "model.language_model.")
    return next((r for r in roots if f"{r}embed_tokens.weight" in w), "model.")


def head_of(w: Weights) -> str:
    """The name of the head."""
    names = ("lm_head.weight", "language_model.lm_head.weight")
    return next((name for name in names if name in w), names[0])


def decoder(w: Weights, kind: str, config: Config) -> ReferenceModel:
    """A model of ``model_type`` ``kind``."""
    root = root_of(w)
    eps = config.get("rms_norm_eps", "norm_epsilon", default=1e-6)
    if kind == "starcoder2":
        eps = config.get("norm_epsilon", default=1e-5)
    offset = float(kind in _OFFSET)
    count = config.size("num_hidden_layers")
    layers = [
        _layer(w.under(f"{root}layers.{i}."), kind, config, i, eps, offset) for i in range(count)
    ]
    scale = config.size("hidden_size") ** 0.5 if kind in _OFFSET else 1.0
    return model_of(
        f"transformers' {kind}",
        layers,
        w,
        embedding=f"{root}embed_tokens.weight",
        norm=norm_of(w.under(root), "norm", eps, offset=offset),
        head=head_of(w),
        embedding_scale=config.get("embedding_multiplier", default=scale),
        logits_scale=1 / config.get("logits_scaling", default=1.0),
        softcap=config.number("final_logit_softcapping") if kind in _CAPPED else None,
    )


def _layer(w: Weights, kind: str, config: Config, index: int, eps: float, offset: float) -> Layer:
    names = _NORMS.get(kind, LLAMA_NORMS)
    norms = [norm_of(w, name, eps, offset=offset) if name else None for name in names]
    scale = config.get("residual_multiplier", default=1.0)
    at = w.under("self_attn.")
    mixer: Function
    if kind in _LATENT:
        latent = latent_sizes(config)
        mixer = lambda x: deepseek_attention(x, at, latent)  # noqa: E731
    else:
        sizes = attention_sizes(kind, config, index, eps, offset)
        mixer = lambda x: attention(x, at, sizes)  # noqa: E731
    return layer_of(
        Half(inner=mixer, before=norms[0], after=norms[1], scale=scale),
        Half(inner=feed_forward(w, kind, config), before=norms[2], after=norms[3], scale=scale),
    )


def attention_sizes(kind: str, config: Config, index: int, eps: float, offset: float) -> Attention:
    """Attention of one layer."""
    heads = config.size("num_attention_heads")
    dim = config.get("head_dim", default=config.size("hidden_size") // heads)
    scale = config.number("attention_multiplier")
    if kind in _CAPPED:
        scale = config.get("query_pre_attn_scalar", default=256) ** -0.5
    return Attention(
        heads=heads,
        kv_heads=config.get("num_key_value_heads", default=heads),
        dim=dim,
        rotation=_rotation(kind, config, index, dim),
        scale=scale,
        window=_window(kind, config, index),
        softcap=config.number("attn_logit_softcapping") if kind == "gemma2" else None,
        eps=eps,
        offset=offset,
        clip=config.number("clip_qkv") if kind == "olmoe" else None,
    )


def _rotates(config: Config, index: int) -> bool:
    listed: Sequence[Setting] = config.get("no_rope_layers", default=[])  # ones do rotate
    if index < len(listed):
        return bool(listed[index])
    return (index + 1) % config.get("no_rope_layer_interval", default=4) != 0


def _rotation(kind: str, config: Config, index: int, dim: int) -> Rotation | None:
    if kind == "smollm3" and not _rotates(config, index):
        return None
    if kind in ("gemma3_text", "olmo3"):
        every = config.get("sliding_window_pattern", default=6 if kind == "gemma3_text" else 4)
        listed = config.layer_type(index)
        own = listed or (SLIDING if (index + 1) % every else FULL)
        parameters = config.rope(own)
        if not config.says("rope_parameters") and own == SLIDING:
            base = config.get("rope_local_base_freq", default=10_000.0)
            theta = base if kind == "gemma3_text" else config.get("rope_theta", default=base)
            parameters = Config({"rope_theta": theta}, {})
        return rotation_of(config, dim, parameters)
    return rotation_of(config, dim, interleaved=kind in ("glm", "glm4"))


def _window(kind: str, config: Config, index: int) -> int | None:
    window = config.window()
    listed = config.layer_type(index)
    match kind:
        case "mistral" | "ministral3" | "mixtral" | "phi3" | "starcoder2":
            return window
        case "qwen2" | "qwen3" | "qwen2_moe":
            late = index >= config.get("max_window_layers", default=0)
            slides = listed == SLIDING if listed else late
        case "qwen3_moe":
            slides = True
        case "smollm3":
            slides = listed == SLIDING if listed else not _rotates(config, index)
        case "gemma2" | "gpt_oss":
            return window if (listed == SLIDING if listed else index % 2 == 0) else None
        case "gemma3_text" | "olmo3":
            every = config.get("sliding_window_pattern", default=6 if kind == "gemma3_text" else 4)
            return window if (listed == SLIDING if listed else (index + 1) % every) else None
        case _:
            return None
    return window if slides and config.get("use_sliding_window", default=False) else None


def latent_sizes(config: Config, *, rotates: bool = True) -> Latent:
    """DeepSeek's attention, with or without rotation."""
    plain = config.size("qk_nope_head_dim")
    rotated = config.size("qk_rope_head_dim")
    scale = (plain + rotated) ** -0.5
    said = config.rope()
    kind = said.get("rope_type", "type", default="default")
    under = said.get("mscale_all_dim", default=0.0)
    if rotates and kind != "default" and under:
        scale *= mscale(said.get("factor", default=1.0), under) ** 2
    return Latent(
        heads=config.size("num_attention_heads"),
        plain=plain,
        rotated=rotated,
        latent=config.size("kv_lora_rank"),
        values=config.size("v_head_dim"),
        rotation=rotation_of(
            config, rotated, interleaved=config.get("rope_interleave", default=True)
        )
        if rotates
        else None,
        scale=scale,
    )


def feed_forward(layer: Weights, kind: str, config: Config) -> Function:
    """An MLP, or experts: what the layer's tensors are."""
    activation = config.get("hidden_act", default="silu")
    if kind in _CAPPED:
        activation = config.word("hidden_activation")
    if "block_sparse_moe.router.layer.weight" in layer:  # Granite
        return granite_experts(layer.under("block_sparse_moe."), config)
    if "block_sparse_moe.gate.weight" in layer and kind == "mixtral":
        w = layer.under("block_sparse_moe.")
        return experts(w, "gate", router_of(kind, config), activation, NUMBERED)
    names = {"up_proj": "c_fc", "down_proj": "c_proj"} if kind == "starcoder2" else {}
    w = layer.under("mlp.", names)
    if kind == "gpt_oss":
        return _gpt_oss_experts(w, config)
    if "gate.weight" in w:
        return experts(w, "gate", router_of(kind, config), activation)
    return lambda x: mlp(x, w, activation)


def router_of(kind: str, config: Config) -> Router:
    """How a type of model chooses."""
    chosen = config.get("num_experts_per_tok", "num_experts_per_token", default=0)
    normalise = bool(config.get("norm_topk_prob", "moe_renormalize", default=False))
    scale = config.get("routed_scaling_factor", default=1.0)
    groups = config.get("n_group", "num_expert_group", default=1)
    kept = config.get("topk_group", default=groups)
    match kind:
        case "mixtral" | "granitemoe" | "granitemoehybrid" | "gpt_oss":
            return Router(chosen=chosen)
        case "jamba":
            return Router(chosen=chosen, normalise=False)
        case "deepseek_v2":
            limited = config.text("topk_method") == "group_limited_greedy" and kept < groups
            return Router(
                chosen=chosen,
                normalise=False,
                scale=scale,
                groups=(groups, kept, 1) if limited else None,
            )
        case "deepseek_v3" | "glm4_moe" | "kimi_linear" | "nemotron_h":
            return Router(
                chosen=chosen,
                scoring="sigmoid",
                normalise=normalise,
                scale=scale,
                groups=(groups, kept, 2) if kept < groups else None,
                floor=1e-20,
            )
        case "lfm2_moe":
            return Router(
                chosen=chosen, scoring="sigmoid", normalise=normalise, scale=scale, floor=1e-6
            )
        case _:
            return Router(chosen=chosen, normalise=normalise)


def experts(
    w: Weights,
    gate: str,
    router: Router,
    activation: str = "silu",
    names: tuple[str, ...] = NAMED,
    *,
    bias: str = "gate.e_score_correction_bias",
) -> Function:
    """Experts, and what is beside them.

    Args:
        w: Their tensors.
        gate: The router's name.
        router: How it chooses.
        activation: Inside an expert.
        names: Of an expert's matrices, with its number to be filled in.
        bias: Name of what takes part in choosing alone.
    """

    def expert(e: int, rows: Tensor) -> Tensor:
        if "experts.gate_up_proj" in w:
            gate_matrix, up = w.rows("experts.gate_up_proj", slice(e, e + 1))[0].chunk(2)
            down = w.rows("experts.down_proj", slice(e, e + 1))[0]
            return expert_mlp(rows, gate_matrix, up, down, activation)
        own = [name.format(e) for name in names]
        first = w.get(own[0])  # Nemotron's have no gate
        return expert_mlp(rows, first, w[own[1]], w[own[2]], activation)

    def apply(x: Tensor) -> Tensor:
        seen = linear(x, w, "fc1_latent_proj") if "fc1_latent_proj.weight" in w else x
        y = mixture(seen, route(linear(x, w, gate), router, w.get(bias)), expert)
        y = linear(y, w, "fc2_latent_proj") if seen is not x else y
        for name in ("shared_expert.", "shared_experts."):
            if f"{name}down_proj.weight" in w:
                shared = mlp(x, w.under(name), activation)
                own_gate = "shared_expert_gate"
                has_gate = f"{own_gate}.weight" in w
                y = y + (linear(x, w, own_gate).sigmoid() * shared if has_gate else shared)
        return y

    return apply


def granite_experts(w: Weights, config: Config) -> Function:
    """Granite's: both upward matrices in one, for all experts."""
    router = router_of("granitemoe", config)
    activation = config.get("hidden_act", default="silu")

    def expert(e: int, rows: Tensor) -> Tensor:
        gate, up = w.rows("input_linear.weight", slice(e, e + 1))[0].chunk(2)
        down = w.rows("output_linear.weight", slice(e, e + 1))[0]
        return expert_mlp(rows, gate, up, down, activation)

    return lambda x: mixture(x, route(linear(x, w, "router.layer"), router), expert)


def _gpt_oss_experts(w: Weights, config: Config) -> Function:
    """GPT-OSS's: matrices (in, out), gate and up by turns, biases, clamps."""
    alpha = config.get("swiglu_alpha", default=1.702)
    limit = config.get("swiglu_limit", default=7.0)
    router = router_of("gpt_oss", config)

    def expert(e: int, rows: Tensor) -> Tensor:
        only = slice(e, e + 1)
        up = w.rows("experts.gate_up_proj", only)[0], w.rows("experts.gate_up_proj_bias", only)[0]
        both = rows @ up[0] + up[1]
        inner = clamped_expert(both[:, ::2], both[:, 1::2], alpha, limit)
        down = w.rows("experts.down_proj", only)[0], w.rows("experts.down_proj_bias", only)[0]
        return inner @ down[0] + down[1]

    return lambda x: mixture(x, route(linear(x, w, "router"), router), expert)
