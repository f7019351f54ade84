"""Gated delta nets between attention: Qwen3-Next, Qwen3.5, Kimi Linear and OLMo Hybrid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from blazr.core.errors import ConfigError
from blazr.models.checkpoint.base import Checkpoint, TensorInfo
from blazr.models.families.base import ConfigReader, value_or
from blazr.models.families.hf.deepseek import read_latent_attention
from blazr.models.families.hf.dense import LLAMA_BIASES
from blazr.models.families.hf.derive import (
    BESIDE,
    SILU,
    Reading,
    Traits,
    attends,
    read_attention,
    read_mlp,
)
from blazr.models.families.hf.names import LAYER, OLMO_NORMS, hf_rules
from blazr.models.families.hf.rope import read_rope
from blazr.models.families.hf.sparse import qwen2_moe, sigmoid_experts
from blazr.models.families.hf.state_space import rules_where
from blazr.models.families.rules import (
    AS_STORED,
    FEED,
    GATE_UP_DOWN,
    MIXER,
    MTP,
    OURS,
    Cut,
    HeadsOfKinds,
    Reshape,
    Rule,
    RuleBook,
    Squeeze,
    Transform,
    queries_keys_values,
)
from blazr.nn.layers.base import LayerConfig, MixerConfig, NormConfig
from blazr.nn.layers.gated_delta import GatedDeltaConfig, KimiDeltaConfig, OlmoDeltaConfig
from blazr.nn.layers.rope import RopeConfig


def _qwen_rules(more: Sequence[Rule] = ()) -> RuleBook:
    at = LAYER + "linear_attn."
    projections = ("qkv", "z", "b", "a")
    return hf_rules(
        [
            *more,
            Rule(at + "in_proj_{p}.weight", MIXER + "in_proj_{p}.weight", p=projections),
            Rule(at + "{p}", MIXER + "{p}", p=("dt_bias", "norm.weight", "out_proj.weight")),
            Rule(at + "conv1d.weight", MIXER + "conv1d.weight", Squeeze(1)),
            Rule(at + "A_log", MIXER + "a_log"),
        ],
    )


def _next_rules_of(checkpoint: Checkpoint) -> RuleBook:
    """Qwen3-Next has the rows of all projections together by key head."""
    sizes = _delta_sizes(Reading(ConfigReader(checkpoint.config), checkpoint.tensors))
    share = sizes.heads // sizes.key_heads * sizes.value_dim
    kinds = ((sizes.key_dim, sizes.key_dim, share), (share,))  # queries, keys and values; gates
    at = LAYER + "linear_attn.in_proj_"
    ours = MIXER + "in_proj_"
    return _qwen_rules(
        [
            Rule(
                at + "qkvz.weight",
                (ours + "qkv.weight", ours + "z.weight"),
                cut=HeadsOfKinds(sizes.key_heads, kinds),
            ),
            Rule(
                at + "ba.weight",
                (ours + "b.weight", ours + "a.weight"),
                cut=Cut(groups=sizes.key_heads),
            ),
        ]
    )


# Keys of sizes, which are not looked at where no layer is a delta network.
_SIZES = (
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
)


class _DeltaSizes(NamedTuple):
    key_heads: int
    heads: int
    key_dim: int
    value_dim: int


def _delta_sizes(reading: Reading) -> _DeltaSizes:
    return _DeltaSizes(
        reading.size("linear_num_key_heads", 16),
        reading.size("linear_num_value_heads", 32),
        reading.size("linear_key_head_dim", 128),
        reading.size("linear_value_head_dim", 128),
    )


def _qwen_mixer(reading: Reading, norm: NormConfig, index: int) -> MixerConfig | None:
    every = reading.size("full_attention_interval", 4)
    if attends(reading, index, by_turns=(index + 1) % every == 0):
        return None
    return _read_delta(reading, _delta_sizes(reading), norm.eps)


def _read_delta(
    reading: Reading,
    sizes: _DeltaSizes,
    eps: float,
    kind: type[GatedDeltaConfig] = GatedDeltaConfig,
) -> GatedDeltaConfig:
    if sizes.heads % sizes.key_heads:
        raise ConfigError(
            f"{reading.reader.source}: {sizes.heads} heads of values cannot share "
            f"{sizes.key_heads} of keys.",
            expected='a "linear_num_key_heads" that divides "linear_num_value_heads"',
        )
    return kind(
        hidden_size=reading.hidden_size,
        num_key_heads=sizes.key_heads,
        num_heads=sizes.heads,
        key_head_dim=sizes.key_dim,
        value_head_dim=sizes.value_dim,
        conv_kernel=reading.size("linear_conv_kernel_dim", 4, minimum=2),
        norm_eps=eps,
    )


_QWEN_DEFAULTS = {"head_dim": 256, "partial_rotary_factor": 0.25}
_NEXT = Traits(
    rules=_qwen_rules(),
    defaults={**_QWEN_DEFAULTS, "norm_topk_prob": True},
    attention={**LLAMA_BIASES, "qk_norm": True, "output_gate": True},
    mixer=_qwen_mixer,
    feed_forward=qwen2_moe,
    unit_offset=True,
    expects={"hidden_act": SILU, "attn_output_gate": (True,)},
    ignored_keys=(
        *_SIZES,
        "attention_bias",
        "mamba_ssm_dtype",
        "mtp_num_hidden_layers",
        "mtp_use_dedicated_embeddings",
    ),
    unused=lambda _: (MTP,),
    mtp=BESIDE,
)
QWEN3_NEXT = replace(_NEXT, rules_of=_next_rules_of).family("qwen3_next")
_DENSE = replace(_NEXT, defaults=_QWEN_DEFAULTS, feed_forward=None)
QWEN3_5_TEXT = _DENSE.family("qwen3_5_text")
QWEN3_5_MOE_TEXT = _NEXT.family("qwen3_5_moe_text")


_DEEPSEEK_NAMES = {
    "model_max_length": "max_position_embeddings",
    "moe_renormalize": "norm_topk_prob",
    "num_expert_group": "n_group",
    "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
}
_KIMI_INNER = {
    "head_dim": "linear_head_dim",
    "num_heads": "linear_num_heads",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}


_KIMI_LATENT = {
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "kv_lora_rank": 512,
    "v_head_dim": 128,
}


def deepseek_words(own: Mapping[str, object]) -> dict[str, object]:
    """A config in the words that DeepSeek's have, where it has others for them."""
    return {_DEEPSEEK_NAMES.get(key, key): value for key, value in own.items()}


