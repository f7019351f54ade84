"""How fast a model runs: loads, figures, the machine's limit; and whether it is computed right."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from blazr.core.table import Table

if TYPE_CHECKING:
    from blazr.models.causal_lm import ModelConfig

RANDOM_SHAPES: Table[Callable[[], ModelConfig]] = Table(
    "random shape",
    {},
    lazy={
        "qwen2-0.5b": "blazr.bench.shapes:qwen2_half_b",
        "llama-3.2-1b": "blazr.bench.shapes:llama_1b",
        "llama-3.1-8b": "blazr.bench.shapes:llama_8b",
        "granite-4.0-h-1b": "blazr.bench.shapes:granite_h_1b",
        "nemotron-nano-9b": "blazr.bench.shapes:nemotron_9b",
        "hybrid-0.4b": "blazr.bench.shapes:hybrid_400m",
        "hybrid-120m": "blazr.bench.shapes:hybrid_120m",
        "nano": "blazr.bench.shapes:nano",
    },
)
