"""Llama and its relatives with experts."""

from __future__ import annotations

from dataclasses import replace

from blazr.core.errors import ConfigError
from blazr.models.checkpoint.base import Checkpoint
from blazr.models.families.base import value_or
from blazr.models.families.hf.dense import (
    ERNIE,
    EXAONE4_TRAITS,
    GRANITE_TRAITS,
    LLAMA_BIASES,
    OLMO2_TRAITS,
    granite_swa_rope,
    slides_but_every_fourth,
)
from blazr.models.families.hf.derive import (
    BEHIND,
    FULL,
    SLIDING,
    Reading,
    Traits,
    counted_rope,
    every_slides,
    qwen_slides,
    slides_by_turns,
    type_by_turns,
)
from blazr.models.families.hf.names import (
    AFMOE_NORMS,
    LAYER,
    LLAMA_RULES,
    MLP_NAMES,
    gpt_oss_experts,
    hf_rules,
    joined_experts,
    shared_mlp,
)
from blazr.models.families.hf.rope import (
    phimoe_rope,
    plain_rope_by_type,
    read_rope,
    rope_of_type,
    unless_said,
)
from blazr.models.families.rules import (
    FEED,
    MIXER,
    Cut,
    Rule,
    RuleBook,
    Squeeze,
    Transpose,
    gate_and_up,
)
from blazr.nn.layers.moe import MoeConfig
from blazr.nn.layers.rope import RopeConfig
from blazr.nn.operands.experts import ExpertGroups

LOCAL_EXPERTS = {"num_experts": ("num_local_experts", "num_experts", "n_routed_experts")}
ROUTED_EXPERTS = {"num_experts": ("n_routed_experts", "num_experts", "num_local_experts")}


def read_experts(reading: Reading, size: str = "moe_intermediate_size") -> MoeConfig:
    """The experts of a layer; a softmax over all is made before the choice.

    Args:
        reading: The config.
        size: Key of an expert's intermediate size.

    Raises:
        ConfigError: A token is to choose more experts than there are.
    """
    experts, chosen = reading.size("num_experts"), reading.size("experts_per_tok")
    if chosen > experts > 1:  # a dense Jamba says that there is one, of which two are chosen
        raise ConfigError(
            f"{reading.reader.source}: a token cannot choose more experts than there are.",
            found=f"{chosen} of {experts} experts",
            expected=f"num_experts_per_tok from 1 to {experts}",
        )
    return MoeConfig(
        hidden_size=reading.hidden_size,
        intermediate_size=reading.size(size),
        num_experts=experts,
        experts_per_token=chosen,
        activation=reading.activation("hidden_act"),
    )


def with_shared_expert(experts: MoeConfig, size: int) -> MoeConfig:
    """The same beside an MLP that every token passes through.

    Args:
        experts: The experts.
        size: Its intermediate size; 0 for none.
    """
    return replace(experts, shared_expert=size > 0, shared_intermediate_size=size or None)


def _qwen_moe(reading: Reading, index: int) -> MoeConfig | None:
    """Experts in every n-th layer that ``mlp_only_layers`` does not name."""
    dense = reading.reader.integers("mlp_only_layers")
    step = reading.size("decoder_sparse_step", 1)
    experts = replace(read_experts(reading), norm_topk_prob=reading.flag("norm_topk_prob"))
    is_dense = (dense is not None and index in dense.value) or (index + 1) % step
    return None if is_dense else experts


def qwen2_moe(reading: Reading, index: int) -> MoeConfig | None:
    """The same beside an expert that every token weighs for itself."""
    experts = _qwen_moe(reading, index)
    shared = reading.size("shared_expert_intermediate_size")
    if experts is None:
        return None
    return replace(with_shared_expert(experts, shared), shared_expert_gate=True)


def _olmo_experts(reading: Reading, index: int) -> MoeConfig:
    """Experts whose weights are normalised where the config says so."""
    del index
    experts = read_experts(reading, "intermediate_size")
    return replace(experts, norm_topk_prob=reading.flag("norm_topk_prob"))