def _kimi_config(own: Mapping[str, object]) -> dict[str, object]:
    """The part about the delta networks is one of its own."""
    changed = deepseek_words(own)
    inner = changed.pop("linear_attn_config", None)
    if isinstance(inner, Mapping):
        changed |= {_KIMI_INNER.get(str(key), str(key)): inner[key] for key in inner}
    return changed


def _kimi_mixer(reading: Reading, norm: NormConfig, index: int) -> MixerConfig:
    # counted from one
    by_turns = range(5, reading.num_layers + 1, 4)
    listed = value_or(reading.reader.integers("full_attn_layers"), by_turns)
    if attends(reading, index, by_turns=index + 1 in listed):
        return read_latent_attention(reading, _KIMI_LATENT, is_rotated=False)
    return read_kimi_delta(reading, norm)


def read_kimi_delta(reading: Reading, norm: NormConfig) -> KimiDeltaConfig:
    """Kimi's delta attention [arXiv:2510.26692].

    Args:
        reading: The config.
        norm: The layer's other norms, for their eps.

    Raises:
        ConfigError: A size is missing.
    """
    heads, dim = reading.size("linear_num_heads"), reading.size("linear_head_dim")
    return KimiDeltaConfig(
        hidden_size=reading.hidden_size,
        num_key_heads=heads,
        num_heads=heads,
        key_head_dim=dim,
        value_head_dim=dim,
        conv_kernel=reading.size("linear_conv_kernel_dim", minimum=2),
        norm_eps=norm.eps,
    )


