"""Small configurations of every kind of mixer and feed-forward, and mixes of them."""

from __future__ import annotations

import math
from dataclasses import replace

from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import FeedForwardConfig, MixerConfig, NormConfig
from blazr.nn.layers.gated_delta import GatedDeltaConfig, KimiDeltaConfig, OlmoDeltaConfig
from blazr.nn.layers.lightning import LightningConfig
from blazr.nn.layers.mamba1 import HeadedMamba1Config, Mamba1Config
from blazr.nn.layers.mamba2 import Mamba2Config
from blazr.nn.layers.mamba3 import Mamba3Config
from blazr.nn.layers.mla import DeepseekMlaConfig, MlaConfig
from blazr.nn.layers.mlp import XIELU, MlpConfig
from blazr.nn.layers.moe import MoeConfig
from blazr.nn.layers.parallel import (
    FeedForwardPart,
    ParallelFeedForwardConfig,
    ParallelMixerConfig,
    ParallelPart,
)
from blazr.nn.layers.rg_lru import RgLruConfig
from blazr.nn.layers.rope import RopeConfig, RopeScaling
from blazr.nn.layers.shared_block import BlockConfig, SharedBlockConfig
from blazr.nn.layers.short_conv import ShortConvConfig
from blazr.nn.operands.attention import AttentionTemperature
from blazr.nn.operands.experts import ExpertGroups
from blazr.nn.operands.step import GRID

HIDDEN = 24
NORM_EPS = 0.1  # the norm of a few channels that are all small would blow up every rounding

_INTERLEAVED = RopeConfig(4, interleaved=True)
_BACKWARDS = RopeConfig(6, backwards=True)
_MLA_DEEPSEEK = DeepseekMlaConfig(
    hidden_size=HIDDEN,
    num_heads=3,
    head_dim=8,
    rope_dim=4,
    kv_latent=10,
    q_latent=14,
    rope=_INTERLEAVED,
    v_head_dim=6,
    bias=True,
    attention_multiplier=0.4,
)

