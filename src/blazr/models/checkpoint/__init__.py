"""Files of weights: which formats there are, and how each is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from blazr.core.table import Table
from blazr.models.checkpoint import gguf, safetensors
from blazr.models.checkpoint.base import Header

# What reads a file's header, by what the names of such files end with.
FORMATS: Table[Callable[[Path], Header]] = Table(
    "checkpoint format", {"safetensors": safetensors.read_header, "gguf": gguf.read_header}
)
