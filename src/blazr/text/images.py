"""Images, videos and sounds in messages, as bytes: places in the text, and forms in JSON."""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Literal
from urllib.parse import unquote_to_bytes

from blazr.core.errors import RequestError

MAX_IMAGE_BYTES = 20 * 2**20
MAX_FRAMES = 256  # of a video
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
_STARTS = {b"\x89PNG": "png", b"\xff\xd8": "jpeg", b"GIF8": "gif", b"RIFF": "webp"}
EXPECTED = "a PNG, JPEG, WebP or GIF of one frame"


class Sound(bytes):
    """The bytes of a sound file, where others are an image's."""

    __slots__ = ()


class Video(bytes):
    """Images that follow each other, one a second, where others are an image's bytes.

    Each stands behind its length, 8 bytes.
    """

    __slots__ = ()

    @classmethod
    def of(cls, frames: Sequence[bytes]) -> Video:
        """A video of the bytes of images.

        Raises:
            RequestError: There are none, too many, or they are too large together.
        """
        _check_frames(len(frames))
        num_bytes = sum(map(len, frames))
        if num_bytes > MAX_IMAGE_BYTES:
            raise too_large("a video", num_bytes, "messages")
        return cls(b"".join(len(each).to_bytes(8, "little") + each for each in frames))

    @property
    def frames(self) -> list[bytes]:
        """The images' bytes."""
        found = []
        start = 0
        while start < len(self):
            first = start + 8
            start = first + int.from_bytes(self[start:first], "little")
            found.append(self[first:start])
        return found


Kind = Literal["image", "video", "audio"]
NOUNS: dict[Kind, str] = {"image": "an image", "video": "a video", "audio": "a sound"}


@dataclass(frozen=True, slots=True)
class Image:
    """An image in a message, or a video or a sound.

    Args:
        place: How many characters of the message's text stand before it.
        data: The file's bytes, in one of `FORMATS`, or a `Video` or a `Sound`.
    """

    place: int
    data: bytes

    @property
    def kind(self) -> Kind:
        """What it is, as chat templates call it."""
        if isinstance(self.data, Video):
            return "video"
        return "audio" if isinstance(self.data, Sound) else "image"


class FetchedUrl(str):
    """A URL whose bytes have been fetched.

    Args:
        url: The URL.
        data: What it leads to, which need not be an image.
    """

    __slots__ = ("data",)
    data: bytes

    def __new__(cls, url: str, data: bytes) -> FetchedUrl:
        """The URL, with its bytes."""
        found = super().__new__(cls, url)
        found.data = data
        return found


def too_large(noun: str, num_bytes: int, param: str) -> RequestError:
    """The error for more than `MAX_IMAGE_BYTES`."""
    return RequestError(
        f"{noun} is too large.",
        param=param,
        found=f"{num_bytes:,} bytes",
        expected=f"at most {MAX_IMAGE_BYTES:,}",
    )


