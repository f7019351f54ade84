"""Dia, as transformers has it, with its codec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from blazr.pipelines.audio.companion import Companion
from blazr.pipelines.audio.speaker import Sentence, Speaker

if TYPE_CHECKING:
    from torch import Tensor

    from blazr.models.checkpoint.base import Checkpoint

# of 12 ms; people say some fifteen characters in a second
_FRAMES_PER_CHARACTER = 12
_MIN_FRAMES = 100


class Dia(Speaker):
    """Dia: a text, as bytes, to the codes of a codec (DAC), each channel some frames later.

    A text begins with the mark of its speaker, ``[S1]`` or ``[S2]``; how that one sounds is drawn.
    """

    auto: ClassVar[str] = "DiaForConditionalGeneration"
    packs_sentences: ClassVar[bool] = True
    steps: ClassVar[tuple[str, ...]] = ("model.decoder",)
    companion: ClassVar = Companion(inside="codec", beside="dac_44khz", network="DacModel")

    def prepare(self, checkpoint: Checkpoint) -> None:
        """Read the tokenizer, how the model generates, and the marks of speakers."""
        import transformers

        super().prepare(checkpoint)
        auto: Any = transformers.DiaFeatureExtractor
        extractor = auto.from_pretrained(checkpoint.directory, local_files_only=True)
        kind: Any = transformers.DiaProcessor
        self._processor = kind(extractor, self.tokenizer, audio_tokenizer=self.network.codec)
        config = self.network.config.decoder_config
        names = ("bos_token_id", "eos_token_id", "pad_token_id")
        self._codes = {name: getattr(config, name) for name in names}
        self._codes["delay_pattern"] = self.network.config.delay_pattern
        self.voices = ("S1", "S2")
        self.rate = int(self.network.codec.config.sampling_rate)

    def synthesize(self, sentence: Sentence) -> Tensor:
        """The sound of a sentence."""
        text = f"[{self.voices[sentence.voice]}] {sentence.text}"
        inputs = self._processor(
            text=[text], text_kwargs={"truncation": True}, audio_kwargs=self._codes
        ).to(self.device)
        codes = self.network.generate(
            **inputs, max_new_tokens=_MIN_FRAMES + _FRAMES_PER_CHARACTER * len(sentence.text)
        )  # (1, frames, channels)
        first = codes[0, :, 0]
        begins = int((first == self._codes["bos_token_id"]).sum())
        ends = len(first) - int((first == self._codes["pad_token_id"]).sum()) - 1
        if ends <= begins:
            return torch.zeros(0)  # it has ended at once
        sound: Tensor = self._processor.batch_decode(codes, audio_kwargs=self._codes)[0]
        return sound.reshape(-1)
