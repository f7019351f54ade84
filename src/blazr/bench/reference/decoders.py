"""Hugging Face's decoders of attention, with an MLP or experts in every layer.

Written from the modeling files of transformers: what each type of model does otherwise than Llama.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from blazr.bench.reference import llama4
from blazr.bench.reference.attention import AttentionSizes, attention
from blazr.bench.reference.experts import (
    NAMED,
    NUMBERED,
    Router,
    clamped_expert,
    experts,
    mixture,
    route,
)
from blazr.bench.reference.hf_config import FULL, SLIDING, Config, rotation_of
from blazr.bench.reference.latent import LatentSizes, deepseek_attention
from blazr.bench.reference.mlp import mlp
from blazr.bench.reference.model import (
    Function,
    Half,
    Layer,
    ReferenceModel,
    layer_of,
    model_of,
    norm_of,
    parallel_layer,
)
from blazr.bench.reference.norms import rms_norm
from blazr.bench.reference.rotation import Rotation, mscale
from blazr.bench.reference.settings import Setting, Settings, as_like
from blazr.bench.reference.weights import Weights, linear

_HUNYUAN = ("hunyuan_v1_dense", "hunyuan_v1_moe")
_GEMMA: Settings = {
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_act": "gelu_pytorch_tanh",
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "sliding_window": 4096,
}
_ERNIE: Settings = {"num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0}
_GLM: Settings = {"head_dim": 128, "partial_rotary_factor": 0.5, "rms_norm_eps": 1.5625e-7}
_HEADS_OF_128: Settings = {"head_dim": 128, "rms_norm_eps": 1e-5}
_QWEN: Settings = {"sliding_window": 4096, "max_window_layers": 28}
_DEEPSEEK_V3: Settings = {
    "n_group": 8,
    "topk_group": 4,
    "norm_topk_prob": True,
    "first_k_dense_replace": 3,
    "n_shared_experts": 1,
    "routed_scaling_factor": 2.5,
}
_DEEPSEEK: Settings = {"first_k_dense_replace": 0, "n_shared_experts": 2}
# What the classes take where a config is silent, beside Llama's.
DEFAULTS: Mapping[str, Settings] = {
    "mistral": {"sliding_window": 4096, "num_key_value_heads": 8},
    "ministral3": {"head_dim": 128, "rms_norm_eps": 1e-5, "num_key_value_heads": 8},
    "qwen2": _QWEN,
    "qwen3": {**_QWEN, "head_dim": 128},
    "phi3": {"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
    "gemma": {"head_dim": 256, "hidden_act": "gelu_pytorch_tanh"},
    "gemma2": {**_GEMMA, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
    "gemma3_text": {**_GEMMA, "rope_theta": 1e6},
    "olmo2": {"rms_norm_eps": 1e-5},
    "olmo3": {"rms_norm_eps": 1e-5, "sliding_window": 4096, "rope_theta": 500_000.0},
    "bitnet": {
        "num_key_value_heads": 5,
        "hidden_act": "relu2",
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
    },
    "smollm3": {"num_key_value_heads": 4, "rope_theta": 2e6},
    "starcoder2": {
        "num_key_value_heads": 2,
        "hidden_act": "gelu_pytorch_tanh",
        "norm_epsilon": 1e-5,
    },
    "arcee": {"hidden_act": "relu2", "rms_norm_eps": 1e-5},
    "seed_oss": {"num_key_value_heads": 8, "head_dim": 128},
    "ernie4_5": {**_ERNIE, "head_dim": 128},
    "ernie4_5_moe": {**_ERNIE, "num_key_value_heads": 4, "moe_k": 6},
    "exaone4": {
        "rms_norm_eps": 1e-5,
        "num_key_value_heads": 32,
    },
    "nemotron": {"hidden_act": "relu2", "norm_eps": 1e-5, "partial_rotary_factor": 0.5},
    "phi": {
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
    },
    "cohere": {"layer_norm_eps": 1e-5, "rope_theta": 500_000.0, "logit_scale": 0.0625},
    "cohere2": {"layer_norm_eps": 1e-5, "logit_scale": 0.0625},
    "stablelm": {
        "num_key_value_heads": 32,
        "layer_norm_eps": 1e-5,
        "partial_rotary_factor": 0.25,
    },
    "dots1": {"num_key_value_heads": 32, "n_group": 1},
    "olmo": {"layer_norm_eps": 1e-5},
    "helium": {
        "num_key_value_heads": 20,
        "head_dim": 128,
        "rms_norm_eps": 1e-8,
        "rope_theta": 100_000.0,
    },
    **{kind: {"rms_norm_eps": 1e-5} for kind in _HUNYUAN},
    "granitemoeshared": {"num_experts_per_tok": 2},
    "flex_olmo": {"num_experts_per_tok": 5, "rope_theta": 500_000.0},
    "solar_open": {
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
    },
    "exaone_moe": {
        "rms_norm_eps": 1e-5,
        "num_key_value_heads": 32,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
    },
    "afmoe": {
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "num_experts_per_tok": 6,
        "sliding_window": 1024,
        "norm_topk_prob": True,
    },
    "glm4_moe_lite": {
        "rms_norm_eps": 1e-5,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.8,
        "num_experts_per_tok": 4,
    },
    "minicpm3": {
        "rms_norm_eps": 1e-5,
        "kv_lora_rank": 256,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "rope_interleave": False,
        "scale_emb": 12,
        "scale_depth": 1.4,
        "dim_model_base": 256,
    },
    "minimax_m2": {
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_experts_per_tok": 8,
        "rope_theta": 5e6,
    },
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
        "topk_group": 1,
    },
    "gpt_oss": {
        "rms_norm_eps": 1e-5,
        "rope_theta": 150_000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        "sliding_window": 128,
    },
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK_V3,
    "sarvam_mla": {**_DEEPSEEK_V3, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    "cwm": {
        **_HEADS_OF_128,
        "num_key_value_heads": 8,
        "rope_theta": 1e6,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 16.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "sliding_window": 8192,
    },
    "apertus": {
        "rms_norm_eps": 1e-5,
        "hidden_act": "xielu",
        "rope_theta": 12e6,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "nanochat": {"hidden_act": "relu2", "final_logit_softcapping": 15.0},
    "llama4_text": {
        **_HEADS_OF_128,
        "num_key_value_heads": 8,
        "num_experts_per_tok": 1,
        "rope_theta": 500_000.0,
        "attention_chunk_size": 8192,
    },
    "cohere2_moe": {
        "layer_norm_eps": 1e-5,
        "head_dim": 128,
        "logit_scale": 0.0625,
        "sliding_window": 4096,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
    },
    "laguna": {
        "num_key_value_heads": 8,
        "head_dim": 128,
        "sliding_window": 512,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "rope_parameters": {
            FULL: {"rope_theta": 500_000.0, "partial_rotary_factor": 0.5},
            SLIDING: {"rope_theta": 10_000.0},
        },
    },
    "mimo_v2_flash": {
        **_HEADS_OF_128,
        "num_key_value_heads": 4,
        "head_dim": 192,
        "v_head_dim": 128,
        "partial_rotary_factor": 0.334,
        "sliding_window": 129,
        "attention_value_scale": 0.707,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "rope_parameters": {FULL: {"rope_theta": 5e6}, SLIDING: {"rope_theta": 10_000.0}},
    },
    "phimoe": {
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "num_experts_per_tok": 2,
    },
    "internlm3": {**_HEADS_OF_128, "num_key_value_heads": 2},
    "iquestcoder": {**_HEADS_OF_128, "num_key_value_heads": 8},
    "jais2": {"hidden_act": "relu2", "layer_norm_eps": 1e-5},
    "ministral": {"sliding_window": 4096, "num_key_value_heads": 8},
    "granite_swa": {"num_key_value_heads": 4, "rms_norm_eps": 1e-5, "sliding_window": 128},
    "granitemoe_swa": {"num_experts_per_tok": 2, "sliding_window": 128},
    "vaultgemma": {**_GEMMA, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
    "mellum": {
        "num_key_value_heads": 4,
        "head_dim": 128,
        "sliding_window": 1024,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "rope_parameters": {
            "full_attention": {"rope_theta": 500_000.0},
            "sliding_attention": {"rope_theta": 10_000.0},
        },
    },
    "hy_v3": {
        **_HEADS_OF_128,
        "num_key_value_heads": 8,
        "rope_theta": 11_158_840.0,
        "num_experts_per_tok": 8,
        "router_scaling_factor": 2.826,
        "norm_topk_prob": True,
    },
}
_HYPERCLOVAX_NORMS = ("input_layernorm", "post_norm1", "post_attention_layernorm", "post_norm2")
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
    "apertus": ("attention_layernorm", "", "feedforward_layernorm", ""),
    "vaultgemma": ("input_layernorm", "", "pre_feedforward_layernorm", ""),
    "hyperclovax": _HYPERCLOVAX_NORMS,
    "glm4": (
        "input_layernorm",
        "post_self_attn_layernorm",
        "post_attention_layernorm",
        "post_mlp_layernorm",
    ),
    **dict.fromkeys(
        ("olmo2", "olmo3", "exaone4", "flex_olmo"),
        ("", "post_attention_layernorm", "", "post_feedforward_layernorm"),
    ),
    **dict.fromkeys(
        ("bamba", "jamba", "falcon_h1"), ("input_layernorm", "", "pre_ff_layernorm", "")
    ),
    **dict.fromkeys(("lfm2", "lfm2_moe"), ("operator_norm", "", "ffn_norm", "")),
    "lfm3": ("operator_norm", "post_operator_norm", "ffn_norm", "post_ffn_norm"),
}
_ATTENTION: Mapping[str, Mapping[str, str]] = {
    "phi": {"o_proj": "dense"},
    **{kind: {"q_norm": "query_layernorm", "k_norm": "key_layernorm"} for kind in _HUNYUAN},
}
_MLP: Mapping[str, Mapping[str, str]] = {
    "starcoder2": {"up_proj": "c_fc", "down_proj": "c_proj"},
    **{kind: {"up_proj": "fc1", "down_proj": "fc2"} for kind in ("phi", "nanochat")},
}
_AFMOE_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_mlp_layernorm",
    "post_mlp_layernorm",
)
_LLAMA_NORMS = ("input_layernorm", "", "post_attention_layernorm", "")
_OLMO_HYBRID_NAMES = {
    "input_layernorm": "attention_layer_norm",
    "post_attention_layernorm": "feedforward_layer_norm",
}
_SCORES_CAPPED = ("gemma2", "vaultgemma")
_LAST_NORM: Mapping[str, str] = {
    **dict.fromkeys(("bamba", "jamba", "falcon_h1"), "final_layernorm"),
    **dict.fromkeys(("lfm2", "lfm2_moe", "lfm3"), "embedding_norm"),
    "phi": "final_layernorm",
}
_GEMMAS = ("gemma", "gemma2", "gemma3_text", "vaultgemma")
_GATED = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
# Those whose norms store their weights less one.
_OFFSET = (*_GEMMAS, *_GATED, "nemotron")
# LayerNorms without biases.
_CENTRED = ("cohere", "cohere2", "olmo")
_PARALLEL = ("phi", "cohere", "cohere2", "cohere2_moe")
_INTERLEAVED = (
    "llama4_text",
    "cohere2_moe",
    "helium",
    "glm",
    "glm4",
    "ernie4_5",
    "ernie4_5_moe",
    "cohere",
    "cohere2",
)
_CAPPED = ("gemma2", "gemma3_text", "vaultgemma", "nanochat")
_LATENT = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "sarvam_mla", "youtu")
_GRANITE_SWA = ("granite_swa", "granitemoe_swa")
MINIMAX = ("minimax", "minimax_text_01", "minimax_m1")


def _root_of(w: Weights) -> str:
    """What the names of a language model begin with: models that see have it in a part."""
    roots = ("model.", "language_model.model.", "model.language_model.", "model.text_model.")
    return next((r for r in roots if f"{r}embed_tokens.weight" in w), "model.")


def _head_of(w: Weights) -> str:
    """The name of the head."""
    names = ("lm_head.weight", "language_model.lm_head.weight")
    return next((name for name in names if name in w), names[0])


def decoder(w: Weights, kind: str, config: Config) -> ReferenceModel:
    """A model of ``model_type`` ``kind``."""
    feeds = {"llama4_text": llama4.feed_forward, "cohere2_moe": _cohere_feed_forward}
    feed = feeds.get(kind, feed_forward)
    return stack(w, kind, config, mixer_of=_mixer, feed_forward_of=feed)


def stack(
    w: Weights,
    kind: str,
    config: Config,
    *,
    mixer_of: Callable[[Weights, str, Config, int, float], Function],
    feed_forward_of: Callable[[Weights, str, Config], Function],
) -> ReferenceModel:
    """A model of layers that are a mixer and a feed-forward.

    Args:
        w: All tensors.
        kind: Its ``model_type``.
        config: Its config.
        mixer_of: Makes the mixer of a layer, from its tensors, its index and the eps of norms.
        feed_forward_of: Makes the feed-forward, from its tensors.
    """
    root = _root_of(w)
    eps = config.get("rms_norm_eps", "norm_epsilon", "norm_eps", "layer_norm_eps", default=1e-6)
    offset = float(kind in _OFFSET)
    centred = kind in _CENTRED or (kind == "cohere2_moe" and not config.says("rms_norm_eps"))
    count = config.size("num_hidden_layers")
    residual_scale = config.get("residual_multiplier", default=1.0)
    if kind == "minicpm3":
        residual_scale = config.get("scale_depth", default=1.0) / count**0.5
    is_parallel = kind in _PARALLEL or (
        kind == "stablelm" and config.get("use_parallel_residual", default=False)
    )

    def layer(index: int) -> Layer:
        at = w.under(f"{root}layers.{index}.")
        norms = [
            norm_of(at, name, eps, offset=offset, centred=centred) if name else None
            for name in _norms_of(kind, at)
        ]
        mixer = mixer_of(at, kind, config, index, eps)
        feed = feed_forward_of(at, kind, config)
        if is_parallel:
            return parallel_layer(
                Half(inner=mixer, before=norms[0]), Half(inner=feed, before=norms[0])
            )
        halves: list[Half] = [
            Half(inner=mixer, before=norms[0], after=norms[1], scale=residual_scale),
            Half(inner=feed, before=norms[2], after=norms[3], scale=residual_scale),
        ]
        if kind in MINIMAX:
            is_linear = "self_attn.output_gate.weight" in at
            words = ("linear_attn" if is_linear else "full_attn", "mlp")
            halves = [_weighted(*each, config) for each in zip(halves, words, strict=True)]
        return layer_of(*halves)

    hidden = config.size("hidden_size")
    is_wide = kind in _GEMMAS or (kind == "afmoe" and config.get("mup_enabled", default=False))
    scale = hidden**0.5 if is_wide else config.get("scale_emb", default=1.0)
    usual = f"{root}embed_tokens.weight"
    return model_of(
        f"transformers' {kind}",
        [layer(index) for index in range(count)],
        w,
        embedding=usual if usual in w else f"{root}word_embeddings.weight",
        norm=norm_of(
            w.under(root), _LAST_NORM.get(kind, "norm"), eps, offset=offset, centred=centred
        ),
        head=_head_of(w),
        embedding_norm=(lambda x: rms_norm(x, None, eps)) if kind == "nanochat" else None,
        embedding_scale=config.get("embedding_multiplier", default=scale),
        logits_scale=config.get("lm_head_multiplier", "logit_scale", default=1.0)
        / config.get("logits_scaling", default=1.0) ** (-1 if kind == "hyperclovax" else 1)
        * (config.get("dim_model_base", default=hidden) / hidden),
        softcap=config.number("final_logit_softcapping") if kind in _CAPPED else None,
    )


def _norms_of(kind: str, at: Weights) -> tuple[str, ...]:
    """What a layer calls its norms."""
    if kind in ("lfm3", "hyperclovax"):  # those behind may be left out
        return tuple(name if f"{name}.weight" in at else "" for name in _NORMS[kind])
    if kind == "afmoe":
        return _AFMOE_NORMS
    if kind != "olmo_hybrid":
        return _NORMS.get(kind, _LLAMA_NORMS)
    is_delta = "linear_attn.A_log" in at
    names = _LLAMA_NORMS if is_delta else _NORMS["olmo2"]
    released = _OLMO_HYBRID_NAMES
    return tuple(n if f"{n}.weight" in at else released.get(n, n) for n in names)


def _weighted(half: Half, word: str, config: Config) -> Half:
    """Of MiniMax: in the library's words, or those that its own code had before."""
    old = "layernorm_" + word.replace("attn", "attention")
    kept, scale = (
        config.get(f"{word}_{end}_factor", f"{old}_{end}", default=1.0) for end in ("alpha", "beta")
    )
    return replace(half, kept=kept, scale=scale)


