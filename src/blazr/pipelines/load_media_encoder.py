"""The encoder of a model for what it takes besides text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blazr.core.errors import ConfigError
from blazr.models.families import FAMILIES
from blazr.pipelines.audio_encoder import AudioEncoder
from blazr.pipelines.fallback import FallbackModel
from blazr.pipelines.fallback_image_encoder import FallbackImageEncoder
from blazr.pipelines.image_encoder import ImageEncoder
from blazr.pipelines.mmproj import load_mmproj

if TYPE_CHECKING:
    from blazr.models.loading.load import LoadedModel
    from blazr.pipelines.media import MediaEncoder
    from blazr.text.tokenizer import Tokenizer


def load_media_encoder(
    loaded: LoadedModel | FallbackModel, tokenizer: Tokenizer, mmproj: str | None
) -> MediaEncoder | None:
    """The encoder of a model for images or sounds; None where there is none that is known here.

    Args:
        loaded: The model.
        tokenizer: Its vocabulary.
        mmproj: Of a GGUF model, the file of the encoder; None is the one beside it.

    Raises:
        ConfigError: Such a file was asked for, and the model is of other files.
        BlazrError: It was asked for, and cannot be read.
    """
    if mmproj is not None and not loaded.gguf:
        raise ConfigError(
            "only a GGUF model has its part that sees in a file of its own.",
            found=f"mmproj {mmproj!r:.80}",
            hint="leave it out",
        )
    if isinstance(loaded, FallbackModel):
        if not loaded.reads_images:
            return None
        return FallbackImageEncoder(loaded.directory, loaded.module)
    if loaded.gguf:
        return load_mmproj(loaded.path, loaded.module, tokenizer, mmproj)
    takes = FAMILIES[loaded.family].takes
    if "audio" in takes:
        return AudioEncoder(loaded.path, loaded.family, loaded.module)
    if takes:
        return ImageEncoder(loaded.path, loaded.family, loaded.module)
    return None
