"""SpeechT5, as transformers has it, with its vocoder and with voices in files."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from blazr.core.errors import CheckpointError
from blazr.models.checkpoint.base import Checkpoint
from blazr.pipelines.audio.companion import Companion
from blazr.pipelines.audio.speaker import Sentence, Speaker

_VOICES = "voices"  # a folder of the model's directory


class SpeechT5(Speaker):
    """SpeechT5: letters to spectrograms, and HiFi-GAN from these to sound.

    Its voices are vectors of speakers (x-vectors), each in a file ``voices/NAME.npy``.
    """

    auto: ClassVar[str] = "SpeechT5ForTextToSpeech"
    steps: ClassVar[tuple[str, ...]] = ("speecht5.decoder.wrapped_decoder",)
    companion: ClassVar = Companion(
        inside="vocoder", beside="speecht5_hifigan", network="SpeechT5HifiGan"
    )

    def prepare(self, checkpoint: Checkpoint) -> None:
        """Read the tokenizer and the voices.

        Raises:
            CheckpointError: There is no voice, or one is not sound.
        """
        super().prepare(checkpoint)
        files = sorted((checkpoint.directory / _VOICES).glob("*.npy"))
        if not files:
            raise CheckpointError(
                "this model speaks with the voice of somebody, and there is none.",
                expected=f"{checkpoint.directory.name}/{_VOICES}/NAME.npy, a vector of a speaker",
            )
        self._voices = {each.stem: self._voice(each) for each in files}
        self.voices = list(self._voices)
        self.rate = int(self.network.vocoder.config.sampling_rate)

    def _voice(self, path: Path) -> torch.Tensor:
        size = int(self.network.config.speaker_embedding_dim)
        vector = np.load(path, mmap_mode="r", allow_pickle=False)
        if vector.shape != (size,) or vector.dtype.kind != "f" or not np.isfinite(vector).all():
            raise CheckpointError(
                f"{path.name} is no voice of this model.",
                found=f"shape {vector.shape} of {vector.dtype}",
                expected=f"{size} finite numbers",
            )
        return torch.tensor(vector.astype(np.float32), device=self.device)[None]

    def synthesize(self, sentence: Sentence) -> torch.Tensor:
        """The sound of a sentence."""
        inputs = self.tokenizer(sentence.text, return_tensors="pt").to(self.device)
        vector = self._voices[self.voices[sentence.voice]].to(self.network.dtype)
        sound: torch.Tensor = self.network.generate(
            inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            speaker_embeddings=vector,
            vocoder=self.network.vocoder,
        )
        return sound.reshape(-1)
