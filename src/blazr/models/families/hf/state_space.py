"""State-space mixers in Hugging Face configs: their sizes, and what their tensors are called."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from blazr.core.errors import ConfigError
from blazr.models.checkpoint.base import Checkpoint
from blazr.models.families.hf.derive import FULL, LINEAR, Flag, Reading
from blazr.models.families.rules import MIXER, PARTS, Rule, Squeeze
from blazr.nn.layers.base import NormConfig
from blazr.nn.layers.mamba1 import Mamba1Config
from blazr.nn.layers.mamba2 import Mamba2Config

# What these were called before they had these names.
_OLD_TYPES = {"mamba": LINEAR, "attention": FULL}
LEAST_STEP = 0.001  # transformers' usual one, where its classes have any
# Keys about training and kernels.
TRAINING = (
    "rescale_prenorm_residual",
    "residual_in_fp32",
    "use_mambapy",
    "use_falcon_mambapy",
    "use_associative_scan",
    "use_mamba_kernels",
    "use_mem_eff_path",
    "chunk_size",
    "mamba_chunk_size",
    "time_step_min",
    "time_step_max",
    "time_step_floor",
    "time_step_scale",
    "time_step_rank",
    "time_step_init_scheme",
    "num_logits_to_keep",
    "z_loss_coefficient",
    "expand",
    "mamba_expand",
    "mamba_ssm_cache_dtype",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Keys:
    """What a type of model calls the sizes of its Mamba-2 mixers.

    Args:
        heads: Key of H.
        head_dim: Key of P.
        states: Key of N.
        groups: Key of G.
        kernel: Key of K.
        expand: Key of how much wider than C the mixer is, for silence about P.
        bias: Whether the projections have biases.
        conv_bias: Whether the convolution has one.
    """

    heads: str = "mamba_n_heads"
    head_dim: str = "mamba_d_head"
    states: str = "mamba_d_state"
    groups: str = "mamba_n_groups"
    kernel: str = "mamba_d_conv"
    expand: str = "mamba_expand"
    bias: Flag = "mamba_proj_bias"
    conv_bias: Flag = "mamba_conv_bias"

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, for models that may have no such mixer."""
        values = (getattr(self, field.name) for field in fields(self))
        return (*(value for value in values if isinstance(value, str)), "time_step_limit")


