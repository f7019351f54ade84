"""Voxtral's sounds; the library's own processor needs another package for text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

MAX_AUDIO_S = 600


class VoxtralProcessor:
    """Sounds to mel spectrograms of half a minute each, and the tokens that stand for them.

    Args:
        directory: Where the model lies.
        config: As the library reads it.

    Attributes:
        audio_token: What stands for a part of a sound in a prompt.
        max_audio_len: Longest sound, in seconds.
        feature_extractor: The library's.
        tokenizer: Knows that one token.
    """

    audio_token = "[AUDIO]"
    max_audio_len = MAX_AUDIO_S

    def __init__(self, directory: Path, config: Any) -> None:
        import transformers

        self.feature_extractor: Any = transformers.WhisperFeatureExtractor.from_pretrained(
            directory, local_files_only=True
        )
        self._tower = config.audio_config
        self.tokenizer = _OneToken(config.audio_token_id)

    def __call__(
        self, *, audio: Sequence[NDArray[np.float32]], sampling_rate: int = 16_000, **_: object
    ) -> dict[str, Tensor]:
        """Of one sound, (N,) samples: spectrograms (chunks, M, F), and its tokens (1, T).

        A sound is filled up with silence to whole chunks.
        """
        extractor = self.feature_extractor
        found: Tensor = extractor(
            audio[0],
            sampling_rate=sampling_rate,
            padding=True,
            truncation=False,
            pad_to_multiple_of=extractor.n_samples,
            return_tensors="pt",
        )["input_features"][0]
        chunks = found.unflatten(1, (-1, extractor.nb_max_frames)).transpose(0, 1)
        # the tower halves the frames, and the projector takes several of its vectors as one
        per_token = 2 * self._tower.intermediate_size // self._tower.hidden_size
        length = len(chunks) * (extractor.nb_max_frames // per_token)
        return {
            "input_ids": torch.full((1, length), self.tokenizer.token_id),
            "input_features": chunks,
        }


class _OneToken:
    """In the place of a tokenizer, for what only needs to know that token."""

    def __init__(self, token_id: int) -> None:
        self.token_id = token_id

    def convert_tokens_to_ids(self, name: str) -> int:  # noqa: ARG002  (there is one)
        return self.token_id

    def __call__(self, texts: Sequence[str], **_: object) -> dict[str, list[list[int]]]:
        return {"input_ids": [[] for _ in texts]}
