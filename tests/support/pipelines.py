"""Models that other libraries run, loaded as servers load them."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from blazr.models.checkpoint.open import ModelFiles
from blazr.nn.device import resolve_device
from blazr.pipelines.kinds import kind_of
from blazr.pipelines.pipeline import Pipeline

P = TypeVar("P", bound=Pipeline)


def load_pipeline(path: Path, kind: type[P]) -> P:
    """The model in a directory or a GGUF file, which is of this kind."""
    row = kind_of(path)
    assert row is not None
    found = row.load(ModelFiles("model", path), device=resolve_device("cpu"), dtype="auto")
    assert isinstance(found, kind)
    return found