def read_groups(reading: Reading, *, judged_by: int, fills_up: bool = False) -> ExpertGroups | None:
    """The groups of experts, or None where all are in one.

    Args:
        reading: The config.
        judged_by: See `ExpertGroups`.
        fills_up: Whether a token may choose more experts than its best groups have.

    Raises:
        ConfigError: They do not fit the experts.
    """
    count = reading.size("n_group", 1)
    kept = reading.size("topk_group", count) if count > 1 else 1
    reading.reader.mark("topk_group")
    experts = reading.size("num_experts")
    chosen = reading.size("num_experts_per_tok")
    available = experts if fills_up else experts // count * kept
    if experts % count or kept > count or chosen > available:
        raise ConfigError(
            f"{reading.reader.source}: the groups of experts do not fit.",
            found=f"{chosen} of {experts} experts, {kept} of {count} groups",
            expected="groups of equal size, with experts enough",
        )
    return ExpertGroups(count, kept, judged_by) if kept < count else None


def sigmoid_experts(reading: Reading, index: int) -> MoeConfig | None:
    """Experts as DeepSeek-V3 has them [arXiv:2412.19437], behind dense layers or as listed."""
    experts = read_experts(reading)
    first = reading.size("first_k_dense_replace", 0, minimum=0)
    shared = reading.size("n_shared_experts", 1, minimum=0)
    listed = None
    if index < reading.num_layers:  # a module for multi-token prediction stands behind
        listed = reading.mlp_type(index)
    is_dense = listed == "dense" if listed else index < first
    reading.reader.mark("n_group", "topk_group")  # where all layers are dense nobody looks at them
    experts = replace(
        experts,
        scoring="sigmoid",
        correction_bias=True,
        groups=None if is_dense else read_groups(reading, judged_by=2),
        norm_topk_prob=reading.flag("norm_topk_prob"),
        routed_scaling_factor=reading.number("routed_scaling_factor", 1.0),
    )
    return None if is_dense else with_shared_expert(experts, shared * experts.intermediate_size)


def _dots_slides(reading: Reading, index: int) -> bool:
    """By ``layer_types``, or from ``max_window_layers`` on."""
    kind = reading.layer_type(index)
    return kind == SLIDING if kind else index >= reading.size("max_window_layers", minimum=0)


def _granite_shared(reading: Reading, index: int) -> MoeConfig:
    """Experts beside an MLP, if that has a size."""
    del index
    shared = reading.size("shared_intermediate_size", 0, minimum=0)
    return with_shared_expert(read_experts(reading, "intermediate_size"), shared)


def _afmoe_experts(reading: Reading, index: int) -> MoeConfig | None:
    """Trinity's: always normalised, of one group."""
    experts = sigmoid_experts(reading, index)
    return experts and replace(experts, norm_topk_prob=True, groups=None)


def _afmoe_slides(reading: Reading, index: int) -> bool:
    every = reading.size("global_attn_every_n_layers", 4)
    return type_by_turns(reading, index, every) == SLIDING


def _afmoe_rope(reading: Reading, dim: int, index: int) -> RopeConfig | None:
    """Layers without a window do not rotate."""
    rope = read_rope(reading.reader, dim)
    return rope if _afmoe_slides(reading, index) else None


def _qwen3_vl_rules(checkpoint: Checkpoint) -> RuleBook:
    """The experts lie on their sides in files as they are published, and not in newer ones."""
    shapes = [
        info.shape
        for name, info in checkpoint.tensors.items()
        if name.endswith(".experts.gate_up_proj") and len(info.shape) == 3
    ]
    hidden = checkpoint.config.get("hidden_size")
    is_published = not shapes or shapes[0][1] == hidden
    return hf_rules(joined_experts(Transpose(), dim=2) if is_published else ())


