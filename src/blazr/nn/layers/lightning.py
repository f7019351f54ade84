"""Lightning attention: linear attention in which each head forgets at a rate of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blazr.core.errors import ConfigError
from blazr.nn.layers.base import Mixer, MixerConfig, NormConfig
from blazr.nn.layers.batch import ForwardBatch, LayerCache
from blazr.nn.layers.cache_spec import CacheSpec, TensorSpec
from blazr.nn.layers.derived import derived
from blazr.nn.layers.linear import Linear
from blazr.nn.layers.ranks import Columns, Held, Parts, Rank, Rows, channels_of, mean_square
from blazr.nn.layers.rope import RopeConfig
from blazr.nn.operands.recurrent import GatedNorm, Mamba2Memory, Mamba2Weights
from blazr.nn.ops.mamba2 import mamba2
from blazr.nn.ops.norm import scale_rms
from blazr.nn.ops.pointwise import activate, scaled, sigmoid_gate
from blazr.nn.ops.rope import rotate


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """A geometric sequence down to 1/256, and every second of a longer one behind it.

    Args:
        heads: How many; those of the longer sequence fill up where this is no power of two.

    Source: Press, Smith and Lewis 2022, arXiv:2108.12409, and their code.
    """
    whole = 2 ** (heads.bit_length() - 1)
    slopes = [2 ** (-8 * (i + 1) / whole) for i in range(whole)]
    between = (2 ** (-4 * (i + 1) / whole) for i in range(0, 2 * (heads - whole), 2))
    return (*slopes, *between)


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningConfig(MixerConfig):
    """Sizes of lightning attention.

    Args:
        hidden_size: C.
        head_dim: D.
        rates: Of each of the H heads, above 0: it forgets by ``exp(-rate)`` a token.
        norm_eps: Of all its norms.
        norm_groups: The norm of the output is taken over each of so many groups of channels.
        activation: Of queries, keys and values, a name of ACTIVATIONS; None for none (Ring).
        qk_norm: Whether queries and keys are normalised, head by head (Ring).
        rope: Rotation of queries and keys; None for none.
        scale: What queries are multiplied with.
        is_norm_cut: Whether ranks have equal parts of a group of the norm's channels;
            ``norm_groups`` then counts those of all ranks.
    """

    hidden_size: int
    head_dim: int
    rates: tuple[float, ...]
    norm_eps: float = 1e-6
    norm_groups: int = 1
    activation: str | None = None
    qk_norm: bool = False
    rope: RopeConfig | None = None
    scale: float = 1.0
    is_norm_cut: bool = False

    @property
    def num_heads(self) -> int:
        """H."""
        return len(self.rates)

    @property
    def inner_size(self) -> int:
        """Channels of queries, of keys, of values and of the output: H * D."""
        return self.num_heads * self.head_dim

    def length_class(self, length: int) -> int:
        """As the rotation has it."""
        return self.rope.length_class(length) if self.rope is not None else 0

    def cache_spec(self, dtype: torch.dtype) -> CacheSpec:
        """The state at grid edges; values and keys since then, and their steps, which are 1."""
        state = (self.num_heads, self.head_dim, self.head_dim)
        return CacheSpec(
            checkpoint={"state": TensorSpec(state, torch.float32)},
            log={
                "vk": TensorSpec((2 * self.inner_size,), dtype),
                "step": TensorSpec((self.num_heads,), torch.float32),
            },
            states=("state",),
        )

    def part(self, rank: Rank) -> tuple[LightningConfig, Parts]:
        """Cut by heads."""
        own = rank.equal_run(self.num_heads, "heads")
        is_norm_cut = self.norm_groups % rank.count > 0
        if is_norm_cut and rank.count % self.norm_groups:
            raise ConfigError(
                f"the norm cannot be cut in {rank.count}.",
                found=f"{self.norm_groups} groups of its channels",
                expected=f"a multiple of {rank.count}, or a divisor of it",
            )
        channels = Rows((channels_of(own, self.head_dim),))
        names = ("q_proj", "k_proj", "v_proj", "gate_proj", "norm")
        parts: dict[str, Held] = dict.fromkeys(names, channels)
        parts["out_proj"] = Columns(channels.runs)
        part = replace(
            self,
            rates=self.rates[own.start : own.stop],
            norm_groups=self.norm_groups // (1 if is_norm_cut else rank.count),
            is_norm_cut=is_norm_cut,
        )
        return part, parts

    def build(self) -> Lightning:
        """The module, with uninitialised parameters."""
        return Lightning(self)


class Lightning(Mixer):
    """Linear attention whose decays are fixed [arXiv:2401.04658].

    A head's state forgets and takes in ``v k^T`` with every token, and puts out its product with
    the query: Mamba-2's recurrence, in which all steps are 1.
    """

    config: LightningConfig

    def __init__(self, config: LightningConfig) -> None:
        super().__init__(config)
        hidden, inner = config.hidden_size, config.inner_size
        self.q_proj = Linear(hidden, inner)
        self.k_proj = Linear(hidden, inner)
        self.v_proj = Linear(hidden, inner)
        self.gate_proj = Linear(hidden, inner)
        if config.qk_norm:
            self.q_norm = NormConfig(config.head_dim, config.norm_eps).build()
            self.k_norm = NormConfig(config.head_dim, config.norm_eps).build()
        self.norm = NormConfig(inner, config.norm_eps).build()
        self.out_proj = Linear(inner, hidden)

    def forward(self, x: Tensor, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """(T, C) to (T, C); appends to the log, writes the checkpoints the batch asks for."""
        cfg = self.config
        q, k, v, gate = self.q_proj(x), self.k_proj(x), self.v_proj(x), self.gate_proj(x)
        if cfg.activation is not None:
            q, k, v = (activate(each, cfg.activation) for each in (q, k, v))
        if cfg.qk_norm or cfg.rope is not None:
            q, k = (each.unflatten(-1, (-1, cfg.head_dim)) for each in (q, k))
            if cfg.qk_norm:
                q, k = self.q_norm(q), self.k_norm(k)
            if cfg.rope is not None:
                rotation = batch.rotation(cfg.rope)
                q, k = rotate(q, rotation), rotate(k, rotation)
            q, k = q.flatten(-2), k.flatten(-2)
        memory = Mamba2Memory(
            states=cache.checkpoint["state"],
            conv_states=None,
            log_raw=None,
            log_xb=cache.log["vk"],
            log_dt=cache.log["step"],
        )
        steps = x.new_zeros(len(x), cfg.num_heads)  # the limits make them 1
        projected = torch.cat((gate, v, k, scaled(q, cfg.scale), steps), -1)
        y = mamba2(projected, self._weights, memory, batch.table)
        if cfg.is_norm_cut:
            mean = mean_square(y.float(), self.ranks, cfg.norm_groups)
            y = sigmoid_gate(scale_rms(y, mean, self.norm.weight, cfg.norm_eps), gate)
        return self.out_proj(y)

    @derived
    def _weights(self) -> Mamba2Weights:
        cfg, weight = self.config, self.norm.weight.float()
        zeros = weight.new_zeros(cfg.num_heads)
        return Mamba2Weights(
            heads=cfg.num_heads,
            head_dim=cfg.head_dim,
            state_size=cfg.head_dim,
            groups=cfg.num_heads,
            conv=None,
            dt_bias=zeros,
            a=-torch.tensor(cfg.rates, device=weight.device),
            d=zeros,
            norm=GatedNorm(
                # where ranks have parts of a group, norm and gate are applied here
                order="ungated" if cfg.is_norm_cut else "norm_sigmoid",
                weight=None if cfg.is_norm_cut else weight,
                eps=cfg.norm_eps,
                groups=cfg.norm_groups,
            ),
            dt_limits=(1.0, 1.0),
            multipliers=None,
        )
