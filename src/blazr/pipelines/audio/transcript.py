"""What speech is turned into: events as it is heard, and their sum."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptionRequest:
    """A recording to write down.

    Args:
        data: A sound file.
        task: Whether to write in the language that is spoken, or in English.
        language: The code or the English name of the language that is spoken; None detects it.
        prompt: Text that comes before, for its words and its style.
        temperature: Of sampling; 0 takes the likeliest token.
        has_segments: Whether the times of segments are wanted.
        has_words: Whether the times of words are wanted.
    """

    data: bytes
    task: Literal["transcribe", "translate"] = "transcribe"
    language: str | None = None
    prompt: str | None = None
    temperature: float = 0.0
    has_segments: bool = False
    has_words: bool = False


@dataclass(frozen=True, slots=True)
class Word:
    """A word, and when it is said, in seconds."""

    text: str
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of a transcript.

    Args:
        start: When it begins, in seconds.
        end: When it ends.
        text: What is said.
        token_ids: Its tokens.
        seek: When the window begins in which it was heard.
        avg_logprob: Mean log-probability of the window's tokens.
        no_speech_prob: How likely nobody speaks in it, by the voice activity detection.
        words: With times, where they are wanted.
    """

    start: float
    end: float
    text: str
    token_ids: tuple[int, ...] = ()
    seek: float = 0.0
    avg_logprob: float = 0.0
    no_speech_prob: float = 0.0
    words: tuple[Word, ...] = ()


@dataclass(frozen=True, slots=True)
class SoundRead:
    """The recording is decoded, and so long, in seconds."""

    duration_s: float


@dataclass(frozen=True, slots=True)
class LanguageFound:
    """The language that is spoken, by its English name."""

    name: str


@dataclass(frozen=True, slots=True)
class TextHeard:
    """More text."""

    text: str


TranscriptEvent = SoundRead | LanguageFound | TextHeard | Segment


@dataclass(slots=True)
class Transcript:
    """The sum of the events so far."""

    text: str = ""
    duration_s: float = 0.0
    language: str = ""
    segments: list[Segment] = field(default_factory=list)

    def push(self, event: TranscriptEvent) -> None:
        """Add an event."""
        match event:
            case SoundRead(duration_s):
                self.duration_s = duration_s
            case LanguageFound(name):
                self.language = name
            case TextHeard(text):
                self.text += text
            case Segment():
                self.segments.append(event)