def delta_names(at: str, filters: Transform, decays: Transform = AS_STORED) -> list[Rule]:
    """Names of delta networks with filters of their own for queries, keys and values.

    Args:
        at: What they begin with.
        filters: How the filters lie.
        decays: How the decay rates lie.
    """
    return [
        *(Rule(f"{at}{n}_conv1d.weight", f"{MIXER}{n}_conv1d.weight", filters) for n in "qkv"),
        Rule(at + "dt_bias", MIXER + "dt_bias"),
        Rule(at + "A_log", MIXER + "a_log", decays),
        Rule(at + "o_norm.weight", MIXER + "norm.weight"),
    ]


def delta_module_names(at: str) -> list[Rule]:
    """Names of the modules of transformers, which have one filter for all and a part for decays.

    Args:
        at: What they begin with.
    """
    return [
        Rule(at + "conv1d.weight", queries_keys_values(MIXER, "_conv1d.weight"), Squeeze(1)),
        *(
            Rule(f"{at}forget_gate.{name}_proj.weight", f"{MIXER}{name}_proj.weight")
            for name in ("f", "f_a", "f_b")
        ),
        Rule(at + "forget_gate.dt_bias", MIXER + "dt_bias"),
        Rule(at + "forget_gate.A_log", MIXER + "a_log", Reshape()),
    ]


def _kimi_rules_of(checkpoint: Checkpoint) -> RuleBook:
    """What both kinds of mixer put out goes through a matrix of one name."""
    at = LAYER + "self_attn."
    sparse = LAYER + "block_sparse_moe."
    projection = "{p}_proj.weight"
    return hf_rules(
        [
            *delta_names(at, Squeeze(1)),
            Rule(at + projection, MIXER + projection, p=("b", "f_a", "f_b", "g_a", "g_b")),
            *delta_module_names(at),
            Rule(sparse + projection, FEED + projection, p=GATE_UP_DOWN),
            Rule(sparse + "gate.e_score_correction_bias", FEED + "correction_bias"),
            Rule(
                sparse + "shared_experts." + projection,
                FEED + "shared_expert." + projection,
                p=GATE_UP_DOWN,
            ),
            *rules_where(
                checkpoint,
                r"model\.layers\.(\d+)\.self_attn\.(?:forget_gate\.)?A_log",
                [Rule(at + "o_proj.weight", MIXER + "out_proj.weight")],
            ),
        ],
    )