MIXTRAL = Traits(
    names=LOCAL_EXPERTS,
    defaults={
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "rope_theta": 1_000_000.0,
        "rms_norm_eps": 1e-5,
    },
    feed_forward=lambda reading, _: read_experts(reading, "intermediate_size"),
    slides=every_slides,
).family("mixtral")
QWEN2_MOE = Traits(
    defaults={"qkv_bias": True, "sliding_window": 4096, "max_window_layers": 28},
    attention={"qkv_bias": "qkv_bias"},
    feed_forward=qwen2_moe,
    slides=qwen_slides,
).family("qwen2_moe")
_QWEN3_MOE = Traits(
    defaults={"sliding_window": 4096},
    attention={**LLAMA_BIASES, "qk_norm": True},
    feed_forward=_qwen_moe,
    slides=lambda reading, _: reading.flag("use_sliding_window"),
)
QWEN3_MOE = _QWEN3_MOE.family("qwen3_moe")
QWEN3_VL_MOE_TEXT = replace(
    _QWEN3_MOE,
    rules_of=_qwen3_vl_rules,
    # whatever its config says
    prepare=lambda own: {**own, "norm_topk_prob": True},
).family("qwen3_vl_moe_text")
PHIMOE = Traits(
    names=LOCAL_EXPERTS,
    defaults={
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "num_local_experts": 16,
        "num_experts_per_tok": 2,
        "router_jitter_noise": 0.01,
    },
    attention=LLAMA_BIASES,
    feed_forward=lambda reading, _: replace(
        read_experts(reading, "intermediate_size"),
        scoring="sparse mixer",
        jitter=value_or(reading.reader.number("router_jitter_noise"), 0.01),
    ),
    rope=lambda reading, dim, _: phimoe_rope(reading.reader, dim),
    slides=every_slides,
    norm_kind="layer",
    prepare=lambda own: {**own, "num_experts_per_tok": 2},  # whatever its config says
    ignored_keys=("lm_head_bias",),  # a tensor tells
).family("phimoe")
OLMOE = Traits(
    defaults={"rms_norm_eps": 1e-5, "num_experts": 64, "num_experts_per_tok": 8},
    attention={**LLAMA_BIASES, "qk_norm": True, "qk_norm_all_heads": True},
    feed_forward=_olmo_experts,
    attention_numbers=lambda reading: {"clip_qkv": reading.optional_number("clip_qkv")},
).family("olmoe")
GRANITE_MOE = replace(
    GRANITE_TRAITS,
    names=LOCAL_EXPERTS,
    feed_forward=lambda reading, _: read_experts(reading, "intermediate_size"),
).family("granitemoe")
GRANITE_MOE_SHARED = replace(
    GRANITE_TRAITS,
    rules=hf_rules(shared_mlp(FEED + "shared_expert.")),
    names=LOCAL_EXPERTS,
    defaults={"num_local_experts": 8, "num_experts_per_tok": 2},
    feed_forward=_granite_shared,
).family("granitemoeshared")
_GRANITE_EXPERTS = LAYER + "block_sparse_moe."
GRANITE_MOE_SWA = replace(
    GRANITE_TRAITS,
    rules=hf_rules(
        [
            *shared_mlp(FEED + "shared_expert."),
            # as the library writes them; releases may have Granite's other names
            Rule(_GRANITE_EXPERTS + "router.weight", FEED + "router.weight"),
            Rule(
                _GRANITE_EXPERTS + "experts.gate_up_proj",
                gate_and_up(FEED + "experts.", "_proj"),
                cut=Cut(1),
            ),
            Rule(_GRANITE_EXPERTS + "experts.down_proj", FEED + "experts.down_proj"),
        ]
    ),
    names=LOCAL_EXPERTS,
    defaults={"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 128},
    attention={**LLAMA_BIASES, "sinks": True},
    feed_forward=_granite_shared,
    rope=granite_swa_rope,
    slides=slides_but_every_fourth,
).family("granitemoe_swa")
FLEX_OLMO = replace(
    OLMO2_TRAITS,
    defaults={"num_experts": 7, "num_experts_per_tok": 5, "rope_theta": 500_000.0},
    feed_forward=_olmo_experts,
).family("flex_olmo")
SOLAR_OPEN = Traits(
    names=ROUTED_EXPERTS,
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "moe_intermediate_size": 1280,
        "n_routed_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "n_group": 1,
        "topk_group": 1,
    },
    attention={"qkv_bias": "attention_bias"},
    feed_forward=sigmoid_experts,
    expects={"use_qk_norm": (False,), "first_k_dense_replace": (0,)},
).family("solar_open")
EXAONE_MOE = replace(
    EXAONE4_TRAITS,
    rules=LLAMA_RULES,
    names={"n_shared_experts": ("num_shared_experts", "n_shared_experts")},
    defaults={
        **EXAONE4_TRAITS.defaults,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 1024,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "n_group": 1,
        "topk_group": 1,
    },
    feed_forward=sigmoid_experts,
    norms="before",
    expects={"scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",)},
    ignored_keys=(
        *EXAONE4_TRAITS.ignored_keys,
        "is_moe_layer",
        "first_last_k_dense_replace",
    ),
    unused=lambda _: ("mtp.",),
).family("exaone_moe")
AFMOE = Traits(
    rules=hf_rules(
        [
            Rule(LAYER + "self_attn.gate_proj.weight", MIXER + "gate_proj.weight"),
            Rule(LAYER + "mlp.router.gate.weight", FEED + "router.weight"),
            Rule(LAYER + "mlp.expert_bias", FEED + "correction_bias"),
        ],
        norms=AFMOE_NORMS,
    ),
    names={
        "n_shared_experts": ("num_shared_experts", "n_shared_experts"),
        "first_k_dense_replace": ("num_dense_layers", "first_k_dense_replace"),
        "routed_scaling_factor": ("route_scale", "routed_scaling_factor"),
    },
    defaults={
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "num_dense_layers": 1,
        "num_experts": 64,
        "num_experts_per_tok": 6,
        "num_shared_experts": 2,
        "moe_intermediate_size": 1408,
        "sliding_window": 1024,
    },
    attention={**LLAMA_BIASES, "qk_norm": True, "gate_proj": True},
    feed_forward=_afmoe_experts,
    rope=_afmoe_rope,
    slides=_afmoe_slides,
    norms="both",
    model_numbers=lambda reading: {
        "embedding_multiplier": reading.hidden_size**0.5 if reading.flag("mup_enabled") else 1.0
    },
    expects={
        "score_func": ("sigmoid",),
        "route_norm": (True,),
        "num_expert_groups": (1,),
        "num_limited_groups": (1,),
        "n_group": (1,),
        "topk_group": (1,),
    },
    ignored_keys=("global_attn_every_n_layers", "use_grouped_mm"),
).family("afmoe")


