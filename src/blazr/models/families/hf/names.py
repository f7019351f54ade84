"""Tensor names of Hugging Face decoders.

A rule for a part that a model does not have does no harm, so all share one list; they differ in
what they call the norms around a layer's halves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from blazr.models.families.rules import (
    AS_STORED,
    FEED,
    GATE_UP_DOWN,
    MIXER,
    OURS,
    PARTS,
    Cut,
    Mxfp4,
    Rule,
    RuleBook,
    Stack,
    Transform,
    Transpose,
    gate_and_up,
    queries_keys_values,
    renamed,
)

# Models that also see images have their language model in a part of its own.
PREFIXES = ("model.", "language_model.model.", "model.language_model.", "model.text_model.")
_HEADS = ("lm_head.weight", "language_model.lm_head.weight")
LAYER = "model.layers.{i}."
_ATTENTION, _MLP = LAYER + "self_attn.", LAYER + "mlp."
_SPARSE = LAYER + "block_sparse_moe."  # Mixtral's and Granite's
_EXPERTS = FEED + "experts."

LLAMA_NORMS = {"input": "mixer_norm", "post_attention": "feed_forward_norm"}
GEMMA_NORMS = {
    "input": "mixer_norm",
    "post_attention": "mixer_post_norm",
    "pre_feedforward": "feed_forward_norm",
    "post_feedforward": "feed_forward_post_norm",
}
GLM_NORMS = {
    "input": "mixer_norm",
    "post_self_attn": "mixer_post_norm",
    "post_attention": "feed_forward_norm",
    "post_mlp": "feed_forward_post_norm",
}
AFMOE_NORMS = {
    "input": "mixer_norm",
    "post_attention": "mixer_post_norm",
    "pre_mlp": "feed_forward_norm",
    "post_mlp": "feed_forward_post_norm",
}
OLMO_NORMS = {"post_attention": "mixer_post_norm", "post_feedforward": "feed_forward_post_norm"}


MLP_NAMES = tuple(f"{name}_proj.{part}" for name in GATE_UP_DOWN for part in PARTS)
_GATE_AND_UP = gate_and_up(_EXPERTS, "_proj")


def joined_experts(transform: Transform = AS_STORED, *, dim: int = 1, at: str = _MLP) -> list[Rule]:
    """Names of experts in one tensor, rows of gate before those of up.

    Args:
        transform: How their matrices lie.
        dim: What counts the rows.
        at: What the names begin with.
    """
    return [
        Rule(at + "experts.gate_up_proj", _GATE_AND_UP, transform, cut=Cut(dim)),
        Rule(at + "experts.down_proj", _EXPERTS + "down_proj", transform),
    ]


def gpt_oss_experts() -> list[Rule]:
    """Names of GPT-OSS's experts: rows of gate and up in turns, and lying on their sides."""
    named = _MLP + "experts."
    forms = (("", Transpose(), 2), ("_blocks", Mxfp4(0), 1), ("_scales", Mxfp4(1), 1))
    rules = [
        Rule(named + "gate_up_proj_bias", gate_and_up(_EXPERTS, "_bias"), cut=Cut(1, "rows")),
        Rule(named + "down_proj_bias", _EXPERTS + "down_bias"),
    ]
    for end, transform, dim in forms:
        cut = Cut(dim, "rows")
        rules += [
            Rule(f"{named}gate_up_proj{end}", _GATE_AND_UP, transform, cut=cut),
            Rule(f"{named}down_proj{end}", _EXPERTS + "down_proj", transform),
        ]
    return rules