KIMI_LINEAR = Traits(
    rules_of=_kimi_rules_of,
    defaults={
        "rms_norm_eps": 1e-5,
        "first_k_dense_replace": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.446,
        "topk_group": 1,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 1024,
        "linear_num_heads": 32,
        "linear_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    },
    mixer=_kimi_mixer,
    feed_forward=sigmoid_experts,
    prepare=_kimi_config,
    expects={
        "hidden_act": SILU,
        "moe_router_activation_func": ("sigmoid",),
        "moe_layer_freq": (1,),
        "mla_use_nope": (True,),
        "use_grouped_topk": (True,),
    },
    # not looked at where no layer is of the kind that they are about
    ignored_keys=("kda_layers", *_KIMI_INNER.values(), *_KIMI_LATENT, "q_lora_rank"),
).family("kimi_linear")


_OLMO_GATED_EPS = 1e-5  # whatever the config says about other norms


def _olmo_rules(more: Sequence[Rule] = ()) -> RuleBook:
    """The names of the releases: those of a layer with a delta net say which half its norms are of.

    Args:
        more: Names of norms that mean one thing in some layers and another in others.
    """
    at = LAYER + "linear_attn."
    return hf_rules(
        [
            *more,
            *delta_names(at, Squeeze(1)),
            Rule(at + "{p}_proj.weight", MIXER + "{p}_proj.weight", p=(*"qkvabg",)),
            Rule(at + "o_proj.weight", MIXER + "out_proj.weight"),
            Rule(
                at + "conv1d.weight",
                queries_keys_values(MIXER, "_conv1d.weight"),
                Squeeze(1),
            ),
            Rule(LAYER + "attention_layer_norm.weight", OURS + "mixer_norm.weight"),
            Rule(LAYER + "feedforward_layer_norm.weight", OURS + "feed_forward_norm.weight"),
        ],
        OLMO_NORMS,
    )


def _olmo_rules_of(checkpoint: Checkpoint) -> RuleBook:
    """Also the names that the library gives norms, and those that it writes with attention."""

    def norms(inner: str, names: Mapping[str, str]) -> list[Rule]:
        rules = [
            Rule(f"{LAYER}{name}.weight", f"{OURS}{own}.weight") for name, own in names.items()
        ]
        return rules_where(checkpoint, rf"model\.layers\.(\d+)\.{inner}", rules)

    of_delta = {"input_layernorm": "mixer_norm", "post_attention_layernorm": "feed_forward_norm"}
    of_attention = {"feedforward_layer_norm": "mixer_post_norm"}
    more = norms(r"linear_attn\.A_log", of_delta) + norms(r"self_attn\.q_norm\.", of_attention)
    return _olmo_rules(more).with_joined(_olmo_joined(checkpoint.tensors))


def _olmo_joined(tensors: Mapping[str, TensorInfo]) -> dict[str, tuple[str, ...]]:
    """Filters that are cut in equal parts, as transformers saves them, whatever they belong to.

    It joins them when it loads, so that it does not notice where the cuts are.
    """
    found = {}
    for name in tensors:
        at, ending, _ = name.partition("q_conv1d.weight")
        filters = queries_keys_values(at, "_conv1d.weight")
        projections = queries_keys_values(at, "_proj.weight")
        if ending and all(each in tensors for each in (*filters, *projections)):
            both = ([tensors[each].shape[:1] for each in names] for names in (filters, projections))
            if len({*map(tuple, both)}) > 1:
                found[at + "conv1d.weight"] = filters
    return found


def _olmo_layer(reading: Reading, norm: NormConfig, index: int) -> LayerConfig:
    last = reading.num_layers - 1
    by_turns = index % 4 == 3 or index == last < 3  # one layer attends at least
    feed_forward = read_mlp(reading, {})
    if attends(reading, index, by_turns=by_turns):
        return LayerConfig(
            mixer=read_attention(reading, _OLMO, norm, index),
            mixer_norm=None,
            mixer_post_norm=norm,
            feed_forward=feed_forward,
            feed_forward_post_norm=norm,
        )
    heads = reading.size("num_attention_heads")
    key_heads = reading.size("linear_num_key_heads", heads)
    key_dim = reading.size("linear_key_head_dim", int(0.75 * reading.hidden_size / key_heads) or 1)
    sizes = _DeltaSizes(
        key_heads=key_heads,
        heads=reading.size("linear_num_value_heads", heads),
        key_dim=key_dim,
        value_dim=reading.size("linear_value_head_dim", 2 * key_dim),
    )
    mixer = _read_delta(reading, sizes, _OLMO_GATED_EPS, OlmoDeltaConfig)
    doubles = reading.reader.is_true("linear_allow_neg_eigval", default=True)
    return LayerConfig(
        mixer=replace(mixer, beta_scale=2.0 if doubles else 1.0),
        mixer_norm=norm,
        feed_forward=feed_forward,
        feed_forward_norm=norm,
    )


def _olmo_rope(reading: Reading, dim: int, index: int) -> RopeConfig | None:
    """A theta of null says that there is none; a config that is silent has the usual one."""
    del index
    own = reading.reader.raw
    parameters = own.get("rope_parameters")
    inner = parameters if isinstance(parameters, Mapping) else {}
    theta = {**own, **inner}.get("rope_theta", "silent")
    return None if theta is None else read_rope(reading.reader, dim)


_OLMO = Traits(
    rules=_olmo_rules(),
    rules_of=_olmo_rules_of,
    attention={**LLAMA_BIASES, "qk_norm": True, "qk_norm_all_heads": True},
    layer=_olmo_layer,
    rope=_olmo_rope,
    expects={"hidden_act": SILU},
    ignored_keys=(
        *(f"linear_{name}" for name in ("a_log_min", "a_log_max", "dt_min", "dt_max")),
        "linear_dt_init_floor",
        *_SIZES,
        "linear_allow_neg_eigval",
        "attention_bias",
    ),
)
OLMO_HYBRID = _OLMO.family("olmo_hybrid")