def _mellum_experts(reading: Reading, index: int) -> MoeConfig | None:
    """Experts in every layer, or as listed."""
    kind = reading.mlp_type(index)
    experts = replace(read_experts(reading), norm_topk_prob=reading.flag("norm_topk_prob"))
    return None if kind == "dense" else experts


def listed_type(reading: Reading, index: int) -> str:
    """By ``layer_types``, or no window."""
    return reading.layer_type(index) or FULL


MELLUM = Traits(
    names=LOCAL_EXPERTS,
    defaults={
        "num_key_value_heads": 4,
        "head_dim": 128,
        "sliding_window": 1024,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 896,
        "norm_topk_prob": True,
        "use_sliding_window": True,
    },
    attention={**LLAMA_BIASES, "qk_norm": True},
    feed_forward=_mellum_experts,
    rope=lambda reading, dim, index: rope_of_type(reading.reader, listed_type(reading, index), dim),
    slides=lambda reading, index: (
        reading.flag("use_sliding_window") and listed_type(reading, index) == SLIDING
    ),
    prepare=plain_rope_by_type(
        full_attention={"rope_theta": 500_000.0}, sliding_attention={"rope_theta": 10_000.0}
    ),
    # of a head that predicts a further token
    ignored_keys=("mtp_layer_types", "mtp_mlp_layer_types", "num_mtp_layers"),
    unused=lambda _: ("mtp.",),
).family("mellum")


def _hy3_experts(reading: Reading, index: int) -> MoeConfig | None:
    """Hunyuan 3's: always normalised, of one group."""
    experts = sigmoid_experts(reading, index)
    bias = reading.flag("mlp_bias")
    return experts and replace(experts, norm_topk_prob=True, dense_bias=bias)


HY_V3 = Traits(
    rules=hf_rules(
        [
            Rule(LAYER + "mlp.router.gate.weight", FEED + "router.weight"),
            Rule(LAYER + "mlp.expert_bias", FEED + "correction_bias"),
            Rule(LAYER + "mlp.shared_mlp.{p}", FEED + "shared_expert.{p}", p=MLP_NAMES),
        ]
    ),
    names={
        "n_shared_experts": ("num_shared_experts", "n_shared_experts"),
        "routed_scaling_factor": ("router_scaling_factor", "routed_scaling_factor"),
    },
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 11_158_840.0,
        "num_experts": 192,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 1536,
        "router_scaling_factor": 2.826,
        "first_k_dense_replace": 1,
    },
    attention={**LLAMA_BIASES, "qk_norm": True},
    mlp={"bias": "mlp_bias"},
    feed_forward=_hy3_experts,
    expects={"n_group": (1,), "topk_group": (1,), "norm_topk_prob": (True,), "route_norm": (True,)},
    ignored_keys=("enable_moe_fp32_combine",),
    mtp=BEHIND,  # as vLLM's model_executor/models/hy_v3_mtp.py has it
).family("hy_v3")
GLM4_MOE = Traits(
    names=ROUTED_EXPERTS,
    defaults={
        "partial_rotary_factor": 0.5,
        "norm_topk_prob": True,
        "first_k_dense_replace": 1,
        "topk_group": 1,
        "rms_norm_eps": 1e-5,
    },
    attention={"qkv_bias": "attention_bias", "qk_norm": "use_qk_norm"},
    feed_forward=sigmoid_experts,
    mtp=BEHIND,
).family("glm4_moe")
DOTS1 = Traits(
    names=ROUTED_EXPERTS,
    defaults={
        "num_key_value_heads": 32,
        "sliding_window": 4096,
        "max_window_layers": 62,
        "n_group": 1,
        "topk_group": 1,
    },
    attention={**LLAMA_BIASES, "qk_norm": True},
    feed_forward=sigmoid_experts,
    slides=_dots_slides,
    expects={
        "scoring_func": ("sigmoid", "noaux_tc"),
        "topk_method": ("noaux_tc",),
        "moe_layer_freq": (1,),
    },
).family("dots1")


