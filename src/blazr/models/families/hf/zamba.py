"""Zamba and Zamba2: Mamba layers, some of them behind a transformer block that they share."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from blazr.core.errors import ConfigError
from blazr.models.checkpoint.base import Checkpoint
from blazr.models.families.base import ConfigReader, value_or
from blazr.models.families.hf.derive import (
    LINEAR,
    SILU,
    Reading,
    Traits,
    read_attention,
    read_mlp,
)
from blazr.models.families.hf.names import LAYER, MLP_NAMES, hf_rules
from blazr.models.families.hf.rope import read_rope
from blazr.models.families.hf.state_space import (
    LEAST_STEP,
    TRAINING,
    Mamba2Keys,
    mixer_rules,
    read_mamba1,
    read_mamba2,
    with_types,
)
from blazr.models.families.rules import (
    MIXER,
    PARTS,
    Cut,
    Pairs,
    Reshape,
    Rule,
    RuleBook,
    Selection,
    Squeeze,
    gate_and_up,
)
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import LayerConfig, MixerConfig, NormConfig
from blazr.nn.layers.mamba1 import HeadedMamba1Config
from blazr.nn.layers.rope import RopeConfig
from blazr.nn.layers.shared_block import BlockConfig, SharedBlockConfig

HYBRID = "hybrid"
LONG_CONTEXT = 16_384
GATED_NORM_EPS = 1e-5  # whatever the config says about other norms
_NORMS = {"input": "mixer_norm"}
_SHARED, _FIRST_SHARED = ".shared_transformer.", ".shared_transf."
_BLOCK = MIXER + "block."
_ADAPTED = {
    "linear_q": ("attention.q_proj",),
    "linear_k": ("attention.k_proj",),
    "linear_v": ("attention.v_proj",),
    "gate_up_proj": ("feed_forward.gate_proj", "feed_forward.up_proj"),
}
_ADAPTER = re.compile(
    r"model\.layers\.(\d+)\.shared_transformer\.(?:self_attn|feed_forward)"
    r"\.(\w+)_adapter_list\.(\d+)\.([01])\.weight",
    re.ASCII,
)
_KEYS = Mamba2Keys(
    heads="n_mamba_heads",
    head_dim="mamba_headdim",
    groups="mamba_ngroups",
    bias="add_bias_linear",
    conv_bias=True,
)


_DECODER = LAYER + "mamba_decoder."


def _common_rules(shared: str) -> list[Rule]:
    """What both generations have.

    Args:
        shared: What a layer calls its block.
    """
    block = LAYER.removesuffix(".") + shared
    return [
        Rule("model.final_layernorm.weight", "norm.weight"),
        Rule(_DECODER + "input_layernorm.weight", MIXER + "mixer_norm.weight"),
        Rule(LAYER + "linear.weight", MIXER + "linear.weight"),
        Rule(block + "input_layernorm.weight", _BLOCK + "attention_norm.weight"),
        Rule(block + "pre_ff_layernorm.weight", _BLOCK + "feed_forward_norm.weight"),
        Rule(
            block + "self_attn.{p}",
            _BLOCK + "attention.{p}",
            p=tuple(f"{name}_proj.weight" for name in "qkvo"),
        ),
        Rule(
            block + "feed_forward.gate_up_proj.{p}",
            gate_and_up(_BLOCK + "feed_forward.", "_proj.{p}"),
            p=PARTS,
        ),
        Rule(block + "feed_forward.{p}", _BLOCK + "feed_forward.{p}", p=MLP_NAMES),
    ]


_RULES = [
    *_common_rules(_SHARED),
    *mixer_rules(LAYER + "mamba."),
    *mixer_rules(_DECODER + "mamba.", MIXER + "mixer."),
]


def _rules_of(checkpoint: Checkpoint) -> RuleBook:
    """The adapters of a shared block lie with its first user, by the number of the user."""
    more = []
    for name in checkpoint.tensors:
        found = _ADAPTER.fullmatch(name)
        if found is None or found[2] not in _ADAPTED:
            continue
        at = f"{_BLOCK.replace('{i}', found[1])}adapters.{found[3]}."
        half = "up" if found[4] == "1" else "down"
        # what goes down is one for gate and up, what goes up has rows of each
        cut = Cut(groups="all" if half == "down" else 1)
        paths = (path.replace(".", "_") for path in _ADAPTED[found[2]])
        targets = tuple(f"{at}{path}.{half}.weight" for path in paths)
        more.append(Rule(name, targets, cut=cut))
    return hf_rules([*_RULES, *more], _NORMS)


def _unread(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Blocks repeated in each layer that uses them, and adapters of users of the other block."""
    users = _users(checkpoint.tensors)
    blocks = _num_blocks(ConfigReader(checkpoint.config), users)
    owners = {_number(user): turn for turn, user in enumerate(users[:blocks])}
    adapters = (found for name in checkpoint.tensors if (found := _ADAPTER.fullmatch(name)))
    # the blocks take turns: the one of an adapter follows from its number
    others = (
        found[0]
        for found in adapters
        if owners.get(_small(found[1])) not in {None, _small(found[3]) % blocks}
    )
    return (*(f"{user}{_SHARED}" for user in users[blocks:]), *others)


