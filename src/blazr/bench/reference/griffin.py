"""RecurrentGemma: Griffin's recurrent block [arXiv:2402.19427] and local attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import softplus

from blazr.bench.reference.attention import AttentionSizes, attention
from blazr.bench.reference.convolution import causal_convolution
from blazr.bench.reference.hf_config import Config, rotation_of
from blazr.bench.reference.mlp import activate, mlp
from blazr.bench.reference.model import (
    Half,
    Layer,
    ReferenceModel,
    layer_of,
    model_of,
    norm_of,
)
from blazr.bench.reference.settings import Settings
from blazr.bench.reference.weights import Weights, linear

DEFAULTS: Mapping[str, Settings] = {
    "recurrent_gemma": {
        "hidden_activation": "gelu_pytorch_tanh",
        "partial_rotary_factor": 0.5,
        "logits_soft_cap": 30.0,
    }
}
_TURNS = ("recurrent", "recurrent", "attention")


def recurrent_gemma(w: Weights, kind: str, config: Config) -> ReferenceModel:
    """A model of ``model_type`` ``recurrent_gemma``."""
    eps = config.get("rms_norm_eps", default=1e-6)
    activation = config.word("hidden_activation")
    usual: Sequence[str] = _TURNS
    kinds = config.get("block_types", default=usual)
    heads = config.size("num_attention_heads")

    def layer(index: int) -> Layer:
        at = w.under(f"model.layers.{index}.")
        block, feed = at.under("temporal_block."), at.under("mlp_block.")
        is_local = kinds[index % len(kinds)] == "attention"
        sizes = _attention_sizes(config, heads)

        def mixer(x: Tensor) -> Tensor:
            if is_local:
                return attention(x, block, sizes)
            return recurrent_block(x, block, heads, activation)

        norms = (norm_of(at, f"{name}_pre_norm", eps, offset=1) for name in ("temporal", "channel"))
        first, second = norms
        return layer_of(
            Half(inner=mixer, before=first),
            Half(inner=lambda x: mlp(x, feed, activation), before=second),
        )

    scale = torch.tensor(config.size("hidden_size") ** 0.5, dtype=torch.bfloat16)
    return model_of(
        f"transformers' {kind}",
        [layer(index) for index in range(config.size("num_hidden_layers"))],
        w,
        embedding="model.embed_tokens.weight",
        norm=norm_of(w.under("model."), "final_norm", eps, offset=1),
        head="lm_head.weight",
        embedding_scale=float(scale),
        softcap=config.number("logits_soft_cap"),
    )


def _attention_sizes(config: Config, heads: int) -> AttentionSizes:
    dim = config.get("head_dim", default=config.size("hidden_size") // heads)
    return AttentionSizes(
        heads=heads,
        kv_heads=config.get("num_key_value_heads", default=heads),
        dim=dim,
        rotation=rotation_of(config, dim),
        window=config.get("attention_window_size", "sliding_window", default=2048),
    )


def recurrent_block(x: Tensor, w: Weights, heads: int, activation: str) -> Tensor:
    """(T, C) to (T, C)."""
    gate = activate(linear(x, w, "linear_y"), activation)
    u = causal_convolution(linear(x, w, "linear_x"), w, "conv_1d")

    def opened(name: str) -> Tensor:
        """A gate of each head's own channels."""
        weight, bias = w[f"rg_lru.{name}_gate_weight"], w[f"rg_lru.{name}_gate_bias"]
        made = torch.einsum("tni,nio->tno", u.unflatten(-1, (heads, -1)), weight) + bias
        return made.sigmoid().flatten(1)

    logs = -8 * softplus(w["rg_lru.recurrent_param"], threshold=1e9) * opened("recurrent")
    entering = opened("input") * u
    state = entering[0]  # the first token enters whole
    outputs = [state]
    for t in range(1, len(u)):
        state = logs[t].exp() * state + (1 - (2 * logs[t]).exp()).sqrt() * entering[t]
        outputs.append(state)
    return linear(torch.stack(outputs) * gate, w, "linear_out")