MIXER_EXAMPLES: dict[str, MixerConfig] = {
    "gqa": AttentionConfig(
        hidden_size=HIDDEN, num_heads=4, num_kv_heads=2, head_dim=6, rope=RopeConfig(6)
    ),
    "gqa_axes": AttentionConfig(
        hidden_size=HIDDEN,
        num_heads=4,
        num_kv_heads=2,
        head_dim=10,
        rope=RopeConfig(10, 50.0, axes=(0, 1, 2, 1, 2)),
    ),
    "gqa_values_are_keys": AttentionConfig(
        hidden_size=HIDDEN,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        rope=RopeConfig(8, scaling=RopeScaling(kind="factors", factors=(1.0, *3 * (math.inf,)))),
        qk_norm=True,
        v_norm=True,
        values_are_keys=True,
        attention_multiplier=1.0,
        norm_eps=NORM_EPS,
    ),
    "gqa_window": AttentionConfig(
        hidden_size=HIDDEN,
        num_heads=3,
        num_kv_heads=1,
        head_dim=8,
        rope=RopeConfig(8, 500.0),
        qkv_bias=True,
        qk_norm=True,
        sliding_window=37,
    ),
    "gqa_head_norms": AttentionConfig(
        hidden_size=HIDDEN,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        rope=RopeConfig(4),
        qk_norm=True,
        qk_layer_norm=True,
    ),
    "gqa_last_norms": AttentionConfig(
        hidden_size=HIDDEN,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        rope=RopeConfig(8),
        qk_norm=True,
        qk_norm_last=True,
        gate_proj=True,
    ),
    "gqa_capped": AttentionConfig(
        hidden_size=HIDDEN,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        rope=RopeConfig(5, interleaved=True),
        qk_norm=True,
        qk_norm_all_heads=True,
        norm_unit_offset=True,
        o_bias=True,
        sliding_window=70,
        attention_multiplier=0.5,
        attn_logit_softcap=2.0,
    ),
    "gqa_sinks": AttentionConfig(
        hidden_size=HIDDEN,
        num_heads=6,
        num_kv_heads=3,
        head_dim=4,
        rope=RopeConfig(4, 1000.0, RopeScaling(kind="yarn", factor=4.0, original_max_seq_len=32)),
        sliding_window=41,
        sinks=True,
    ),
    "gqa_temperature": AttentionConfig(
        hidden_size=HIDDEN,
        num_heads=4,
        num_kv_heads=2,
        head_dim=6,
        rope=RopeConfig(6, temperature=AttentionTemperature(0.7, 20)),
        attn_logit_softcap=3.0,
    ),
    "gqa_chunks": AttentionConfig(
        hidden_size=HIDDEN,
        num_heads=4,
        num_kv_heads=2,
        head_dim=6,
        rope=RopeConfig(6, interleaved=True),
        qk_norm=True,
        qk_norm_weight=False,
        chunk_size=GRID,
    ),
    "gqa_growing": AttentionConfig(
        hidden_size=HIDDEN,
        num_heads=4,
        num_kv_heads=2,
        head_dim=6,
        rope=None,
        chunk_size=2 * GRID,
        temperature=AttentionTemperature(0.7, 20),
    ),
    "gqa_softplus": AttentionConfig(
        hidden_size=HIDDEN,
        num_heads=4,
        num_kv_heads=2,
        head_dim=6,
        rope=RopeConfig(4),
        qk_norm=True,
        head_gate=True,
        softplus_gate=True,
    ),
    "gqa_short_values": AttentionConfig(
        hidden_size=HIDDEN,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        rope=RopeConfig(4),
        sinks=True,
        sliding_window=37,
        v_head_dim=6,
        v_multiplier=0.7,
        gate_proj=True,
        softplus_gate=True,
    ),
    "gqa_backwards": AttentionConfig(
        hidden_size=HIDDEN, num_heads=4, num_kv_heads=2, head_dim=6, rope=_BACKWARDS
    ),
    "gqa_nope": AttentionConfig(
        hidden_size=HIDDEN, num_heads=3, num_kv_heads=3, head_dim=6, rope=None
    ),
    "gqa_gated": AttentionConfig(
        hidden_size=HIDDEN,
        num_heads=4,
        num_kv_heads=2,
        head_dim=6,
        rope=RopeConfig(2),
        qk_norm=True,
        norm_unit_offset=True,
        output_gate=True,
    ),
    "gqa_head_gate": AttentionConfig(
        hidden_size=HIDDEN,
        num_heads=4,
        num_kv_heads=2,
        head_dim=6,
        rope=RopeConfig(6, scaling=RopeScaling(kind="factors", factors=(1.0, 1.0, math.inf))),
        qk_norm=True,
        head_gate=True,
    ),
    "gqa_long": AttentionConfig(
        hidden_size=HIDDEN,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        rope=RopeConfig(
            4,
            scaling=RopeScaling(
                kind="longrope",
                original_max_seq_len=100,
                factors=(1.0, 1.5),
                long_factors=(2.0, 7.0),
            ),
        ),
    ),
    "gqa_dynamic": AttentionConfig(
        hidden_size=HIDDEN,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        rope=RopeConfig(
            4, scaling=RopeScaling(kind="dynamic", factor=3.0, original_max_seq_len=90)
        ),
    ),
    "mla_deepseek": _MLA_DEEPSEEK,
    "mla_temperature": replace(
        _MLA_DEEPSEEK, rope=replace(_INTERLEAVED, temperature=AttentionTemperature(0.7, 20))
    ),
    "mla_deepseek_lite": DeepseekMlaConfig(
        hidden_size=HIDDEN,
        num_heads=2,
        head_dim=6,
        rope_dim=4,
        kv_latent=9,
        q_latent=None,
        rope=RopeConfig(4),
        v_head_dim=7,
        attention_multiplier=0.3,
    ),
    "mla_nope": DeepseekMlaConfig(
        hidden_size=HIDDEN,
        num_heads=2,
        head_dim=6,
        rope_dim=4,
        kv_latent=9,
        q_latent=None,
        rope=None,
        v_head_dim=5,
        attention_multiplier=0.3,
    ),
    "mla": MlaConfig(
        hidden_size=HIDDEN,
        num_heads=3,
        head_dim=8,
        rope_dim=4,
        kv_latent=10,
        q_latent=14,
        rope=RopeConfig(4),
    ),
    "mamba2": Mamba2Config(hidden_size=HIDDEN, num_heads=6, head_dim=8, state_size=5, num_groups=2),
    "mamba2_wide": Mamba2Config(hidden_size=HIDDEN, num_heads=4, head_dim=64, state_size=128),
    "mamba2_odd": Mamba2Config(
        hidden_size=HIDDEN, num_heads=5, head_dim=7, state_size=19, conv_kernel=3
    ),
    "mamba3": Mamba3Config(hidden_size=HIDDEN, num_heads=6, head_dim=8, state_size=4),
    "mamba3_wide": Mamba3Config(
        hidden_size=HIDDEN, num_heads=2, head_dim=5, state_size=34, use_conv=True
    ),
    "mamba3_mimo": Mamba3Config(
        hidden_size=HIDDEN,
        num_heads=4,
        head_dim=8,
        state_size=5,
        num_groups=2,
        use_conv=True,
        complex_rope=False,
        mimo_rank=2,
        conv_kernel=3,
    ),
    "mamba1": Mamba1Config(hidden_size=HIDDEN, inner_size=32, state_size=4, dt_rank=3),
    "mamba1_heads": HeadedMamba1Config(
        hidden_size=HIDDEN, inner_size=48, state_size=5, dt_rank=3, num_heads=2
    ),
    "mamba1_oxidizr": Mamba1Config(
        hidden_size=HIDDEN, inner_size=48, state_size=16, dt_rank=48, variant="oxidizr"
    ),
    "mamba1_normed": Mamba1Config(
        hidden_size=HIDDEN,
        inner_size=20,
        state_size=5,
        dt_rank=4,
        conv_kernel=3,
        bias=True,
        conv_bias=False,
        inner_norms="weighted",
    ),
    "mamba2_groups": Mamba2Config(
        hidden_size=HIDDEN,
        num_heads=4,
        head_dim=6,
        state_size=7,
        num_groups=2,
        norm_groups=2,
        norm_eps=NORM_EPS,
        in_bias=False,
        conv_bias=False,
        out_bias=False,
        dt_limits=(0.0, math.inf),
    ),
    "mamba2_bare": Mamba2Config(
        hidden_size=HIDDEN,
        num_heads=3,
        head_dim=6,
        state_size=7,
        norm="none",
        multipliers=(0.5, 1.5, 0.7, 1.2, 2.0),
        dt_limits=(0.0, math.inf),
    ),
    "mamba2_norm_first": Mamba2Config(
        hidden_size=HIDDEN,
        num_heads=4,
        head_dim=9,
        state_size=6,
        num_groups=2,
        norm="norm_first",
        norm_groups=2,
        norm_eps=NORM_EPS,
        multipliers=(0.8, 1.1, 0.9, 1.2, 0.7),
    ),
    "short_conv": ShortConvConfig(hidden_size=HIDDEN),
    "short_conv_biased": ShortConvConfig(hidden_size=HIDDEN, conv_kernel=4, bias=True),
    "rg_lru": RgLruConfig(hidden_size=HIDDEN, num_heads=4, head_dim=5),
    "gated_delta": GatedDeltaConfig(
        hidden_size=HIDDEN,
        num_key_heads=2,
        num_heads=4,
        key_head_dim=5,
        value_head_dim=6,
        norm_eps=NORM_EPS,
    ),
    "gated_delta_grouped": GatedDeltaConfig(
        hidden_size=HIDDEN,
        num_key_heads=2,
        num_heads=6,
        key_head_dim=4,
        value_head_dim=3,
        conv_kernel=3,
        norm_eps=NORM_EPS,
    ),
    "gated_delta_wide": GatedDeltaConfig(
        hidden_size=HIDDEN,
        num_key_heads=2,
        num_heads=4,
        key_head_dim=16,
        value_head_dim=80,
        norm_eps=NORM_EPS,
    ),
    "olmo_delta": OlmoDeltaConfig(
        hidden_size=HIDDEN,
        num_key_heads=2,
        num_heads=4,
        key_head_dim=5,
        value_head_dim=7,
        norm_eps=NORM_EPS,
        beta_scale=2.0,
    ),
    "lightning": LightningConfig(
        hidden_size=HIDDEN,
        head_dim=6,
        rates=(0.9, 0.3, 0.02, 1e-5),
        norm_eps=NORM_EPS,
        activation="silu",
    ),
    "lightning_turned": LightningConfig(
        hidden_size=HIDDEN,
        head_dim=16,
        rates=(0.4, 0.01),
        norm_eps=NORM_EPS,
        norm_groups=2,
        qk_norm=True,
        rope=RopeConfig(8),
        scale=0.25,
    ),
    "kimi_delta": KimiDeltaConfig(
        hidden_size=HIDDEN,
        num_key_heads=3,
        num_heads=3,
        key_head_dim=5,
        value_head_dim=5,
        norm_eps=NORM_EPS,
    ),
}
MIXER_EXAMPLES["kimi_delta_limited"] = replace(
    MIXER_EXAMPLES["kimi_delta"], has_low_rank=False, least=-5.0
)
MIXER_EXAMPLES["mla_gated"] = replace(MIXER_EXAMPLES["mla_nope"], output_gate=True)
MIXER_EXAMPLES["mla_window"] = replace(MIXER_EXAMPLES["mla"], sliding_window=70)
MIXER_EXAMPLES["parallel"] = ParallelMixerConfig(
    (
        ParallelPart(name="mamba", mixer=MIXER_EXAMPLES["mamba2"], output_multiplier=0.7),
        ParallelPart(name="attention", mixer=MIXER_EXAMPLES["gqa"], input_multiplier=1.3),
    )
)
_BLOCK = BlockConfig(
    hidden_size=HIDDEN,
    attention=AttentionConfig(
        hidden_size=2 * HIDDEN,
        num_heads=4,
        num_kv_heads=4,
        head_dim=6,
        rope=RopeConfig(6),
        output_size=HIDDEN,
    ),
    feed_forward=MlpConfig(hidden_size=HIDDEN, intermediate_size=20),
    eps=10.0,  # what attention averages away would be blown up again
    users=(0, 1),
    adapted=("attention.q_proj", "feed_forward.gate_proj", "feed_forward.up_proj"),
    adapter_rank=3,
)
_SHARED = SharedBlockConfig(
    block=_BLOCK,
    user=0,
    owns=True,
    mixer=MIXER_EXAMPLES["mamba2_groups"],
    mixer_norm=NormConfig(HIDDEN, NORM_EPS),
)
MIXER_EXAMPLES["shared_block"] = _SHARED
# Not an example of its own: it needs a layer before it that owns the block.
SHARED_AGAIN = replace(_SHARED, user=1, owns=False)