def _mixer(layer: Weights, kind: str, config: Config, index: int, eps: float) -> Function:
    w = layer.under("self_attn.", _ATTENTION.get(kind, {}))
    if kind in _LATENT:
        latent = latent_sizes(config)
        return lambda x: deepseek_attention(x, w, latent)
    sizes = attention_sizes(kind, config, index, eps)
    return lambda x: attention(x, w, sizes)


def attention_sizes(kind: str, config: Config, index: int, eps: float) -> AttentionSizes:
    """Attention with grouped queries in a layer."""
    heads = config.size("num_attention_heads")
    dim = config.get("head_dim", default=config.size("hidden_size") // heads)
    each: Sequence[Setting] = config.get("num_attention_heads_per_layer", default=())
    heads = as_like(each[index], 0, "num_attention_heads_per_layer") if each else heads
    kv_heads = config.get("num_key_value_heads", default=heads)
    if kind == "mimo_v2_flash" and _by_pattern(kind, config, index):
        kv_heads *= 2
    scale = config.number("attention_multiplier")
    still = _is_still(kind, config, index)
    if kind in _CAPPED and kind in _GEMMAS:
        scale = config.get("query_pre_attn_scalar", default=256) ** -0.5
    return AttentionSizes(
        heads=heads,
        kv_heads=kv_heads,
        dim=dim,
        rotation=_rotation(kind, config, index, dim),
        scale=scale,
        window=_window(kind, config, index),
        softcap=config.number("attn_logit_softcapping") if kind in _SCORES_CAPPED else None,
        eps=eps,
        offset=float(kind in _OFFSET),
        gated=kind in _GATED,
        clip=config.number("clip_qkv") if kind in ("olmo", "olmoe") else None,
        gate_apart=kind == "afmoe",
        norm_last=kind in _HUNYUAN,
        bare_norm=_has_bare_norms(kind, config, index),
        chunk=llama4.chunk(config, index, rotates=not still) if kind == "llama4_text" else None,
        growth=llama4.growth(config) if kind == "llama4_text" and still else None,
        v_dim=config.size("v_head_dim") if kind == "mimo_v2_flash" else None,
        v_scale=config.get("attention_value_scale", default=1.0),
        softplus_gate=kind == "laguna",
        head_gated=kind == "lfm3" and config.get("use_attention_gate", default=True),
    )


def _has_bare_norms(kind: str, config: Config, index: int) -> bool:
    is_llama = kind == "llama4_text" and config.get("use_qk_norm", default=True)
    return kind == "nanochat" or (is_llama and _rotates(config, index))


def _rotates(config: Config, index: int) -> bool:
    listed: Sequence[Setting] = config.get("no_rope_layers", default=[])  # ones do rotate
    if index < len(listed):
        return bool(listed[index])
    return (index + 1) % config.get("no_rope_layer_interval", default=4) != 0


def _type_by_pattern(kind: str, config: Config, index: int) -> str:
    """The type of a layer of Gemma 3 or OLMo 3: listed, or every n-th sees everything."""
    listed = config.layer_type(index)
    if kind == "afmoe":
        every = config.get("global_attn_every_n_layers", default=4)
        return listed or (SLIDING if (index + 1) % every else FULL)
    if (
        kind in ("exaone4", "exaone_moe")
        and not listed
        and isinstance(config.own.get("sliding_window_pattern"), str)
    ):
        pattern = config.word("sliding_window_pattern")
        return SLIDING if pattern[index % len(pattern)] == "L" else FULL
    if kind in ("cwm", *_GRANITE_SWA):
        return listed or (SLIDING if index % 4 else FULL)
    if kind == "mimo_v2_flash":
        return listed or (SLIDING if index and (index + 1) % 6 else FULL)
    every = config.get("sliding_window_pattern", default=6 if kind == "gemma3_text" else 4)
    return listed or (SLIDING if (index + 1) % every else FULL)


def _lfm3_type(config: Config, index: int) -> str:
    turns = (SLIDING, "conv", FULL, "conv")
    return config.layer_type(index) or (turns[index % 4] if index else "conv")


def _is_still(kind: str, config: Config, index: int) -> bool:
    """Whether a layer has no rotation."""
    match kind:
        case "jamba":
            return True
        case "granitemoehybrid":
            return config.text("position_embedding_type") != "rope"
        case "cohere2_moe":
            is_full = _type_by_pattern(kind, config, index) != SLIDING or not config.window()
            first = config.get("prefix_dense_sliding_window_pattern", default=1) == 1
            return is_full and not (
                first and config.layer_type(index, "mlp_layer_types") == "dense"
            )
        case "smollm3" | "llama4_text":
            return not _rotates(config, index)
        case "olmo_hybrid":  # a theta of null says so
            own = {**config.own, **config.section("rope_parameters").own}
            return own.get("rope_theta", 0) is None
        case "exaone4" | "exaone_moe" | "cohere2" | "afmoe":
            is_full = _type_by_pattern(kind, config, index) != SLIDING
            if kind.startswith("exaone"):
                return is_full and bool(config.window())
            return is_full or (kind == "cohere2" and not config.window())
    return False


def _rotation(kind: str, config: Config, index: int, dim: int) -> Rotation | None:
    if _is_still(kind, config, index):
        return None
    if kind in _ROTATIONS:
        return _ROTATIONS[kind](config, index, dim)
    if kind == "lfm3":
        return rotation_of(config, dim, config.rope(_lfm3_type(config, index)))
    if kind in ("gemma3_text", "olmo3"):
        layer_type = _type_by_pattern(kind, config, index)
        parameters = config.rope(layer_type)
        if not config.says("rope_parameters") and layer_type == SLIDING:
            base = config.get("rope_local_base_freq", default=10_000.0)
            theta = base if kind == "gemma3_text" else config.get("rope_theta", default=base)
            parameters = Config({"rope_theta": theta}, {})
        return rotation_of(config, dim, parameters)
    rope = config.rope()
    alpha = rope.number("alpha")
    if kind in _HUNYUAN and alpha and rope.get("rope_type", "type", default="") == "dynamic":
        theta = rope.number("rope_theta") or config.get("rope_theta", default=10_000.0)
        raised = Config({"rope_theta": theta * alpha ** (dim / (dim - 2))}, {})
        return rotation_of(config, dim, raised)
    if kind == "minimax_m2" and config.says("rotary_dim"):
        share = config.size("rotary_dim") / dim
        config = Config({"partial_rotary_factor": share, **config.own}, config.defaults)
    if kind in MINIMAX:
        turned = config.get("rotary_dim", default=dim)
        return rotation_of(config, turned)
    return rotation_of(config, dim, interleaved=kind in _INTERLEAVED)


def _based_by_layer(config: Config, index: int, dim: int) -> Rotation | None:
    """Granite Swash's: a base for each layer, or none."""
    thetas: Sequence[Setting] = config.get("layer_rope_theta", default=())
    own: Settings = {**config.rope().own, **({"rope_theta": thetas[index]} if thetas else {})}
    is_still = bool(thetas) and not thetas[index]
    return None if is_still else rotation_of(config, dim, Config(own, {}))


def _backwards(config: Config, index: int, dim: int) -> Rotation:
    """Nanochat's."""
    del index
    found = rotation_of(config, dim)
    return replace(found, frequencies=lambda length: -found.frequencies(length))


def _by_type(config: Config, index: int, dim: int) -> Rotation:
    """As the part about the type of the layer says."""
    return rotation_of(config, dim, config.rope(config.layer_type(index) or FULL))


def _phimoe_rotation(config: Config, index: int, dim: int) -> Rotation:
    """Phi-3.5-MoE's: what cosines are multiplied with is said for short sequences and for long."""
    del index
    rope = config.rope()
    found = rotation_of(config, dim, rope)
    short, long = rope.number("short_mscale"), rope.number("long_mscale")
    if short is None or long is None:
        return found
    trained = rope.get("original_max_position_embeddings", default=4096)
    return replace(found, factor=short, long=(trained, long))


def _mimo_rotation(config: Config, index: int, dim: int) -> Rotation:
    """The same of types that take turns."""
    layer_type = _type_by_pattern("mimo_v2_flash", config, index)
    return rotation_of(config, dim, config.rope(layer_type))


_ROTATIONS: Mapping[str, Callable[[Config, int, int], Rotation | None]] = {
    **dict.fromkeys(_GRANITE_SWA, _based_by_layer),
    **dict.fromkeys(("mellum", "laguna"), _by_type),
    "mimo_v2_flash": _mimo_rotation,
    "phimoe": _phimoe_rotation,
    "nanochat": _backwards,
}


def _window(kind: str, config: Config, index: int) -> int | None:
    slides = _SLIDES.get(kind)
    return config.window() if slides is not None and slides(kind, config, index) else None


def _where_enabled(kind: str, config: Config, index: int) -> bool:
    if not config.get("use_sliding_window", default=False):
        return False
    listed = config.layer_type(index)
    if kind == "qwen3_moe":
        return True
    if kind == "smollm3":
        return listed == SLIDING if listed else not _rotates(config, index)
    return listed == SLIDING if listed else index >= config.get("max_window_layers", default=0)


def _by_turns(kind: str, config: Config, index: int) -> bool:
    del kind
    listed = config.layer_type(index)
    return listed == SLIDING if listed else index % 2 == 0


def _late(kind: str, config: Config, index: int) -> bool:
    del kind
    listed = config.layer_type(index)
    return listed == SLIDING if listed else index >= config.get("max_window_layers", default=62)


def _by_pattern(kind: str, config: Config, index: int) -> bool:
    return _type_by_pattern(kind, config, index) == SLIDING


def _as_listed(kind: str, config: Config, index: int) -> bool:
    del kind
    return config.layer_type(index) == SLIDING


# Whether a layer has the window, by the type of model; others have none.
_SLIDES: Mapping[str, Callable[[str, Config, int], bool]] = {
    **dict.fromkeys(("mistral", "mixtral", "phi3", "starcoder2", *MINIMAX), lambda *_: True),
    "phimoe": lambda *_: True,
    "ministral3": lambda *_: True,
    "ministral": lambda _, config, index: config.layer_type(index) != FULL,
    **dict.fromkeys(("mellum", "laguna"), _as_listed),
    **dict.fromkeys(("cohere2_moe", "mimo_v2_flash"), _by_pattern),
    **dict.fromkeys(("qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "smollm3"), _where_enabled),
    **dict.fromkeys(("gemma2", "vaultgemma", "gpt_oss"), _by_turns),
    "lfm3": lambda _, config, index: _lfm3_type(config, index) == SLIDING,
    "dots1": _late,
    **dict.fromkeys(("gemma3_text", "olmo3", "exaone4", "exaone_moe", "cohere2"), _by_pattern),
    **dict.fromkeys(("afmoe", "cwm", *_GRANITE_SWA), _by_pattern),
}


def latent_sizes(config: Config, *, rotates: bool = True) -> LatentSizes:
    """DeepSeek's attention, with or without rotation."""
    plain = config.size("qk_nope_head_dim")
    rotated = config.size("qk_rope_head_dim")
    scale = (plain + rotated) ** -0.5
    rope = config.rope()
    kind = rope.get("rope_type", "type", default="default")
    under = rope.get("mscale_all_dim", default=0.0)
    if rotates and kind != "default" and under:
        scale *= mscale(rope.get("factor", default=1.0), under) ** 2
    return LatentSizes(
        heads=config.size("num_attention_heads"),
        plain=plain,
        rotated=rotated,
        latent=config.size("kv_lora_rank"),
        values=config.get(
            "v_head_dim",
            default=config.size("hidden_size") // config.size("num_attention_heads"),
        ),
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
    if kind in _CAPPED and kind in _GEMMAS:
        activation = config.word("hidden_activation")
    if kind == "granitemoe_swa" or "block_sparse_moe.router.layer.weight" in layer:
        routed = granite_experts(layer, config)
        if (
            kind not in ("granitemoeshared", "granitemoe_swa")
            or "shared_mlp.input_linear.weight" not in layer
        ):
            return routed
        names = {"gate_up_proj": "input_linear", "down_proj": "output_linear"}
        shared = layer.under("shared_mlp.", names)
        return lambda x: routed(x) + mlp(x, shared, activation)
    if "block_sparse_moe.gate.weight" in layer and kind in ("mixtral", "phimoe", *MINIMAX):
        w = layer.under("block_sparse_moe.")
        return experts(w, "gate", router_of(kind, config), activation, NUMBERED)
    if kind == "minimax_m2":
        w = layer.under("block_sparse_moe.")
        bias = "e_score_correction_bias"
        return experts(w, "gate", router_of(kind, config), activation, NUMBERED, bias=bias)
    w = layer.under("mlp.", _MLP.get(kind, {}))
    if kind == "gpt_oss":
        return _gpt_oss_experts(w, config)
    if "gate.weight" in w:
        router = router_of(kind, config)
        at = _BIASED.get(kind, "gate.")
        return experts(w, "gate", router, activation, bias=at + "e_score_correction_bias")
    if "gate.wg.weight" in w:  # Hunyuan
        return experts(w, "gate.wg", router_of(kind, config), activation)
    if kind in ("afmoe", "hy_v3") and "router.gate.weight" in w:
        return experts(w, "router.gate", router_of(kind, config), activation, bias="expert_bias")
    eps = config.get("rms_norm_eps", default=1e-6)  # of BitNet's norm
    return lambda x: mlp(x, w, activation, eps=eps)


def _cohere_feed_forward(layer: Weights, kind: str, config: Config) -> Function:
    """The mean of chosen experts and those of all tokens, unless the config wants the sum."""
    mixed = feed_forward(layer, kind, config)
    is_sum = config.get("shared_expert_combination_strategy", default="average") == "sum"
    is_alone = not config.get("num_shared_experts", default=0)
    is_dense = "mlp.gate.weight" not in layer
    return mixed if is_sum or is_alone or is_dense else lambda x: mixed(x) / 2


# Before the name of what takes part in choosing alone, where it is not the router's.
_BIASED: Mapping[str, str] = {
    "ernie4_5_moe": "moe_statics.",
    "exaone_moe": "",
    "laguna": "experts.",
}


def router_of(kind: str, config: Config) -> Router:
    """How a type of model chooses."""
    chosen = config.get("num_experts_per_tok", "num_experts_per_token", "moe_k", default=0)
    if kind == "hunyuan_v1_moe":
        each = config.own.get("moe_topk", 1)  # a number, or one for each layer
        chosen = int(as_like(each[0] if isinstance(each, list) else each, 0, "moe_topk"))
    normalise = bool(config.get("norm_topk_prob", "moe_renormalize", default=False))
    scale = config.get(
        *("routed_scaling_factor", "route_scale", "router_scaling_factor"),
        "moe_routed_scaling_factor",
        default=1.0,
    )
    groups = config.get("n_group", "num_expert_group", default=1)
    kept = config.get("topk_group", default=groups)
    match kind:
        case (
            "mixtral"
            | "granitemoe"
            | "granitemoehybrid"
            | "gpt_oss"
            | "ernie4_5_moe"
            | "hunyuan_v1_moe"
        ):
            return Router(chosen=chosen)
        case "cohere2_moe":
            is_sigmoid = config.text("expert_selection_fn") == "sigmoid"
            return Router(
                chosen=chosen,
                scoring="sigmoid" if is_sigmoid else "softmax",
                normalise=normalise or not is_sigmoid,
                by_logits=True,
            )
        case "phimoe":
            return Router(chosen=2, jitter=config.get("router_jitter_noise", default=0.01))
        case "minimax_m2" | "jamba":
            is_sigmoid = kind == "minimax_m2"
            return Router(
                chosen=chosen,
                scoring="sigmoid" if is_sigmoid else "softmax",
                normalise=is_sigmoid,
            )
        case kind if kind in MINIMAX:
            return Router(chosen=chosen)
        case "deepseek_v2":
            limited = config.text("topk_method") == "group_limited_greedy" and kept < groups
            return Router(
                chosen=chosen,
                normalise=False,
                scale=scale,
                groups=(groups, kept, 1) if limited else None,
            )
        case (
            "deepseek_v3"
            | "laguna"
            | "mimo_v2_flash"
            | "sarvam_mla"
            | "hy_v3"
            | "glm4_moe"
            | "glm4_moe_lite"
            | "dots1"
            | "solar_open"
            | "exaone_moe"
            | "afmoe"
            | "kimi_linear"
            | "nemotron_h"
            | "bailing_hybrid"
        ):
            return Router(
                chosen=chosen,
                scoring="sigmoid",
                normalise=normalise,
                scale=scale,
                groups=(groups, kept, 2) if kept < groups else None,
                floor=1e-20,
                cap=config.get("moe_router_logit_softcapping", default=0.0) or None,
            )
        case "lfm2_moe":
            return Router(
                chosen=chosen, scoring="sigmoid", normalise=normalise, scale=scale, floor=1e-6
            )
        case _:
            return Router(chosen=chosen, normalise=normalise)


def granite_experts(layer: Weights, config: Config) -> Function:
    """Granite's, under the names that others have."""
    names = {
        "experts.gate_up_proj": "input_linear.weight",
        "experts.down_proj": "output_linear.weight",
    }
    as_library = "block_sparse_moe.router.weight" in layer
    is_apart = "block_sparse_moe.experts.0.w1.weight" in layer  # by mlx-lm
    return experts(
        layer.under("block_sparse_moe.", {} if as_library or is_apart else names),
        "router" if as_library else "router.layer",
        router_of("granitemoe", config),
        config.get("hidden_act", default="silu"),
        NUMBERED if is_apart else NAMED,
    )


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
