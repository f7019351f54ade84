"""Names of tensors in GGUF files: one list for reading and for writing them.

llama.cpp names the parts of all models alike. Where a name means one thing in one layer and another
in the next, what is in the layer decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace

from blazr.models.families.gguf.architectures import Architecture
from blazr.models.families.rules import (
    AS_STORED,
    FEED,
    GATE_UP_DOWN,
    MIXER,
    OURS,
    PARTS,
    Cut,
    DecayLog,
    Pairs,
    Reshape,
    Rule,
    RuleBook,
    Stack,
    TiledColumns,
    TiledHeads,
    Transpose,
)
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import MixerConfig
from blazr.nn.layers.gated_delta import GatedDeltaConfig, KimiDeltaConfig
from blazr.nn.layers.mamba1 import Mamba1Config
from blazr.nn.layers.mamba2 import Mamba2Config
from blazr.nn.layers.mla import DeepseekMlaConfig
from blazr.nn.layers.short_conv import ShortConvConfig

_LAYER = "blk.{i}."
_SHORT = {"shortconv.in_proj": "in_proj", "shortconv.out_proj": "out_proj"}
_SHORT |= {"shortconv.conv": "conv1d"}

ATTENTION, FUSED_ATTENTION, MAMBA = "attn_q.weight", "attn_qkv.weight", "ssm_in.weight"
MAMBA1, DELTA, KIMI = "ssm_x.weight", "attn_gate.weight", "ssm_conv1d_q.weight"
CONV, LATENT = "shortconv.in_proj.weight", "attn_kv_a_mqa.weight"
"""What identifies the mixers of a layer: each a tensor that no other mixer has."""


def gguf_names(
    row: Architecture,
    layers: Mapping[str, Set[str]],
    *,
    fused: bool = False,
    pairs: Pairs | None = None,
    delta: DeltaOrder | None = None,
) -> RuleBook:
    """The names of one file's tensors; of several for one parameter, the first is written.

    Args:
        row: The architecture.
        layers: By the number of a layer, names that are in it: at least the identifying ones.
        fused: Whether both upward matrices of an MLP are one, under the name of the second.
        pairs: In which order the rows of queries and keys lie; None for that of the model.
        delta: In which order the heads of delta networks lie, where there are some.
    """
    is_fused = fused and not row.hybrid
    names = {
        "attn_norm": "mixer_norm",
        "post_attention_norm": "feed_forward_norm" if row.late_norm else "mixer_post_norm",
        **({} if row.late_norm else {"ffn_norm": "feed_forward_norm"}),
        "post_ffw_norm": "feed_forward_post_norm",
        "attn_q_norm": "mixer.q_norm",
        "attn_k_norm": "mixer.k_norm",
        # latent attention
        "attn_q_a": "mixer.q_down_proj",
        "attn_q_b": "mixer.q_up_proj",
        "attn_kv_a_mqa": "mixer.kv_down_proj",
        "attn_q_a_norm": "mixer.q_norm",
        "attn_kv_a_norm": "mixer.kv_norm",
        # state spaces
        "ssm_conv1d": "mixer.conv1d",
        **{f"ssm_{name}": f"mixer.{name}_proj" for name in ("in", "x", "dt", "out")},
        **{f"ssm_{name}_norm": f"mixer.{name}_norm" for name in ("dt", "b", "c")},
        # MLP and experts
        **{f"ffn_{n}": f"feed_forward.{n}_proj" for n in (("down",) if is_fused else GATE_UP_DOWN)},
        **{f"ffn_{n}_shexp": f"feed_forward.shared_expert.{n}_proj" for n in GATE_UP_DOWN},
        **{f"ffn_latent_{n}": f"feed_forward.latent_{n}_proj" for n in ("down", "up")},
        "ffn_gate_inp": "feed_forward.router",
    }
    experts = FEED + "experts.{p}_proj"
    both = (FEED + "gate_proj.{p}", FEED + "up_proj.{p}")
    return RuleBook(
        [
            *row.own_names,
            Rule("token_embd.weight", "embed_tokens.weight"),
            Rule("output_norm.{p}", "norm.{p}", p=PARTS),
            Rule("output.weight", "lm_head.weight"),
            *_renamed(_LAYER, OURS, names),
            *_attention(_LAYER, MIXER, pairs, fused=row.fused_qkv),
            Rule(_LAYER + "attn_{p}_b.weight", MIXER + "{p}_up", p=("k", "v")),
            Rule(
                _LAYER + "attn_kv_b.weight",  # files before both were written head by head
                (MIXER + "k_up", MIXER + "v_up"),
                (Transpose(), AS_STORED),
                cut=Cut(groups="heads"),
            ),
            Rule(_LAYER + "ssm_a", MIXER + "a_log", DecayLog()),
            Rule(_LAYER + "ssm_d", MIXER + "d"),
            *([Rule(_LAYER + "ffn_up.{p}", both, p=PARTS)] if is_fused else ()),
            Rule(
                _LAYER + "ffn_gate_inp_shexp.weight",
                FEED + "shared_expert_gate.weight",
                Reshape(),
            ),
            Rule(_LAYER + "ffn_{p}_exps.bias", FEED + "experts.{p}_bias", p=GATE_UP_DOWN),
            Rule(_LAYER + "exp_probs_b.bias", FEED + "correction_bias"),
            Rule(_LAYER + "ffn_{p}_exps.weight", experts, p=GATE_UP_DOWN),
            Rule(_LAYER + "ffn_{p}.{e}.weight", experts, Stack("e"), p=GATE_UP_DOWN),
            *(rule for number in layers for rule in _in_layer(number, layers[number], delta)),
        ]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaOrder:
    """How the heads of delta networks lie in a file.

    Args:
        key_heads: Heads of keys.
        heads: Heads of values.
        key_dim: Rows of a head of queries or keys.
        tiled: Whether heads of values that share a key lie ``key_heads`` apart.
        joins_gates: Whether the projections of decay and beta are one matrix, by key head.
    """

    key_heads: int
    heads: int
    key_dim: int
    tiled: bool
    joins_gates: bool


def identifying_names(mixers: Iterable[MixerConfig]) -> frozenset[str]:
    """The tensors that identify a layer with these mixers."""
    return frozenset(name for mixer in mixers for name in _TENSORS_BY_MIXER.get(type(mixer), ()))


_TENSORS_BY_MIXER: Mapping[type[MixerConfig], tuple[str, ...]] = {
    AttentionConfig: (ATTENTION,),
    DeepseekMlaConfig: (LATENT,),
    Mamba1Config: (MAMBA, MAMBA1),
    Mamba2Config: (MAMBA,),
    GatedDeltaConfig: (FUSED_ATTENTION, DELTA),
    KimiDeltaConfig: (ATTENTION, KIMI),
    ShortConvConfig: (CONV,),
}


def _renamed(at: str, ours: str, names: Mapping[str, str]) -> Iterable[Rule]:
    for theirs, name in names.items():
        yield Rule(f"{at}{theirs}.{{p}}", f"{ours}{name}.{{p}}", p=PARTS)


def _attention(
    at: str, ours: str, pairs: Pairs | None = None, *, fused: bool = False
) -> Iterable[Rule]:
    targets = tuple(f"{ours}{name}_proj.{{p}}" for name in "qkv")
    joined = Rule(f"{at}attn_qkv.{{p}}", targets, p=PARTS)
    single = [
        Rule(f"{at}attn_{name}.{{p}}", target, p=PARTS, cut=None if name == "v" else pairs)
        for name, target in zip("qkv", targets, strict=True)
    ]
    yield from (joined, *single) if fused else (*single, joined)
    yield Rule(f"{at}attn_output.{{p}}", f"{ours}o_proj.{{p}}", p=PARTS)
    yield Rule(at + "attn_sinks.weight", ours + "sinks")


def _in_layer(number: str, names: Set[str], delta: DeltaOrder | None) -> Iterable[Rule]:
    at = f"blk.{number}."
    ours = f"layers.{number}."
    attends = ATTENTION in names or FUSED_ATTENTION in names
    if not attends and not names & {MAMBA, CONV, LATENT}:
        yield Rule(at + "attn_norm.weight", ours + "feed_forward_norm.weight")
    mixer = mamba = ours + "mixer."
    if CONV in names:
        yield from _renamed(at, mixer, _SHORT)
    if LATENT in names:
        yield from _renamed(at, mixer, {"attn_q_a_norm": "q_norm"})
    if attends and MAMBA in names:
        mamba += "parts.mamba."
        yield from _attention(at, mixer + "parts.attention.")
    if MAMBA in names and MAMBA1 not in names:
        projections = {f"ssm_{name}": f"{name}_proj" for name in ("in", "out")}
        yield from _renamed(at, mamba, {**projections, "ssm_conv1d": "conv1d"})
        yield from _decay(at, mamba)
        yield Rule(at + "ssm_d", mamba + "d", Reshape())
    if DELTA in names and delta is not None:
        yield from _delta(at, mixer, delta)
    if KIMI in names:
        for name in "qkv":
            yield Rule(f"{at}ssm_conv1d_{name}.weight", f"{mixer}{name}_conv1d.weight", Reshape())
        projections = {"attn_output": "out_proj", "ssm_beta": "b_proj"}
        projections |= {f"ssm_{name}": f"{name}_proj" for name in ("f_a", "f_b", "g_a", "g_b")}
        yield from _renamed(at, mixer, projections)
        yield from _decay(at, mixer)


def _decay(at: str, ours: str, heads: TiledHeads | None = None) -> Iterable[Rule]:
    yield Rule(at + "ssm_dt.bias", ours + "dt_bias", cut=heads)
    yield Rule(at + "ssm_a", ours + "a_log", DecayLog(), cut=heads)
    yield Rule(at + "ssm_norm.weight", ours + "norm.weight", Reshape())


def _delta(at: str, ours: str, order: DeltaOrder) -> Iterable[Rule]:
    heads = TiledHeads(order.key_heads, order.heads) if order.tiled else None
    wide = None if heads is None else replace(heads, before=2 * order.key_heads * order.key_dim)
    proj = ours + "in_proj_"
    yield Rule(at + "attn_qkv.weight", proj + "qkv.weight", cut=wide)
    yield Rule(at + "ssm_conv1d.weight", ours + "conv1d.weight", cut=wide)
    yield Rule(at + "attn_gate.weight", proj + "z.weight", cut=heads)
    gates = (proj + "b.weight", proj + "a.weight")
    if order.joins_gates:
        yield Rule(at + "ssm_ba.weight", gates, cut=Cut(groups=order.key_heads))
    else:
        yield Rule(at + "ssm_beta.weight", gates[0], cut=heads)
        yield Rule(at + "ssm_alpha.weight", gates[1], cut=heads)
    columns = AS_STORED if heads is None else TiledColumns(heads)
    yield Rule(at + "ssm_out.weight", ours + "out_proj.weight", columns)
    yield from _decay(at, ours, heads)
