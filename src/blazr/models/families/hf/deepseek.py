"""DeepSeek: latent attention, and experts behind the first dense layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from blazr.models.families.hf.derive import BEHIND, Reading, Traits
from blazr.models.families.hf.rope import mscale, read_rope, rope_parameters
from blazr.models.families.hf.sparse import (
    ROUTED_EXPERTS,
    read_experts,
    read_groups,
    sigmoid_experts,
    with_shared_expert,
)
from blazr.nn.layers.base import FeedForwardConfig
from blazr.nn.layers.mla import DeepseekMlaConfig


def read_latent_attention(
    reading: Reading,
    sizes: Mapping[str, int] | None = None,
    *,
    is_rotated: bool = True,
    interleaved: bool = True,
) -> DeepseekMlaConfig:
    """Latent attention [arXiv:2405.04434].

    Args:
        reading: The config.
        sizes: Sizes by key, where the config is silent.
        is_rotated: Whether positions are told by rotation.
        interleaved: Whether channels rotated together lie side by side, where the config is silent.

    Raises:
        ConfigError: Something is missing, contradicts itself, or is of an unknown kind.
    """

    def size(name: str) -> int:
        return reading.size(name, (sizes or {}).get(name))

    reader = reading.reader
    plain = size("qk_nope_head_dim")
    rotated = size("qk_rope_head_dim")
    scale = (plain + rotated) ** -0.5
    rope = None
    if is_rotated:
        parameters = rope_parameters(reader)
        rope = read_rope(
            reader,
            rotated,
            parameters=parameters,
            interleaved=reader.is_true("rope_interleave", default=interleaved),
        )
        weight = parameters.number("mscale_all_dim")
        if rope.scaling is not None and weight is not None and weight.value:
            scale *= mscale(rope.scaling.factor, weight.value) ** 2
    has_query_latent = reader.integer("q_lora_rank", minimum=1) is not None
    return DeepseekMlaConfig(
        hidden_size=reading.hidden_size,
        num_heads=reading.size("num_attention_heads"),
        head_dim=plain,
        rope_dim=rotated,
        kv_latent=size("kv_lora_rank"),
        q_latent=reading.size("q_lora_rank") if has_query_latent else None,
        rope=rope,
        v_head_dim=size("v_head_dim"),
        bias=reading.flag("attention_bias"),
        attention_multiplier=scale,
    )


def _softmax_experts(reading: Reading, index: int) -> FeedForwardConfig | None:
    """DeepSeek-V2's [arXiv:2405.04434]."""
    first = reading.size("first_k_dense_replace", 0, minimum=0)
    reading.reader.expect("topk_method", "greedy", "group_limited_greedy")
    limited = reading.reader.raw.get("topk_method") == "group_limited_greedy"
    experts = read_experts(reading)
    shared = reading.size("n_shared_experts", 2, minimum=0)
    is_dense = index < first
    has_groups = limited and not is_dense
    groups = read_groups(reading, judged_by=1, fills_up=True) if has_groups else None
    chosen = experts.experts_per_token
    if groups is not None:  # what is taken beyond the best groups has weight 0: it is left out
        chosen = min(chosen, experts.num_experts // groups.count * groups.kept)
    reading.reader.mark("n_group", "topk_group")  # without limits nobody looks at them
    experts = replace(
        experts,
        experts_per_token=chosen,
        norm_topk_prob=False,
        dense_bias=reading.flag("mlp_bias"),
        groups=groups,
        routed_scaling_factor=reading.number("routed_scaling_factor", 1.0),
    )
    return None if is_dense else with_shared_expert(experts, shared * experts.intermediate_size)


def _minicpm_attention(reading: Reading) -> DeepseekMlaConfig:
    wide = reading.hidden_size // reading.size("num_attention_heads")
    return read_latent_attention(reading, {"v_head_dim": wide}, interleaved=False)


def _minicpm_residual(reading: Reading) -> float:
    """A layer's share, the smaller the more layers there are; all of it where nothing is said."""
    root: float = reading.num_layers**0.5
    return (reading.optional_number("scale_depth") or root) / root


def _minicpm_numbers(reading: Reading) -> dict[str, float | None]:
    base = reading.optional_number("dim_model_base") or reading.hidden_size
    return {
        "embedding_multiplier": reading.number("scale_emb", 12.0),
        "logits_scaling": reading.hidden_size / base,
    }


DEEPSEEK_V2 = Traits(
    names=ROUTED_EXPERTS,
    mixer=lambda reading, *_: read_latent_attention(reading),
    mlp={"bias": "mlp_bias"},
    feed_forward=_softmax_experts,
    expects={"scoring_func": ("softmax",), "moe_layer_freq": (1,)},
).family("deepseek_v2")


_LATENT_SIZES = {
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


def _sarvam_config(own: Mapping[str, object]) -> Mapping[str, object]:
    """DeepSeek's YaRN is anybody's."""
    scaling = own.get("rope_scaling")
    if not isinstance(scaling, Mapping):
        return own
    said = {scaling.get("type"), scaling.get("rope_type")}
    if "deepseek_yarn" not in said:
        return own
    rest = {key: each for key, each in scaling.items() if key not in {"type", "rope_type"}}
    return {**own, "rope_scaling": {**rest, "rope_type": "yarn"}}


_DEEPSEEK_V3 = Traits(
    names=ROUTED_EXPERTS,
    defaults={
        "n_group": 8,
        "topk_group": 4,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 3,
    },
    mixer=lambda reading, *_: read_latent_attention(reading),
    feed_forward=sigmoid_experts,
    expects={
        "scoring_func": ("sigmoid",),
        "moe_layer_freq": (1,),
        "topk_method": ("noaux_tc",),
    },
    mtp=BEHIND,
)
DEEPSEEK_V3 = _DEEPSEEK_V3.family("deepseek_v3")
SARVAM_MLA = replace(
    _DEEPSEEK_V3,
    names={
        **ROUTED_EXPERTS,
        "n_shared_experts": ("n_shared_experts", "num_shared_experts"),
    },
    defaults={
        **_DEEPSEEK_V3.defaults,
        **_LATENT_SIZES,
        "n_routed_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    },
    prepare=_sarvam_config,
    expects={**_DEEPSEEK_V3.expects, "score_function": ("sigmoid",)},
    ignored_keys=("q_head_dim",),
).family("sarvam_mla")
YOUTU = Traits(
    defaults=_LATENT_SIZES,
    mixer=lambda reading, *_: read_latent_attention(reading),
).family("youtu")
GLM4_MOE_LITE = Traits(
    names=ROUTED_EXPERTS,
    defaults={
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.8,
        "first_k_dense_replace": 1,
        "rms_norm_eps": 1e-5,
        "q_lora_rank": 768,
    },
    mixer=lambda reading, *_: read_latent_attention(reading),
    feed_forward=sigmoid_experts,
    expects={"topk_method": ("noaux_tc",)},
    mtp=BEHIND,
).family("glm4_moe_lite")
MINICPM3 = Traits(
    defaults={
        "rms_norm_eps": 1e-5,
        "kv_lora_rank": 256,
        "q_lora_rank": 768,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "scale_depth": 1.4,
        "dim_model_base": 256,
    },
    mixer=lambda reading, *_: _minicpm_attention(reading),
    mlp={"bias": "mlp_bias"},
    model_numbers=_minicpm_numbers,
    residual_multiplier=_minicpm_residual,
).family("minicpm3")
