"""GPT-2 and its relatives: LayerNorms, a plain MLP, and a learned vector for each place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from blazr.bench.reference.attention import attend
from blazr.bench.reference.hf_config import Config
from blazr.bench.reference.mlp import activate
from blazr.bench.reference.model import (
    Function,
    Half,
    Layer,
    ReferenceModel,
    layer_of,
    model_of,
    norm_of,
)
from blazr.bench.reference.settings import Settings
from blazr.bench.reference.weights import Weights

DEFAULTS: Mapping[str, Settings] = {
    "gpt2": {"activation_function": "gelu_new", "layer_norm_epsilon": 1e-5},
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

        def mlp(x: Tensor) -> Tensor:
            return _turned(activate(_turned(x, feed, "c_fc"), activation), feed, "c_proj")

        return _two_halves(at, eps, lambda x: attention(x, inner, index), mlp)

    return _model(w, kind, config, [layer(each) for each in range(config.size("n_layer"))])


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
