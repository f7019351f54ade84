"""GPT-2 and its relatives: layers as Llama's with LayerNorms, and a learned table of positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from blazr.core.errors import ConfigError
from blazr.models.families.base import HF_ALIASES, read_max_seq_len
from blazr.models.families.hf.derive import (
    Reading,
    Traits,
    count_of,
    no_rope,
    read_attention,
)
from blazr.models.families.hf.parallel import GPT_NAMES, with_inner_size
from blazr.models.families.rules import (
    FEED,
    MIXER,
    OURS,
    PARTS,
    Conv1d,
    Cut,
    Rule,
    RuleBook,
    queries_keys_values,
    renamed,
)
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import NormConfig
from blazr.nn.layers.embedding import LearnedPositionsConfig

# A model may have been saved without its head, whose files then lack the first word.
_ROOTS = ("transformer.", "")
_NORMS = {"ln_1": "mixer_norm", "ln_2": "feed_forward_norm"}
_MLP = {"mlp.c_fc": "feed_forward.up_proj", "mlp.c_proj": "feed_forward.down_proj"}
# Masks, which old files have beside the weights.
_MASKS = (".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias")
# Kinds of GPT-Neo's layers, and how many a config may list.
_GLOBAL, _LOCAL = "global", "local"
_MAX_LISTED = 2**14
# Of the first program that served StarCoder.
_SERVING_KEYS = (
    "inference_runner",
    "max_batch_size",
    "pad_key_length",
    "pre_allocate_kv_cache",
    "validate_runner_input",
)


def _learned_positions(reading: Reading) -> dict[str, object]:
    count = read_max_seq_len(reading.reader, reading.ledger)
    return {"positions": LearnedPositionsConfig(count=count, hidden_size=reading.hidden_size)}


def _scale(reading: Reading) -> dict[str, float | None]:
    return {"attention_multiplier": None if reading.flag("scale_attn_weights") else 1.0}


def _rules(layer: Sequence[Rule], names: Mapping[str, str]) -> RuleBook:
    """The names of a model.

    Args:
        layer: Of tensors of a layer, from its number on.
        names: Of its other modules, ours by theirs.
    """
    return RuleBook(
        [
            Rule("lm_head.weight", "lm_head.weight"),
            *(
                rule
                for root in _ROOTS
                for rule in (
                    Rule(root + "wte.weight", "embed_tokens.weight"),
                    Rule(root + "wpe.weight", "positions.weight"),
                    Rule(root + "ln_f.{p}", "norm.{p}", p=PARTS),
                    *(replace(each, source=f"{root}h.{{i}}.{each.source}") for each in layer),
                    *renamed(root + "h.{i}.", OURS, {**_NORMS, **names}),
                )
            ),
        ]
    )


def _gpt2_mixer(reading: Reading, norm: NormConfig, index: int) -> AttentionConfig:
    """Scores may be divided by the number of the layer, too."""
    attention = read_attention(reading, _GPT2, norm, index)
    if not reading.flag("scale_attn_by_inverse_layer_idx"):
        return attention
    return replace(attention, attention_multiplier=attention.scale / (index + 1))


_GPT2 = Traits(
    # matrices are stored as (in, out)
    rules=_rules(
        [
            Rule(
                "attn.c_attn.weight",
                queries_keys_values(MIXER, "_proj.weight"),
                Conv1d(),
                cut=Cut(1),
            ),
            Rule("attn.c_attn.bias", queries_keys_values(MIXER, "_proj.bias")),
            *(
                rule
                for theirs, ours in (
                    ("attn.c_proj", MIXER + "o_proj"),
                    ("mlp.c_fc", FEED + "up_proj"),
                    ("mlp.c_proj", FEED + "down_proj"),
                )
                for rule in (
                    Rule(f"{theirs}.weight", f"{ours}.weight", Conv1d()),
                    Rule(f"{theirs}.bias", f"{ours}.bias"),
                )
            ),
        ],
        {},
    ),
    prepare=with_inner_size,
    names=GPT_NAMES,
    defaults={
        "n_positions": 1024,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True,
    },
    attention={"qkv_bias": True, "o_bias": True},
    attention_numbers=_scale,
    mlp={"bias": True, "gated": False},
    model_numbers=_learned_positions,
    rope=no_rope,
    activation="activation_function",
    norm_kind="layer",
    eps="layer_norm_epsilon",
    buffers=_MASKS,
    expects={
        "position_embedding_type": ("learned", "absolute"),
        "attention_head_type": ("multihead",),  # SantaCoder's own code has another
    },
)
GPT2 = replace(_GPT2, mixer=_gpt2_mixer).family("gpt2")


def _bigcode_rules(groups: int) -> RuleBook:
    """The names of GPT-BigCode.

    Args:
        groups: One matrix has the rows of queries, keys and values, in so many equal groups: the
            heads, or one where all of them share keys and values.
    """
    joined = queries_keys_values(MIXER, "_proj.{p}")
    names = {"attn.c_proj": "mixer.o_proj", **_MLP}
    return _rules([Rule("attn.c_attn.{p}", joined, p=PARTS, cut=Cut(groups=groups))], names)


def _bigcode_config(own: Mapping[str, object]) -> Mapping[str, object]:
    heads = 1 if own.get("multi_query") is not False else own.get("n_head")
    return {**with_inner_size(own), "num_kv_heads": heads}


GPT_BIGCODE = replace(
    _GPT2,
    rules=_bigcode_rules(1),
    rules_of=lambda checkpoint: _bigcode_rules(
        count_of(_bigcode_config(checkpoint.config), "num_kv_heads")
    ),
    prepare=_bigcode_config,
    names={**_GPT2.names, "num_kv_heads": ("num_kv_heads",)},
    defaults={**_GPT2.defaults, "activation_function": "gelu_pytorch_tanh"},
    ignored_keys=(*_SERVING_KEYS, "multi_query"),
).family("gpt_bigcode")


def _neo_config(own: Mapping[str, object]) -> Mapping[str, object]:
    """Layers by turns as a list of these, and the width of an MLP.

    Raises:
        ConfigError: The turns are of another form.
    """
    hidden, turns, listed = own.get("hidden_size"), own.get("attention_types"), list[str]()
    for turn in turns if isinstance(turns, list) else [[[_GLOBAL, _LOCAL], 12]]:
        match turn:
            case [[*kinds], int(count)] if len(kinds) * count <= _MAX_LISTED:
                listed += [str(kind) for kind in kinds] * count
            case _:
                raise ConfigError(
                    "config.json: 'attention_types' has a wrong value.",
                    found=repr(turn)[:100],
                    expected='lists such as [["global", "local"], 12]',
                )
    wide = 4 * hidden if isinstance(hidden, int) else None
    inner = own.get("intermediate_size") or wide
    # the library writes both, and looks at the list
    layers = own.get("attention_layers") or listed
    return {**own, "attention_layers": layers, "intermediate_size": inner}


def _neo_slides(reading: Reading, index: int) -> bool:
    return reading.layer_type(index, (_GLOBAL, _LOCAL), "attention_layers") == _LOCAL


GPT_NEO = replace(
    _GPT2,
    rules=_rules(
        [],
        {
            **{f"attn.attention.{each}_proj": f"mixer.{each}_proj" for each in "qkv"},
            "attn.attention.out_proj": "mixer.o_proj",
            **_MLP,
        },
    ),
    prepare=_neo_config,
    names={"num_kv_heads": HF_ALIASES["num_attention_heads"], "sliding_window": ("window_size",)},
    defaults={
        "max_position_embeddings": 2048,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "window_size": 256,
    },
    attention={"o_bias": True},
    attention_numbers=lambda _: {"attention_multiplier": 1.0},
    slides=_neo_slides,
    expects={},
    ignored_keys=("attention_types", "resid_dropout", "embed_dropout"),
).family("gpt_neo")
