"""VITS, and MMS of Meta, as transformers has them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from blazr.pipelines.audio.speaker import Sentence, Speaker

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Vits(Speaker):
    """VITS, and MMS of Meta, as transformers has them."""

    auto: ClassVar[str] = "AutoModelForTextToWaveform"

    def prepare(self, directory: Path) -> None:
        """Read the tokenizer."""
        import transformers

        auto: Any = transformers.AutoTokenizer
        self._tokenizer = auto.from_pretrained(
            directory, trust_remote_code=False, local_files_only=True
        )

    @property
    def rate(self) -> int:
        """Samples per second of what it says."""
        return int(self.network.config.sampling_rate)

    @property
    def num_voices(self) -> int:
        """How many voices it has."""
        return max(int(self.network.config.num_speakers), 1)

    def can_say(self, text: str) -> bool:
        """Whether a character of a text is in the vocabulary."""
        ids = set(self._tokenizer(text)["input_ids"])
        silent = {self._tokenizer.pad_token_id, self._tokenizer.convert_tokens_to_ids(" ")}
        return bool(ids - silent)

    def say(self, sentence: Sentence) -> NDArray[np.float32]:
        """The sound of a sentence."""
        inputs = self._tokenizer(sentence.text, return_tensors="pt").to(self.device)
        if self.num_voices > 1:
            inputs["speaker_id"] = sentence.voice
        own = self.network.config.speaking_rate
        self.network.speaking_rate = own * sentence.speed  # one thread alone uses it
        sound: NDArray[np.float32] = self.network(**inputs).waveform[0].float().cpu().numpy()
        return sound