def _users(names: Iterable[str], shared: str = _SHARED) -> list[str]:
    """The layers that have a shared block in the file."""
    return sorted({name.partition(shared)[0] for name in names if shared in name}, key=_number)


def _num_blocks(reader: ConfigReader, users: Sequence[str]) -> int:
    """How many take turns. Where embeddings are not tied, transformers 5 ties no blocks either."""
    shared = max(value_or(reader.integer("num_mem_blocks"), 1), 1)
    is_tied = value_or(reader.boolean("tie_word_embeddings"), default=True)
    return shared if is_tied else max(shared, len(users))


def _number(name: str) -> int:
    return _small(name.rpartition(".")[2])


def _small(number: str) -> int:
    return int(number) if number.isdecimal() and number.isascii() and len(number) < 9 else 0


def _config(own: Mapping[str, object]) -> dict[str, object]:
    changed = with_types(own, "layers_block_type", "layer_types")
    if changed.get("use_long_context"):
        changed["max_position_embeddings"] = LONG_CONTEXT
    return changed


def _block_attention(
    reading: Reading, traits: Traits, norm: NormConfig, dim: int
) -> AttentionConfig:
    """Attention of a block, which sees the embedded tokens beside the residual stream."""
    kv_heads = reading.size("num_kv_heads", reading.size("num_attention_heads"))
    return replace(
        read_attention(reading, traits, norm, 0, heads=(kv_heads, dim)),
        hidden_size=2 * reading.hidden_size,
        output_size=reading.hidden_size,
        attention_multiplier=(dim / 2) ** -0.5,
    )


def _rope(reading: Reading, dim: int, index: int) -> RopeConfig | None:
    del index
    return read_rope(reading.reader, dim) if reading.flag("use_mem_rope") else None


def _block(reading: Reading, norm: NormConfig, users: tuple[int, ...]) -> BlockConfig:
    dim = 2 * reading.hidden_size // reading.size("num_attention_heads") or 1
    in_attention = reading.flag("use_shared_attention_adapter")
    return BlockConfig(
        hidden_size=reading.hidden_size,
        attention=_block_attention(reading, _ZAMBA2, norm, dim),
        feed_forward=read_mlp(reading, {"bias": "add_bias_linear"}),
        eps=norm.eps,
        users=users,
        adapted=tuple(
            path
            for paths in _ADAPTED.values()
            for path in paths
            if in_attention or not path.startswith("attention")
        ),
        adapter_rank=reading.size("adapter_rank", 128),
    )


def _layer(reading: Reading, norm: NormConfig, index: int) -> LayerConfig:
    """The blocks take turns, and each belongs to the first layer that uses it."""
    kinds = [
        reading.layer_type(number, (LINEAR, HYBRID), "layers_block_type")
        for number in range(reading.num_layers)
    ]
    least = reading.number("time_step_min", LEAST_STEP)
    mixer = replace(
        read_mamba2(reading, _KEYS, norm),
        norm_eps=GATED_NORM_EPS,
        dt_limits=(least, math.inf),
    )
    users = _users(reading.tensors)
    return _any_layer(reading, norm, index, kinds, mixer, users, _block)


def _any_layer(  # noqa: PLR0917  (a layer among others, and what it is made of)
    reading: Reading,
    norm: NormConfig,
    index: int,
    kinds: Sequence[str | None],
    mixer: MixerConfig,
    found: Sequence[str],
    block_of: Callable[[Reading, NormConfig, tuple[int, ...]], BlockConfig],
) -> LayerConfig:
    """A layer of either generation.

    Args:
        reading: The config.
        norm: Before each mixer.
        index: The layer.
        kinds: The types of all.
        mixer: The layer's own.
        found: The layers that have a shared block in the file.
        block_of: Makes the block from the numbers of its users.
    """
    if kinds[index] != HYBRID:
        return LayerConfig(mixer=mixer, mixer_norm=norm)
    hybrids = [number for number, kind in enumerate(kinds) if kind == HYBRID]
    user = hybrids.index(index)
    blocks = _num_blocks(reading.reader, found)
    users = tuple(range(user % blocks, len(hybrids), blocks))
    owns = user == users[0]
    return LayerConfig(
        mixer=SharedBlockConfig(
            block=block_of(reading, norm, users),
            user=user,
            owns=owns,
            mixer=mixer,
            mixer_norm=norm,
        ),
        mixer_norm=None,
        joins_embedding=True,
        shares_layer=None if owns else hybrids[users[0]],
    )


_ZAMBA2 = Traits(
    rules=hf_rules(_RULES, _NORMS),
    rules_of=_rules_of,
    defaults={"rms_norm_eps": 1e-5, "hidden_act": "gelu", "mamba_d_state": 64},
    layer=_layer,
    rope=_rope,
    prepare=_config,
    unused=_unread,
    ignored_keys=(
        *TRAINING,
        "attention_head_dim",
        "attention_hidden_size",
        "hybrid_layer_ids",
        "kv_channels",
        "num_query_groups",
        "use_conv_bias",
        "use_long_context",
    ),
)
ZAMBA2 = _ZAMBA2.family("zamba2")


