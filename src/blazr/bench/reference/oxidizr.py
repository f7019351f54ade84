"""oxidizr's models: what a layer is, its tensors say."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from blazr.bench.reference.attention import AttentionSizes, attention
from blazr.bench.reference.experts import Router, experts
from blazr.bench.reference.hf_config import Config
from blazr.bench.reference.latent import oxidizr_attention
from blazr.bench.reference.mamba1 import oxidizr_mamba1
from blazr.bench.reference.mamba2 import Mamba2Sizes, mamba2
from blazr.bench.reference.mamba3 import mamba3
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
from blazr.bench.reference.refusal import NoReferenceError
from blazr.bench.reference.rotation import Rotation, fixed, llama3, plain
from blazr.bench.reference.settings import Settings
from blazr.bench.reference.weights import Weights

_MAMBA_EPS = 1e-6
_LIMITS = (0.001, 0.1)
_USUAL_DIMS = (64, 128, 96, 80, 32, 16)


def oxidizr_model(w: Weights, settings: Settings, training: Settings) -> ReferenceModel:
    """A model of oxidizr, or a Llama without ``model_type`` behind ``model.``.

    Args:
        w: Its tensors.
        settings: Its config.
        training: What the trainer noted of a model, perhaps of another one.
    """
    root = "model." if "model.embed_tokens.weight" in w else ""
    top = w.under(root)
    numbers = {m[1] for name in w.names if (m := re.match(r"(?:model\.)?layers\.(\d+)\.", name))}
    order = sorted(map(int, numbers))
    rows, hidden = top.shape("embed_tokens.weight")
    sizes = {"vocab_size": rows, "hidden_size": hidden, "num_layers": len(order)}
    if sizes.items() <= training.items():
        settings = {**settings, "training": training}
    sections = {name: value for name, value in settings.items() if isinstance(value, Mapping)}
    # what a section says stands under names with a dot: ssm.state_size
    inner = {f"{name}.{key}": v for name, value in sections.items() for key, v in value.items()}
    config = Config({**settings, **inner}, {})
    eps = config.get("rms_norm_eps", default=1e-5)
    layers = [_layer(top, top.under(f"layers.{i}."), config, eps) for i in order]
    return model_of(
        "oxidizr",
        layers,
        w,
        embedding=f"{root}embed_tokens.weight",
        norm=norm_of(top, "norm", eps),
        head="lm_head.weight",
    )


def _layer(top: Weights, w: Weights, config: Config, eps: float) -> Layer:
    for kind, mixer in (("mamba2.", _mamba2), ("mamba3.", _mamba3)):
        if f"{kind}mixer.in_proj.weight" in w:
            own = w.under(kind)
            # RMSNorm where there is no bias, and that with the eps of the config
            norm = norm_of(own, "norm", _MAMBA_EPS if "norm.bias" in own else eps)
            return layer_of(Half(before=norm, inner=mixer(own.under("mixer."), config)))
    if "mamba.in_proj.weight" in w:
        own = w.under("mamba.")
        norm = norm_of(w, "norm", eps)
        return layer_of(Half(before=norm, inner=lambda x: oxidizr_mamba1(x, own)))
    return layer_of(
        Half(before=norm_of(w, "input_layernorm", eps), inner=_attention(top, w, config, eps)),
        Half(before=norm_of(w, "post_attention_layernorm", eps), inner=_feed_forward(w, config)),
    )


def _rates(w: Weights, config: Config) -> Tensor:
    """Of decay: as stored, or those that the trainer really used."""
    stored = w["A_log"]
    if config.get("ssm_a", default="") == "trained":
        return -torch.arange(1, len(stored) + 1, dtype=stored.dtype)
    return -stored.exp().clamp(1e-6, 1e6)


def _mamba2(w: Weights, config: Config) -> Function:
    heads = w.shape("A_log")[0]
    inner = w.shape("norm.weight")[0]
    maps = (w.shape("in_proj.weight")[0] - 2 * inner - heads) // 2
    states = config.get("mamba2_state_size", "ssm.state_size", default=0)
    groups = config.get("mamba2_n_groups", "ssm.n_groups", default=1)
    if not states or maps % states:
        states = maps // (groups or 1)
    sizes = Mamba2Sizes(states=states, groups=maps // states, limits=_LIMITS, eps=_MAMBA_EPS)
    return lambda x: mamba2(x, w, sizes, _rates(w, config))


def _mamba3(w: Weights, config: Config) -> Function:
    return lambda x: mamba3(x, w, _rates(w, config))


def _rotation(dim: int, config: Config) -> Rotation:
    theta = config.get("rope_theta", "attention.rope_theta", default=10_000.0)
    scaling = config.section("rope_scaling")
    kind = scaling.get("rope_type", "type", default="default")
    factor = scaling.get("factor", default=1.0)
    match kind:
        case "default":
            speeds = plain(dim, theta)
        case "linear":
            speeds = plain(dim, theta, factor)
        case "llama3":
            low = scaling.get("low_freq_factor", default=1.0)
            high = scaling.get("high_freq_factor", default=4.0)
            trained = scaling.get("original_max_position_embeddings", default=8192)
            speeds = llama3(dim, theta, factor, low, high, trained)
        case _:
            raise NoReferenceError(f"oxidizr's models with RoPE scaling {kind!r}")
    return Rotation(fixed(speeds))


def _attention(top: Weights, layer: Weights, config: Config, eps: float) -> Function:
    w = layer.under("self_attn.")
    window = None if top.prefix else config.get("sliding_window", default=0) or None
    if "w_dkv.weight" in w:
        rotation = _rotation(w.shape("w_kr.weight")[0], config)
        return lambda x: oxidizr_attention(x, w, rotation, window)
    rows, kv_rows = w.shape("q_proj.weight")[0], w.shape("k_proj.weight")[0]
    dim = _head_dim(top, w, config, rows, kv_rows)
    sizes = AttentionSizes(
        heads=rows // dim,
        kv_heads=kv_rows // dim,
        dim=dim,
        rotation=_rotation(dim, config),
        eps=eps,
        window=window,
    )
    return lambda x: attention(x, w, sizes)


def _head_dim(top: Weights, w: Weights, config: Config, rows: int, kv_rows: int) -> int:
    """From a norm, the config, another layer, or the one usual size that fits."""
    if "q_norm.weight" in w:
        return w.shape("q_norm.weight")[0]
    names = ("num_attention_heads", "num_heads", "n_heads", "attention.num_heads")
    heads = config.get(*names, "training.num_heads", default=0)
    dim = config.get("head_dim", "attention.head_dim", default=0)
    if heads and rows % heads == 0 and kv_rows % (rows // heads) == 0:
        return rows // heads
    if dim:
        return dim
    others = [n.removesuffix("w_kr.weight") for n in w.names if n.endswith("self_attn.w_kr.weight")]
    for name in others:
        latent = top.under(name.removeprefix(top.prefix))
        return rows // (latent.shape("w_qr.weight")[0] // latent.shape("w_kr.weight")[0])
    fitting = [d for d in _USUAL_DIMS if rows % d == 0 and kv_rows % d == 0]
    if len(fitting) != 1:
        raise NoReferenceError("attention whose number of heads no file says")
    return fitting[0]


def _feed_forward(layer: Weights, config: Config) -> Function:
    if "mlp.down_proj.weight" in layer:
        own = layer.under("mlp.")
        return lambda x: mlp(x, own)
    w = layer.under("moe.")
    gate = "router.gate" if "router.gate.weight" in w else "gate"
    names = ("experts_per_tok", "num_experts_per_tok", "top_k", "training.experts_per_tok")
    chosen = min(config.get(*names, default=2), w.shape(f"{gate}.weight")[0])
    return experts(w, gate, Router(chosen=chosen))
