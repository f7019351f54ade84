"""``blazr image``: make an image."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from blazr.cli import options
from blazr.cli.pipelines import CallbackOutlet, format_of, open_pipeline
from blazr.core.errors import ConfigError, as_config_error
from blazr.pipelines.diffusion.generation import (
    MAX_GUIDANCE,
    MAX_STEPS,
    ImageEvent,
    ImageForm,
    ImageMade,
    ImageRequest,
    StepDone,
    parse_size,
)

_FORMATS = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp"}


def image(  # noqa: PLR0913  (one argument per flag)
    prompt: Annotated[str, typer.Argument(metavar="TEXT", help="What the image shows.")],
    *,
    model: Annotated[str, typer.Option("--model", "-m", help="Directory of a pipeline.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Image file: .png, .jpg or .webp.")
    ],
    size: Annotated[
        str, typer.Option(metavar="WIDTHxHEIGHT", help="In pixels; auto is the model's own.")
    ] = "auto",
    steps: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_STEPS, help="Denoising steps.  [default: the model's]"),
    ] = None,
    guidance: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=MAX_GUIDANCE,
            help="How closely to follow the text.  [default: the model's]",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Makes the image repeatable.")] = 0,
    device: options.DeviceName = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    verbose: options.Verbose = False,  # noqa: ARG001  (its callback acts)
) -> None:
    """Make an image, and write it to a file."""
    form = format_of(output, _FORMATS, kind="image")
    request = ImageRequest(
        prompt=prompt,
        size=parse_size(size),
        steps=steps,
        guidance=guidance,
        seed=seed,
        form=cast("ImageForm", form),
    )
    data = b""
    with open_pipeline(model, device=device, dtype=dtype, threads=threads) as pipeline:
        from blazr.pipelines.diffusion.generator import ImageGenerator

        if not isinstance(pipeline, ImageGenerator):
            raise ConfigError(
                "the model generates no images.",
                found=model[:100],
                expected="the directory of a pipeline of diffusers",
            )
        with options.progress_bar("denoising", unit="steps") as progress:

            def take(event: ImageEvent) -> None:
                nonlocal data
                if isinstance(event, ImageMade):
                    data = event.data
                elif isinstance(event, StepDone) and progress is not None:
                    progress(event.step, event.num_steps)

            pipeline.generate(request, CallbackOutlet(take))
    with as_config_error("the image file cannot be written."):
        output.write_bytes(data)
