"""From an image's bytes, which nobody trusts, to its pixels."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Literal

import numpy as np

from blazr.core.errors import RequestError, said_by
from blazr.text.images import EXPECTED, FORMATS, MAX_IMAGE_BYTES, too_large

if TYPE_CHECKING:
    from PIL.Image import Image as Pixels

    from blazr.text.images import Video

MAX_PIXELS = 40_000_000  # 120 MB as bytes of three colours
MAX_VIDEO_PIXELS = 3 * MAX_PIXELS  # of all frames of a video


def open_image(
    data: bytes, *, param: str = "messages", mode: Literal["RGB", "RGBA"] = "RGB"
) -> Pixels:
    """Decode an image, turned as its camera was held, in red, green and blue.

    Nothing is decoded before the header says that it is small enough.

    Args:
        data: A file.
        param: The field it came in.
        mode: ``RGBA`` keeps what is transparent.

    Raises:
        RequestError: It is none, damaged, animated, too large, or in another format.
    """
    from PIL import Image, ImageOps

    if len(data) > MAX_IMAGE_BYTES:
        raise too_large("an image", len(data), param)
    try:
        with Image.open(BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            # cameras put previews behind the picture, which is the first frame
            is_photo = image.format == "MPO"
            num_frames = 1 if is_photo else getattr(image, "n_frames", 1)
            if width * height <= MAX_PIXELS and num_frames == 1:
                return _in_bytes(ImageOps.exif_transpose(image)).convert(mode)
    except Exception as error:  # decoders of damaged files raise whatever comes to pass
        raise RequestError(
            "an image cannot be read.",
            param=param,
            found=f"{type(error).__name__}: {said_by(error)[:100]}",
            expected=EXPECTED,
        ) from error
    if num_frames != 1:
        raise RequestError(
            "an image is animated.", param=param, found=f"{num_frames} frames", expected=EXPECTED
        )
    raise RequestError(
        "an image has too many pixels.",
        param=param,
        found=f"{width} by {height}",
        expected=f"at most {MAX_PIXELS:,}",
        hint="scale it down: the model sees it smaller in any case",
    )


def _in_bytes(image: Pixels) -> Pixels:
    """An image of 16 bits of grey with the upper 8 of them; pillow would take most for white."""
    from PIL import Image

    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))


def open_frames(video: Video) -> list[Pixels]:
    """Decode the frames of a video, which have one size.

    Raises:
        RequestError: One of them is no image that `open_image` takes, or they are too large.
    """
    found: list[Pixels] = []
    for data in video.frames:
        found.append(open_image(data))
        first, last = found[0], found[-1]
        if last.size != first.size:
            raise RequestError(
                "the frames of a video have several sizes.",
                param="messages",
                found=f"{first.width} by {first.height} and {last.width} by {last.height}",
                expected="one size",
            )
        if len(found) * first.width * first.height > MAX_VIDEO_PIXELS:
            raise RequestError(
                "a video has too many pixels.",
                param="messages",
                found=f"{len(video.frames)} frames of {first.width} by {first.height}",
                expected=f"at most {MAX_VIDEO_PIXELS:,} together",
                hint="scale it down, or leave out frames: the model sees it smaller in any case",
            )
    return found
