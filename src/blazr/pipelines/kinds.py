"""PIPELINES: the kinds of models that another library runs as a whole, and what each can do.

Importing this imports no torch, so that a server can tell what its models are before it loads one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from blazr.core.table import Table

if TYPE_CHECKING:
    from blazr.models.checkpoint.open import ModelFiles
    from blazr.nn.device import Device
    from blazr.pipelines.pipeline import Pipeline

COMPLETION = "completion"  # what a language model can do
TRANSCRIPTION = "transcription"
SPEECH = "speech"
IMAGE = "image"
_OF_DIFFUSERS = "diffusers"
_MAX_CONFIG_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class PipelineKind:
    """A kind of model.

    Args:
        capabilities: What it can do.
        pipeline: Its `Pipeline`, as ``"package.module:Class"``.
    """

    capabilities: tuple[str, ...]
    pipeline: str

    def load(self, files: ModelFiles, *, device: Device, dtype: str) -> Pipeline:
        """Load a model of this kind.

        Args:
            files: Where it lies.
            device: Where to.
            dtype: What to compute in; ``auto`` is float32 on a CPU, and elsewhere the checkpoint's.

        Raises:
            BlazrError: It cannot be loaded.
        """
        module, _, name = self.pipeline.partition(":")
        kind: type[Pipeline] = getattr(import_module(module), name)
        return kind.load(files, self.capabilities, device=device, dtype=dtype)


# By `model_type` in config.json; what has a `model_index.json` is of diffusers.
PIPELINES: Table[PipelineKind] = Table(
    "pipeline",
    {
        "whisper": PipelineKind((TRANSCRIPTION,), "blazr.pipelines.audio.whisper:Whisper"),
        _OF_DIFFUSERS: PipelineKind((IMAGE,), "blazr.pipelines.diffusion.generator:ImageGenerator"),
        "vits": PipelineKind((SPEECH,), "blazr.pipelines.audio.speaker:Vits"),
    },
)


def kind_of(place: Path) -> PipelineKind | None:
    """The kind of a model in a directory; None where it is a language model, or nothing is."""
    if (place / "model_index.json").is_file():
        return PIPELINES[_OF_DIFFUSERS]
    config = place / "config.json"
    try:
        if config.stat().st_size > _MAX_CONFIG_BYTES:
            return None
        found = json.loads(config.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    name = found.get("model_type") if isinstance(found, dict) else None
    return PIPELINES[name] if isinstance(name, str) and name in PIPELINES else None
