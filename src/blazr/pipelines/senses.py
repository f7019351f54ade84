"""What a model takes besides text, and the part of it that makes vectors of that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blazr.models.families.hf.vision import WITH_IMAGES, WITH_SOUNDS
from blazr.pipelines.fallback import FallbackModel
from blazr.pipelines.hearing import Hearing
from blazr.pipelines.sight import Sight
from blazr.pipelines.vision import Vision

if TYPE_CHECKING:
    from blazr.models.loading.load import LoadedModel


def load_sense(loaded: LoadedModel | FallbackModel) -> Vision | Sight | None:
    """The part of a model that sees or hears; None where there is none that is known here."""
    if isinstance(loaded, FallbackModel):
        return Sight(loaded) if loaded.sees else None
    if loaded.gguf:
        return None
    if loaded.family in WITH_SOUNDS:
        return Hearing(loaded.path, loaded.family, loaded.module)
    if loaded.family in WITH_IMAGES:
        return Vision(loaded.path, loaded.family, loaded.module)
    return None
