"""Gemma 4, from transformers' modeling_gemma4.py.

The last layers attend to keys of earlier ones, and every layer takes a vector of each token. A
model keeps both from its embedding to its last layer, so its layers run in their order.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from blazr.bench.reference.attention import attend
from blazr.bench.reference.experts import Router, expert_mlp, mixture, route
from blazr.bench.reference.hf_config import FULL, SLIDING, Config, rotation_of
from blazr.bench.reference.mlp import activate, mlp
from blazr.bench.reference.model import Function, Layer, ReferenceModel, norm_of
from blazr.bench.reference.norms import rms_norm
from blazr.bench.reference.rotation import Rotation, fixed, plain, rotate
from blazr.bench.reference.settings import Settings
from blazr.bench.reference.weights import Weights, linear

_ROOTS = ("model.", "language_model.model.", "model.language_model.")
_GEMMA4: Settings = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 512,
    "hidden_size_per_layer_input": 256,
    "rope_parameters": {
        SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
        FULL: {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.25,
            "rope_theta": 1_000_000.0,
        },
    },
}
DEFAULTS: Mapping[str, Settings] = {
    "gemma4_text": _GEMMA4,
    "gemma4_unified_text": {
        **_GEMMA4,
        "sliding_window": 1024,
        "hidden_size_per_layer_input": 0,
    },
}


class _Gemma4:
    """A model, and what it keeps of the tokens that it reads.

    Args:
        w: Its tensors.
        config: Its config.
    """

    def __init__(self, w: Weights, config: Config) -> None:
        self.w = w
        self.config = config
        self.eps = config.get("rms_norm_eps", default=1e-6)
        self.activation = config.word("hidden_activation")
        count = config.size("num_hidden_layers")
        kinds = [
            config.layer_type(index) or (FULL if (index + 1) % 6 == 0 else SLIDING)
            for index in range(count)
        ]
        self.kinds = [*kinds[:-1], FULL]
        self.first_sharing = count - config.get("num_kv_shared_layers", default=0)
        self.keys: dict[str, tuple[Tensor, Tensor]] = {}
        self.vectors = torch.empty(0)

    def norm(self, w: Weights, name: str) -> Function:
        """A norm by its name."""
        return norm_of(w, name, self.eps)

    def embed(self, ids: Tensor) -> Tensor:
        """(T) to (T, C); each layer's vectors of these tokens are kept."""
        width = self.config.size("hidden_size")
        x = self.w.rows("embed_tokens.weight", ids) * width**0.5
        size = self.config.get("hidden_size_per_layer_input", default=0)
        if size:
            known = self.w.shape("embed_tokens_per_layer.weight")[0]
            own = self.w.rows("embed_tokens_per_layer.weight", ids.where(ids < known, 0))
            made = linear(x, self.w, "per_layer_model_projection") * width**-0.5
            normed = self.norm(self.w, "per_layer_projection_norm")(made.unflatten(-1, (-1, size)))
            self.vectors = (normed + own.unflatten(-1, (-1, size)) * size**0.5) * 0.5**0.5
        return x

    def layer(self, index: int) -> Layer:
        """A layer."""
        w = self.w.under(f"layers.{index}.")
        attention = self.attention(w.under("self_attn."), index)
        feed = self.feed_forward(w)
        names = ("input", "post_attention", "post_feedforward")
        before, behind, last = (self.norm(w, f"{name}_layernorm") for name in names)

        def apply(x: Tensor, embedded: Tensor) -> Tensor:
            del embedded
            x = x + behind(attention(before(x)))
            x = x + last(feed(x))
            if "per_layer_input_gate.weight" in w:
                inner = activate(linear(x, w, "per_layer_input_gate"), self.activation)
                added = linear(inner * self.vectors[:, index], w, "per_layer_projection")
                x = x + self.norm(w, "post_per_layer_input_norm")(added)
            return x * w["layer_scalar"]

        return apply

    def attention(self, w: Weights, index: int) -> Function:
        """A layer's attention, whose keys and values may be those of an earlier one."""
        config, kind = self.config, self.kinds[index]
        own = config.section("per_layer_config").section(str(index))
        dim = own.get("head_dim", default=config.size("head_dim"))
        if not config.says("per_layer_config") and kind == FULL:
            dim = config.get("global_head_dim", default=512)
        rotation = _rotation(config, kind, dim)
        window = config.window() if kind == SLIDING else None

        def heads(x: Tensor, name: str) -> Tensor:
            return linear(x, w, f"{name}_proj").unflatten(-1, (-1, dim))

        def apply(x: Tensor) -> Tensor:
            q = rotate(self.norm(w, "q_norm")(heads(x, "q")), rotation)
            if index < self.first_sharing:
                k = heads(x, "k")
                v = heads(x, "v") if "v_proj.weight" in w else k
                k = rotate(self.norm(w, "k_norm")(k), rotation)
                self.keys[kind] = k, rms_norm(v, None, self.eps)
            pair = self.keys[kind]
            k, v = (each.repeat_interleave(q.shape[1] // each.shape[1], 1) for each in pair)
            return linear(attend(q, k, v, 1.0, window=window).flatten(1), w, "o_proj")

        return apply

    def feed_forward(self, w: Weights) -> Function:
        """An MLP, and perhaps experts beside it."""
        before, inner = self.norm(w, "pre_feedforward_layernorm"), w.under("mlp.")
        if "router.proj.weight" not in w:
            return lambda x: mlp(before(x), inner, self.activation)
        router = Router(chosen=self.config.size("top_k_experts"))

        def expert(e: int, rows: Tensor) -> Tensor:
            gate, up = w.rows("experts.gate_up_proj", slice(e, e + 1))[0].chunk(2)
            down = w.rows("experts.down_proj", slice(e, e + 1))[0]
            return expert_mlp(rows, gate, up, down, self.activation)

        def apply(x: Tensor) -> Tensor:
            dense = mlp(before(x), inner, self.activation)
            seen = rms_norm(x, w["router.scale"], self.eps) * x.shape[-1] ** -0.5
            weights = route(linear(seen, w, "router.proj"), router) * w["router.per_expert_scale"]
            sparse = mixture(self.norm(w, "pre_feedforward_layernorm_2")(x), weights, expert)
            first = self.norm(w, "post_feedforward_layernorm_1")(dense)
            return first + self.norm(w, "post_feedforward_layernorm_2")(sparse)

        return apply


def gemma4(w: Weights, kind: str, config: Config) -> ReferenceModel:
    """A model of ``model_type`` ``kind``."""
    root = next((r for r in _ROOTS if f"{r}embed_tokens.weight" in w), _ROOTS[0])
    model = _Gemma4(w.under(root), config)
    cap = config.number("final_logit_softcapping")
    heads = ("lm_head.weight", "language_model.lm_head.weight", f"{root}embed_tokens.weight")
    head = next(name for name in heads if name in w)

    def logits(hidden: Tensor) -> Tensor:
        scores = model.norm(model.w, "norm")(hidden) @ w[head].T
        return scores if cap is None else cap * torch.tanh(scores / cap)

    return ReferenceModel(
        kind=f"transformers' {kind}",
        embed=model.embed,
        layers=[model.layer(index) for index in range(len(model.kinds))],
        logits=logits,
    )


def _rotation(config: Config, kind: str, dim: int) -> Rotation:
    parameters = config.rope(kind)
    if parameters.text("rope_type") != "proportional":
        return rotation_of(config, dim, parameters)
    theta = parameters.get("rope_theta", default=10_000.0)
    share = parameters.get("partial_rotary_factor", default=1.0)
    speeds = plain(dim, theta, parameters.get("factor", default=1.0))
    speeds[int(share * dim // 2) :] = 0
    return Rotation(fixed(speeds))
