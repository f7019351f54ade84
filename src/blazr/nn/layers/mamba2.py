"""The Mamba-2 mixer: a checkpoint of the state, and a log of the tokens since."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blazr.nn.layers.base import Mixer, MixerConfig
from blazr.nn.layers.batch import ForwardBatch, LayerCache, Span, concat_rows
from blazr.nn.layers.cache_spec import GRID, CacheSpec, TensorSpec
from blazr.nn.layers.linear import DepthwiseConv, Linear
from blazr.nn.layers.norm import NormConfig
from blazr.nn.ops.conv1d import causal_conv1d, causal_conv1d_sequences
from blazr.nn.ops.norm import gated_rms_norm
from blazr.nn.ops.sequence import GatedNorm, Mamba2Memory, Mamba2Weights, mamba2_kernel
from blazr.nn.ops.ssd import (
    DT_MAX,
    DT_MIN,
    decay_rates,
    ssd_output,
    ssd_state,
    state_output,
    step_sizes,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Config(MixerConfig):
    """Sizes of a Mamba-2 mixer.

    Args:
        hidden_size: C.
        num_heads: H.
        head_dim: P; the inner size is H * P.
        state_size: N.
        num_groups: G, how many input and output maps the heads share.
        conv_kernel: K, taps of the causal convolution.
        norm_eps: Of the gated norm.
        norm: Whether the gate comes before the norm or behind it, or there is no norm.
        norm_groups: The norm is taken over each of so many groups of channels.
        in_bias: Whether the projection into the mixer has a bias.
        conv_bias: Whether the convolution has one.
        out_bias: Whether the projection out of the mixer has one.
        dt_limits: Least and most that a step size may be.
        multipliers: Applied to z, x, B, C and dt as they are projected; None for none.
    """

    hidden_size: int
    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int = 1
    conv_kernel: int = 4
    norm_eps: float = 1e-6
    norm: Literal["gate_first", "norm_first", "none"] = "gate_first"
    norm_groups: int = 1
    in_bias: bool = True
    conv_bias: bool = True
    out_bias: bool = True
    dt_limits: tuple[float, float] = (DT_MIN, DT_MAX)
    multipliers: tuple[float, float, float, float, float] | None = None

    @property
    def inner_size(self) -> int:
        """Channels of x, z and the output: H * P."""
        return self.num_heads * self.head_dim

    @property
    def map_size(self) -> int:
        """Channels of B, and of C: G * N."""
        return self.num_groups * self.state_size

    @property
    def conv_size(self) -> int:
        """Channels the convolution runs over: x, B and C."""
        return self.inner_size + 2 * self.map_size

    def cache_spec(self, dtype: torch.dtype) -> CacheSpec:
        """State and convolution window at grid edges; inputs of the recurrence since then."""
        state = (self.num_heads, self.head_dim, self.state_size)
        return CacheSpec(
            checkpoint={
                "ssm": TensorSpec(state, torch.float32),
                "conv": TensorSpec((self.conv_kernel - 1, self.conv_size), dtype),
            },
            log={
                "raw": TensorSpec((self.conv_size,), dtype),
                "xb": TensorSpec((self.inner_size + self.map_size,), dtype),
                "dt": TensorSpec((self.num_heads,), torch.float32),
            },
        )

    def build(self) -> Mamba2:
        """The module, with uninitialised parameters."""
        return Mamba2(self)


class Mamba2(Mixer):
    """Selective state space with scalar decay per head [arXiv:2405.21060].

    The output of a token is computed from the checkpoint at the last grid edge and the rows since,
    in decode as in prefill: one formula, so cutting a prompt elsewhere cannot change it.
    """

    def __init__(self, config: Mamba2Config) -> None:
        super().__init__()
        self.config = config
        heads, inner = config.num_heads, config.inner_size
        projected = inner + config.conv_size + heads  # z | x B C | dt
        self.in_proj = Linear(config.hidden_size, projected, bias=config.in_bias)
        self.conv1d = DepthwiseConv(config.conv_size, config.conv_kernel, bias=config.conv_bias)
        self.dt_bias = nn.Parameter(torch.empty(heads))
        self.a_log = nn.Parameter(torch.empty(heads))
        self.d = nn.Parameter(torch.empty(heads))
        self.norm = None
        if config.norm != "none":
            self.norm = NormConfig(inner, config.norm_eps).build()
        self.out_proj = Linear(inner, config.hidden_size, bias=config.out_bias)

    def forward(self, x: Tensor, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """(T, C) to (T, C); appends to the log, writes the checkpoints the batch asks for."""
        projected: Tensor = self.in_proj(x)
        step = mamba2_kernel(x.device.type, projected.dtype) if self._fits_kernel else None
        if step is not None:
            return self.out_proj(step(projected, self._weights, _memory(cache), batch.table))
        z, raw, dt = self._cut(projected)
        decodes = batch.num_decodes
        parts = []
        if decodes:
            parts.append(self._decode(raw[:decodes], dt[:decodes], batch, cache))
        for index in range(decodes, len(batch.spans)):
            rows = batch.spans[index].rows
            parts.append(self._prefill(raw[rows], dt[rows], index, batch, cache))
        return self._finish(concat_rows(parts), z)

    def forward_sequences(self, x: Tensor) -> Tensor:
        """(B, T, C) to (B, T, C), every sequence from a zero state."""
        cfg = self.config
        z, raw, dt = self._cut(self.in_proj(x))
        post = F.silu(causal_conv1d_sequences(raw, self.conv1d.weight, self.conv1d.bias))
        post = post.to(raw.dtype)
        a = decay_rates(self.a_log)
        state = x.new_zeros(
            (x.shape[0], cfg.num_heads, cfg.head_dim, cfg.state_size), dtype=torch.float32
        )
        outputs = []
        for low in range(0, x.shape[1], GRID):
            rows = slice(low, low + GRID)
            xs, b = self._split_xb(post[:, rows, : -cfg.map_size])
            c = self._maps(post[:, rows, -cfg.map_size :])
            step = dt[:, rows]
            y = ssd_output(xs, step, step * a, b, c, state_output(c, state))
            state = ssd_state(xs, step, step * a, b, state)
            outputs.append(y + xs * self.d.float()[:, None])
        return self._finish(torch.cat(outputs, 1), z)

    def _cut(self, projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        cfg = self.config
        if cfg.multipliers is not None:
            projected = projected * _multipliers(cfg, projected.device, projected.dtype)
        sizes = [cfg.inner_size, cfg.conv_size, cfg.num_heads]
        z, raw, dt = projected.split(sizes, -1)
        low, high = cfg.dt_limits
        return z, raw, step_sizes(dt, self.dt_bias, low=low, high=high)

    @property
    def _fits_kernel(self) -> bool:
        cfg = self.config
        return cfg.head_dim <= 128 and cfg.state_size <= 256 and cfg.conv_kernel <= 8

    @cached_property
    def _weights(self) -> Mamba2Weights:
        """As the kernel takes them; made once, when weights are in place."""
        cfg, conv, multipliers = self.config, self.conv1d.filter, None
        if cfg.multipliers is not None:
            weight = self.conv1d.weight
            multipliers = _multipliers(cfg, weight.device, weight.dtype).float()
        return Mamba2Weights(
            heads=cfg.num_heads,
            head_dim=cfg.head_dim,
            state_size=cfg.state_size,
            groups=cfg.num_groups,
            conv_weight=conv.weight,
            conv_bias=conv.bias,
            dt_bias=self.dt_bias.float(),
            a=decay_rates(self.a_log),
            d=self.d.float(),
            norm=GatedNorm(
                order=cfg.norm,
                weight=None if self.norm is None else self.norm.weight.float(),
                eps=cfg.norm_eps,
                groups=cfg.norm_groups,
            ),
            dt_min=cfg.dt_limits[0],
            dt_max=cfg.dt_limits[1],
            multipliers=multipliers,
        )

    def _maps(self, rows: Tensor) -> Tensor:
        return rows.float().unflatten(-1, (self.config.num_groups, -1))  # (..., G, N)

    def _split_xb(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        cfg = self.config
        x, b = rows.float().split([cfg.inner_size, cfg.map_size], -1)
        return x.unflatten(-1, (cfg.num_heads, -1)), self._maps(b)  # (..., H, P), (..., G, N)

    def _finish(self, y: Tensor, z: Tensor) -> Tensor:
        cfg, y = self.config, y.flatten(-2)
        if self.norm is None:
            return self.out_proj(y * F.silu(z.float()))
        gate_first, groups = cfg.norm == "gate_first", cfg.norm_groups
        y = gated_rms_norm(
            y, z, self.norm.weight, self.norm.eps, groups=groups, gate_first=gate_first
        )
        return self.out_proj(y)

    def _decode(self, raw: Tensor, dt: Tensor, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """One token of each of the first sequences: (B, conv_size), (B, H) to (B, H, P)."""
        cfg, live = self.config, cache.live
        spans = batch.spans[: batch.num_decodes]
        slots, runs = batch.state_slots[: len(spans)], batch.run_slots[: len(spans)]
        lengths = torch.tensor([span.log_length for span in spans], device=raw.device)

        # the K - 1 inputs before this one: from the log, or from before the checkpoint
        back = lengths[:, None] + torch.arange(1 - cfg.conv_kernel, 0, device=raw.device)
        logged = live["raw"][runs[:, None], back.clamp(min=0)]
        older = cache.checkpoint["conv"][slots]
        older = older.gather(
            1,
            (back + cfg.conv_kernel - 1).clamp(max=cfg.conv_kernel - 2)[..., None].expand_as(older),
        )
        window = torch.where((back < 0)[..., None], older, logged)
        window = torch.cat((window, raw[:, None]), 1)
        post = F.silu(causal_conv1d(window, self.conv1d.weight, self.conv1d.bias))[:, 0]
        post = post.to(raw.dtype)

        live["raw"][runs, lengths] = raw
        live["xb"][runs, lengths] = post[:, : -cfg.map_size]
        live["dt"][runs, lengths] = dt

        # rows beyond a sequence's own length get no weight and no decay, whatever they hold
        count = max(span.log_length for span in spans) + 1
        empty = (torch.arange(count, device=raw.device) > lengths[:, None])[..., None]
        x, b = self._split_xb(live["xb"][runs, :count])
        step = live["dt"][runs, :count].masked_fill(empty, 0)
        c = self._maps(post[:, None, -cfg.map_size :])
        states = cache.checkpoint["ssm"]
        log_decay = step * decay_rates(self.a_log)
        y = ssd_output(x, step, log_decay, b, c, state_output(c, states, slots))[:, 0]

        for index, span in enumerate(spans):
            for _, slot in span.checkpoints:
                one = slice(index, index + 1)
                state = states[slots[one]]
                states[slot] = ssd_state(x[one], step[one], log_decay[one], b[one], state)[0]
                cache.checkpoint["conv"][slot] = window[index, 1:]
        current = self._split_xb(post[:, : -cfg.map_size])[0]
        return y + current * self.d.float()[:, None]

    def _prefill(  # noqa: PLR0917  (one sequence's rows and where its memory is)
        self, raw: Tensor, dt: Tensor, index: int, batch: ForwardBatch, cache: LayerCache
    ) -> Tensor:
        """Many tokens of one sequence: (T, conv_size), (T, H) to (T, H, P)."""
        cfg, span = self.config, batch.spans[index]
        slot, run = batch.state_slots[index], batch.run_slots[index]
        logged, before = span.log_length, cfg.conv_kernel - 1
        live = {name: rows[run] for name, rows in cache.live.items()}

        # everything since the checkpoint, row 0 being its first token
        raw = torch.cat((cache.checkpoint["conv"][slot], live["raw"][:logged], raw))
        post = F.silu(causal_conv1d(raw[logged:], self.conv1d.weight, self.conv1d.bias))
        post = post.to(raw.dtype)
        xb = torch.cat((live["xb"][:logged], post[:, : -cfg.map_size]))
        dt = torch.cat((live["dt"][:logged], dt))
        x, b = self._split_xb(xb)
        c = self._maps(post[:, -cfg.map_size :])
        log_decay = dt * decay_rates(self.a_log)

        state = cache.checkpoint["ssm"][slot][None]
        wanted = dict(span.checkpoints)
        outputs = []
        for low in range(0, len(xb), GRID):
            rows = slice(low, min(low + GRID, len(xb)))
            new = slice(max(low - logged, 0), rows.stop - logged)
            chunk = (x[None, rows], dt[None, rows], log_decay[None, rows], b[None, rows])
            y = ssd_output(*chunk, c[None, new], state_output(c[None, new], state))[0]
            outputs.append(y + x[logged:][new] * self.d.float()[:, None])
            if rows.stop % GRID == 0:
                state = ssd_state(*chunk, state)
            if rows.stop - logged in wanted:
                target = wanted[rows.stop - logged]
                cache.checkpoint["ssm"][target] = state[0]
                cache.checkpoint["conv"][target] = raw[rows.stop : rows.stop + before]

        self._append(span, live, {"raw": raw[before:], "xb": xb, "dt": dt})
        return torch.cat(outputs)

    @staticmethod
    def _append(span: Span, live: dict[str, Tensor], rows: dict[str, Tensor]) -> None:
        """Log the new rows after the last grid edge; ``rows`` begin at the old checkpoint."""
        total = span.log_length + span.length
        edge = total // GRID * GRID
        first = max(edge, span.log_length)
        for name, values in rows.items():
            live[name][first - edge : total - edge] = values[first:]


@lru_cache(maxsize=64)
def _multipliers(config: Mamba2Config, device: torch.device, dtype: torch.dtype) -> Tensor:
    """One for each projected channel, shared by the layers of a model."""
    assert config.multipliers is not None
    maps = config.map_size
    sizes = (config.inner_size, config.inner_size, maps, maps, config.num_heads)
    rows = [
        torch.full((size,), value, device=device, dtype=dtype)
        for size, value in zip(sizes, config.multipliers, strict=True)
    ]
    return torch.cat(rows)


def _memory(cache: LayerCache) -> Mamba2Memory:
    checkpoint, live = cache.checkpoint, cache.live
    return Mamba2Memory(
        states=checkpoint["ssm"],
        conv_states=checkpoint["conv"],
        log_raw=live["raw"],
        log_xb=live["xb"],
        log_dt=live["dt"],
    )
