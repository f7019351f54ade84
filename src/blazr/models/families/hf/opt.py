"""OPT: a learned table of positions, and in one size norms behind both halves of a layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from blazr.models.checkpoint.base import Checkpoint
from blazr.models.families.base import read_max_seq_len
from blazr.models.families.hf.derive import (
    Reading,
    Traits,
    count_of,
    no_rope,
    read_attention,
    read_mlp,
)
from blazr.models.families.rules import OURS, PARTS, Rule, RuleBook, renamed
from blazr.nn.layers.base import LayerConfig, NormConfig, NormedResidual
from blazr.nn.layers.embedding import LearnedPositionsConfig

# A model may have been saved without its head, whose files then lack the first word.
_ROOTS = ("model.decoder.", "decoder.")
_PADDING = 2  # rows before that of the first place
_MIXER_NORM, _FEED_NORM = "self_attn_layer_norm", "final_layer_norm"
_AS_IT_IS = NormedResidual(1.0, 1.0)


def _rules(num_behind: int = 0) -> RuleBook:
    """The names of a model.

    Args:
        num_behind: Its layers, where norms stand behind their halves. Each of these norms is then
            what the next half begins with, and that of the last layer is the network's.
    """
    names = {
        **{f"self_attn.{each}_proj": f"mixer.{each}_proj" for each in "qkv"},
        "self_attn.out_proj": "mixer.o_proj",
        "fc1": "feed_forward.up_proj",
        "fc2": "feed_forward.down_proj",
        _MIXER_NORM: "feed_forward_norm" if num_behind else "mixer_norm",
    }
    if not num_behind:
        names[_FEED_NORM] = "feed_forward_norm"

    def of_root(root: str) -> Iterator[Rule]:
        yield Rule(root + "embed_tokens.weight", "embed_tokens.weight")
        yield Rule(root + "embed_positions.weight", "positions.weight")
        yield Rule(root + "{p}.weight", "{p}.weight", p=("project_in", "project_out"))
        yield from renamed(root + "layers.{i}.", OURS, names)
        if not num_behind:
            yield Rule(root + "final_layer_norm.{p}", "norm.{p}", p=PARTS)
        for index in range(num_behind):
            is_last = index + 1 == num_behind
            ours = "norm" if is_last else f"layers.{index + 1}.mixer_norm"
            yield from renamed(f"{root}layers.{index}.", "", {_FEED_NORM: ours})

    head = Rule("lm_head.weight", "lm_head.weight")
    return RuleBook([head, *(rule for root in _ROOTS for rule in of_root(root))])


def _rules_of(checkpoint: Checkpoint) -> RuleBook:
    if checkpoint.config.get("do_layer_norm_before") is not False:
        return OPT.rules
    return _rules(min(count_of(checkpoint.config, "num_hidden_layers"), len(checkpoint.tensors)))


def _embedding(reading: Reading) -> dict[str, object]:
    size = reading.size("word_embed_proj_dim", reading.hidden_size)
    table = LearnedPositionsConfig(
        count=read_max_seq_len(reading.reader, reading.ledger),
        hidden_size=reading.hidden_size,
        first=_PADDING,
    )
    is_narrow = size != reading.hidden_size
    return {"positions": table, "embedding_size": size if is_narrow else None}


def _layer(reading: Reading, norm: NormConfig, index: int) -> LayerConfig:
    is_before = reading.flag("do_layer_norm_before")
    return LayerConfig(
        mixer=read_attention(reading, _OPT, norm, index),
        mixer_norm=norm if is_before or index else None,
        feed_forward=read_mlp(reading, _OPT.mlp, _OPT.activation),
        feed_forward_norm=norm,
        normed_residuals=None if is_before else (_AS_IT_IS, _AS_IT_IS),
    )


_OPT = Traits(
    rules=_rules(),
    rules_of=_rules_of,
    names={
        "num_kv_heads": ("num_attention_heads",),
        "intermediate_size": ("ffn_dim",),
    },
    defaults={
        "max_position_embeddings": 2048,
        "activation_function": "relu",
        "do_layer_norm_before": True,
        "enable_bias": True,
        "layer_norm_elementwise_affine": True,
        "layer_norm_eps": 1e-5,  # which no config says
    },
    attention={"qkv_bias": "enable_bias", "o_bias": "enable_bias"},
    mlp={"bias": "enable_bias", "gated": False},
    model_numbers=_embedding,
    rope=no_rope,
    activation="activation_function",
    norm_kind="layer",
    norm_weight="layer_norm_elementwise_affine",
    eps="layer_norm_eps",
    expects={"_remove_final_layer_norm": (False,)},
    ignored_keys=("dropout", "layerdrop", "init_std"),
)
OPT = replace(_OPT, layer=_layer).family("opt")
