"""What Llama 4 does otherwise than others."""

from __future__ import annotations

from torch import Tensor

from blazr.bench.reference.experts import NAMED, Router, expert_mlp, mixture, route
from blazr.bench.reference.hf_config import FULL, Config
from blazr.bench.reference.mlp import mlp
from blazr.bench.reference.model import Function
from blazr.bench.reference.weights import Weights, linear

_PARTS = ("gate", "up", "down")


def chunk(config: Config, index: int, *, rotates: bool) -> int | None:
    """Tokens of a layer's chunks, or None.

    Args:
        config: The config.
        index: The layer.
        rotates: Whether the layer has a rotation.
    """
    size = config.get("attention_chunk_size", default=0)
    usual = "chunked_attention" if size and rotates else FULL
    return size if (config.layer_type(index) or usual) != FULL else None


def growth(config: Config) -> tuple[float, float] | None:
    """By how much, and with how many tokens, queries grow in layers without a rotation."""
    if not config.get("attn_temperature_tuning", default=True):
        return None
    return config.get("attn_scale", default=0.1), float(config.get("floor_scale", default=8192))


def feed_forward(layer: Weights, kind: str, config: Config) -> Function:
    """An MLP, or experts that are given weighted tokens."""
    del kind
    w, activation = layer.under("feed_forward."), config.get("hidden_act", default="silu")
    if "router.weight" not in w:
        return lambda x: mlp(x, w, activation)
    count = config.get("num_experts_per_tok", default=1)
    router = Router(chosen=count, scoring="sigmoid", normalise=False, by_logits=True)

    def expert(e: int, rows: Tensor) -> Tensor:
        return expert_mlp(rows, *_matrices(w, e), activation)

    def apply(x: Tensor) -> Tensor:
        weights = route(linear(x, w, "router"), router)
        shared = mlp(x, w.under("shared_expert."), activation)
        return shared + mixture(x, weights, expert, weighs_input=True)

    return apply


def _matrices(w: Weights, e: int) -> tuple[Tensor, Tensor, Tensor]:
    """An expert's, (out, in): stored (in, out) in one tensor, or one by one by either name."""
    if "experts.gate_up_proj" in w:
        only = slice(e, e + 1)
        gate, up = w.rows("experts.gate_up_proj", only)[0].T.chunk(2)
        return gate, up, w.rows("experts.down_proj", only)[0].T
    is_numbered = NAMED[0].format(e) in w
    names = NAMED if is_numbered else [f"experts.{p}_projs.{{}}.weight" for p in _PARTS]
    gate, up, down = (w[name.format(e)] for name in names)
    return gate, up, down