FEED_FORWARD_EXAMPLES: dict[str, FeedForwardConfig] = {
    "mlp": MlpConfig(hidden_size=HIDDEN, intermediate_size=36),
    "gelu": MlpConfig(
        hidden_size=HIDDEN,
        intermediate_size=36,
        activation="gelu_tanh",
        bias=True,
    ),
    "plain": MlpConfig(hidden_size=HIDDEN, intermediate_size=36, gated=False),
    "xielu": MlpConfig(hidden_size=HIDDEN, intermediate_size=36, activation=XIELU, gated=False),
    "capped_router": MoeConfig(
        hidden_size=HIDDEN,
        intermediate_size=20,
        num_experts=5,
        experts_per_token=2,
        shared_expert=True,
        router_softcap=2.0,
        output_multiplier=0.5,
    ),
    "sparse_mixer": MoeConfig(
        hidden_size=HIDDEN,
        intermediate_size=20,
        num_experts=5,
        experts_per_token=2,
        scoring="sparse mixer",
        jitter=0.4,
    ),
    "weighed_input": MoeConfig(
        hidden_size=HIDDEN,
        intermediate_size=20,
        num_experts=5,
        experts_per_token=2,
        shared_expert=True,
        scoring="sigmoid of chosen",
        norm_topk_prob=False,
        weighs_input=True,
    ),
    "mlp_and_experts": ParallelFeedForwardConfig(
        (
            FeedForwardPart(
                name="mlp",
                feed_forward=MlpConfig(hidden_size=HIDDEN, intermediate_size=36),
                norm=NormConfig(HIDDEN, NORM_EPS),
                post_norm=NormConfig(HIDDEN, NORM_EPS),
            ),
            FeedForwardPart(
                name="moe",
                feed_forward=MoeConfig(
                    hidden_size=HIDDEN,
                    intermediate_size=20,
                    num_experts=5,
                    experts_per_token=2,
                    router_norm=NormConfig(HIDDEN, NORM_EPS),
                    router_multiplier=0.5,
                    expert_norm=NormConfig(HIDDEN, NORM_EPS),
                    expert_scale=True,
                ),
                norm=None,
                post_norm=NormConfig(HIDDEN, NORM_EPS),
            ),
        )
    ),
    "clamped": MoeConfig(
        hidden_size=HIDDEN,
        intermediate_size=20,
        num_experts=5,
        experts_per_token=2,
        router_bias=True,
        expert_bias=True,
        swiglu_limit=7.0,
        swiglu_alpha=1.702,
    ),
    "grouped": MoeConfig(
        hidden_size=HIDDEN,
        intermediate_size=20,
        num_experts=6,
        experts_per_token=2,
        shared_expert=True,
        shared_intermediate_size=14,
        shared_expert_gate=True,
        scoring="sigmoid",
        routed_scaling_factor=1.5,
        groups=ExpertGroups(3, 2, judged_by=2),
        correction_bias=True,
    ),
    "halves": MoeConfig(
        hidden_size=HIDDEN,
        intermediate_size=20,
        num_experts=4,
        experts_per_token=2,
        shared_expert=True,
        shared_intermediate_size=14,
    ),
    "moe": MoeConfig(
        hidden_size=HIDDEN,
        intermediate_size=20,
        num_experts=5,
        experts_per_token=2,
        shared_expert=True,
    ),
}

