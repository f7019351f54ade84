"""VITS, and MMS of Meta, as transformers has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from blazr.pipelines.audio.speaker import Sentence, Speaker

if TYPE_CHECKING:
    from torch import Tensor

    from blazr.models.checkpoint.base import Checkpoint


class Vits(Speaker):
    """VITS, and MMS of Meta, as transformers has them."""

    auto: ClassVar[str] = "AutoModelForTextToWaveform"
    has_speed: ClassVar[bool] = True

    def prepare(self, checkpoint: Checkpoint) -> None:
        """Read the tokenizer, how the model generates, and the numbers of its speakers."""
        super().prepare(checkpoint)
        num_voices = max(int(self.network.config.num_speakers), 1)
        self.voices = [str(each) for each in range(num_voices)]
        self.rate = int(self.network.config.sampling_rate)

    def synthesize(self, sentence: Sentence) -> Tensor:
        """The sound of a sentence."""
        inputs = self.tokenizer(sentence.text, return_tensors="pt").to(self.device)
        if self.network.config.num_speakers > 1:
            inputs["speaker_id"] = sentence.voice
        own = self.network.config.speaking_rate
        self.network.speaking_rate = own * sentence.speed  # one thread alone uses it
        sound: Tensor = self.network(**inputs).waveform[0]
        return sound
