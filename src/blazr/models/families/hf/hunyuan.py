"""Hunyuan: norms of queries and keys behind the rotation, dense and with experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from blazr.models.families.hf.dense import LLAMA_BIASES
from blazr.models.families.hf.derive import Reading, Traits, read_attention
from blazr.models.families.hf.names import LAYER, MLP_NAMES, hf_rules
from blazr.models.families.hf.rope import DEFAULT_THETA, number_or, read_rope, rope_parameters
from blazr.models.families.hf.sparse import read_experts, with_shared_expert
from blazr.models.families.rules import FEED, MIXER, Rule
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import NormConfig
from blazr.nn.layers.moe import MoeConfig
from blazr.nn.layers.rope import RopeConfig

_MLP = LAYER + "mlp."


def _rope(reading: Reading, dim: int, index: int) -> RopeConfig:
    """With an ``alpha``, the base is raised once for all lengths (NTK-aware)."""
    del index
    parameters = rope_parameters(reading.reader)
    alpha = parameters.number("alpha", above=0)
    kind = parameters.text("rope_type") or parameters.text("type")
    if alpha is None or kind is None or kind.value != "dynamic":
        return read_rope(reading.reader, dim, parameters=parameters)
    theta = number_or(
        parameters, "rope_theta", number_or(reading.reader, "rope_theta", DEFAULT_THETA)
    )
    return RopeConfig(dim, theta * alpha.value ** (dim / (dim - 2)))


def _attention(reading: Reading, norm: NormConfig, index: int) -> AttentionConfig:
    """Norms behind the rotation take away what it multiplies with."""
    config = read_attention(reading, _TRAITS, norm, index)
    rope = config.rope
    if rope is None or rope.scaling is None:
        return config
    factor = rope.scaling.attention_factor
    rope = replace(rope, scaling=replace(rope.scaling, attention_factor=1.0))
    return replace(config, rope=rope, norm_eps=config.norm_eps / factor**2)


def _experts(reading: Reading, index: int) -> MoeConfig:
    del index
    experts = read_experts(reading, "intermediate_size")
    return with_shared_expert(experts, experts.intermediate_size)


def _equal_layers(own: Mapping[str, object]) -> Mapping[str, object]:
    """One number in the place of as many equal ones as there are layers."""
    lists = {key: own.get(key) for key in ("num_experts", "moe_topk", "num_shared_expert")}
    single = {
        key: each[0]
        for key, each in lists.items()
        if isinstance(each, list) and each and all(other == each[0] for other in each)
    }
    return {**own, **single}


_NAMES = [
    Rule(f"{LAYER}self_attn.{name}_layernorm.weight", f"{MIXER}{name[0]}_norm.weight")
    for name in ("query", "key")
]
_TRAITS = Traits(
    rules=hf_rules(_NAMES),
    defaults={"rms_norm_eps": 1e-5},
    attention={**LLAMA_BIASES, "qk_norm": True, "qk_norm_last": True},
    rope=_rope,
    expects={"use_qk_norm": (True,), "use_cla": (False,), "mlp_bias": (False,)},
    ignored_keys=("attention_head_dim", "cla_share_factor", "use_rotary_pos_emb"),
)
HUNYUAN_V1_DENSE = replace(_TRAITS, mixer=_attention).family("hunyuan_v1_dense")
HUNYUAN_V1_MOE = replace(
    _TRAITS,
    rules=hf_rules(
        [
            *_NAMES,
            Rule(_MLP + "gate.wg.weight", FEED + "router.weight"),
            Rule(_MLP + "shared_mlp.{p}", FEED + "shared_expert.{p}", p=MLP_NAMES),
        ]
    ),
    names={"experts_per_tok": ("moe_topk", "num_experts_per_tok")},
    prepare=_equal_layers,
    defaults={**_TRAITS.defaults, "num_experts": 1, "moe_topk": 1},
    mixer=_attention,
    feed_forward=_experts,
    expects={**_TRAITS.expects, "num_shared_expert": (1,)},
    ignored_keys=(*_TRAITS.ignored_keys, "moe_intermediate_size", "use_mixed_mlp_moe"),
).family("hunyuan_v1_moe")
