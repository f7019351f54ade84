"""Llama's relatives whose attention and MLP stand side by side, or may."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from blazr.core.errors import ConfigError
from blazr.models.families.base import HF_ALIASES, value_or
from blazr.models.families.hf.dense import LLAMA_BIASES
from blazr.models.families.hf.derive import (
    FULL,
    SLIDING,
    Reading,
    Traits,
    count_of,
    counted_rope,
    interleaved_rope,
    type_by_turns,
)
from blazr.models.families.hf.names import LAYER, hf_rules
from blazr.models.families.hf.sparse import read_experts, with_shared_expert
from blazr.models.families.rules import (
    FEED,
    MIXER,
    OURS,
    PARTS,
    Cut,
    Rule,
    RuleBook,
    Stack,
    queries_keys_values,
    renamed,
)
from blazr.nn.layers.base import FeedForwardConfig
from blazr.nn.layers.mlp import MlpConfig
from blazr.nn.layers.rope import RopeConfig

_ATTENTION, _MLP = LAYER + "self_attn.", LAYER + "mlp."


def _cohere_numbers(reading: Reading) -> dict[str, float | None]:
    return {"logits_scaling": 1 / reading.number("logit_scale", 0.0625)}


def _cohere_slides(reading: Reading, index: int) -> bool:
    every = value_or(reading.reader.integer("sliding_window_pattern", minimum=1), 4)
    return type_by_turns(reading, index, every) == SLIDING


def _cohere_rope(reading: Reading, dim: int, index: int) -> RopeConfig | None:
    """Layers without a window do not rotate."""
    has_window = reading.reader.integer("sliding_window", minimum=1) is not None
    rope = interleaved_rope(reading, dim, index)
    return rope if has_window and _cohere_slides(reading, index) else None


def _is_dense(reading: Reading, index: int) -> bool:
    """By ``mlp_layer_types``, or in front of the others."""
    listed = reading.mlp_type(index)
    first = reading.size("first_k_dense_replace", 0, minimum=0)
    return listed == "dense" if listed else index < first


def _cohere_moe_type(reading: Reading, index: int) -> str:
    """By ``layer_types``, or by turns: dense layers in front count by themselves."""
    first = reading.size("first_k_dense_replace", 0, minimum=0)
    every = reading.size("sliding_window_pattern", 4)
    in_front = reading.size("prefix_dense_sliding_window_pattern", 1)
    place, turns = (index, in_front) if index < first else (index - first, every)
    return reading.layer_type(index) or (SLIDING if (place + 1) % turns else FULL)


def _cohere_moe_rope(reading: Reading, dim: int, index: int) -> RopeConfig | None:
    """Layers without a window do not rotate, but for dense ones that all see everything."""
    has_window = reading.reader.integer("sliding_window", minimum=1) is not None
    slides = has_window and _cohere_moe_type(reading, index) == SLIDING
    in_front = reading.size("prefix_dense_sliding_window_pattern", 1)
    rope = interleaved_rope(reading, dim, index)
    return rope if slides or (in_front == 1 and _is_dense(reading, index)) else None


def _cohere_experts(reading: Reading, index: int) -> FeedForwardConfig:
    """Experts beside others that serve every token, or their mean; or an MLP of its own size."""
    size = reading.size("intermediate_size")
    if _is_dense(reading, index):
        return MlpConfig(
            hidden_size=reading.hidden_size,
            intermediate_size=reading.size("prefix_dense_intermediate_size", size),
            activation=reading.activation("hidden_act"),
        )
    shared = reading.size("num_shared_experts", 0, minimum=0)
    experts = read_experts(reading, "intermediate_size")
    is_sum = reading.reader.raw.get("shared_expert_combination_strategy") == "sum"
    if shared and not is_sum:
        experts = replace(experts, output_multiplier=0.5)
    if reading.reader.raw.get("expert_selection_fn") == "sigmoid":
        normed = reading.flag("norm_topk_prob")
        experts = replace(experts, scoring="sigmoid of chosen", norm_topk_prob=normed)
    return with_shared_expert(experts, shared * size)


def _grouped_rules(groups: int, at: str, attention: str, others: Sequence[Rule]) -> RuleBook:
    """The names of GPT-NeoX, which are Falcon's with other beginnings.

    Args:
        groups: One matrix has the rows of queries, keys and values, in so many equal groups: the
            heads of keys and values, each behind the queries that share it.
        at: What the names of a layer's tensors begin with.
        attention: What those of its attention go on with.
        others: Names outside of layers.
    """
    joined = queries_keys_values(MIXER, "_proj.{p}")
    names = {
        "input_layernorm": "mixer_norm",
        "ln_attn": "mixer_norm",
        "post_attention_layernorm": "feed_forward_norm",
        "ln_mlp": "feed_forward_norm",
        f"{attention}.dense": "mixer.o_proj",
        "mlp.dense_h_to_4h": "feed_forward.up_proj",
        "mlp.dense_4h_to_h": "feed_forward.down_proj",
    }
    qkv = f"{at}{attention}.query_key_value.{{p}}"
    cut = Cut(groups=groups)
    return RuleBook([*others, Rule(qkv, joined, p=PARTS, cut=cut), *renamed(at, OURS, names)])


def _neox_rules(heads: int) -> RuleBook:
    others = [
        Rule("gpt_neox.embed_in.weight", "embed_tokens.weight"),
        Rule("gpt_neox.final_layer_norm.{p}", "norm.{p}", p=PARTS),
        Rule("embed_out.weight", "lm_head.weight"),
        Rule("lm_head.weight", "lm_head.weight"),
    ]
    return _grouped_rules(heads, "gpt_neox.layers.{i}.", "attention", others)


GPT_NEOX = Traits(
    rules=_neox_rules(1),
    rules_of=lambda checkpoint: _neox_rules(count_of(checkpoint.config, "num_attention_heads")),
    names={
        "num_kv_heads": ("num_attention_heads",),
        "rope_theta": ("rotary_emb_base", "rope_theta"),
        "partial_rotary_factor": ("rotary_pct", "partial_rotary_factor"),
    },
    defaults={
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "rotary_pct": 0.25,
        "attention_bias": True,
        "use_parallel_residual": True,
    },
    attention=LLAMA_BIASES,
    mlp={"bias": True, "gated": False},
    norm_kind="layer",
    eps="layer_norm_eps",
    parallel="use_parallel_residual",
    has_own_norm=True,
    buffers=(".attention.bias", ".attention.masked_bias"),
).family("gpt_neox")


def _falcon_rules(kv_heads: int) -> RuleBook:
    others = [
        Rule("transformer.word_embeddings.weight", "embed_tokens.weight"),
        Rule("transformer.ln_f.{p}", "norm.{p}", p=PARTS),
        Rule("lm_head.weight", "lm_head.weight"),
    ]
    return _grouped_rules(kv_heads, "transformer.h.{i}.", "self_attention", others)


def _falcon_config(own: Mapping[str, object]) -> Mapping[str, object]:
    """What the first Falcons say in other words than the later ones."""
    is_new = own.get("new_decoder_architecture") is True
    is_single = not is_new and own.get("multi_query", True) not in (False, None)
    hidden = own.get("hidden_size")
    wide = 4 * hidden if isinstance(hidden, int) else None
    return {
        **own,
        "num_kv_heads": 1
        if is_single
        else own.get("num_kv_heads") or own.get("num_attention_heads"),
        "ffn_hidden_size": own.get("ffn_hidden_size") or wide,
        "is_parallel": is_new or own.get("parallel_attn", True) not in (False, None),
        "has_two_norms": is_new and own.get("num_ln_in_parallel_attn") in (None, 2),
    }


FALCON = Traits(
    rules=_falcon_rules(1),
    rules_of=lambda checkpoint: _falcon_rules(
        count_of(_falcon_config(checkpoint.config), "num_kv_heads")
    ),
    prepare=_falcon_config,
    names={"num_kv_heads": ("num_kv_heads",), "intermediate_size": ("ffn_hidden_size",)},
    defaults={"activation": "gelu", "layer_norm_epsilon": 1e-5},
    attention={"qkv_bias": "bias", "o_bias": "bias"},
    mlp={"bias": "bias", "gated": False},
    activation="activation",
    norm_kind="layer",
    eps="layer_norm_epsilon",
    parallel="is_parallel",
    has_own_norm="has_two_norms",
    ignored_keys=(
        "parallel_attn",
        "multi_query",
        "new_decoder_architecture",
        "num_ln_in_parallel_attn",
    ),
).family("falcon")


# What the configs of GPT-2 and GPT-J call sizes.
GPT_NAMES = {
    "max_seq_len": ("n_positions", *HF_ALIASES["max_seq_len"]),
    "num_attention_heads": ("n_head", "num_attention_heads"),
    "num_kv_heads": ("n_head", "num_attention_heads"),
    "intermediate_size": ("n_inner",),
}


def with_inner_size(own: Mapping[str, object]) -> Mapping[str, object]:
    """Where a config does not say how wide an MLP is, it is four times the hidden size."""
    hidden = own.get("n_embd") or own.get("hidden_size")
    wide = 4 * hidden if isinstance(hidden, int) else None
    return {**own, "n_inner": own.get("n_inner") or wide}


def _gptj_rope(reading: Reading, dim: int, index: int) -> RopeConfig:
    return replace(counted_rope(reading, dim, index), interleaved=True)


def _gptj_rules(names: Mapping[str, str], more: Sequence[Rule] = ()) -> RuleBook:
    """The names of GPT-J, those of attention's inputs apart.

    Args:
        names: Of modules of a layer, ours by theirs.
        more: Of tensors of a layer that are several of ours, from its number on.
    """
    names = {
        "ln_1": "mixer_norm",
        "attn.out_proj": "mixer.o_proj",
        "mlp.fc_in": "feed_forward.up_proj",
        "mlp.fc_out": "feed_forward.down_proj",
        **names,
    }
    # without the first word where the model was saved without its head
    roots = ("transformer.", "")
    rules = [
        rule
        for root in roots
        for rule in (
            Rule(root + "wte.weight", "embed_tokens.weight"),
            Rule(root + "ln_f.{p}", "norm.{p}", p=PARTS),
            *renamed(root + "h.{i}.", OURS, names),
            *(replace(each, source=f"{root}h.{{i}}.{each.source}") for each in more),
        )
    ]
    heads = [Rule("lm_head.weight", "lm_head.weight"), Rule("lm_head.bias", "head_bias")]
    return RuleBook([*heads, *rules])


_GPTJ = Traits(
    rules=_gptj_rules({f"attn.{each}_proj": f"mixer.{each}_proj" for each in "qkv"}),
    prepare=with_inner_size,
    names=GPT_NAMES,
    defaults={
        "n_positions": 2048,
        "rotary_dim": 64,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
    },
    mlp={"bias": True, "gated": False},
    rope=_gptj_rope,
    activation="activation_function",
    norm_kind="layer",
    eps="layer_norm_epsilon",
    parallel=True,
    buffers=(".attn.bias", ".attn.masked_bias", ".attn.causal_mask", ".attn.embed_positions"),
    expects={"rotary": (True,)},
)
GPTJ = _GPTJ.family("gptj")
# One matrix makes queries, values and keys, for each of four devices it was trained on.
_CODEGEN_QKV = Rule(
    "attn.qkv_proj.weight",
    tuple(f"{MIXER}{each}_proj.weight" for each in "qvk"),
    cut=Cut(groups=4),
)


def _codegen_config(own: Mapping[str, object]) -> Mapping[str, object]:
    hidden = own.get("n_embd") or own.get("hidden_size")
    if isinstance(hidden, int) and hidden % 4:
        raise ConfigError(
            "config.json: the channels cannot be cut in four, as those of CodeGen are.",
            found=str(hidden)[:100],
            expected="a multiple of 4",
        )
    return with_inner_size(own)


CODEGEN = replace(
    _GPTJ,
    rules=_gptj_rules({}, [_CODEGEN_QKV]),
    prepare=_codegen_config,
).family("codegen")
PHI = Traits(
    rules=hf_rules(
        [
            Rule("model.final_layernorm.{p}", "norm.{p}", p=PARTS),
            Rule(_ATTENTION + "dense.{p}", MIXER + "o_proj.{p}", p=PARTS),
            Rule(_MLP + "fc1.{p}", FEED + "up_proj.{p}", p=PARTS),
            Rule(_MLP + "fc2.{p}", FEED + "down_proj.{p}", p=PARTS),
        ]
    ),
    defaults={
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
    },
    attention={"qkv_bias": True, "o_bias": True},
    mlp={"bias": True, "gated": False},
    norm_kind="layer",
    eps="layer_norm_eps",
    parallel=True,
    expects={"qk_layernorm": (False,)},  # no release has these norms
).family("phi")
_COHERE = Traits(
    attention={**LLAMA_BIASES, "qk_norm": "use_qk_norm", "qk_layer_norm": "use_qk_norm"},
    model_numbers=_cohere_numbers,
    defaults={"layer_norm_eps": 1e-5, "rope_theta": 500_000.0},
    rope=interleaved_rope,
    norm_kind="layer",
    norm_bias=False,
    eps="layer_norm_eps",
    parallel=True,
    # what its own library was told of the same layers
    ignored_keys=(
        "use_embedding_sharing",
        "use_gated_activation",
        "use_parallel_block",
        "use_parallel_embedding",
        "rotary_pct",
        "layer_switch",
        "order_of_interleaved_layers",
    ),
)
COHERE = replace(
    _COHERE,
    # Command R has 8,192 positions in its config, and reads 128K tokens
    names={"max_seq_len": ("model_max_length", *HF_ALIASES["max_seq_len"])},
).family("cohere")
COHERE2 = replace(
    _COHERE,
    attention=LLAMA_BIASES,
    defaults={"layer_norm_eps": 1e-5, "sliding_window": 4096},
    rope=_cohere_rope,
    slides=_cohere_slides,
    expects={"use_qk_norm": (False,), "position_embedding_type": ("rope_gptj", "rope")},
    ignored_keys=(*_COHERE.ignored_keys, "sliding_window_pattern"),
).family("cohere2")
COHERE2_MOE = replace(
    _COHERE,
    attention=LLAMA_BIASES,
    defaults={
        "layer_norm_eps": 1e-5,
        "head_dim": 128,
        "sliding_window": 4096,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
    },
    feed_forward=_cohere_experts,
    rope=_cohere_moe_rope,
    slides=lambda reading, index: _cohere_moe_type(reading, index) == SLIDING,
    norm_of=lambda reading: (
        ("layer", "layer_norm_eps")
        if reading.reader.number("rms_norm_eps", above=0) is None
        else ("rms", "rms_norm_eps")
    ),
    expects={
        "use_qk_norm": (False,),
        "position_embedding_type": ("rope_gptj", "rope"),
        "expert_selection_fn": ("softmax", "sigmoid"),
        "shared_expert_combination_strategy": ("average", "sum"),
    },
    ignored_keys=(
        *_COHERE.ignored_keys,
        *("sliding_window_pattern", "first_k_dense_replace", "norm_topk_prob"),
        *("prefix_dense_sliding_window_pattern", "prefix_dense_intermediate_size"),
        *("layer_norm_eps", "mlp_layer_types"),
    ),
).family("cohere2_moe")
STABLELM = Traits(
    rules=hf_rules(
        [
            Rule(
                _ATTENTION + "{p}_layernorm.norms.{e}.weight",
                MIXER + "{p}_norm.weight",
                Stack("e"),
                p=("q", "k"),
            )
        ]
    ),
    defaults={
        "num_key_value_heads": 32,
        "layer_norm_eps": 1e-5,
        "partial_rotary_factor": 0.25,
    },
    attention={
        "qkv_bias": "use_qkv_bias",
        "qk_norm": "qk_layernorm",
        "qk_layer_norm": "qk_layernorm",
    },
    norm_kind="layer",
    eps="layer_norm_eps",
    parallel="use_parallel_residual",
).family("stablelm")
