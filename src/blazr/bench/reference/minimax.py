"""MiniMax-Text-01 and M1: lightning attention between layers of attention."""

from __future__ import annotations

from collections.abc import Mapping

from blazr.bench.reference.attention import attention
from blazr.bench.reference.decoders import MINIMAX, attention_sizes, feed_forward, stack
from blazr.bench.reference.hf_config import Config
from blazr.bench.reference.lightning import LightningSizes, minimax_attention, minimax_rates
from blazr.bench.reference.model import Function, ReferenceModel
from blazr.bench.reference.settings import Settings
from blazr.bench.reference.weights import Weights

_MINIMAX: Settings = {
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-5,
}
DEFAULTS: Mapping[str, Settings] = dict.fromkeys(MINIMAX, _MINIMAX)


def minimax(w: Weights, kind: str, config: Config) -> ReferenceModel:
    """A model of one of its types."""
    return stack(w, kind, config, mixer_of=_mixer, feed_forward_of=feed_forward)


def _mixer(at: Weights, kind: str, config: Config, index: int, eps: float) -> Function:
    w = at.under("self_attn.")
    if "output_gate.weight" not in w:
        sizes = attention_sizes(kind, config, index, eps)
        return lambda x: attention(x, w, sizes)
    heads = config.size("num_attention_heads")
    lightning = LightningSizes(
        rates=minimax_rates(heads, index, config.size("num_hidden_layers")),
        eps=1e-6,
        activation=config.get("hidden_act", default="silu"),
    )
    return lambda x: minimax_attention(x, w, lightning)
