"""``POST /v1/images/generations`` and ``/v1/images/edits``: images made, and where they lie."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, cast

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from blazr.core.errors import RequestError
from blazr.pipelines.diffusion.generation import (
    MAX_GUIDANCE,
    MAX_IMAGES,
    MAX_PARTIAL_IMAGES,
    MAX_PROMPT,
    MAX_STEPS,
    ImageEvent,
    ImageForm,
    ImageMade,
    ImageRequest,
    PartialImage,
    parse_size,
)
from blazr.server.endpoint import Call
from blazr.server.errors import HttpError
from blazr.server.params import MediaSeed, seed_or_random, unix_time
from blazr.server.schema import Example, OneOf, schema_hint
from blazr.server.sse import Stream
from blazr.server.state import StoredImage
from blazr.server.work import PipelineRun, WorkStream

if TYPE_CHECKING:
    from blazr.pipelines.diffusion.generator import ImageGenerator

_AS_IS = frozenset({None, "auto", "standard", "opaque"})


class ImageBody(msgspec.Struct, kw_only=True):
    """Images to make."""

    prompt: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_PROMPT)]
    model: str | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_IMAGES)] | None = None
    size: str | None = None
    steps: Annotated[int, msgspec.Meta(ge=1, le=MAX_STEPS)] | None = None
    guidance: Annotated[float, msgspec.Meta(ge=0, le=MAX_GUIDANCE)] | None = None
    seed: MediaSeed | None = None
    response_format: Literal["b64_json", "url"] | None = None
    output_format: ImageForm | None = None
    output_compression: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None
    stream: bool | None = None
    partial_images: Annotated[int, msgspec.Meta(ge=0, le=MAX_PARTIAL_IMAGES)] | None = None
    quality: str | None = None
    background: str | None = None
    example: ClassVar[Example] = {"prompt": "a red ball", "size": "512x512", "seed": 1}


class EditBody(ImageBody, kw_only=True):
    """An image to change, and where: where its mask is transparent, without one everywhere."""

    image: Annotated[bytes, schema_hint(format="binary")] | list[bytes]
    mask: Annotated[bytes, schema_hint(format="binary")] | None = None
    example: ClassVar[Example] = {"prompt": "a red ball", "image": "(an image file)"}


class ImageDatum(msgspec.Struct, kw_only=True):
    """An image: the file as base64, or where it lies."""

    b64_json: str | UnsetType = UNSET
    url: str | UnsetType = UNSET


class ImageReply(msgspec.Struct, kw_only=True):
    """The images."""

    created: int
    data: list[ImageDatum]
    size: str
    output_format: ImageForm


class _ImageEvent(msgspec.Struct):
    """What an event says of an image."""

    b64_json: str
    created_at: int
    size: str
    output_format: ImageForm


class PartialImageEvent(_ImageEvent, kw_only=True):
    """An unfinished image."""

    type: Literal["image_generation.partial_image"] = "image_generation.partial_image"
    partial_image_index: int


class ImageCompletedEvent(_ImageEvent, kw_only=True):
    """A finished image."""

    type: Literal["image_generation.completed"] = "image_generation.completed"


class PartialEditEvent(_ImageEvent, kw_only=True):
    """An unfinished image, made of another one."""

    type: Literal["image_edit.partial_image"] = "image_edit.partial_image"
    partial_image_index: int


class EditCompletedEvent(_ImageEvent, kw_only=True):
    """A finished image, made of another one."""

    type: Literal["image_edit.completed"] = "image_edit.completed"


GenerationEvent = OneOf[PartialImageEvent, ImageCompletedEvent]
EditEvent = OneOf[PartialEditEvent, EditCompletedEvent]
AnyImageEvent = OneOf[PartialImageEvent, ImageCompletedEvent, PartialEditEvent, EditCompletedEvent]


async def generate(call: Call[ImageBody]) -> ImageReply | Stream[GenerationEvent]:
    """Make images that show what a text says."""
    answer = await _answer(call, _request_of(call.body))
    return cast("ImageReply | Stream[GenerationEvent]", answer)


async def edit(call: Call[EditBody]) -> ImageReply | Stream[EditEvent]:
    """Make images from another one and a text."""
    body = call.body
    sources = body.image if isinstance(body.image, list) else [body.image]
    if len(sources) != 1:
        raise RequestError(
            "one image can be edited at once.", param="image", found=str(len(sources)), expected="1"
        )
    request = replace(_request_of(body), source=sources[0], mask=body.mask)
    return cast("ImageReply | Stream[EditEvent]", await _answer(call, request))


async def show_file(call: Call[None]) -> Response:
    """An image that was made with ``"response_format": "url"``; whoever knows its name sees it."""
    name = call.path["id"]
    found = call.state.images.get("", name)
    if found is None:
        raise HttpError.missing("image", name, " any more: only the latest are kept")
    return Response(found.data, media_type=found.media_type)


def _request_of(body: ImageBody) -> ImageRequest:
    for name in ("quality", "background"):
        if getattr(body, name) not in _AS_IS:
            raise RequestError(
                f"there is no choice of {name}.",
                param=name,
                found=repr(getattr(body, name))[:30],
                expected="auto",
                hint="more steps give better images" if name == "quality" else "",
            )
    if body.partial_images and not body.stream:
        raise RequestError("unfinished images come in streams alone.", param="partial_images")
    if body.stream and body.response_format == "url":
        raise RequestError(
            "a stream holds the images themselves.", param="response_format", expected="b64_json"
        )
    return ImageRequest(
        prompt=body.prompt,
        size=parse_size(body.size or "auto"),
        num_images=body.n or 1,
        steps=body.steps,
        guidance=body.guidance,
        seed=seed_or_random(body.seed),
        num_partial=body.partial_images or 0,
        form=body.output_format or "png",
        compression=100 if body.output_compression is None else body.output_compression,
    )


async def _answer(
    call: Call[ImageBody], request: ImageRequest
) -> ImageReply | Stream[AnyImageEvent]:
    generator = cast("ImageGenerator", call.pipeline)
    generator.check_request(request)
    run = PipelineRun[ImageEvent](call, lambda outlet: generator.generate(request, outlet))
    if call.body.stream:
        return WorkStream(run, partial(_events_of, request))
    made = [each for each in await run.result() if isinstance(each, ImageMade)]
    call.facts["images"] = len(made)
    is_url = call.body.response_format == "url"
    return ImageReply(
        created=unix_time(),
        data=[
            ImageDatum(url=_keep(call, each, request.form))
            if is_url
            else ImageDatum(b64_json=b64encode(each.data).decode())
            for each in made
        ],
        size=_size(made[0]),
        output_format=request.form,
    )


def _keep(call: Call[ImageBody], made: ImageMade, form: ImageForm) -> str:
    """Keep an image for a while; where it is then."""
    # the id has 112 random bits or more
    name = f"img_{call.id}-{made.image}.{form}"
    kept = StoredImage(made.data, f"image/{form}")
    call.state.images.put("", name, kept, num_bytes=len(made.data))
    return f"{call.base_url}v1/images/files/{name}"


def _events_of(request: ImageRequest, item: ImageEvent) -> Iterable[AnyImageEvent]:
    """An image, finished or not, if there is one."""
    if not isinstance(item, (PartialImage, ImageMade)):
        return
    is_edit = request.source is not None
    image = (b64encode(item.data).decode(), unix_time(), _size(item), request.form)
    if isinstance(item, PartialImage):
        unfinished = PartialEditEvent if is_edit else PartialImageEvent
        yield unfinished(*image, partial_image_index=item.index)
    else:
        yield EditCompletedEvent(*image) if is_edit else ImageCompletedEvent(*image)


def _size(made: ImageMade | PartialImage) -> str:
    return "{}x{}".format(*made.size)
