"""Models that write down one language, as transformers has them: those with CTC, and Moonshine."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from blazr.core.errors import RequestError
from blazr.pipelines.audio.observer import GenerationObserver
from blazr.pipelines.audio.transcriber import Transcriber, Window
from blazr.pipelines.audio.transcript import (
    Segment,
    TranscriptEvent,
    TranscriptionRequest,
    Word,
)
from blazr.pipelines.audio.voice_activity import RATE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from blazr.models.checkpoint.base import Checkpoint

_TOKENS_PER_SECOND = 6.5  # most that a Moonshine writes, as its authors have it


class OneLanguage(Transcriber):
    """A model that writes down one language, and tells no other from it."""

    tells_words: bool = False

    def check_request(self, request: TranscriptionRequest) -> None:
        """Refuse what only models of many languages can do."""
        if request.task == "translate":
            raise RequestError("this model translates nothing.")
        for param in ("language", "prompt", "temperature"):
            if getattr(request, param):
                raise RequestError(
                    f"this model takes no {param}.", param=param, hint="leave it out"
                )
        if request.has_words and not self.tells_words:
            raise RequestError(
                "this model tells no times of words.", param="timestamp_granularities"
            )

    def begin(
        self,
        request: TranscriptionRequest,
        first: NDArray[np.float32],  # noqa: ARG002  (others find out the language from it)
    ) -> tuple[TranscriptionRequest, Sequence[TranscriptEvent]]:
        """There is nothing to find out."""
        return request, []


class Ctc(OneLanguage):
    """Models that score characters or pieces of words for each of many short frames.

    Source: Graves et al. 2006, "Connectionist Temporal Classification".
    """

    auto: ClassVar[str] = "AutoModelForCTC"

    def prepare(self, checkpoint: Checkpoint) -> None:
        """Read the processor, and see whether its tokenizer tells when words are said."""
        super().prepare(checkpoint)
        self._decode = self.processor.tokenizer.decode
        self.tells_words = "output_word_offsets" in signature(self._decode).parameters

    @torch.inference_mode()
    def transcribe_window(self, window: Window) -> list[Segment]:
        """Write down a window."""
        window.check()
        scores = self.network(**self.features(window.samples)).logits[0].float().log_softmax(-1)
        best = scores.max(-1)
        length_s = len(window.samples) / RATE
        words: tuple[Word, ...] = ()
        if window.request.has_words:
            found = self._decode(best.indices.tolist(), output_word_offsets=True)
            frame_s = length_s / len(scores)
            words = tuple(
                Word(each["word"], each["start_offset"] * frame_s, each["end_offset"] * frame_s)
                for each in found.word_offsets
            )
        text = self._decode(best.indices.tolist()).strip()
        window.say(f" {text}" if text else "")
        segment = Segment(
            start=0.0,
            end=length_s,
            text=text,
            token_ids=tuple(best.indices.unique_consecutive().tolist()),
            avg_logprob=round(float(best.values.mean()), 4),
            words=words,
        )
        return [segment]


class Moonshine(OneLanguage):
    """Moonshine, which hears as much as there is and pads nothing."""

    auto: ClassVar[str] = "AutoModelForSpeechSeq2Seq"

    @torch.inference_mode()
    def transcribe_window(self, window: Window) -> list[Segment]:
        """Write down a window."""
        length_s = len(window.samples) / RATE
        observer = GenerationObserver(window.check, self._text)
        observer.say = lambda text: window.say(text if observer.said else f" {text}")
        (token_ids,) = self.network.generate(
            **self.features(window.samples),
            max_new_tokens=max(int(length_s * _TOKENS_PER_SECOND), 1),
            do_sample=False,
            logits_processor=[observer],
        ).tolist()
        text = self._text(token_ids)
        if text.startswith(observer.said) and text != observer.said:
            observer.say(text[len(observer.said) :])
        return [
            Segment(
                start=0.0,
                end=length_s,
                text=text,
                token_ids=tuple(token_ids),
                avg_logprob=observer.mean_logprob(),
            )
        ]

    def _text(self, token_ids: Sequence[int]) -> str:
        text: str = self.processor.tokenizer.decode(token_ids, skip_special_tokens=True)
        return text.strip()
