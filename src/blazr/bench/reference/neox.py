"""The decoders of GPT-NeoX, Falcon, GPT-J and CodeGen: both halves may see a layer's input."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from blazr.bench.reference.attention import attend
from blazr.bench.reference.hf_config import Config, rotation_of
from blazr.bench.reference.mlp import mlp
from blazr.bench.reference.model import (
    Half,
    Layer,
    ReferenceModel,
    layer_of,
    model_of,
    norm_of,
    parallel_layer,
)
from blazr.bench.reference.refusal import NoReferenceError
from blazr.bench.reference.rotation import rotate
from blazr.bench.reference.settings import Settings
from blazr.bench.reference.weights import Weights, linear

_GPTJ: Settings = {"layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}
DEFAULTS: Mapping[str, Settings] = {
    "gpt_neox": {"layer_norm_eps": 1e-5, "hidden_act": "gelu"},
    "falcon": {"layer_norm_epsilon": 1e-5, "activation": "gelu"},
    "gptj": _GPTJ,
    "codegen": _GPTJ,
}
_ROOT = "gpt_neox."


def gpt_neox(w: Weights, kind: str, config: Config) -> ReferenceModel:
    """A model of ``model_type`` ``gpt_neox``, with the keys that only this type has."""
    eps = config.get("layer_norm_eps", default=0.0)
    heads = config.size("num_attention_heads")
    dim = config.size("hidden_size") // heads
    names = {
        "rope_theta": config.get("rotary_emb_base", "rope_theta", default=10_000.0),
        "partial_rotary_factor": config.get("rotary_pct", "partial_rotary_factor", default=0.25),
    }
    rotation = rotation_of(Config({**config.own, **names}, {}), dim)
    activation = config.word("hidden_act")

    def attention(x: Tensor, at: Weights) -> Tensor:
        q, k, v = linear(x, at, "query_key_value").unflatten(-1, (heads, 3, dim)).unbind(2)
        mixed = attend(rotate(q, rotation), rotate(k, rotation), v, dim**-0.5)
        return linear(mixed.flatten(1), at, "dense")

    def layer(index: int) -> Layer:
        at = w.under(f"{_ROOT}layers.{index}.")
        inner = at.under("attention.")
        feed = at.under("mlp.", {"up_proj": "dense_h_to_4h", "down_proj": "dense_4h_to_h"})
        halves = (
            Half(
                inner=lambda x: attention(x, inner),
                before=norm_of(at, "input_layernorm", eps),
            ),
            Half(
                inner=lambda x: mlp(x, feed, activation),
                before=norm_of(at, "post_attention_layernorm", eps),
            ),
        )
        is_parallel = config.get("use_parallel_residual", default=True)
        return parallel_layer(*halves) if is_parallel else layer_of(*halves)

    return model_of(
        f"transformers' {kind}",
        [layer(index) for index in range(config.size("num_hidden_layers"))],
        w,
        embedding=_ROOT + "embed_in.weight",
        norm=norm_of(w.under(_ROOT), "final_layer_norm", eps),
        head="embed_out.weight",
    )


def falcon(w: Weights, kind: str, config: Config) -> ReferenceModel:
    """A model of ``model_type`` ``falcon``, of the first architecture or the new one.

    Raises:
        NoReferenceError: Positions are told by ALiBi.
    """
    if config.get("alibi", default=False):
        raise NoReferenceError("a Falcon with ALiBi")
    root = "transformer."
    eps = config.get("layer_norm_epsilon", default=0.0)
    heads = config.size("num_attention_heads")
    dim = config.size("hidden_size") // heads
    is_new = config.get("new_decoder_architecture", default=False)
    is_single = not is_new and config.get("multi_query", default=True)
    groups = 1 if is_single else config.get("num_kv_heads", default=heads)
    is_parallel = is_new or config.get("parallel_attn", default=True)
    rotation = rotation_of(config, dim)
    activation = config.word("activation")

    def attention(x: Tensor, at: Weights) -> Tensor:
        joined = linear(x, at, "query_key_value").unflatten(-1, (groups, -1, dim))
        q = joined[:, :, :-2].flatten(1, 2)
        k, v = (joined[:, :, each].repeat_interleave(heads // groups, 1) for each in (-2, -1))
        mixed = attend(rotate(q, rotation), rotate(k, rotation), v, dim**-0.5)
        return linear(mixed.flatten(1), at, "dense")

    def layer(index: int) -> Layer:
        at = w.under(f"{root}h.{index}.")
        inner = at.under("self_attention.")
        feed = at.under("mlp.", {"up_proj": "dense_h_to_4h", "down_proj": "dense_4h_to_h"})
        first, second = "input_layernorm", "post_attention_layernorm"
        if "ln_attn.weight" in at:
            first, second = "ln_attn", "ln_mlp"
        elif is_parallel:
            second = first
        halves = (
            Half(inner=lambda x: attention(x, inner), before=norm_of(at, first, eps)),
            Half(inner=lambda x: mlp(x, feed, activation), before=norm_of(at, second, eps)),
        )
        return parallel_layer(*halves) if is_parallel else layer_of(*halves)

    return model_of(
        f"transformers' {kind}",
        [layer(index) for index in range(config.size("num_hidden_layers"))],
        w,
        embedding=root + "word_embeddings.weight",
        norm=norm_of(w.under(root), "ln_f", eps),
        head="lm_head.weight",
    )


def gptj(w: Weights, kind: str, config: Config) -> ReferenceModel:
    """A model of ``model_type`` ``gptj`` or ``codegen``, whose halves share a norm."""
    root = "transformer." if "transformer.wte.weight" in w else ""
    eps = config.get("layer_norm_epsilon", default=0.0)
    heads = config.size("n_head")
    dim = config.size("n_embd") // heads
    rotation = rotation_of(config, config.get("rotary_dim", default=64), interleaved=True)
    activation = config.word("activation_function")

    def inputs(x: Tensor, at: Weights) -> list[Tensor]:
        """Queries, keys and values, (T, H, D) each."""
        if kind == "gptj":
            parts = [linear(x, at, f"{each}_proj") for each in "qkv"]
        else:  # of four devices, each of which has queries, values and keys
            q, v, k = linear(x, at, "qkv_proj").unflatten(-1, (4, 3, -1)).unbind(2)
            parts = [each.flatten(1) for each in (q, k, v)]
        return [part.unflatten(-1, (heads, dim)) for part in parts]

    def attention(x: Tensor, at: Weights) -> Tensor:
        q, k, v = inputs(x, at)
        mixed = attend(rotate(q, rotation), rotate(k, rotation), v, dim**-0.5)
        return linear(mixed.flatten(1), at, "out_proj")

    def layer(index: int) -> Layer:
        at = w.under(f"{root}h.{index}.")
        inner = at.under("attn.")
        feed = at.under("mlp.", {"up_proj": "fc_in", "down_proj": "fc_out"})
        norm = norm_of(at, "ln_1", eps)
        return parallel_layer(
            Half(inner=lambda x: attention(x, inner), before=norm),
            Half(inner=lambda x: mlp(x, feed, activation), before=norm),
        )

    return model_of(
        f"transformers' {kind}",
        [layer(index) for index in range(config.size("n_layer"))],
        w,
        embedding=root + "wte.weight",
        norm=norm_of(w.under(root), "ln_f", eps),
        head="lm_head.weight",
    )
