"""Tensor names of Hugging Face decoders.

A rule for a part that a model does not have does no harm, so all share one list; they differ in
what they call the norms around a layer's halves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from blazr.models.families.rules import Cut, Mxfp4, Rule, RuleBook, Stack, Transpose

# Models that also see images have their language model in a part of its own.
PREFIXES = ("model.", "language_model.model.", "model.language_model.")
_HEADS = ("lm_head.weight", "language_model.lm_head.weight")
_PARTS = ("weight", "bias")
_LAYER, _OURS = "model.layers.{i}.", "layers.{i}."
_MIXER, _FEED = _OURS + "mixer.", _OURS + "feed_forward."

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
OLMO_NORMS = {"post_attention": "mixer_post_norm", "post_feedforward": "feed_forward_post_norm"}


def hf_rules(norms: Mapping[str, str], more: Sequence[Rule] = ()) -> RuleBook:
    """The names of a model whose layers call their norms like this.

    Args:
        norms: Ours by theirs.
        more: Names that no other model has.
    """
    rules = [
        Rule("model.embed_tokens.weight", "embed_tokens.weight"),
        Rule("model.norm.{p}", "norm.{p}", p=_PARTS),
    ]
    rules += [
        Rule(f"{_LAYER}{theirs}_layernorm.{{p}}", f"{_OURS}{ours}.{{p}}", p=_PARTS)
        for theirs, ours in norms.items()
    ]
    rules += [*_attention(), *_mlp(), *_experts(), *more]
    heads = [Rule(head, "lm_head.weight") for head in _HEADS]
    return RuleBook([*heads, *(_behind(prefix, rule) for prefix in PREFIXES for rule in rules)])


def _behind(prefix: str, rule: Rule) -> Rule:
    return replace(rule, source=prefix + rule.source.removeprefix(PREFIXES[0]))


def _attention() -> list[Rule]:
    at = _LAYER + "self_attn."
    same = [f"{name}_proj.{part}" for name in "qkvo" for part in _PARTS]
    same += ["q_norm.weight", "k_norm.weight", "sinks"]
    latent = {
        "q_a_proj": "q_down_proj",
        "q_a_layernorm": "q_norm",
        "q_b_proj": "q_up_proj",
        "kv_a_proj_with_mqa": "kv_down_proj",
        "kv_a_layernorm": "kv_norm",
    }
    return [
        Rule(at + "{p}", _MIXER + "{p}", p=tuple(same)),
        Rule(at + "qkv_proj.{p}", tuple(f"{_MIXER}{n}_proj.{{p}}" for n in "qkv"), p=_PARTS),
        *(
            Rule(f"{at}{theirs}.{{p}}", f"{_MIXER}{ours}.{{p}}", p=_PARTS)
            for theirs, ours in latent.items()
        ),
        Rule(
            at + "kv_b_proj.weight",
            (_MIXER + "k_up", _MIXER + "v_up"),
            (Transpose(), None),
            cut=Cut(groups="heads"),
        ),
    ]


def _mlp() -> list[Rule]:
    at = _LAYER + "mlp."
    same = tuple(f"{name}_proj.{part}" for name in ("gate", "up", "down") for part in _PARTS)
    return [
        Rule(at + "{p}", _FEED + "{p}", p=same),
        Rule(at + "gate_up_proj.{p}", gate_and_up(_FEED, "_proj.{p}"), p=_PARTS),
        Rule(at + "c_fc.{p}", _FEED + "up_proj.{p}", p=_PARTS),
        Rule(at + "c_proj.{p}", _FEED + "down_proj.{p}", p=_PARTS),
    ]


def gate_and_up(at: str, end: str) -> tuple[str, ...]:
    """Both upward projections of an MLP, the rows of which one tensor holds."""
    return (f"{at}gate{end}", f"{at}up{end}")


def _experts() -> list[Rule]:
    at, mixtral, three = _LAYER + "mlp.", _LAYER + "block_sparse_moe.", ("gate", "up", "down")
    words = {"w1": "gate", "w3": "up", "w2": "down"}
    dense = tuple(f"{name}_proj.{part}" for name in three for part in _PARTS)
    experts = _FEED + "experts.{p}_proj"
    return [
        Rule(at + "gate.weight", _FEED + "router.weight"),
        Rule(at + "gate.e_score_correction_bias", _FEED + "correction_bias"),
        Rule(at + "experts.{e}.{p}_proj.weight", experts, Stack("e"), p=three),
        Rule(at + "shared_expert.{p}", _FEED + "shared_expert.{p}", p=dense),
        Rule(at + "shared_experts.{p}", _FEED + "shared_expert.{p}", p=dense),
        Rule(at + "shared_expert_gate.weight", _FEED + "shared_expert_gate.weight"),
        Rule(mixtral + "gate.weight", _FEED + "router.weight"),
        *(
            Rule(
                f"{mixtral}experts.{{e}}.{theirs}.weight",
                f"{_FEED}experts.{ours}_proj",
                Stack("e"),
            )
            for theirs, ours in words.items()
        ),
        *_fused_experts(),
    ]


def _fused_experts() -> list[Rule]:
    """Granite's, rows of gate before those of up; GPT-OSS's, in turns, and lying on their sides."""
    granite, gpt, experts = _LAYER + "block_sparse_moe.", _LAYER + "mlp.", _FEED + "experts."
    both = gate_and_up(experts, "_proj")
    return [
        Rule(granite + "router.layer.weight", _FEED + "router.weight"),
        Rule(granite + "input_linear.weight", both, cut=Cut(1)),
        Rule(granite + "output_linear.weight", experts + "down_proj"),
        Rule(gpt + "router.{p}", _FEED + "router.{p}", p=_PARTS),
        *(
            rule
            for theirs, transform, dim in (
                ("", Transpose(), 2),
                ("_blocks", Mxfp4(0), 1),
                ("_scales", Mxfp4(1), 1),
            )
            for rule in (
                Rule(f"{gpt}experts.gate_up_proj{theirs}", both, transform, cut=Cut(dim, "rows")),
                Rule(f"{gpt}experts.down_proj{theirs}", experts + "down_proj", transform),
            )
        ),
        Rule(gpt + "experts.gate_up_proj_bias", gate_and_up(experts, "_bias"), cut=Cut(1, "rows")),
        Rule(gpt + "experts.down_proj_bias", experts + "down_bias"),
    ]