def decode_base64(text: str, *, param: str = "messages", noun: str = "an image") -> bytes:
    """The bytes of an image, or of what the noun says.

    Raises:
        RequestError: The text is no base64, empty, or too long.
    """
    if len(text) > MAX_IMAGE_BYTES * 4 // 3 + 4:
        raise too_large(noun, len(text) * 3 // 4, param)
    try:
        data = b64decode(text, validate=True)
    except (Error, ValueError) as error:
        raise RequestError(
            f"{noun} is not base64.",
            param=param,
            found=str(error)[:100],
            expected="the bytes of a file in base64",
        ) from None
    if not data:
        raise RequestError(f"{noun} is empty.", param=param)
    return data


def read_data_url(url: str, *, param: str = "messages") -> bytes:
    """The bytes in a URL like ``data:image/png;base64,...``, or those that were fetched from one.

    Raises:
        RequestError: It is a URL of another kind, or what it holds is no base64.
    """
    if isinstance(url, FetchedUrl):
        return url.data
    kind, _, rest = url[:256].partition(":")
    if kind.lower() != "data" or "," not in rest:
        raise RequestError(
            "an image is not in its request.",
            param=param,
            found=repr(url[:50]),
            expected="a data URL: data:image/png;base64,...",
            hint="read the image and send its bytes as base64; a server that was started with "
            "--allow-media-urls fetches http and https URLs, too",
        )
    header, _, body = url.partition(",")
    if not header.lower().endswith(";base64"):
        raise RequestError(
            "an image is not base64.", param=param, found=repr(header[:50]), expected="...;base64,"
        )
    return decode_base64(unquote_to_bytes(body).decode("latin-1"), param=param)


def read_video_url(url: str) -> Video:
    """The frames in a URL ``data:video/jpeg;base64,...,...``: each an image in base64.

    Raises:
        RequestError: It is a URL of another kind, or what it holds are no frames.
    """
    header, _, body = url.partition(",")
    if header.lower() != "data:video/jpeg;base64":
        raise RequestError(
            "a video is not in its request as frames.",
            param="messages",
            found=repr(header[:50]),
            expected="data:video/jpeg;base64,<frame>,<frame>,... with a JPEG in base64 for each",
            hint="decode the video, take one frame a second, and send these",
        )
    _check_frames(body.count(",") + 1)
    return Video.of([decode_base64(each, noun="a frame") for each in body.split(",")])


def _check_frames(count: int) -> None:
    if not 0 < count <= MAX_FRAMES:
        raise RequestError(
            "a video has the wrong number of frames.",
            param="messages",
            found=str(count),
            expected=f"1 to {MAX_FRAMES}",
            hint="leave out some: one a second is enough",
        )


def read_image(path: str | PathLike[str], *, param: str = "messages") -> bytes:
    """The bytes of a file, which need not be an image.

    Raises:
        RequestError: It cannot be read, or is too large.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_IMAGE_BYTES + 1)
    except OSError as error:
        raise RequestError(
            f"the file {str(path)[:100]} cannot be read.",
            param=param,
            found=error.strerror or "an error",
        ) from None
    if len(data) > MAX_IMAGE_BYTES:
        raise RequestError(
            f"the file {str(path)[:100]} is too large.",
            param=param,
            expected=f"at most {MAX_IMAGE_BYTES:,} bytes",
        )
    return data


def join_parts(parts: Iterable[str | bytes]) -> tuple[str, tuple[Image, ...]]:
    """The text of a message's parts, and its images, given as bytes, with their places in it."""
    text = ""
    images = []
    for part in parts:
        if isinstance(part, str):
            text += part
        else:
            images.append(Image(len(text), part))
    return text, tuple(images)


def template_parts(text: str | None, images: Sequence[Image]) -> list[dict[str, object]]:
    """The content of a message as chat templates take it where it is not text alone."""
    return [
        {"type": "text", "text": each} if isinstance(each, str) else {"type": each.kind}
        for each in _pieces(text, images)
    ]


def openai_content(
    text: str | None, images: Sequence[Image]
) -> str | list[dict[str, object]] | None:
    """The content of a message as OpenAI's API takes it: its text, or parts with images between."""
    if not images:
        return text
    return [
        {"type": "text", "text": each} if isinstance(each, str) else _openai_part(each.data)
        for each in _pieces(text, images)
    ]


def _pieces(text: str | None, images: Sequence[Image]) -> Iterator[str | Image]:
    """The parts of a text between images, and these, in order."""
    done = 0
    for image in images:
        if before := (text or "")[done : image.place]:
            yield before
        yield image
        done = image.place
    if after := (text or "")[done:]:
        yield after


def _openai_part(data: bytes) -> dict[str, object]:
    if isinstance(data, Video):
        frames = ",".join(b64encode(each).decode() for each in data.frames)
        return {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{frames}"}}
    encoded = b64encode(data).decode()
    if isinstance(data, Sound):
        form = "wav" if data.startswith(b"RIFF") else "mp3"  # others are found out, or refused
        return {"type": "input_audio", "input_audio": {"data": encoded, "format": form}}
    form = next((name for start, name in _STARTS.items() if data.startswith(start)), "png")
    return {"type": "image_url", "image_url": {"url": f"data:image/{form};base64,{encoded}"}}
