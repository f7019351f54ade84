"""OPT: a learned vector for each place, and norms before or behind both halves of a layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from blazr.bench.reference.attention import AttentionSizes, attention
from blazr.bench.reference.gpt2 import with_positions
from blazr.bench.reference.hf_config import Config
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
from blazr.bench.reference.settings import Settings
from blazr.bench.reference.weights import Weights, linear

DEFAULTS: Mapping[str, Settings] = {"opt": {"activation_function": "relu"}}
_EPS = 1e-5  # torch's own, as no config says another
_PADDING = 2  # rows of the table before that of the first place


def opt(w: Weights, kind: str, config: Config) -> ReferenceModel:
    """A model of ``model_type`` ``opt``.

    Where norms stand behind the halves, what a layer ends with here lacks the last of them: the
    next layer, or the head, begins with it.
    """
    root = "model.decoder." if "model.decoder.embed_tokens.weight" in w else "decoder."
    count = config.size("num_hidden_layers")
    heads = config.size("num_attention_heads")
    dim = config.size("hidden_size") // heads
    activation = config.word("activation_function")
    is_before = config.get("do_layer_norm_before", default=True)
    sizes = AttentionSizes(heads=heads, kv_heads=heads, dim=dim, rotation=None)

    def norm(at: Weights, name: str) -> Function:
        return norm_of(at, name, _EPS, centred=True)

    def layer(index: int) -> Layer:
        at = w.under(f"{root}layers.{index}.")
        inner = at.under("self_attn.", {"o_proj": "out_proj"})
        feed = at.under("", {"up_proj": "fc1", "down_proj": "fc2"})
        first, second = norm(at, "self_attn_layer_norm"), norm(at, "final_layer_norm")
        halves = (
            Half(inner=lambda x: attention(x, inner, sizes), before=first),
            Half(inner=lambda x: mlp(x, feed, activation), before=second),
        )
        if not is_before:
            last = norm(w.under(f"{root}layers.{index - 1}."), "final_layer_norm")
            halves = (
                replace(halves[0], before=last if index else None, kept=1.0),
                replace(halves[1], before=first, kept=1.0),
            )
        return layer_of(*halves)

    last = w.under(root if is_before else f"{root}layers.{count - 1}.")
    made = model_of(
        f"transformers' {kind}",
        [layer(index) for index in range(count)],
        w,
        embedding=root + "embed_tokens.weight",
        norm=_projected(w.under(root), "project_out", norm(last, "final_layer_norm")),
        head="lm_head.weight",
    )
    made = replace(made, embed=_projected(w.under(root), "project_in", made.embed))
    return with_positions(made, w, root + "embed_positions.weight", _PADDING)


def _projected(w: Weights, name: str, function: Function) -> Function:
    """With a projection behind it, where the file has one."""
    if f"{name}.weight" not in w:
        return function

    def apply(x: Tensor) -> Tensor:
        return linear(function(x), w, name)

    return apply
