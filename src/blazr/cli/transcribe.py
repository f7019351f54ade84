"""``blazr transcribe``: write down what is said in a sound file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from blazr.cli import options
from blazr.cli.pipelines import CallbackOutlet, open_pipeline
from blazr.core.errors import ConfigError, as_config_error
from blazr.core.json_text import dump_json
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
    from blazr.pipelines.audio.transcriber import Transcriber

    with as_config_error("the sound file cannot be read."):
        data = file.read_bytes()
    request = TranscriptionRequest(
        data=data,
        task="translate" if translate else "transcribe",
        language=language,
        prompt=prompt,
        has_segments=form != "text",
        has_words=form == "json",
    )
    transcript = Transcript()

    def take(event: TranscriptEvent) -> None:
        transcript.push(event)
        if form == "text" and isinstance(event, TextHeard):
            print(event.text, end="", flush=True)

    with open_pipeline(
        model, revision=revision, device=device, dtype=dtype, threads=threads
    ) as pipeline:
        if not isinstance(pipeline, Transcriber):
            raise ConfigError(
                "the model does not transcribe speech.",
                found=model[:100],
                expected="a Whisper model",
            )
        pipeline.transcribe(request, CallbackOutlet(take))
    if form == "json":
        print(dump_json(asdict(transcript), ensure_ascii=False))
    elif form == "text":
        print()
    else:
        print(_SUBTITLES[form](transcript.segments), end="")
