"""``POST /v1/audio/speech``: text to speech."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NoReturn, cast

import msgspec
from starlette.responses import Response

from blazr.core.errors import RequestError
from blazr.pipelines.audio.encoder import MEDIA_TYPES, SoundEncoder
from blazr.pipelines.audio.speech import SoundMade, SpeechRequest
from blazr.server.endpoint import Call
from blazr.server.errors import HttpError
from blazr.server.params import MediaSeed, seed_or_random
from blazr.server.schema import Example, OneOf
from blazr.server.sse import Framing, Stream
from blazr.server.work import PipelineRun, WorkStream

if TYPE_CHECKING:
    from blazr.pipelines.audio.speaker import Speaker


class CustomVoice(msgspec.Struct):
    """A voice as an object, as OpenAI has those that people make."""

    id: str


class SpeechBody(msgspec.Struct, kw_only=True):
    """A text to say."""

    input: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
    model: str | None = None
    voice: str | CustomVoice | None = None
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] | None = None
    speed: Annotated[float, msgspec.Meta(ge=0.25, le=4)] | None = None
    stream_format: Literal["audio", "sse"] | None = None
    instructions: str | None = None
    seed: MediaSeed | None = None
    example: ClassVar[Example] = {"input": "Hello.", "voice": "0", "response_format": "wav"}


class Sound(Response):
    """A sound file."""

    media_type = "audio/*"


class SpeechDelta(msgspec.Struct, kw_only=True):
    """More of the sound file, as base64."""

    type: Literal["speech.audio.delta"] = "speech.audio.delta"
    audio: str


class SpeechUsage(msgspec.Struct, kw_only=True):
    """What was said; tokens are characters of the text."""

    input_tokens: int
    output_tokens: int = 0
    total_tokens: int


class SpeechDone(msgspec.Struct, kw_only=True):
    """The end of the sound file."""

    type: Literal["speech.audio.done"] = "speech.audio.done"
    usage: SpeechUsage


class SoundPart(msgspec.Struct):
    """Bytes of a sound file."""

    data: bytes


SpeechEvent = OneOf[SpeechDelta, SpeechDone]


async def speak(call: Call[SpeechBody]) -> Sound | Stream[SpeechEvent]:
    """Say a text."""
    body = call.body
    voice = "0" if body.voice is None else body.voice
    form = body.response_format or "mp3"
    if form not in MEDIA_TYPES:
        raise RequestError(
            "there is no encoder for this.",
            param="response_format",
            found=form,
            expected=", ".join(MEDIA_TYPES),
        )
    if body.instructions:
        raise RequestError("this model follows no instructions.", param="instructions")
    request = SpeechRequest(
        text=body.input,
        voice=voice.id if isinstance(voice, CustomVoice) else voice,
        speed=body.speed or 1.0,
        seed=seed_or_random(body.seed),
    )
    speaker = cast("Speaker", call.pipeline)
    speaker.check_request(request)
    encoder = SoundEncoder(form, speaker.rate)
    run = PipelineRun[SoundMade](call, lambda outlet: speaker.speak(request, outlet))
    if body.stream_format == "sse":
        return _in_events(run, encoder, len(body.input))
    if body.stream_format == "audio" or form == "pcm":
        return cast("Stream[SpeechEvent]", _in_bytes(run, encoder, MEDIA_TYPES[form]))
    import numpy as np

    parts = [item.samples for item in await run.result()]
    return Sound(encoder.whole(np.concatenate(parts)), media_type=MEDIA_TYPES[form])


def _in_events(
    run: PipelineRun[SoundMade], encoder: SoundEncoder, length: int
) -> Stream[SpeechEvent]:
    """Send the sound in events."""
    done = SpeechDone(usage=SpeechUsage(input_tokens=length, total_tokens=length))
    return WorkStream(
        run,
        lambda item: _deltas(encoder.push(item.samples)),
        lambda: [*_deltas(_rest(encoder)), done],
    )


def _in_bytes(
    run: PipelineRun[SoundMade], encoder: SoundEncoder, media_type: str
) -> Stream[SoundPart]:
    """Send the sound as it is made."""
    encode = cast("Callable[[msgspec.Struct], bytes]", attrgetter("data"))
    return WorkStream(
        run,
        lambda item: [SoundPart(encoder.push(item.samples))],
        lambda: [SoundPart(_rest(encoder))],
        failure=_break_off,
        framing=Framing(encode, keep_alive=b"", media_type=media_type),
    )


def _break_off(error: HttpError) -> NoReturn:
    """Break the connection: in a sound file nothing can be said."""
    raise error


def _deltas(data: bytes) -> list[SpeechDelta]:
    return [SpeechDelta(audio=b64encode(data).decode())] if data else []


def _rest(encoder: SoundEncoder) -> bytes:
    import numpy as np

    return encoder.push(np.zeros(0, np.float32), is_last=True)
