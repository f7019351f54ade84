"""CSM, as transformers has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from blazr.pipelines.audio.speaker import Sentence, Speaker

if TYPE_CHECKING:
    from torch import Tensor

    from blazr.models.checkpoint.base import Checkpoint

_OF_DEPTH = "depth_decoder_"
_NUM_VOICES = 10
# of 80 ms; people say some fifteen characters in a second
_FRAMES_PER_CHARACTER = 2
_MIN_FRAMES = 25


class Csm(Speaker):
    """CSM: a language model of a codec's first tokens, and a small one of those below each.

    A text begins with the number of its speaker in brackets.
    """

    auto: ClassVar[str] = "AutoModelForTextToWaveform"
    packs_sentences: ClassVar[bool] = True
    steps: ClassVar[tuple[str, ...]] = ("backbone_model",)

    def prepare(self, checkpoint: Checkpoint) -> None:
        """Read the tokenizer, how both models generate, and the numbers of speakers."""
        super().prepare(checkpoint)
        self.tokenizer.split_special_tokens = True  # in a text they are text
        config: Any = self.network.generation_config
        lower: Any = self.network.depth_decoder.generation_config
        names = [name for name in vars(config) if name.startswith(_OF_DEPTH)]
        for name in names:
            setattr(lower, name.removeprefix(_OF_DEPTH), vars(config).pop(name))
        # the codec has no sounds for the tokens that are marks
        num_codes = self.network.config.codec_config.codebook_size
        marks = list(range(num_codes, self.network.config.vocab_size))
        config.suppress_tokens = lower.suppress_tokens = marks or None
        self.voices = [str(each) for each in range(_NUM_VOICES)]
        self.rate = int(self.network.config.codec_config.sampling_rate)

    def synthesize(self, sentence: Sentence) -> Tensor:
        """The sound of a sentence."""
        text = f"[{self.voices[sentence.voice]}]{sentence.text}"
        inputs = self.tokenizer(text, return_token_type_ids=False, return_tensors="pt")
        codes: Tensor = self.network.generate(
            **inputs.to(self.device),
            max_new_tokens=_MIN_FRAMES + _FRAMES_PER_CHARACTER * len(sentence.text),
        )[0]  # (frames, codebooks)
        ends = (codes == self.network.config.codebook_eos_token_id).all(-1).nonzero()
        codes = codes[: int(ends.min())] if len(ends) else codes
        if not len(codes):
            return torch.zeros(0)  # it has ended at once
        sound: Tensor = self.network.codec_model.decode(codes.T[None]).audio_values[0, 0]
        return sound
