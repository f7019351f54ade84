"""VITS, and MMS of Meta, as transformers has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from blazr.pipelines.audio.speaker import Sentence, Speaker

if TYPE_CHECKING:
    from torch import Tensor


class Vits(Speaker):
    """VITS, and MMS of Meta, as transformers has them."""

    auto: ClassVar[str] = "AutoModelForTextToWaveform"
    has_speed: ClassVar[bool] = True

    @property
    def rate(self) -> int:
        """Samples per second of what it says."""
        return int(self.network.config.sampling_rate)

    @property
    def voices(self) -> Sequence[str]:
        """The numbers of its speakers."""
        return [str(each) for each in range(max(int(self.network.config.num_speakers), 1))]

    def say(self, sentence: Sentence) -> Tensor:
        """The sound of a sentence."""
        inputs = self.tokenizer(sentence.text, return_tensors="pt").to(self.device)
        if self.network.config.num_speakers > 1:
            inputs["speaker_id"] = sentence.voice
        own = self.network.config.speaking_rate
        self.network.speaking_rate = own * sentence.speed  # one thread alone uses it
        sound: Tensor = self.network(**inputs).waveform[0]
        return sound
