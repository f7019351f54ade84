"""Adapters of either kind: PEFT's directories and GGUF files."""

from __future__ import annotations

from pathlib import Path

from blazr.models.adapters.file import AdapterFile
from blazr.models.adapters.gguf import read_gguf
from blazr.models.adapters.peft import read_peft


def read_adapter(path: Path) -> AdapterFile:
    """Read an adapter.

    Args:
        path: A ``.gguf`` file, or a directory of PEFT's.

    Raises:
        CheckpointError: A file is missing, or does not hold an adapter.
        ConfigError: It is of a kind that is not supported.
    """
    return read_gguf(path) if path.suffix == ".gguf" else read_peft(path)
