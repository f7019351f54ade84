"""Grouped-query attention, MLP and MoE, as Llama and oxidizr both name them."""

from __future__ import annotations

from typing import Literal

from blazr.core.errors import CheckpointError, ConfigError, ShapeError
from blazr.models.families.base import Context, Size, TensorGroup
from blazr.models.families.config_reader import Setting
from blazr.models.families.hf.rope import number_or, with_llama3_factors
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import FeedForwardConfig
from blazr.nn.layers.mlp import MlpConfig
from blazr.nn.layers.moe import MoeConfig
from blazr.nn.layers.rope import RopeConfig, RopeScaling

DEFAULT_ROPE_THETA = 10000.0
DEFAULT_TRAINED_LENGTH = 8192  # what Llama 3.1 was trained with
SCALINGS: tuple[Literal["llama3", "linear"], ...] = ("llama3", "linear")
DEFAULT_EXPERTS_PER_TOKEN = 2
# the usual sizes first; the small ones make sure that a guess is only made where none is close
HEAD_DIMS = (64, 128, 96, 80, 32, 16, 256, 192, 112, 48, 40, 24, 8)


def mixer_kind(layer: TensorGroup) -> str:
    """``"mamba3"``, ``"mamba2"``, ``"mamba1"``, ``"mla"`` or ``"gqa"``, from names."""
    for beginning, kind in (
        ("mamba3.", "mamba3"),
        ("mamba2.", "mamba2"),
        ("mamba.", "mamba1"),
        ("self_attn.w_dkv", "mla"),
    ):
        if layer.has(beginning):
            return kind
    return "gqa"


def derive_attention(
    layer: TensorGroup, context: Context, *, window: int | None = None
) -> AttentionConfig:
    """The sizes of a layer's attention.

    Args:
        layer: Its tensors.
        context: Config and ledger.
        window: Tokens a query sees, or None for all.

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
    ledger = context.ledger
    reader = context.reader
    ledger.settle("head_dim", dim, query.source, reader.integer("head_dim"))
    kv_heads = ledger.settle(
        "num_kv_heads", key.value // dim, key.source, reader.integer("num_kv_heads")
    )
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
        sliding_window=window,
    )


def _num_heads(layer: TensorGroup, query: Size, key: Size, context: Context) -> int:
    """From a norm's length, a file, another layer, or the one head size that fits."""
    declared = context.reader.integer("num_attention_heads", minimum=1)
    if layer.has("self_attn.q_norm.weight"):
        norm = layer.size(("self_attn.q_norm.weight", 0), ("self_attn.k_norm.weight", 0))
        heads = query.value // norm.value
        context.ledger.settle("num_attention_heads", heads, norm.source, declared)
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
        if mixer_kind(other) == "mla":
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
        ConfigError: The scaling is of an unknown kind.
    """
    base = context.reader.number("rope_theta", above=0)
    theta = context.ledger.choose("rope_theta", base, DEFAULT_ROPE_THETA)
    section = context.reader.section("rope_scaling")
    kind = (section.text("rope_type") or section.text("type")) if section else None
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
        trained.value if trained else DEFAULT_TRAINED_LENGTH,
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
        declared = reader.integer("intermediate_size")
        return MlpConfig(
            hidden_size=context.hidden_size,
            intermediate_size=ledger.settle("intermediate_size", size.value, size.source, declared),
        )
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
    intermediate_size = ledger.settle(
        "intermediate_size", size.value, size.source, reader.integer("moe_intermediate_size")
    )
    ledger.settle("num_experts", experts.value, experts.source, declared)
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
