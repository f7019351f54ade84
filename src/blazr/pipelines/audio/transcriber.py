"""`Transcriber`: a pipeline that writes down what is said, window by window."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from blazr.pipelines.audio.sound import read_sound
from blazr.pipelines.audio.transcript import (
    Segment,
    SoundRead,
    TextHeard,
    TranscriptEvent,
    TranscriptionRequest,
)
from blazr.pipelines.audio.voice_activity import FRAME, RATE, VoiceActivity, speech_marks
from blazr.pipelines.audio.windows import windows
from blazr.pipelines.jobs import Outlet
from blazr.pipelines.network import load_without_code
from blazr.pipelines.pipeline import TransformersPipeline

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from blazr.models.checkpoint.base import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A part of a recording that a model hears at once.

    Args:
        samples: At 16 kHz, (N,).
        request: What is wanted.
        say: Takes more of the text while it is written.
        check: Raises where the work is to end.
    """

    samples: NDArray[np.float32]
    request: TranscriptionRequest
    say: Callable[[str], None]
    check: Callable[[], None]


class Transcriber(TransformersPipeline):
    """A model that writes down what is said.

    Attributes:
        longest_s: Longest sound that it hears at once, in seconds.
        processor: Its processor, of transformers.
    """

    extra: ClassVar[str] = "audio"
    packages: ClassVar[tuple[str, ...]] = ("transformers", "soundfile", "soxr")
    longest_s: ClassVar[float] = 30.0

    def prepare(self, checkpoint: Checkpoint) -> None:
        """Read the processor."""
        import transformers

        self.processor: Any = load_without_code(transformers.AutoProcessor, checkpoint.directory)

    def features(self, samples: NDArray[np.float32], **options: bool) -> Mapping[str, Tensor]:
        """What the network takes of a sound, by name.

        Args:
            samples: At 16 kHz, (N,).
            options: More that the library's feature extractor takes.
        """
        found = self.processor.feature_extractor(
            samples, sampling_rate=RATE, return_tensors="pt", **options
        )
        # numbers that are whole stay so
        placed: Mapping[str, Tensor] = found.to(self.device, self.dtype)
        return placed

    @abstractmethod
    def check_request(self, request: TranscriptionRequest) -> None:
        """Refuse what the model cannot do; called before the request waits.

        Raises:
            RequestError: It cannot.
        """

    @abstractmethod
    def begin(
        self, request: TranscriptionRequest, first: NDArray[np.float32]
    ) -> tuple[TranscriptionRequest, Sequence[TranscriptEvent]]:
        """Find out what the request leaves open, from the first window.

        Returns:
            The request for all windows, and what there is to tell.
        """

    @abstractmethod
    def transcribe_window(self, window: Window) -> list[Segment]:
        """Write down a window, with times from its beginning."""

    @cached_property
    def _voice_activity(self) -> VoiceActivity:
        return VoiceActivity()

    def transcribe(self, request: TranscriptionRequest, outlet: Outlet[TranscriptEvent]) -> None:
        """Write down a recording.

        Args:
            request: The recording, and what is wanted.
            outlet: Gets its length first, then the language, text and segments.

        Raises:
            RequestError: The sound cannot be read, or the model cannot do what is asked.
        """
        self.check_request(request)
        samples = read_sound(request.data, rate=RATE, check=outlet.check)
        outlet.emit(SoundRead(len(samples) / RATE))
        probabilities = self._voice_activity.probabilities(samples, outlet.check)
        marks = speech_marks(probabilities, len(samples))
        longest = int(self.longest_s * RATE)
        spans = windows(marks, probabilities, len(samples), longest=longest)
        has_text = False

        def say(text: str) -> None:
            nonlocal has_text
            text = text if has_text else text.lstrip()
            if text:
                has_text = True
                outlet.emit(TextHeard(text))

        for index, (start, end) in enumerate(spans):
            part = samples[start:end]
            if index == 0:
                request, news = self.begin(request, part)
                for event in news:
                    outlet.emit(event)
            window = Window(samples=part, request=request, say=say, check=outlet.check)
            for segment in self.transcribe_window(window):
                silence = 1 - _loudest(probabilities, start, segment)
                outlet.emit(replace(_later(segment, start / RATE), no_speech_prob=silence))


def _loudest(probabilities: NDArray[np.float32], start: int, segment: Segment) -> float:
    """The greatest probability of speech within a segment of a window."""
    first = int(start + segment.start * RATE) // FRAME
    last = int(start + segment.end * RATE) // FRAME + 1
    return round(float(probabilities[first:last].max(initial=0.0)), 4)


def _later(segment: Segment, offset_s: float) -> Segment:
    """A segment of a window, with times from the beginning of the recording."""
    words = tuple(
        replace(each, start=round(each.start + offset_s, 2), end=round(each.end + offset_s, 2))
        for each in segment.words
    )
    return replace(
        segment,
        start=round(segment.start + offset_s, 2),
        end=round(segment.end + offset_s, 2),
        seek=round(offset_s, 2),
        words=words,
    )
