"""Models named ``backbone.``: state spaces alone, and Nemotron-H."""

from __future__ import annotations

import math
from collections.abc import Mapping

from blazr.bench.reference.attention import AttentionSizes, attention
from blazr.bench.reference.decoders import router_of
from blazr.bench.reference.experts import experts
from blazr.bench.reference.hf_config import Config
from blazr.bench.reference.hybrids import limits_of
from blazr.bench.reference.mamba1 import mamba1
from blazr.bench.reference.mamba2 import Mamba2Sizes, mamba2
from blazr.bench.reference.mlp import mlp
from blazr.bench.reference.model import Function, Half, ReferenceModel, layer_of, model_of, norm_of
from blazr.bench.reference.settings import Settings
from blazr.bench.reference.weights import Weights

DEFAULTS: Mapping[str, Settings] = {
    "mamba": {},
    "mamba2": {"n_groups": 8, "state_size": 128},
    "falcon_mamba": {"mixer_rms_eps": 1e-6},
    "nemotron_h": {
        "n_groups": 8,
        "ssm_state_size": 128,
        "head_dim": 128,
        "mlp_hidden_act": "relu2",
        "norm_topk_prob": True,
        "topk_group": 1,
    },
}
# The first version of transformers with a class for Nemotron-H, which cuts steps off.
_CUTS_STEPS = 5


def backbone(w: Weights, kind: str, config: Config) -> ReferenceModel:
    """A model of ``model_type`` ``kind``; ``mamba`` is also what mamba_ssm itself saves."""
    eps = config.get("layer_norm_epsilon", default=1e-5)
    at = w.under("backbone.")
    name = "embeddings.weight" if "embeddings.weight" in at else "embedding.weight"
    count = config.get("num_hidden_layers", "n_layer", "num_layers", default=0)
    if not count or kind == "nemotron_h":
        count = len({each.split(".")[2] for each in w.names if each.startswith("backbone.layers.")})

    def half(index: int) -> Half:
        layer = at.under(f"layers.{index}.")
        mixer = _mixer(layer.under("mixer."), kind, config, eps)
        return Half(before=norm_of(layer, "norm", eps), inner=mixer)

    return model_of(
        f"transformers' {kind}",
        [layer_of(half(index)) for index in range(count)],
        w,
        embedding=f"backbone.{name}",
        norm=norm_of(at, "norm_f", eps),
        head="lm_head.weight",
    )


def _mixer(w: Weights, kind: str, config: Config, eps: float) -> Function:
    """By the tensors that only one kind of layer has."""
    if "x_proj.weight" in w:
        inner = config.number("mixer_rms_eps") if kind == "falcon_mamba" else None
        return lambda x: mamba1(x, w, inner_eps=inner)
    if "A_log" in w:
        sizes = _mamba2_sizes(w, kind, config, eps)
        return lambda x: mamba2(x, w, sizes, -w["A_log"].exp())
    if "q_proj.weight" in w:
        heads = config.size("num_attention_heads")
        attend = AttentionSizes(
            heads=heads,
            kv_heads=config.get("num_key_value_heads", default=heads),
            dim=config.size("attention_head_dim", "head_dim"),
            rotation=None,
        )
        return lambda x: attention(x, w, attend)
    activation = config.word("mlp_hidden_act")
    if "gate.weight" in w:
        return experts(w, "gate", router_of("nemotron_h", config), activation)
    return lambda x: mlp(x, w, activation)


def _mamba2_sizes(w: Weights, kind: str, config: Config, eps: float) -> Mamba2Sizes:
    groups = config.get("n_groups", "mamba_n_groups", default=1)
    if kind == "mamba":  # as mamba_ssm has them
        groups = config.section("ssm_cfg").get("ngroups", default=1)
    states = config.get("ssm_state_size" if kind == "nemotron_h" else "state_size", default=0)
    if not states or kind == "mamba":
        heads = w.shape("A_log")[0]
        inner = w.shape("norm.weight")[0]
        states = (w.shape("in_proj.weight")[0] - 2 * inner - heads) // 2 // groups
    limits = limits_of(config)
    version = str(config.get("transformers_version", default="")).partition(".")[0]
    if kind == "nemotron_h":
        is_new = version.isdecimal() and int(version) >= _CUTS_STEPS
        least = config.get("time_step_min", default=0.001)
        limits = (float(least), math.inf) if is_new else limits
    if kind == "mamba":
        limits = 0.0, math.inf
    return Mamba2Sizes(states=states, groups=groups, limits=limits, eps=eps, norm_groups=groups)
