"""Files of weights: which formats there are, and how each is read."""

from __future__ import annotations

from blazr.core.table import Table
from blazr.models.checkpoint.base import Format
from blazr.models.checkpoint.gguf import GGUF
from blazr.models.checkpoint.safetensors import SAFETENSORS

FORMATS: Table[Format] = Table("checkpoint format", {"safetensors": SAFETENSORS, "gguf": GGUF})