def read_mamba2(reading: Reading, keys: Mamba2Keys, norm: NormConfig) -> Mamba2Config:
    """A Mamba-2 mixer; its norm is taken over the channels of each group.

    Args:
        reading: The config.
        keys: What it calls the sizes.
        norm: Its other norms, for their eps.

    Raises:
        ConfigError: Something is missing or contradicts itself.
    """
    heads = reading.size(keys.heads)
    groups = reading.size(keys.groups, 1)
    wide = reading.derived(keys.expand, reading.number(keys.expand, 2.0) * reading.hidden_size)
    if heads % groups:
        raise ConfigError(
            f"{reading.reader.source}: {groups} groups cannot share {heads} heads.",
            expected=f"a {keys.groups!r} that divides {keys.heads!r}",
        )
    bias = reading.flag(keys.bias)
    return Mamba2Config(
        hidden_size=reading.hidden_size,
        num_heads=heads,
        head_dim=reading.size(keys.head_dim, wide // heads or 1),
        state_size=reading.size(keys.states),
        num_groups=groups,
        conv_kernel=reading.size(keys.kernel, 4, minimum=2),
        norm_eps=norm.eps,
        norm_groups=groups,
        in_bias=bias,
        out_bias=bias,
        conv_bias=reading.flag(keys.conv_bias),
        dt_limits=read_dt_limits(reading),
    )


def read_dt_limits(reading: Reading) -> tuple[float, float]:
    """The least and the most that a step size may be: ``time_step_limit``, or no limits.

    Raises:
        ConfigError: It is something else than two numbers in order.
    """
    reading.reader.mark("time_step_limit")
    found = reading.reader.raw.get("time_step_limit")
    if found is None:
        return 0.0, math.inf
    limits = []
    for value in found if isinstance(found, list) else ():
        # JSON has no infinity, so that libraries spell it in their own ways
        limit = value.get("__float__") if isinstance(value, Mapping) else value
        limit = math.inf if limit == "Infinity" else limit
        if isinstance(limit, bool) or not isinstance(limit, int | float):
            limit = math.nan
        limits.append(float(limit))
    if len(limits) != 2 or not 0 <= limits[0] < limits[1]:
        raise ConfigError(
            f"{reading.reader.source}: 'time_step_limit' has a wrong value.",
            found=repr(found)[:100],
            expected="two numbers, the larger one behind",
        )
    return limits[0], limits[1]


def read_mamba1(reading: Reading, prefix: str = "") -> Mamba1Config:
    """A Mamba-1 mixer without norms inside.

    Args:
        reading: The config.
        prefix: What Jamba writes before each key; its words are others, too.

    Raises:
        ConfigError: Something is missing.
    """
    hidden = reading.hidden_size
    words = ("state_size", "conv_kernel", "time_step_rank", "use_bias", "use_conv_bias")
    if prefix:
        words = ("d_state", "d_conv", "dt_rank", "proj_bias", "conv_bias")
    states, kernel, rank, bias, conv_bias = (prefix + word for word in words)
    expand = prefix + "expand"
    wide = reading.derived(expand, reading.number(expand, 2.0) * hidden)
    return Mamba1Config(
        hidden_size=hidden,
        inner_size=wide if prefix else reading.size("intermediate_size", wide),
        state_size=reading.size(states, 16),
        dt_rank=reading.size(rank, math.ceil(hidden / 16)),
        conv_kernel=reading.size(kernel, 4, minimum=2),
        bias=reading.flag(bias),
        conv_bias=reading.flag(conv_bias),
    )


def without_auto(own: Mapping[str, object]) -> dict[str, object]:
    """A config without the keys whose value is to follow from others."""
    return {key: value for key, value in own.items() if value != "auto"}


def with_types(own: Mapping[str, object], *keys: str) -> dict[str, object]:
    """A config whose first of these lists of layer types is under the first key, in new words."""
    changed = without_auto(own)
    found = next((changed.pop(key) for key in keys if changed.get(key) is not None), None)
    if isinstance(found, list):
        found = [_OLD_TYPES.get(kind, kind) if isinstance(kind, str) else kind for kind in found]
    return {**changed, keys[0]: found}


def mixer_rules(at: str, ours: str = MIXER) -> list[Rule]:
    """Names of a Mamba mixer, of either kind.

    Args:
        at: What they begin with.
        ours: What the parameters begin with.
    """
    pairs = [f"{name}_proj.{part}" for name in ("in", "out", "dt") for part in PARTS]
    words = (*pairs, "x_proj.weight", "conv1d.bias", "dt_bias", "norm.weight")
    inner = ("dt", "b", "c")
    return [
        Rule(at + "{p}", ours + "{p}", p=words),
        Rule(at + "conv1d.weight", ours + "conv1d.weight", Squeeze(1)),
        Rule(at + "A_log", ours + "a_log"),
        Rule(at + "D", ours + "d"),
        Rule(at + "{p}_layernorm.weight", ours + "{p}_norm.weight", p=inner),
    ]


def rules_where(checkpoint: Checkpoint, pattern: str, rules: Sequence[Rule]) -> list[Rule]:
    """Rules for just those layers in which there is a certain tensor.

    Args:
        checkpoint: The tensors.
        pattern: Expression for its name; its first group is the layer's number.
        rules: The rules, with ``{i}`` for that number.
    """
    compiled = re.compile(pattern, re.ASCII)
    matches = (compiled.match(name) for name in checkpoint.tensors)
    numbers = dict.fromkeys(found[1] for found in matches if found)
    return [rule.of_layer(number) for number in numbers for rule in rules]