MIXES: dict[str, tuple[str, ...]] = {
    "pure mamba1": ("mamba1", "mamba1"),
    "mamba1 with heads": ("mamba1_heads", "gqa_nope+mlp", "mamba1_heads"),
    "pure mamba2": ("mamba2", "mamba2"),
    "pure mamba3": ("mamba3", "mamba3_mimo"),
    "mla and experts": ("mla+moe", "mla+moe"),
    "mla and mlp": ("mla+mlp", "mla+mlp"),
    "gqa and mlp": ("gqa+mlp", "gqa_window+mlp"),
    "caps, sinks and odd experts": ("gqa_capped+gelu", "gqa_sinks+clamped", "gqa_nope+plain"),
    "tempered": ("gqa_temperature+mlp", "mla_temperature+moe"),
    "chunks": ("gqa_chunks+weighed_input", "gqa_growing+xielu"),
    "values of their own": ("gqa_short_values+capped_router", "gqa_softplus+sparse_mixer"),
    "deepseek": ("mla_deepseek_lite+mlp", "mla_deepseek+grouped"),
    "short convolutions": ("short_conv+mlp", "gqa+moe", "short_conv", "gqa_head_gate+mlp"),
    "gated delta": ("gated_delta_grouped+mlp", "gqa_gated+moe", "gated_delta+mlp", "kimi_delta"),
    "olmo": ("olmo_delta+mlp", "gqa_nope+mlp"),
    "kimi": ("kimi_delta+mlp", "mla_nope+halves"),
    "griffin": ("rg_lru+gelu", "rg_lru+mlp", "gqa_window+gelu"),
    "ling": ("kimi_delta_limited+mlp", "mla_gated+grouped"),
    "lightning": ("lightning+mlp", "gqa+moe", "lightning_turned+mlp"),
    "side by side": ("parallel+mlp", "none+mlp", "parallel+moe"),
    "shared block": ("mamba2_groups", "shared_block", "mamba2_bare", "again"),
    "hybrid": ("mamba2", "mla+moe", "mamba2", "gqa+mlp"),
    "hybrid of all": ("mamba1", "gqa+moe", "mamba3_mimo", "mla+mlp", "mamba2", "mamba3"),
}
# Of MIXES, and what keys, values and latents are stored in, and recurrent states.
STORED_MIXES: dict[str, tuple[str, dict[str, str]]] = {
    "gqa in q8_0": ("gqa and mlp", {"kv_dtype": "q8_0"}),
    "hybrid in q8_0": ("hybrid", {"kv_dtype": "q8_0"}),
    "sinks in fp8": ("caps, sinks and odd experts", {"kv_dtype": "fp8_e4m3"}),
    "deepseek in fp8": ("deepseek", {"kv_dtype": "fp8_e4m3"}),
    **{
        f"{mix}, states in bfloat16": (mix, {"state_dtype": "bfloat16"})
        for mix in (
            *("pure mamba1", "pure mamba2", "pure mamba3", "gated delta", "kimi", "griffin"),
            *("side by side", "shared block", "hybrid of all"),
        )
    },
    "hybrid in few bits": ("hybrid", {"kv_dtype": "q8_0", "state_dtype": "bfloat16"}),
}
# Long sequences are rotated otherwise from their first token on: they share prefixes with few.
LENGTH_MIXES: dict[str, tuple[str, ...]] = {
    "turned by length": ("gqa_long+mlp", "gqa_dynamic+mlp"),
}