def _first_mixer_rules(at: str, ours: str, in_proj: Selection | None) -> list[Rule]:
    """Names of Zamba's mixer.

    Args:
        at: What they begin with.
        ours: What the parameters begin with.
        in_proj: Which rows of the input's projection are channels, and which are gates.
    """
    plain = ("out_proj.weight", "out_proj.bias", "conv1d.bias")
    return [
        Rule(at + "in_proj.{p}", ours + "in_proj.{p}", p=PARTS, cut=in_proj),
        Rule(at + "{p}", ours + "{p}", p=plain),
        Rule(at + "conv1d.weight", ours + "conv1d.weight", Squeeze(1)),
        Rule(at + "{p}_proj_weight", ours + "{p}_proj", p=("x", "dt")),
        Rule(at + "dt_proj_bias", ours + "dt_bias", Reshape()),
        Rule(at + "A_log", ours + "a_log", Reshape()),
        Rule(at + "D", ours + "d", Reshape()),
    ]


def _first_rules(in_proj: Selection | None = None) -> RuleBook:
    return hf_rules(
        [
            *_common_rules(_FIRST_SHARED),
            *_first_mixer_rules(LAYER + "mamba.", MIXER, in_proj),
            *_first_mixer_rules(_DECODER + "mamba.", MIXER + "mixer.", in_proj),
        ],
        _NORMS,
    )


def _first_rules_of(checkpoint: Checkpoint) -> RuleBook:
    """Each channel's gate lies beside it."""
    found = (i for name, i in checkpoint.tensors.items() if name.endswith(".mamba.in_proj.weight"))
    rows = next((info.shape[0] for info in found), 0)
    return _first_rules(Pairs(rows, rows) if rows else None)


def _first_unread(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Blocks repeated in each layer that uses them."""
    users = _users(checkpoint.tensors, _FIRST_SHARED)
    blocks = _num_blocks(ConfigReader(checkpoint.config), users)
    return tuple(f"{user}{_FIRST_SHARED}" for user in users[blocks:])


def _first_kinds(reading: Reading) -> list[str | None]:
    period = reading.size("attn_layer_period", 6)
    offset = reading.size("attn_layer_offset", 4, minimum=0)
    usual = [LINEAR, LINEAR, HYBRID]
    usual += [HYBRID if i % period == offset else LINEAR for i in range(reading.num_layers)]
    return [
        reading.layer_type(number, (LINEAR, HYBRID), "layers_block_type") or usual[number]
        for number in range(reading.num_layers)
    ]


def _first_block(reading: Reading, norm: NormConfig, users: tuple[int, ...]) -> BlockConfig:
    usual = 2 * reading.hidden_size // reading.size("num_attention_heads") or 1
    dim = reading.size("attention_head_dim", usual)
    return BlockConfig(
        hidden_size=reading.hidden_size,
        attention=_block_attention(reading, _ZAMBA, norm, dim),
        feed_forward=read_mlp(reading, {}),
        eps=norm.eps,
        users=users,
    )


def _first_layer(reading: Reading, norm: NormConfig, index: int) -> LayerConfig:
    sizes = read_mamba1(reading, "mamba_")
    heads = reading.size("n_mamba_heads", 2)
    if sizes.inner_size % heads:
        raise ConfigError(
            f"{reading.reader.source}: {sizes.inner_size} channels are not {heads} equal heads.",
            expected='an "n_mamba_heads" that divides "mamba_expand" times "hidden_size"',
        )
    mixer = HeadedMamba1Config(
        hidden_size=sizes.hidden_size,
        inner_size=sizes.inner_size,
        state_size=sizes.state_size,
        dt_rank=sizes.dt_rank,
        conv_kernel=sizes.conv_kernel,
        bias=sizes.bias,
        conv_bias=sizes.conv_bias,
        num_heads=heads,
    )
    users = _users(reading.tensors, _FIRST_SHARED)
    return _any_layer(reading, norm, index, _first_kinds(reading), mixer, users, _first_block)


_ZAMBA = Traits(
    rules=_first_rules(),
    rules_of=_first_rules_of,
    defaults={
        "rms_norm_eps": 1e-5,
        "hidden_act": "gelu",
        "num_key_value_heads": 16,
        "mamba_conv_bias": True,
    },
    layer=_first_layer,
    rope=lambda *_: None,
    prepare=lambda own: with_types(own, "layers_block_type", "layer_types"),
    unused=_first_unread,
    expects={"hidden_mamba_act": SILU},
    ignored_keys=(
        *TRAINING,
        *("attention_head_dim", "attention_hidden_size"),
        *("attn_layer_period", "attn_layer_offset"),
    ),
)
ZAMBA = _ZAMBA.family("zamba")
