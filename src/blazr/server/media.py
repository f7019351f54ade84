"""Images that requests name by URL, fetched from public addresses alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing
from functools import cached_property
from typing import ClassVar

import httpcore2
import httpx2
import msgspec

from blazr.core.errors import RequestError, too_many
from blazr.server.public_network import PublicTransport, Resolve, resolve
from blazr.text.images import EXPECTED, MAX_IMAGE_BYTES, FetchedUrl

MAX_SECONDS = 20.0  # of one image, from the look-up of its host to its last byte
MAX_REDIRECTS = 3
MAX_URL = 8192  # characters
MAX_AT_ONCE = 16  # of all requests
_SCHEMES = frozenset({"http", "https"})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_ANY_KIND = frozenset({"application/octet-stream", "binary/octet-stream"})  # as stores of files say
_HEADERS = {"Accept": "image/*", "Accept-Encoding": "identity", "User-Agent": "blazr"}


class NamesMedia(msgspec.Struct):
    """Part of a body that may name an image by URL, in one of ``media_fields``."""

    media_fields: ClassVar[tuple[str, ...]] = ()


class MediaFetcher:
    """Fetches images. It belongs to one event loop, and keeps no connection open.

    Args:
        resolve: From a host and a port to IP addresses.
        network: What connects to an address.
    """

    def __init__(
        self,
        resolve: Resolve = resolve,
        network: httpcore2.AsyncNetworkBackend | None = None,
    ) -> None:
        self._resolve = resolve
        self._network = network

    @cached_property
    def _transport(self) -> PublicTransport:
        """Made with the first image, as certificates take a while to read."""
        return PublicTransport(self._resolve, self._network, most=MAX_AT_ONCE, most_idle=0)

    async def fetch(self, url: str, *, most: int = MAX_IMAGE_BYTES) -> bytes:
        """The bytes behind a URL, which need not be an image that can be decoded.

        Args:
            url: It begins with ``http:`` or ``https:``.
            most: Most bytes.

        Raises:
            RequestError: It cannot be fetched, is no image or too large, or takes too long.
        """
        try:
            async with asyncio.timeout(MAX_SECONDS):
                return await self._fetch(url, most)
        except (TimeoutError, httpx2.TimeoutException):
            found = f"nothing whole within {MAX_SECONDS:g} seconds"
        except (httpx2.NetworkError, httpx2.ProtocolError, _RefusalError) as error:
            found = str(error)[:100] or type(error).__name__
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol, UnicodeError, ValueError):
            found = "a URL that cannot be read"
        raise RequestError(
            "an image cannot be fetched.",
            param="messages",
            found=f"{found}: {url[:50]!r}",
            expected=f"an http or https URL of {EXPECTED}",
            hint="send its bytes in a data URL: data:image/png;base64,...",
        )

    async def _fetch(self, url: str, most: int) -> bytes:
        target = httpx2.URL(url)
        for _ in range(1 + MAX_REDIRECTS):
            if target.scheme not in _SCHEMES or not target.host:
                raise _RefusalError("a URL of another kind")
            if not 0 < (target.port or 80) < 2**16:
                raise _RefusalError("a port that there is not")
            if target.userinfo:
                raise _RefusalError("a URL with a password")
            found = await self._get(target, most)
            if isinstance(found, bytes):
                return found
            target = target.join(found)
        raise _RefusalError(f"more than {MAX_REDIRECTS} redirects")

    async def _get(self, target: httpx2.URL, most: int) -> bytes | str:
        """What is at a URL, or where else it is."""
        request = httpx2.Request("GET", target, headers=_HEADERS)
        response = await self._transport.handle_async_request(request)
        async with aclosing(response):
            if response.status_code in _REDIRECTS and "location" in response.headers:
                return response.headers["location"][:MAX_URL]
            _check(response.status_code, response.headers, most)
            data = bytearray()
            async for part in response.aiter_raw():
                data += part
                if len(data) > most:
                    raise _RefusalError(f"more than {most:,} bytes")
            return bytes(data)


class _RefusalError(Exception):
    """A URL is not fetched, or what is there is not taken; its text says why."""


def _check(status: int, headers: Mapping[str, str], most: int) -> None:
    """Raise where an answer holds no image that would be taken."""
    if status != 200:
        raise _RefusalError(f"status {status}")
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if not kind.startswith("image/") and kind not in _ANY_KIND:
        raise _RefusalError(f"content of type {kind[:30]!r}")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise _RefusalError("compressed content")
    length = headers.get("content-length", "0")
    if length.isdigit() and int(length[:20]) > most:
        raise _RefusalError(f"more than {most:,} bytes")


def _is_remote(url: object) -> bool:
    return isinstance(url, str) and url[:6].partition(":")[0].lower() in _SCHEMES


def named_media(body: object) -> Iterator[tuple[NamesMedia, str, str]]:
    """The URLs in a body that have to be fetched: whose, in which field, and the URL."""
    layer: list[object] = [body]
    while layer:
        inner: list[object] = []
        for value in layer:
            if isinstance(value, NamesMedia):
                urls = ((name, getattr(value, name)) for name in value.media_fields)
                yield from ((value, name, url) for name, url in urls if _is_remote(url))
            if isinstance(value, msgspec.Struct):
                inner += [getattr(value, name) for name in value.__struct_fields__]
            elif isinstance(value, list):
                inner += value
        layer = inner


async def fetch_media(
    body: object,
    fetcher: MediaFetcher,
    *,
    most_images: int,
    most_bytes: int,
    grow: Callable[[int], None],
) -> None:
    """Fetch what a body names by URL, all at once, and put it there.

    Args:
        body: Each URL in it is replaced by a `FetchedUrl`.
        fetcher: What fetches.
        most_images: Most URLs.
        most_bytes: Most bytes of all together.
        grow: Told how many bytes have come so far.

    Raises:
        RequestError: One cannot be fetched, or there are too many, or too large ones.
    """
    named = list(named_media(body))
    urls = dict.fromkeys(url for _, _, url in named)
    if len(urls) > most_images:
        raise too_many(urls, most_images, "images", param="messages")
    found: dict[str, FetchedUrl] = {}

    async def fetch(url: str) -> None:
        data = await fetcher.fetch(url, most=min(MAX_IMAGE_BYTES, most_bytes))
        found[url] = FetchedUrl(url, data)
        num_bytes = sum(len(each.data) for each in found.values())
        if num_bytes > most_bytes:
            raise RequestError(
                "the images are too large together.",
                param="messages",
                found=f"{num_bytes:,} bytes",
                expected=f"at most {most_bytes:,}, as in a body",
            )
        grow(num_bytes)

    tasks = [asyncio.ensure_future(fetch(url)) for url in urls]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for holder, name, url in named:
        setattr(holder, name, found[url])
