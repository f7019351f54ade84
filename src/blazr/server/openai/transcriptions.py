"""``POST /v1/audio/transcriptions`` and ``/v1/audio/translations``: speech to text."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, cast

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import PlainTextResponse

from blazr.core.errors import RequestError
from blazr.pipelines.audio.subtitles import as_srt, as_vtt
from blazr.pipelines.audio.transcript import (
    Segment,
    TextHeard,
    Transcript,
    TranscriptEvent,
    TranscriptionRequest,
)
from blazr.server.endpoint import Call
from blazr.server.schema import Example, OneOf, schema_hint
from blazr.server.sse import Stream
from blazr.server.work import PipelineRun, WorkStream

if TYPE_CHECKING:
    from blazr.pipelines.audio.transcriber import Transcriber

_WITH_SEGMENTS = frozenset({"verbose_json", "srt", "vtt"})


class TranslationBody(msgspec.Struct, kw_only=True):
    """A recording, to be written down in English."""

    file: Annotated[bytes, schema_hint(format="binary")]
    model: str | None = None
    prompt: str | None = None
    response_format: Literal["json", "text", "srt", "vtt", "verbose_json"] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    example: ClassVar[Example] = {"file": "(a sound file)"}


class TranscriptionBody(TranslationBody, kw_only=True):
    """A recording, to be written down."""

    language: str | None = None
    timestamp_granularities: list[Literal["segment", "word"]] | None = None
    stream: bool | None = None
    chunking_strategy: str | None = None
    include: list[str] | str | None = None


class SoundUsage(msgspec.Struct, kw_only=True):
    """How long the recording was."""

    type: Literal["duration"] = "duration"
    seconds: float


class Transcription(msgspec.Struct, kw_only=True):
    """What is said."""

    text: str
    usage: SoundUsage


class TranscribedSegment(msgspec.Struct, kw_only=True):
    """A part of what is said; times are in seconds, ``seek`` in hundredths of one."""

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class TranscribedWord(msgspec.Struct, kw_only=True):
    """A word, and when it is said, in seconds."""

    word: str
    start: float
    end: float


class VerboseTranscription(msgspec.Struct, kw_only=True):
    """What is said, and when."""

    task: Literal["transcribe", "translate"]
    language: str
    duration: float
    text: str
    segments: list[TranscribedSegment] | UnsetType = UNSET
    words: list[TranscribedWord] | UnsetType = UNSET
    usage: SoundUsage


class TranscriptDelta(msgspec.Struct, kw_only=True):
    """More text."""

    type: Literal["transcript.text.delta"] = "transcript.text.delta"
    delta: str


class TranscriptDone(msgspec.Struct, kw_only=True):
    """The whole text."""

    type: Literal["transcript.text.done"] = "transcript.text.done"
    text: str
    usage: SoundUsage


AnyTranscription = OneOf[Transcription, VerboseTranscription]
TranscriptionEvent = OneOf[TranscriptDelta, TranscriptDone]


async def transcribe(
    call: Call[TranscriptionBody],
) -> AnyTranscription | PlainTextResponse | Stream[TranscriptionEvent]:
    """Write down what is said."""
    body = call.body
    granularities = set(body.timestamp_granularities or ())
    if granularities and body.response_format != "verbose_json":
        raise RequestError(
            "times come in verbose_json alone.",
            param="timestamp_granularities",
            hint="response_format=verbose_json",
        )
    if body.stream and body.response_format not in {None, "json", "text"}:
        raise RequestError(
            "a stream has text alone.", param="response_format", expected="json or text"
        )
    if body.chunking_strategy not in {None, "auto"}:
        raise RequestError(
            "long recordings are always cut at pauses.", param="chunking_strategy", expected="auto"
        )
    if body.include:
        raise RequestError("nothing more can be included.", param="include")
    request = TranscriptionRequest(
        data=body.file,
        language=body.language,
        prompt=body.prompt,
        temperature=body.temperature or 0.0,
        has_segments=body.response_format in _WITH_SEGMENTS,
        has_words="word" in granularities,
    )
    if body.stream:
        return _streamed(call, request)
    return await _whole(call, request, granularities or {"segment"})


async def translate(call: Call[TranslationBody]) -> AnyTranscription | PlainTextResponse:
    """Write down what is said, in English."""
    body = call.body
    request = TranscriptionRequest(
        data=body.file,
        task="translate",
        prompt=body.prompt,
        temperature=body.temperature or 0.0,
        has_segments=body.response_format in _WITH_SEGMENTS,
    )
    return await _whole(call, request, {"segment"})


def _start(call: Call[object], request: TranscriptionRequest) -> PipelineRun[TranscriptEvent]:
    transcriber = cast("Transcriber", call.pipeline)
    transcriber.check_request(request)
    return PipelineRun(call, lambda outlet: transcriber.transcribe(request, outlet))


async def _whole(
    call: Call[TranslationBody], request: TranscriptionRequest, granularities: Iterable[str]
) -> AnyTranscription | PlainTextResponse:
    form = call.body.response_format or "json"
    found = Transcript()
    for event in await _start(call, request).result():
        found.push(event)
    call.facts["sound_s"] = round(found.duration_s)
    if form == "json":
        return Transcription(text=found.text, usage=_usage(found))
    if form == "verbose_json":
        return _verbose(found, request, granularities)
    texts = {"srt": as_srt, "vtt": as_vtt}
    text = texts[form](found.segments) if form in texts else f"{found.text}\n"
    return PlainTextResponse(text)


def _verbose(
    found: Transcript, request: TranscriptionRequest, granularities: Iterable[str]
) -> VerboseTranscription:
    reply = VerboseTranscription(
        task=request.task,
        language=found.language,
        duration=round(found.duration_s, 2),
        text=found.text,
        usage=_usage(found),
    )
    if "segment" in granularities:
        segments = enumerate(found.segments)
        reply.segments = [_segment(index, each, request) for index, each in segments]
    if "word" in granularities:
        words = [word for segment in found.segments for word in segment.words]
        reply.words = [TranscribedWord(word=x.text, start=x.start, end=x.end) for x in words]
    return reply


def _segment(index: int, segment: Segment, request: TranscriptionRequest) -> TranscribedSegment:
    raw = segment.text.encode()
    return TranscribedSegment(
        id=index,
        seek=round(segment.seek * 100),
        start=segment.start,
        end=segment.end,
        text=segment.text,
        tokens=list(segment.token_ids),
        temperature=request.temperature,
        avg_logprob=segment.avg_logprob,
        compression_ratio=round(len(raw) / len(zlib.compress(raw)), 4),
        no_speech_prob=segment.no_speech_prob,
    )


def _usage(found: Transcript) -> SoundUsage:
    return SoundUsage(seconds=round(found.duration_s, 2))


def _streamed(call: Call[object], request: TranscriptionRequest) -> Stream[TranscriptionEvent]:
    """Send the text as it is heard, and at the end all of it."""
    found = Transcript()

    def events_of(item: TranscriptEvent) -> Iterable[TranscriptDelta]:
        found.push(item)
        return [TranscriptDelta(delta=item.text)] if isinstance(item, TextHeard) else ()

    def last() -> Iterable[TranscriptDone]:
        return [TranscriptDone(text=found.text, usage=_usage(found))]

    return WorkStream(_start(call, request), events_of, last)
