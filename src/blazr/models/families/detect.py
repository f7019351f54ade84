"""Which family a checkpoint belongs to."""

from __future__ import annotations

from blazr.core.errors import CheckpointError
from blazr.models.checkpoint.base import Checkpoint
from blazr.models.families import FAMILIES
from blazr.models.families.base import Family


def detect_family(checkpoint: Checkpoint) -> Family:
    """The family whose tensor names these are.

    Raises:
        CheckpointError: They are no family's.
    """
    for family in FAMILIES.values():
        if family.matches(checkpoint):
            return family
    names = ", ".join(name[:40] for name in list(checkpoint.tensors)[:4])
    raise CheckpointError(
        f"{checkpoint.path} is not a language model of a kind that blazr knows.",
        found=f"tensors such as {names}",
        expected="embed_tokens.weight and layers.0.* (oxidizr), the same behind model."
        " (Llama, Mistral, Qwen), or backbone.* (Mamba)",
    )
