"""`Speaker`: a pipeline that says a text, sentence by sentence."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from blazr.core.errors import RequestError
from blazr.pipelines.audio.speech import SoundMade, SpeechRequest
from blazr.pipelines.jobs import Outlet
from blazr.pipelines.pipeline import TransformersPipeline

if TYPE_CHECKING:
    from numpy.typing import NDArray

# What is longer is cut at a comma or a space: the time a network takes may grow with the square.
MAX_SENTENCE = 300
_SENTENCE = re.compile(r"(?<=[.!?;:])\s+|(?<=[\u3002\uff01\uff1f])|\n+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """What is said at once.

    Args:
        text: The words.
        voice: The number of the speaker; 0 where there is one.
        speed: 1 is that of the model.
    """

    text: str
    voice: int
    speed: float


class Speaker(TransformersPipeline):
    """A model that says a text."""

    extra: ClassVar[str] = "audio"
    packages: ClassVar[tuple[str, ...]] = ("transformers", "soundfile", "soxr")

    @property
    @abstractmethod
    def rate(self) -> int:
        """Samples per second of what it says."""

    @property
    @abstractmethod
    def num_voices(self) -> int:
        """How many voices it has, which are called by their numbers from 0 on."""

    @abstractmethod
    def can_say(self, text: str) -> bool:
        """Whether it can pronounce some of a text."""

    @abstractmethod
    def say(self, sentence: Sentence) -> NDArray[np.float32]:
        """The sound of a sentence, (N,)."""

    def check_request(self, request: SpeechRequest) -> None:
        """Refuse what the model cannot say.

        Raises:
            RequestError: There is no such voice, or it can pronounce none of the text.
        """
        self._voice_of(request.voice)
        if not any(self.can_say(text) for text in sentences(request.text)):
            raise RequestError(
                "the model can pronounce nothing of this text.",
                param="input",
                found=repr(request.text[:50]),
            )

    def speak(self, request: SpeechRequest, outlet: Outlet[SoundMade]) -> None:
        """Say a text; the same seed gives the same sound.

        Args:
            request: The text, and how to say it.
            outlet: Gets the sound of each sentence.

        Raises:
            RequestError: What `check_request` raises.
        """
        self.check_request(request)
        voice = self._voice_of(request.voice)
        for index, text in enumerate(sentences(request.text)):
            outlet.check()
            if not self.can_say(text):
                continue
            sentence = Sentence(text=text, voice=voice, speed=request.speed)
            # the library draws from the generator that all share, which gets its state back
            with torch.inference_mode(), torch.random.fork_rng():
                torch.manual_seed(request.seed + index)
                sound = self.say(sentence)
            outlet.emit(SoundMade(np.nan_to_num(sound).clip(-1, 1).astype(np.float32), self.rate))

    def _voice_of(self, name: str) -> int:
        number = int(name) if name.isascii() and name.isdigit() and len(name) < 10 else 0
        if number >= self.num_voices:
            raise RequestError(
                "the model has no such voice.",
                param="voice",
                found=name[:20],
                expected=f"0 to {self.num_voices - 1}",
            )
        return number


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text, none longer than `MAX_SENTENCE` characters."""
    for found in _SENTENCE.split(text):
        rest = found.strip()
        while len(rest) > MAX_SENTENCE:
            head = rest[:MAX_SENTENCE]
            cut = max(head.rfind(", "), head.rfind("\uff0c")) + 1 or head.rfind(" ")
            cut = cut if cut > 0 else MAX_SENTENCE
            yield rest[:cut].strip()
            rest = rest[cut:].strip()
        if rest:
            yield rest
