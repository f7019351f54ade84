"""``blazr speak``: say a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blazr.cli import options
from blazr.cli.pipelines import CallbackOutlet, format_of, open_pipeline
from blazr.core.errors import ConfigError, as_config_error
from blazr.pipelines.audio.encoder import MEDIA_TYPES, SoundEncoder
from blazr.pipelines.audio.speech import SoundMade, SpeechRequest
from blazr.pipelines.kinds import PIPELINES, SPEECH

_FORMATS = {**{f".{each}": each for each in MEDIA_TYPES}, ".ogg": "opus"}


def speak(  # noqa: PLR0913  (one argument per flag)
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to say.")],
    *,
    model: Annotated[
        str,
        typer.Option("--model", "-m", help="Directory or Hugging Face id of a model that speaks."),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Sound file: .wav, .flac, .opus, .mp3 or .pcm.")
    ],
    voice: Annotated[str, typer.Option(help="Name or number of the voice.")] = "0",
    speed: Annotated[float, typer.Option(min=0.25, max=4, help="1 is the model's own.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Makes the sound repeatable.")] = 0,
    revision: options.Revision = None,
    device: options.DeviceName = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    verbose: options.Verbose = False,  # noqa: ARG001  (its callback acts)
) -> None:
    """Say a text, and write the sound to a file."""
    import numpy as np

    from blazr.pipelines.audio.speaker import Speaker

    form = format_of(output, _FORMATS, kind="sound")
    made: list[SoundMade] = []
    with open_pipeline(
        model, revision=revision, device=device, dtype=dtype, threads=threads
    ) as pipeline:
        if not isinstance(pipeline, Speaker):
            family = pipeline.info.family if pipeline else "a language model"
            raise ConfigError(
                "the model does not speak.",
                found=f"{family} in {model[:100]}",
                expected=" or ".join(
                    name for name, kind in PIPELINES.items() if SPEECH in kind.capabilities
                ),
            )
        request = SpeechRequest(text=text, voice=voice, speed=speed, seed=seed)
        pipeline.speak(request, CallbackOutlet(made.append))
    samples = np.concatenate([each.samples for each in made])
    with as_config_error("the sound file cannot be written."):
        output.write_bytes(SoundEncoder(form, pipeline.rate).whole(samples))
