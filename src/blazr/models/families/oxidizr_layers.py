"""The layers of oxidizr, and of Llama without a config: from shapes first, config.json second."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from blazr.core.errors import CheckpointError, ConfigError, ShapeError
from blazr.models.families.base import Context, Setting, Size, TensorGroup, value_or
from blazr.models.families.hf.rope import number_or, with_llama3_factors
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import FeedForwardConfig
from blazr.nn.layers.mamba1 import Mamba1Config
from blazr.nn.layers.mamba2 import Mamba2Config
from blazr.nn.layers.mamba3 import Mamba3Config
from blazr.nn.layers.mla import MlaConfig
from blazr.nn.layers.mlp import MlpConfig
from blazr.nn.layers.moe import MoeConfig
from blazr.nn.layers.rope import RopeConfig, RopeScaling

LATENT_DOWN = "self_attn.w_dkv"  # what only layers with latent attention have
DEFAULT_CONV_KERNEL = 4
DEFAULT_ROPE_THETA = 10000.0
DEFAULT_TRAINED_LENGTH = 8192  # what Llama 3.1 was trained with
SCALINGS: tuple[Literal["llama3", "linear"], ...] = ("llama3", "linear")
DEFAULT_EXPERTS_PER_TOKEN = 2
# the usual sizes first; the small ones make sure that a guess is only made where none is close
HEAD_DIMS = (64, 128, 96, 80, 32, 16, 256, 192, 112, 48, 40, 24, 8)


def derive_attention(layer: TensorGroup, context: Context) -> AttentionConfig:
    """The sizes of a layer's attention.

    Raises:
        CheckpointError: The number of heads cannot be told.
        ConfigError: The config's number of heads does not fit the tensors.
        ShapeError: The heads cannot share the key/value heads.
    """
    at = "self_attn."
    query = layer.size(
        (at + "q_proj.weight", 0), (at + "q_proj.bias", 0), (at + "o_proj.weight", 1)
    )
    key = layer.size(
        *((f"{at}{p}_proj.{part}", 0) for part in ("weight", "bias") for p in ("k", "v"))
    )
    heads = _num_heads(layer, query, key, context)
    dim = query.value // heads
    context.reconcile("head_dim", dim, query.source)
    kv_heads = context.reconcile("num_kv_heads", key.value // dim, key.source)
    if heads % kv_heads:
        raise ShapeError(
            f"{layer.prefix}self_attn: {heads} heads cannot share {kv_heads} key/value heads.",
            found=f"q_proj of {query.value} rows, k_proj of {key.value}, heads of {dim}",
            expected='a "num_attention_heads" that makes them divide',
        )
    return AttentionConfig(
        hidden_size=context.hidden_size,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        rope=derive_rope(dim, context),
        qkv_bias=layer.has(at + "q_proj.bias"),
        qk_norm=layer.has(at + "q_norm."),
        norm_eps=context.eps,
        sliding_window=context.sliding_window,
    )


def _num_heads(layer: TensorGroup, query: Size, key: Size, context: Context) -> int:
    """From a norm's length, a file, another layer, or the one head size that fits."""
    declared = context.reader.integer("num_attention_heads", minimum=1)
    if layer.has("self_attn.q_norm.weight"):
        norm = layer.size(("self_attn.q_norm.weight", 0), ("self_attn.k_norm.weight", 0))
        heads = query.value // norm.value
        context.ledger.reconcile("num_attention_heads", heads, norm.source, declared)
        return _checked(heads, query, key, norm.source)
    dim = context.reader.integer("head_dim", minimum=1)
    trained = context.training.integer("num_heads", minimum=1)
    for setting in (declared, trained):
        if setting is not None:
            if dim is not None and not _fits(setting.value, query, key):
                break
            _checked(setting.value, query, key, setting.source)
            return context.ledger.choose("num_attention_heads", setting, 0)
    if dim is not None:
        heads = _checked(query.value // dim.value, query, key, dim.source)
        return context.ledger.record("num_attention_heads", heads, dim.source)
    return _guess_heads(layer, query, key, context)


def _fits(heads: int, query: Size, key: Size) -> bool:
    if not heads or query.value % heads:
        return False
    dim = query.value // heads
    return dim % 2 == 0 and key.value % dim == 0


def _checked(heads: int, query: Size, key: Size, source: str) -> int:
    if _fits(heads, query, key):
        return heads
    raise ConfigError(
        f"{heads} attention heads ({source}) do not fit the tensors.",
        found=f"{query.source} of {query.value}, {key.source} of {key.value}",
        expected='a "num_attention_heads" that cuts both into heads of one even size',
    )


def _guess_heads(layer: TensorGroup, query: Size, key: Size, context: Context) -> int:
    for other in context.layers:
        if other.has(LATENT_DOWN):
            rope = other.size(("self_attn.w_kr.weight", 0))
            heads = other.size(("self_attn.w_qr.weight", 0)).value // rope.value
            if _fits(heads, query, key):
                return context.ledger.record(
                    "num_attention_heads", heads, f"tensor {rope.source}", "as in another layer"
                )
    # the usual head sizes that divide both projections
    fitting = [dim for dim in HEAD_DIMS if query.value % dim == 0 and key.value % dim == 0]
    if len(fitting) == 1:
        heads = query.value // fitting[0]
        note = f"of the usual head sizes only {fitting[0]} fits; config.json does not say"
        return context.ledger.record("num_attention_heads", heads, "assumed", note)
    choices = " and ".join(f"{query.value // dim} heads of {dim}" for dim in fitting)
    raise CheckpointError(
        f"the heads of {layer.prefix.rstrip('.')} cannot be read from tensor shapes alone.",
        found=f"q_proj of {query.value} rows, k_proj of {key.value}; "
        + (f"{choices} all fit" if fitting else "no usual head size fits"),
        expected='"num_attention_heads" or "head_dim" in config.json',
        hint="copy config.json from the original model beside the weights, or write one with"
        ' {"num_attention_heads": ...}',
    )


def derive_rope(dim: int, context: Context) -> RopeConfig:
    """The rotation of ``dim`` channels.

    Raises:
        ConfigError: The scaling is of an unknown kind, or of none that is named.
    """
    base = context.reader.number("rope_theta", above=0)
    theta = context.ledger.choose("rope_theta", base, DEFAULT_ROPE_THETA)
    section = context.reader.section("rope_scaling")
    kind = (section.text("rope_type") or section.text("type")) if section else None
    if section is not None and kind is None and section.number("factor") is not None:
        raise ConfigError(
            f"{section.source}: a factor alone does not say how RoPE is scaled.",
            expected='"rope_type": ' + ", ".join((*SCALINGS, "default")),
        )
    if section is None or kind is None or kind.value == "default":
        return RopeConfig(dim, theta, None)
    known = next((name for name in SCALINGS if name == kind.value), None)
    if known is None:
        raise ConfigError(
            f"{section.source}: this kind of RoPE scaling is not supported.",
            found=repr(kind.value)[:100],
            expected=", ".join((*SCALINGS, "default")),
        )
    trained = section.integer("original_max_position_embeddings", minimum=1)
    scaling = with_llama3_factors(
        section,
        RopeScaling(kind=known, factor=number_or(section, "factor", 1.0)),
        value_or(trained, DEFAULT_TRAINED_LENGTH),
    )
    context.ledger.record(
        "rope_scaling", f"{scaling.kind}, factor {scaling.factor:g}", section.source
    )
    return RopeConfig(dim, theta, scaling)


def derive_feed_forward(layer: TensorGroup, context: Context) -> FeedForwardConfig:
    """The sizes of a layer's MLP or mixture of experts.

    Raises:
        CheckpointError: The layer has neither.
    """
    reader = context.reader
    ledger = context.ledger
    if not layer.has("moe."):
        size = layer.size(
            ("mlp.gate_proj.weight", 0), ("mlp.up_proj.weight", 0), ("mlp.down_proj.weight", 1)
        )
        inner = context.reconcile("intermediate_size", size.value, size.source)
        return MlpConfig(hidden_size=context.hidden_size, intermediate_size=inner)
    declared = reader.integer("num_experts")
    experts = _num_experts(layer, declared)
    size = layer.size(
        *(
            (f"moe.{expert}.{part}_proj.weight", dim)
            for expert in ("experts.0", "experts.1", "shared_expert")
            for part, dim in (("gate", 0), ("up", 0), ("down", 1))
        )
    )
    shared = layer.has("moe.shared_expert.")
    flag = reader.boolean("shared_expert_enabled")
    if flag is not None and flag.value and not shared:
        ledger.warn(f"{flag.source} is true, but {layer.prefix}moe has no shared expert.")
    ledger.record("shared_expert_enabled", shared, f"tensor {layer.prefix}moe.shared_expert.*")
    intermediate_size = ledger.reconcile(
        "intermediate_size", size.value, size.source, reader.integer("moe_intermediate_size")
    )
    ledger.reconcile("num_experts", experts.value, experts.source, declared)
    name = "experts_per_tok"
    wanted = reader.integer(name) or context.training.integer(name)
    chosen = ledger.choose(name, wanted, min(DEFAULT_EXPERTS_PER_TOKEN, experts.value))
    if chosen > experts.value:
        ledger.warn(f"{name} = {chosen}, but there are {experts.value} experts: all are used.")
    return MoeConfig(
        hidden_size=context.hidden_size,
        intermediate_size=intermediate_size,
        num_experts=experts.value,
        experts_per_token=min(chosen, experts.value),
        shared_expert=shared,
    )


def _num_experts(layer: TensorGroup, declared: Setting[int] | None) -> Size:
    """From the router's rows and the experts that are there; config.json decides between them."""
    numbers = {
        part
        for name in layer.tensors
        if name.startswith("moe.experts.") and (part := name.split(".")[2]).isdecimal()
    }
    present = Size(len(numbers), f"{layer.prefix}moe.experts.*")
    routers = [(name, 0) for name in ("moe.router.gate.weight", "moe.gate.weight")]
    if not any(layer.has(name) for name, _ in routers):
        if not numbers:
            raise layer.missing(name for name, _ in routers)
        return present
    routed = layer.size(*routers)
    is_outvoted = declared is not None and declared.value == present.value != routed.value
    return present if is_outvoted else routed


def derive_mamba1(layer: TensorGroup, context: Context, *, at: str = "mamba.") -> Mamba1Config:
    """The sizes of a Mamba-1 mixer; ``a_log`` is oxidizr's spelling, ``A_log`` mamba_ssm's.

    Args:
        layer: Its tensors.
        context: Config and ledger.
        at: How the mixer's names begin.
    """
    is_ssm = layer.has(at + "A_log")
    a_log, skip = (at + "A_log", at + "D") if is_ssm else (at + "a_log", at + "d")
    inner = layer.size(
        (at + "out_proj.weight", 1),
        (a_log, 0),
        (skip, 0),
        (at + "conv1d.weight", 0),
        (at + "conv1d.bias", 0),
        (at + "dt_proj.weight", 0),
        (at + "dt_proj.bias", 0),
    )
    states = layer.size((a_log, 1))
    # oxidizr's projection has full rank, whatever a damaged dt_proj may look like
    rank = layer.size((at + "dt_proj.weight", 1)) if is_ssm else inner
    kernel = layer.size((at + "conv1d.weight", 2))
    record = context.ledger.record
    variant = record("mamba1_variant", "mamba_ssm" if is_ssm else "oxidizr", f"tensor {a_log}")
    return Mamba1Config(
        hidden_size=context.hidden_size,
        inner_size=record("mamba1_inner_size", inner.value, f"tensor {inner.source}"),
        state_size=record("mamba1_state_size", states.value, f"tensor {states.source}"),
        dt_rank=record("mamba1_dt_rank", rank.value, f"tensor {rank.source}"),
        conv_kernel=record("mamba1_conv_kernel", kernel.value, f"tensor {kernel.source}"),
        variant="mamba_ssm" if variant == "mamba_ssm" else "oxidizr",
    )


def derive_mamba2(
    layer: TensorGroup, context: Context, *, at: str = "mamba2.mixer."
) -> Mamba2Config:
    """The sizes of a Mamba-2 mixer.

    Args:
        layer: Its tensors.
        context: Config and ledger.
        at: How the mixer's names begin.

    Raises:
        CheckpointError: Tensors are missing.
        ShapeError: The tensors do not fit each other.
        ConfigError: config.json contradicts itself.
    """
    sizes = _ssd_sizes(layer, at, context)
    groups, states = _groups_and_states(sizes, context)
    return Mamba2Config(
        hidden_size=context.hidden_size,
        num_heads=sizes.num_heads,
        head_dim=sizes.head_dim,
        state_size=states,
        num_groups=groups,
        conv_kernel=_conv_kernel(layer, at, context),
    )


def derive_mamba3(layer: TensorGroup, context: Context) -> Mamba3Config:
    """The sizes of a Mamba-3 mixer.

    Raises:
        CheckpointError: Tensors are missing.
        ShapeError: The tensors do not fit each other.
        ConfigError: config.json contradicts itself.
    """
    at = "mamba3.mixer."
    reader = context.reader
    ledger = context.ledger
    sizes = _ssd_sizes(layer, at, context)
    found = layer.size((at + "bc_norm.weight", 0), (at + "b_bias", 1), (at + "c_bias", 1))
    states = context.reconcile("mamba2_state_size", found.value, found.source)
    if sizes.map_size % states or sizes.num_heads % (sizes.map_size // states):
        raise _unfit(layer, at, f"B of {sizes.map_size} channels is not made of states of {states}")
    groups = context.reconcile("mamba2_n_groups", sizes.map_size // states, sizes.source)
    has_conv, is_rotated = (
        ledger.reconcile(
            name,
            layer.has(at + part),
            f"{layer.prefix}{at}{part}*" + ("" if layer.has(at + part) else " (absent)"),
            reader.boolean(name),
        )
        for name, part in (("mamba3_use_conv", "conv1d."), ("mamba3_complex_rope", "theta_proj."))
    )
    conv_kernel = _conv_kernel(layer, at, context) if has_conv else DEFAULT_CONV_KERNEL
    mimo_rank, witness = 0, f"{layer.prefix}{at}mimo_x_up.* (absent)"
    if layer.has(at + "mimo_x_"):
        wide = layer.size(
            (at + "mimo_x_up.weight", 0), (at + "mimo_x_up.bias", 0), (at + "mimo_x_down.weight", 1)
        )
        mimo_rank, odd = divmod(wide.value, sizes.head_dim)
        witness = wide.source
        if odd:
            raise _unfit(layer, at, f"mimo_x_up of {wide.value} rows, heads of {sizes.head_dim}")
    return Mamba3Config(
        hidden_size=context.hidden_size,
        num_heads=sizes.num_heads,
        head_dim=sizes.head_dim,
        state_size=states,
        num_groups=groups,
        conv_kernel=conv_kernel,
        use_conv=has_conv,
        complex_rope=is_rotated,
        mimo_rank=context.reconcile("mamba3_mimo_rank", mimo_rank, witness),
    )


@dataclass(frozen=True, slots=True)
class _SsdSizes:
    """What Mamba-2 and Mamba-3 have in common; ``map_size`` is G * N."""

    num_heads: int
    head_dim: int
    map_size: int
    source: str


def _ssd_sizes(layer: TensorGroup, at: str, context: Context) -> _SsdSizes:
    reader = context.reader
    ledger = context.ledger
    declared = reader.integer("mamba2_num_heads")
    heads = layer.size(
        *((at + name, 0) for name in ("A_log", "D", "dt_bias")),
        hint=value_or(declared, None),
    )
    dim = reader.integer("mamba2_head_dim")
    rows = layer.size((at + "in_proj.weight", 0), (at + "in_proj.bias", 0))
    likely = heads.value * dim.value if dim else None
    conv = None
    if layer.has(at + "conv1d."):
        conv = layer.size((at + "conv1d.weight", 0), (at + "conv1d.bias", 0))
        likely = rows.value - conv.value - heads.value
    inner = layer.size((at + "out_proj.weight", 1), (at + "norm.weight", 0), hint=likely)
    if inner.value % heads.value:
        raise _unfit(
            layer, at, f"{inner.value} channels cannot be cut into {heads.value} heads of one size"
        )
    head_dim = inner.value // heads.value
    ledger.reconcile("mamba2_num_heads", heads.value, heads.source, declared)
    ledger.reconcile("mamba2_head_dim", head_dim, inner.source, dim)
    # heads x their size tell how much wider than C the mixer is, whatever config.json says
    expand = reader.number("mamba2_expand", above=0)
    if expand is not None:
        expand = replace(expand, value=_whole(expand.value))
    ledger.reconcile(
        "mamba2_expand", _whole(inner.value / context.hidden_size), inner.source, expand
    )
    chunk = reader.integer("mamba2_chunk_size", minimum=1)
    if chunk is not None:
        note = "not used: it is about speed alone, and kernels choose their own"
        ledger.record("mamba2_chunk_size", chunk.value, chunk.source, note)
    if conv is not None:  # a second witness, for where in_proj's weight and bias disagree
        rows = layer.size(
            (at + "in_proj.weight", 0),
            (at + "in_proj.bias", 0),
            hint=conv.value + inner.value + heads.value,
        )
    maps, odd = divmod(rows.value - 2 * inner.value - heads.value, 2)
    if odd or maps < 1:
        raise _unfit(
            layer,
            at,
            f"{rows.source} of {rows.value} rows, {inner.value} channels and {heads.value} heads",
            "in_proj of 2 x channels + heads + 2 x groups x states rows",
        )
    return _SsdSizes(heads.value, head_dim, maps, rows.source)


def _whole(number: float) -> float:
    """The same, as a whole number where it is one."""
    return int(number) if number == int(number) else number


def _unfit(layer: TensorGroup, at: str, found: str, expected: str = "") -> ShapeError:
    return ShapeError(
        f"{layer.prefix}{at.rstrip('.')}: the tensors do not fit each other.",
        found=found,
        expected=expected,
        hint="the file is damaged, or of a kind that blazr does not know",
    )


def _groups_and_states(sizes: _SsdSizes, context: Context) -> tuple[int, int]:
    """G * N channels into groups and states: shapes tell the product, config.json the split."""
    reader = context.reader
    ledger = context.ledger
    states = reader.integer("mamba2_state_size")
    groups = reader.integer("mamba2_n_groups")
    product = sizes.map_size
    heads = sizes.num_heads
    if states and states.value and product % states.value == 0:
        count = product // states.value
        if heads % count == 0:
            ledger.record("mamba2_state_size", states.value, states.source)
            return ledger.reconcile("mamba2_n_groups", count, sizes.source, groups), states.value
    if groups and groups.value and product % groups.value == 0 and heads % groups.value == 0:
        count = ledger.record("mamba2_n_groups", groups.value, groups.source)
    else:
        note = "the tensors tell groups x states only"
        count = ledger.record("mamba2_n_groups", 1, "assumed", note)
    return count, ledger.reconcile("mamba2_state_size", product // count, sizes.source, states)


def _conv_kernel(layer: TensorGroup, at: str, context: Context) -> int:
    kernel = layer.size((at + "conv1d.weight", 2))
    return context.reconcile("mamba2_conv_kernel", kernel.value, kernel.source)


def derive_mla(layer: TensorGroup, context: Context) -> MlaConfig:
    """The sizes of multi-head latent attention; shapes tell all of them.

    Raises:
        CheckpointError: Tensors are missing.
        ShapeError: The tensors do not fit each other.
    """
    at = "self_attn."

    def size(name: str, **witnesses: int) -> int:
        named = ((f"{at}{part}.weight", dim) for part, dim in witnesses.items())
        return context.ledger.size(layer, context.reader, name, *named)

    kv_latent = size("kv_latent_dim", w_dkv=0, w_uk=1, w_uv=1)
    q_latent = size("q_latent_dim", w_dq=0, w_uq=1)
    rope_dim = size("d_rope", w_kr=0)
    rotated = layer.size((at + "w_qr.weight", 0))
    inner = layer.size(
        *(
            (f"{at}{part}.weight", dim)
            for part, dim in (("w_uq", 0), ("w_uk", 0), ("w_uv", 0), ("o_proj", 1))
        )
    )
    heads = rotated.value // rope_dim
    if not heads or rotated.value % rope_dim or inner.value % heads or rope_dim % 2:
        raise _unfit(
            layer,
            at,
            f"{layer.prefix}{at}w_kr.weight of {rope_dim} rows,"
            f" {rotated.source} of {rotated.value}, {inner.source} of {inner.value}",
            "an even w_kr; w_qr of heads x w_kr rows; w_uq of heads x head size rows",
        )
    context.reconcile("num_attention_heads", heads, rotated.source)
    head_dim = context.ledger.record("head_dim", inner.value // heads, f"tensor {inner.source}")
    return MlaConfig(
        hidden_size=context.hidden_size,
        num_heads=heads,
        head_dim=head_dim,
        rope_dim=rope_dim,
        kv_latent=kv_latent,
        q_latent=q_latent,
        rope=derive_rope(rope_dim, context),
        sliding_window=context.sliding_window,
    )
