"""Forms with files: bodies of ``multipart/form-data`` [RFC 7578]."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, TypeVar, get_args, get_origin

import msgspec
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from blazr.server.errors import HttpError, clean

_CHUNK_BYTES = 2**16
_MAX_FIELDS = 100
_MAX_FILES = 16

B = TypeVar("B", bound=msgspec.Struct)


async def decode_form(headers: Headers, raw: bytes, kind: type[B]) -> B:
    """Decode a form; of its files, the content, by the names of their fields.

    The name of a file is the field ``filename``, if the form has no field of that name. A field
    whose name ends in ``[]`` is an item of a list, as is each of the fields that have the name of
    one.

    Args:
        headers: Of the request.
        raw: Its body.
        kind: What to decode to.

    Raises:
        HttpError: 400, it is no form.
        msgspec.ValidationError: A field is missing, or has no such value.
    """
    media_type = headers.get("content-type", "")
    if not media_type.lower().startswith("multipart/form-data"):
        raise HttpError(400, "the body is no form: send multipart/form-data.", code="invalid_form")
    _check_encoding(media_type)
    parser = MultiPartParser(
        headers,
        _chunks(raw),
        max_files=_MAX_FILES,
        max_fields=_MAX_FIELDS,
        max_part_size=len(raw) + 1,
    )
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError) as error:
        message = clean(f"the form cannot be read: {str(error).rstrip('.')}.", 200)
        raise HttpError(400, message, code="invalid_form") from None
    of_file: dict[str, Any] = {}
    found: dict[str, Any] = {}
    items: dict[str, Any] = {}
    lists = {each.name for each in msgspec.structs.fields(kind) if _takes_list(each.type)}
    try:
        for name, value in form.multi_items():
            content: object = value
            if isinstance(value, UploadFile):
                content = await value.read()
                of_file["filename"] = value.filename or ""
            is_item = name in lists and content != "null"
            if is_item or name.endswith("[]"):
                items.setdefault(name.removesuffix("[]"), []).append(content)
            else:
                found[name] = content
    finally:
        await form.close()
    return msgspec.convert({**of_file, **found, **items}, kind, strict=False)


def _takes_list(annotation: object) -> bool:
    """Whether a field of that type is a list, or may be one."""
    return get_origin(annotation) is list or any(map(_takes_list, get_args(annotation)))


def _check_encoding(media_type: str) -> None:
    """Refuse a form that names another encoding than UTF-8, which a form may not [RFC 7578, 5.1.2].

    The parser would decode by whatever Python has: some of it makes halves of surrogate pairs,
    which no answer can be written with, and some takes time with the square of a text's length.

    Raises:
        HttpError: 400.
    """
    _, options = parse_options_header(media_type)
    encoding = options.get(b"charset", b"utf-8").decode("latin-1").lower()
    if encoding not in {"utf-8", "utf8"}:
        shown = clean(encoding, 40)
        raise HttpError(400, f"forms are in UTF-8, not in {shown!r}.", code="invalid_form")


async def _chunks(raw: bytes) -> AsyncGenerator[bytes, None]:
    """The body in parts; others are served between two of them."""
    for start in range(0, len(raw), _CHUNK_BYTES):
        yield raw[start : start + _CHUNK_BYTES]
        await asyncio.sleep(0)
    yield b""
