"""The models and the device of the figures on paper: shapes as published, rates as assumed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from benchmarks.fleet.devices import RooflineDevice
from blazr.bench import RANDOM_SHAPES
from blazr.engine.cache.budget import plan_caches
from blazr.engine.cache.manager import CacheShape
from blazr.engine.cache.storage import plan_layout
from blazr.engine.config import EngineConfig
from blazr.models.sizing import size_of
from blazr.nn.device import Device
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.operands.step import GRID

# Hybrids, and models of attention alone of about that size.
HYBRIDS = {"granite-4.0-h-1b": "llama-3.2-1b", "nemotron-nano-9b": "llama-3.1-8b"}
DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Card:
    """A device on paper.

    Args:
        memory_bytes: What weights and caches may take.
        bytes_per_s: What memory gives in a step, less than its maker says.
        operations_per_s: What products reach.
        overhead_s: Of a step besides: launches, scheduling, sampling.
    """

    memory_bytes: float
    bytes_per_s: float
    operations_per_s: float
    overhead_s: float


# An H100 of 80 GB: nine tenths of its memory, 80 % of 3.35 TB/s, half of 989 TFLOP/s.
CARD = Card(72e9, 0.8 * 3.35e12, 0.5 * 989e12, 1e-3)


@dataclass(frozen=True)
class OnPaper:
    """A model on a card.

    Args:
        device: What its steps cost.
        shape: Memory for its caches.
        page_bytes: Of 64 tokens.
        state_bytes: Of a conversation's recurrent states.
        parameters: All of them.
    """

    device: RooflineDevice
    shape: CacheShape
    page_bytes: int
    state_bytes: int
    parameters: int

    def conversation_bytes(self, num_tokens: int) -> int:
        """What is kept of a conversation of so many tokens, with one state."""
        return -(-num_tokens // GRID) * self.page_bytes + self.state_bytes


def on_paper(
    name: str, config: EngineConfig, *, state_dtype: str = "auto", card: Card = CARD
) -> OnPaper:
    """A model in bfloat16 on a card.

    Args:
        name: A shape of `RANDOM_SHAPES`.
        config: How the engine divides the memory.
        state_dtype: What recurrent states are kept in.
        card: Where.
    """
    network = RANDOM_SHAPES[name]()
    size = size_of(network, DTYPE, state_dtype=state_dtype)
    specs = [spec.stored_as("auto", state_dtype) for spec in network.cache_specs(DTYPE)]
    layout = plan_layout(specs)
    weight_bytes = 2 * size.parameters
    memory = int(card.memory_bytes - weight_bytes)
    (shape,) = plan_caches(
        [layout],
        replace(config, memory=str(memory)),
        device=_OnPaperDevice("cuda", "on paper"),
        max_seq_len=32_768,
    )
    width = sum(
        layer.mixer.num_heads * layer.mixer.head_dim
        for layer in network.layers
        if isinstance(layer.mixer, AttentionConfig)
    )
    device = RooflineDevice(
        weight_bytes=weight_bytes,
        token_bytes=size.kv_bytes_per_token + size.latent_bytes_per_token,
        # the state before the last grid edge and, on average, half of what was logged since; both
        # are written once in 64 tokens
        sequence_bytes=(1 + 1 / GRID)
        * (size.state_bytes_per_sequence + size.log_bytes_per_sequence / 2),
        parameters=size.active_parameters,
        attention_width=width,
        bytes_per_s=card.bytes_per_s,
        operations_per_s=card.operations_per_s,
        overhead_s=card.overhead_s,
    )
    return OnPaper(device, shape, layout.page_bytes, layout.state_bytes, size.parameters)


class _OnPaperDevice(Device):
    """Has as much memory as is asked for."""

    def free_bytes(self) -> int:
        """More than any card."""
        return 2**50

    def total_bytes(self) -> int:
        """More than any card."""
        return 2**50