def _minimax_experts(reading: Reading, index: int) -> MoeConfig:
    del index
    experts = read_experts(reading, "intermediate_size")
    return replace(experts, scoring="sigmoid", correction_bias=True)


MINIMAX_M2 = Traits(
    names=LOCAL_EXPERTS,
    rope=counted_rope,
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_local_experts": 256,
        "num_experts_per_tok": 8,
        "rope_theta": 5_000_000.0,
    },
    attention={"qk_norm": True, "qk_norm_all_heads": True},
    feed_forward=_minimax_experts,
    expects={
        "scoring_func": ("sigmoid",),
        "use_routing_bias": (True,),
        "use_qk_norm": (True,),
        "qk_norm_type": ("per_layer",),
    },
    # of modules that predict further tokens, which no release has, and kinds that are all one
    ignored_keys=(
        "shared_intermediate_size",  # such an expert would have tensors
        "attn_type_list",
        "use_mtp",
        "num_mtp_modules",
        "mtp_transformer_layers",
    ),
).family("minimax_m2")


def _ernie_experts(reading: Reading, index: int) -> MoeConfig | None:
    """Experts of a softmax, chosen with a bias, in every n-th of some layers, or as listed."""
    experts = read_experts(reading)
    shared = reading.size("moe_num_shared_experts", minimum=0)
    first = reading.size("moe_layer_start_index", minimum=0)
    last = value_or(reading.reader.number("moe_layer_end_index"), -1)
    step = reading.size("moe_layer_interval")
    last = reading.num_layers - 1 if last == -1 else last
    dense = reading.reader.integers("mlp_only_layers")  # of GGUF files
    is_sparse = (index + 1) % step == 0 and first <= index <= last
    if not (is_sparse if dense is None else index not in dense.value):
        return None
    experts = replace(experts, correction_bias=True, dense_bias=reading.flag("use_bias"))
    return with_shared_expert(experts, shared * experts.intermediate_size)


ERNIE4_5_MOE = replace(
    ERNIE,
    rules=hf_rules(
        [
            Rule(
                f"{LAYER}mlp.{within}moe_statics.e_score_correction_bias",
                FEED + "correction_bias",
                Squeeze(0),
            )
            for within in ("", "gate.")
        ]
    ),
    names={
        "num_experts": ("moe_num_experts", "num_experts"),
        "experts_per_tok": ("moe_k", "num_experts_per_tok"),
    },
    unused=lambda _: ("model.mtp_",),
    defaults={
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "moe_intermediate_size": 1536,
        "moe_num_experts": 64,
        "moe_k": 6,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
        "moe_layer_interval": 1,
    },
    feed_forward=_ernie_experts,
    expects={"moe_norm_min": (1e-12,)},  # what weights are divided by at least
).family("ernie4_5_moe")


GPT_OSS = Traits(
    rules=hf_rules(gpt_oss_experts()),
    names=LOCAL_EXPERTS,
    prepare=unless_said(
        rope_type="yarn", factor=32.0, truncate=False, original_max_position_embeddings=4096
    ),
    defaults={
        "attention_bias": True,
        "rms_norm_eps": 1e-5,
        "rope_theta": 150_000.0,
        "sliding_window": 128,
    },
    attention={**LLAMA_BIASES, "sinks": True},
    feed_forward=lambda reading, _: replace(
        read_experts(reading, "intermediate_size"),
        router_bias=True,
        expert_bias=True,
        swiglu_alpha=reading.number("swiglu_alpha", 1.702),
        swiglu_limit=reading.number("swiglu_limit", 7.0),
    ),
    slides=slides_by_turns,
).family("gpt_oss")
