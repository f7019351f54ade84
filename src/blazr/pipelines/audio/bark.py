"""Bark, as transformers has it, with the voices that its directory lists."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from blazr.core.errors import CheckpointError
from blazr.models.checkpoint.base import read_json
from blazr.pipelines.audio.speaker import Sentence, Speaker

if TYPE_CHECKING:
    from torch import Tensor

    from blazr.models.checkpoint.base import Checkpoint

_VOICES = "speaker_embeddings_path.json"
_NO_VOICE = "0"


class Bark(Speaker):
    """Bark: language models of meaning, then of coarse, then of fine codes of sound."""

    auto: ClassVar[str] = "AutoModelForTextToWaveform"
    longest: ClassVar[int] = 200  # it says a quarter of a minute at once, and reads 256 tokens
    steps: ClassVar[tuple[str, ...]] = (
        "semantic.layernorm_final",
        "coarse_acoustics.layernorm_final",
        "fine_acoustics.layernorm_final",
    )

    def prepare(self, checkpoint: Checkpoint) -> None:
        """Read the tokenizer, how the model generates, and the voices."""
        super().prepare(checkpoint)
        config: Any = self.network.generation_config
        # one that says nothing at all makes the library fail
        config.semantic_config = {**config.semantic_config, "min_new_tokens": 2}
        sizes = (config.semantic_config["semantic_vocab_size"], *[config.codebook_size] * 2)
        self._most = dict(
            zip(("semantic_prompt", "coarse_prompt", "fine_prompt"), sizes, strict=True)
        )
        self._voices: dict[str, Mapping[str, Tensor] | None] = {}
        if (checkpoint.directory / _VOICES).exists():
            for name, paths in read_json(checkpoint.directory / _VOICES).items():
                if isinstance(paths, dict):  # beside them stands the name of the repository
                    self._voices[name] = self._voice(checkpoint.directory, name, paths)
        self._voices = self._voices or {_NO_VOICE: None}
        self.voices = list(self._voices)  # where there are no presets, each text has one of its own
        self.rate = int(self.network.config.codec_config.sampling_rate)

    def _voice(self, directory: Path, name: str, paths: Mapping[str, Any]) -> Mapping[str, Tensor]:
        found = {}
        for key, most in self._most.items():
            path = PurePosixPath(str(paths.get(key)))
            if path.is_absolute() or ".." in path.parts or path.suffix != ".npy":
                raise _refusal(name, f"{key} at {str(path)[:50]!r}")
            codes = np.load(directory / path, mmap_mode="r", allow_pickle=False)
            is_sound = codes.dtype.kind in "iu" and codes.ndim == (1 if "semantic" in key else 2)
            if not is_sound or not codes.size or codes.min() < 0 or codes.max() >= most:
                raise _refusal(name, f"{key} of shape {codes.shape} and type {codes.dtype}")
            found[key] = torch.tensor(codes.astype(np.int64), device=self.device)
        return found

    def synthesize(self, sentence: Sentence) -> Tensor:
        """The sound of a sentence."""
        most = self.network.generation_config.semantic_config["max_input_semantic_length"]
        inputs = self.tokenizer(
            sentence.text,
            add_special_tokens=False,
            padding="max_length",
            truncation=True,
            max_length=most,
            return_token_type_ids=False,
            return_tensors="pt",
        ).to(self.device)
        voice = self._voices[self.voices[sentence.voice]]
        sound: Tensor = self.network.generate(**inputs, history_prompt=voice)
        return sound[0]


def _refusal(name: str, found: str) -> CheckpointError:
    return CheckpointError(
        f"{name[:50]!r} is no voice of this model.",
        found=found,
        expected="three .npy files of codes within the model's directory",
    )
