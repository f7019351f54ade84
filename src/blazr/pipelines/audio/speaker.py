"""`Speaker`: a pipeline that says a text, part by part."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from blazr.core.errors import RequestError
from blazr.nn.device import seeded
from blazr.pipelines.audio.speech import SoundMade, SpeechRequest
from blazr.pipelines.jobs import Outlet
from blazr.pipelines.network import generation_config, load_without_code
from blazr.pipelines.pipeline import TransformersPipeline

if TYPE_CHECKING:
    from torch import Tensor, nn

    from blazr.models.checkpoint.base import Checkpoint
    from blazr.pipelines.audio.companion import Companion

# What is longer is cut at a comma or a space: the time a network takes may grow with the square.
MAX_SENTENCE = 300
_SENTENCE = re.compile(r"(?<=[.!?;:])\s+|(?<=[\u3002\uff01\uff1f])|\n+")
# OpenAI's clients have to name one of these, whatever the model is.
_OF_OPENAI = re.compile(
    "alloy|ash|ballad|cedar|coral|echo|fable|marin|nova|onyx|sage|shimmer|verse"
)
_BLANKS = (" ", "\u2581", "\u0120")  # as tokenizers write a space
_LISTED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """What is said at once.

    Args:
        text: The words.
        voice: Which of the model's `Speaker.voices`.
        speed: 1 is that of the model.
    """

    text: str
    voice: int
    speed: float


class Speaker(TransformersPipeline):
    """A model that says a text.

    Attributes:
        rate: Samples per second of what it says.
        voices: The names of its voices; the first speaks where none is asked for.
        tokenizer: Its tokenizer, of transformers.
        longest: Most characters that it says at once.
        packs_sentences: Whether it says as many sentences at once as fit, as its voice changes in
            between.
        has_speed: Whether it can be told to speak faster.
        steps: Modules of the network that run again and again while it says something.
        companion: A second network that it needs, or None; it becomes a part of the first one.
    """

    extra: ClassVar[str] = "audio"
    packages: ClassVar[tuple[str, ...]] = ("transformers", "soundfile", "soxr")
    longest: ClassVar[int] = MAX_SENTENCE
    packs_sentences: ClassVar[bool] = False
    has_speed: ClassVar[bool] = False
    steps: ClassVar[tuple[str, ...]] = ()
    companion: ClassVar[Companion | None] = None
    rate: int
    voices: Sequence[str]

    @classmethod
    def build(cls, checkpoint: Checkpoint, dtype: str) -> nn.Module:
        """Build the network, and its companion where it has one.

        Raises:
            CheckpointError: Tensors are missing, or the companion is.
        """
        network = super().build(checkpoint, dtype)
        if cls.companion is not None:
            companion = cls.companion.read(checkpoint.directory, dtype)
            network.add_module(cls.companion.inside, companion)
        return network

    @abstractmethod
    def synthesize(self, sentence: Sentence) -> Tensor:
        """The sound of a sentence, (N,)."""

    def prepare(self, checkpoint: Checkpoint) -> None:
        """Read the tokenizer, and how the model generates; subclasses set `rate` and `voices`."""
        import transformers

        self.tokenizer: Any = load_without_code(transformers.AutoTokenizer, checkpoint.directory)
        self.network.generation_config = generation_config(self.network, checkpoint.directory)

    def can_say(self, text: str) -> bool:
        """Whether something of a text is in the vocabulary, and no blank."""
        ids = set(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        blanks = {self.tokenizer.convert_tokens_to_ids(each) for each in _BLANKS}
        return bool(ids - blanks - set(self.tokenizer.all_special_ids))

    def check_request(self, request: SpeechRequest) -> None:
        """Refuse what the model cannot say.

        Raises:
            RequestError: There is no such voice or speed, or it can pronounce none of the text.
        """
        self._voice_of(request.voice)
        if request.speed != 1 and not self.has_speed:
            raise RequestError(
                "this model speaks at its own speed alone.",
                param="speed",
                found=f"{request.speed:g}",
                expected="1",
            )
        if not any(self.can_say(text) for text in self._parts(request.text)):
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
        with ExitStack() as hooks:
            for name in self.steps:
                step = self.network.get_submodule(name)
                hooks.enter_context(step.register_forward_pre_hook(lambda *_: outlet.check()))
            for index, text in enumerate(self._parts(request.text)):
                outlet.check()
                if not self.can_say(text):
                    continue
                sentence = Sentence(text=text, voice=voice, speed=request.speed)
                # the library draws from the generator that all share, which gets its state back
                with torch.inference_mode(), seeded(self.device, request.seed + index):
                    sound = self.synthesize(sentence).float().cpu().numpy()
                samples = np.nan_to_num(sound).clip(-1, 1).astype(np.float32)
                outlet.emit(SoundMade(samples, self.rate))

    def _parts(self, text: str) -> Iterator[str]:
        found = sentences(text, self.longest)
        return packed(found, self.longest) if self.packs_sentences else found

    def _voice_of(self, name: str) -> int:
        voices = self.voices
        if name in voices:
            return voices.index(name)
        if name.isascii() and name.isdigit() and len(name) < 10 and int(name) < len(voices):
            return int(name)
        if _OF_OPENAI.fullmatch(name):
            return 0
        raise RequestError(
            "the model has no such voice.",
            param="voice",
            found=repr(name[:20]),
            expected=", ".join(voices[:_LISTED]) + (", ..." if len(voices) > _LISTED else ""),
        )


def sentences(text: str, longest: int = MAX_SENTENCE) -> Iterator[str]:
    """The sentences of a text, none longer than ``longest`` characters."""
    for found in _SENTENCE.split(text):
        rest = found.strip()
        while len(rest) > longest:
            head = rest[:longest]
            cut = max(head.rfind(", "), head.rfind("\uff0c")) + 1 or head.rfind(" ")
            cut = cut if cut > 0 else longest
            yield rest[:cut].strip()
            rest = rest[cut:].strip()
        if rest:
            yield rest


def packed(texts: Iterable[str], longest: int) -> Iterator[str]:
    """Put texts together, as many as give no more than ``longest`` characters."""
    whole = ""
    for text in texts:
        if whole and len(whole) + 1 + len(text) > longest:
            yield whole
            whole = text
        else:
            whole = f"{whole} {text}".lstrip()
    if whole:
        yield whole
