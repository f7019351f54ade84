"""What images are to be made, and what comes while they are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from blazr.core.errors import RequestError

ImageForm = Literal["png", "jpeg", "webp"]

MAX_IMAGES = 10
MAX_PARTIAL_IMAGES = 3
MAX_STEPS = 200
MAX_GUIDANCE = 50.0
MAX_PROMPT = 32_000  # characters
MIN_SIDE = 64
MAX_SIDE = 2048
SIDE_STEP = 16  # what every kind of pipeline can divide
_SIZE = re.compile(r"(\d{1,5})x(\d{1,5})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRequest:
    """Images to make.

    Args:
        prompt: What they show.
        size: Width and height in pixels; None is the model's own, or that of the source.
        num_images: How many.
        steps: Denoising steps of each; None is as many as the library takes for such a model.
        guidance: How closely to follow the prompt; None is as closely as the library does.
        seed: Of what is drawn at random, counted up with each image; the same gives the same image.
        num_partial: How many unfinished states of each image are wanted.
        source: An image to start from, as a file; None starts from noise.
        mask: A PNG or WebP of the same size that is transparent where the source may change; None
            is everywhere.
        form: Of the files that are made.
        compression: 0 to 100; of JPEG and WebP, the quality.
    """

    prompt: str
    size: tuple[int, int] | None = None
    num_images: int = 1
    steps: int | None = None
    guidance: float | None = None
    seed: int = 0
    num_partial: int = 0
    source: bytes | None = None
    mask: bytes | None = None
    form: ImageForm = "png"
    compression: int = 100


@dataclass(frozen=True, slots=True)
class StepDone:
    """A denoising step of an image has ended: which, of how many."""

    image: int
    step: int
    num_steps: int


@dataclass(frozen=True, slots=True)
class PartialImage:
    """An unfinished state of an image, as a file, and the number of that state."""

    image: int
    index: int
    data: bytes
    size: tuple[int, int]


@dataclass(frozen=True, slots=True)
class ImageMade:
    """An image, as a file."""

    image: int
    data: bytes
    size: tuple[int, int]


ImageEvent = StepDone | PartialImage | ImageMade


def parse_size(text: str) -> tuple[int, int] | None:
    """Width and height of a text such as ``1024x768``; None for ``auto``.

    Raises:
        RequestError: It is no size, or one that cannot be made.
    """
    if text == "auto":
        return None
    found = _SIZE.fullmatch(text)
    size = (int(found[1]), int(found[2])) if found else None
    if size is None or any(not MIN_SIDE <= side <= MAX_SIDE or side % SIDE_STEP for side in size):
        raise RequestError(
            "no image has such a size.",
            param="size",
            found=repr(text[:30]),
            expected=(
                f"WIDTHxHEIGHT, multiples of {SIDE_STEP} from {MIN_SIDE} to {MAX_SIDE}, or auto"
            ),
        )
    return size
