"""``blazr transcribe``: write down what is said in a sound file."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from blazr.cli import options
from blazr.core.errors import ConfigError
from blazr.core.garbage import loading
from blazr.llm.options import LoadOptions
from blazr.pipelines.audio.subtitles import as_srt, as_vtt
from blazr.pipelines.audio.transcript import (
    TextHeard,
    Transcript,
    TranscriptEvent,
    TranscriptionRequest,
)

_SUBTITLES = {"srt": as_srt, "vtt": as_vtt}


def transcribe(  # noqa: PLR0913  (one argument per flag)
    file: Annotated[Path, typer.Argument(metavar="FILE", help="WAV, FLAC, OGG, MP3 or AIFF.")],
    *,
    model: Annotated[
        str, typer.Option("--model", "-m", help="Directory or Hugging Face id of a Whisper model.")
    ],
    language: Annotated[
        str | None,
        typer.Option(help="Language that is spoken: en, de, …  [default: detected]"),
    ] = None,
    translate: Annotated[
        bool, typer.Option("--translate", help="Write in English, whatever is spoken.")
    ] = False,
    prompt: Annotated[
        str | None, typer.Option(help="Text that comes before, for its words and its style.")
    ] = None,
    form: Annotated[
        Literal["text", "srt", "vtt", "json"],
        typer.Option("--format", help="text, srt, vtt, or json with the times of words."),
    ] = "text",
    revision: options.Revision = None,
    device: options.DeviceName = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    verbose: options.Verbose = False,  # noqa: ARG001  (its callback acts)
) -> None:
    """Write down what is said in a sound file; text is printed as it is heard."""
    from blazr.llm.load import load_pipeline
    from blazr.pipelines.audio.transcriber import Transcriber

    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError("the sound file cannot be read.", found=str(error)[:200]) from None
    options.set_threads(threads)
    with loading():
        given = LoadOptions(model, revision=revision, device=device, dtype=dtype)
        pipeline = load_pipeline(given)
    if not isinstance(pipeline, Transcriber):
        raise ConfigError("the model does not hear.", found=model[:100], expected="a Whisper model")
    request = TranscriptionRequest(
        data=data,
        task="translate" if translate else "transcribe",
        language=language,
        prompt=prompt,
        has_segments=form != "text",
        has_words=form == "json",
    )
    found = _Found(is_shown=form == "text")
    try:
        pipeline.transcribe(request, found)
    finally:
        pipeline.close()
    if form == "json":
        print(json.dumps(asdict(found.transcript), ensure_ascii=False))
    elif form == "text":
        print()
    else:
        print(_SUBTITLES[form](found.transcript.segments), end="")


class _Found:
    """What is heard, which is shown at once where it is text."""

    def __init__(self, *, is_shown: bool) -> None:
        self.transcript = Transcript()
        self._is_shown = is_shown

    def emit(self, item: TranscriptEvent) -> None:
        """Take an event."""
        self.transcript.push(item)
        if self._is_shown and isinstance(item, TextHeard):
            sys.stdout.write(item.text)
            sys.stdout.flush()

    def check(self) -> None:
        """Never end: Ctrl-C does."""
