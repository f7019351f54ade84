"""GPT-2 and its relatives: LayerNorms, a plain MLP, and a learned vector for each place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from blazr.bench.reference.attention import AttentionSizes, attend
from blazr.bench.reference.attention import attention as whole_attention
from blazr.bench.reference.hf_config import Config
from blazr.bench.reference.mlp import activate, mlp
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
from blazr.bench.reference.settings import Settings
from blazr.bench.reference.weights import Weights, linear

_GPT2: Settings = {"activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}
DEFAULTS: Mapping[str, Settings] = {
    "gpt2": _GPT2,
    "gpt_bigcode": {**_GPT2, "activation_function": "gelu_pytorch_tanh"},
    "gpt_neo": _GPT2,
}


def gpt2(w: Weights, kind: str, config: Config) -> ReferenceModel:
    """A model of ``model_type`` ``gpt2``, whose matrices are (in, out)."""
    root = _root(w)
    eps = config.get("layer_norm_epsilon", default=0.0)
    heads = config.size("n_head")
    activation = config.word("activation_function")

    def attention(x: Tensor, at: Weights, index: int) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (heads, -1)) for part in _turned(x, at, "c_attn").chunk(3, -1)
        )
        scale = q.shape[-1] ** -0.5 if config.get("scale_attn_weights", default=True) else 1.0
        if config.get("scale_attn_by_inverse_layer_idx", default=False):
            scale /= index + 1
        return _turned(attend(q, k, v, scale).flatten(1), at, "c_proj")

    def layer(index: int) -> Layer:
        at = w.under(f"{root}h.{index}.")
        inner, feed = at.under("attn."), at.under("mlp.")

        def feed_forward(x: Tensor) -> Tensor:
            return _turned(activate(_turned(x, feed, "c_fc"), activation), feed, "c_proj")

        return _two_halves(at, eps, lambda x: attention(x, inner, index), feed_forward)

    return _model(w, kind, config, [layer(each) for each in range(config.size("n_layer"))])


def gpt_bigcode(w: Weights, kind: str, config: Config) -> ReferenceModel:
    """A model of ``model_type`` ``gpt_bigcode``: queries may share one key and value."""
    eps = config.get("layer_norm_epsilon", default=0.0)
    heads = config.size("n_head")
    is_shared = config.get("multi_query", default=True)

    def attention(x: Tensor, at: Weights) -> Tensor:
        joined = linear(x, at, "c_attn")
        dim = joined.shape[-1] // (heads + 2 if is_shared else 3 * heads)
        parts = joined.unflatten(-1, (1 if is_shared else heads, -1, dim))
        q = parts[:, :, :-2].flatten(1, 2)
        k, v = (parts[:, :, each].expand(-1, heads, -1) for each in (-2, -1))
        scale = dim**-0.5 if config.get("scale_attn_weights", default=True) else 1.0
        return linear(attend(q, k, v, scale).flatten(1), at, "c_proj")

    def layer(index: int) -> Layer:
        at = w.under(f"{_root(w)}h.{index}.")
        inner = at.under("attn.")
        return _two_halves(at, eps, lambda x: attention(x, inner), _plain_mlp(at, config))

    return _model(w, kind, config, [layer(each) for each in range(config.size("n_layer"))])


def gpt_neo(w: Weights, kind: str, config: Config) -> ReferenceModel:
    """A model of ``model_type`` ``gpt_neo``: scores are not scaled, and some layers see less.

    Raises:
        NoReferenceError: Its config does not say which.
    """
    eps = config.get("layer_norm_epsilon", default=0.0)
    heads = config.size("num_heads")
    dim = config.size("hidden_size") // heads
    window = config.get("window_size", default=256)

    def kind_of(index: int) -> str:
        found = config.layer_type(index, "attention_layers")
        if found is None:
            raise NoReferenceError("a GPT-Neo that does not list its layers")
        return found

    def layer(index: int) -> Layer:
        at = w.under(f"{_root(w)}h.{index}.")
        inner = at.under("attn.attention.", {"o_proj": "out_proj"})
        sizes = AttentionSizes(
            heads=heads,
            kv_heads=heads,
            dim=dim,
            rotation=None,
            scale=1.0,
            window=window if kind_of(index) == "local" else None,
        )
        mlp = _plain_mlp(at, config)
        return _two_halves(at, eps, lambda x: whole_attention(x, inner, sizes), mlp)

    return _model(w, kind, config, [layer(each) for each in range(config.size("num_layers"))])


def _plain_mlp(at: Weights, config: Config) -> Function:
    feed = at.under("mlp.", {"up_proj": "c_fc", "down_proj": "c_proj"})
    activation = config.word("activation_function")
    return lambda x: mlp(x, feed, activation)


def _turned(x: Tensor, w: Weights, name: str) -> Tensor:
    return x @ w[name + ".weight"] + w[name + ".bias"]


def _two_halves(at: Weights, eps: float, mixer: Function, feed: Function) -> Layer:
    return layer_of(
        Half(inner=mixer, before=norm_of(at, "ln_1", eps)),
        Half(inner=feed, before=norm_of(at, "ln_2", eps)),
    )


def _root(w: Weights) -> str:
    """What all names begin with; nothing where a model was saved without its head."""
    return "transformer." if "transformer.wte.weight" in w else ""


def _model(w: Weights, kind: str, config: Config, layers: list[Layer]) -> ReferenceModel:
    root = _root(w)
    made = model_of(
        f"transformers' {kind}",
        layers,
        w,
        embedding=root + "wte.weight",
        norm=norm_of(w.under(root), "ln_f", config.get("layer_norm_epsilon", default=0.0)),
        head="lm_head.weight",
    )
    return with_positions(made, w, root + "wpe.weight")


def with_positions(model: ReferenceModel, w: Weights, table: str, first: int = 0) -> ReferenceModel:
    """A model that adds the rows of a table to embedded tokens, from the first place's on."""

    def embed(ids: Tensor) -> Tensor:
        return model.embed(ids) + w.rows(table, slice(first, first + len(ids)))

    return replace(model, embed=embed)
