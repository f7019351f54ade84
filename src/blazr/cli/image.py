"""``blazr image``: make an image."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, cast

import typer

from blazr.cli import options
from blazr.core.errors import ConfigError
from blazr.core.garbage import loading
from blazr.llm.options import LoadOptions
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

_FORMS = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp"}


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
    from blazr.llm.load import load_pipeline

    form = _FORMS.get(output.suffix.lower())
    if form is None:
        raise ConfigError(
            "the image file has no such form.",
            found=output.suffix[:20] or "no suffix",
            expected=", ".join(_FORMS),
        )
    request = ImageRequest(
        prompt=prompt,
        size=parse_size(size),
        steps=steps,
        guidance=guidance,
        seed=seed,
        form=cast("ImageForm", form),
    )
    options.set_threads(threads)
    with loading():
        given = LoadOptions(model, device=device, dtype=dtype)
        pipeline = load_pipeline(given)
    from blazr.pipelines.diffusion.generator import ImageGenerator

    if not isinstance(pipeline, ImageGenerator):
        raise ConfigError(
            "the model makes no images.", found=model[:100], expected="a pipeline of diffusers"
        )
    try:
        with options.progress_bar("denoising", unit="steps") as progress:
            made = _Made(progress)
            pipeline.generate(request, made)
    finally:
        pipeline.close()
    try:
        output.write_bytes(made.data)
    except OSError as error:
        raise ConfigError("the image file cannot be written.", found=str(error)[:200]) from None


class _Made:
    """The image, and on the way there the steps."""

    def __init__(self, progress: Callable[[int, int], None] | None) -> None:
        self.data = b""
        self._progress = progress

    def emit(self, item: ImageEvent) -> None:
        """Take an event."""
        if isinstance(item, ImageMade):
            self.data = item.data
        elif isinstance(item, StepDone) and self._progress is not None:
            self._progress(item.step, item.num_steps)

    def check(self) -> None:
        """Never end: Ctrl-C does."""