_NAMES = [
    Rule("model.embed_tokens.weight", "embed_tokens.weight"),
    Rule("model.norm.{p}", "norm.{p}", p=PARTS),
    # attention
    *(Rule(f"{_ATTENTION}{n}_proj.{{p}}", f"{MIXER}{n}_proj.{{p}}", p=PARTS) for n in "qkvo"),
    Rule(_ATTENTION + "qkv_proj.{p}", queries_keys_values(MIXER, "_proj.{p}"), p=PARTS),
    Rule(_ATTENTION + "{p}_norm.weight", MIXER + "{p}_norm.weight", p=("q", "k")),
    Rule(_ATTENTION + "sinks", MIXER + "sinks"),
    # latent attention
    Rule(_ATTENTION + "q_a_proj.{p}", MIXER + "q_down_proj.{p}", p=PARTS),
    Rule(_ATTENTION + "q_a_layernorm.{p}", MIXER + "q_norm.{p}", p=PARTS),
    Rule(_ATTENTION + "q_b_proj.{p}", MIXER + "q_up_proj.{p}", p=PARTS),
    Rule(_ATTENTION + "kv_a_proj_with_mqa.{p}", MIXER + "kv_down_proj.{p}", p=PARTS),
    Rule(_ATTENTION + "kv_a_layernorm.{p}", MIXER + "kv_norm.{p}", p=PARTS),
    Rule(
        _ATTENTION + "kv_b_proj.weight",
        (MIXER + "k_up", MIXER + "v_up"),
        (Transpose(), AS_STORED),
        cut=Cut(groups="heads"),
    ),
    # its halves head by head, those of keys turned over, as mlx-lm has them
    Rule(_ATTENTION + "embed_q.{e}.weight", MIXER + "k_up", Stack("e")),
    Rule(_ATTENTION + "unembed_out.{e}.weight", MIXER + "v_up", Stack("e")),
    # MLP
    Rule(_MLP + "{p}", FEED + "{p}", p=MLP_NAMES),
    Rule(_MLP + "gate_up_proj.{p}", gate_and_up(FEED, "_proj.{p}"), p=PARTS),
    Rule(_MLP + "c_fc.{p}", FEED + "up_proj.{p}", p=PARTS),
    Rule(_MLP + "c_proj.{p}", FEED + "down_proj.{p}", p=PARTS),
    # experts
    Rule(_MLP + "gate.weight", FEED + "router.weight"),
    Rule(_MLP + "gate.e_score_correction_bias", FEED + "correction_bias"),
    Rule(_MLP + "e_score_correction_bias", FEED + "correction_bias"),  # K-EXAONE's
    Rule(_MLP + "experts.{e}.{p}_proj.weight", _EXPERTS + "{p}_proj", Stack("e"), p=GATE_UP_DOWN),
    Rule(_MLP + "shared_expert.{p}", FEED + "shared_expert.{p}", p=MLP_NAMES),
    Rule(_MLP + "shared_experts.{p}", FEED + "shared_expert.{p}", p=MLP_NAMES),
    Rule(_MLP + "shared_expert_gate.weight", FEED + "shared_expert_gate.weight"),
    # Mixtral's
    Rule(_SPARSE + "gate.weight", FEED + "router.weight"),
    Rule(_SPARSE + "experts.{e}.w1.weight", _EXPERTS + "gate_proj", Stack("e")),
    Rule(_SPARSE + "experts.{e}.w3.weight", _EXPERTS + "up_proj", Stack("e")),
    Rule(_SPARSE + "experts.{e}.w2.weight", _EXPERTS + "down_proj", Stack("e")),
    Rule(_SPARSE + "e_score_correction_bias", FEED + "correction_bias"),  # MiniMax's
    # Granite's, rows of gate before those of up
    Rule(_SPARSE + "router.layer.weight", FEED + "router.weight"),
    Rule(_SPARSE + "input_linear.weight", _GATE_AND_UP, cut=Cut(1)),
    Rule(_SPARSE + "output_linear.weight", _EXPERTS + "down_proj"),
    Rule(_SPARSE + "router.weight", FEED + "router.weight"),
    Rule(_MLP + "router.{p}", FEED + "router.{p}", p=PARTS),
    # as the library's modules have them, which it takes apart as it saves unless it is told not to
    *joined_experts(),
    *joined_experts(at=_SPARSE),
]


def attention_names(at: str) -> list[Rule]:
    """Names of attention, where they begin with something else.

    Args:
        at: What they begin with.
    """
    return [
        replace(rule, source=at + rule.source.removeprefix(_ATTENTION))
        for rule in _NAMES
        if rule.source.startswith(_ATTENTION)
    ]


def shared_mlp(ours: str) -> list[Rule]:
    """Names of Granite's MLP beside experts, rows of gate before those of up.

    Args:
        ours: What the parameters begin with.
    """
    at = LAYER + "shared_mlp."
    return [
        Rule(at + "input_linear.weight", gate_and_up(ours, "_proj.weight")),
        Rule(at + "output_linear.weight", ours + "down_proj.weight"),
    ]


def hf_rules(more: Sequence[Rule] = (), norms: Mapping[str, str] = LLAMA_NORMS) -> RuleBook:
    """The names of a model.

    Args:
        more: Names that no other model has.
        norms: What its layers call their norms, ours by theirs.
    """
    around = list(renamed(LAYER, OURS, {f"{name}_layernorm": own for name, own in norms.items()}))
    heads = [Rule(head, "lm_head.weight") for head in _HEADS]
    rules = [
        replace(rule, source=prefix + rule.source.removeprefix(PREFIXES[0]))
        for prefix in PREFIXES
        for rule in (*_NAMES, *around, *more)
    ]
    return RuleBook([*heads, Rule("lm_head.bias", "head_bias"), *rules])


LLAMA_RULES = hf_rules()
