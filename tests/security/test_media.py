"""Images by URL: where a connection may lead, what is taken, and what it may cost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import ClassVar

import msgspec
import pytest

from blazr.core.errors import RequestError
from blazr.server import media
from blazr.server.media import MediaFetcher, NamesMedia, fetch_media, named_media
from blazr.server.public_network import is_public
from blazr.text.images import FetchedUrl, read_data_url
from tests.support.scripted import wait_until
from tests.support.web import PUBLIC, Answer, Handler, Internet, site

PRIVATE = [
    "127.0.0.1",
    "127.8.9.10",
    "0.0.0.0",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",  # what clouds tell their machines
    "100.100.100.200",
    "192.0.0.192",
    "168.63.129.16",
    "224.0.1.1",
    "255.255.255.255",
    "::",
    "::1",
    "::ffff:10.0.0.1",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b:1::7f00:1",
    "2002:7f00:1::",
    "2001::7f00:1",
    "2001:db8::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "ff02::1",
    "localhost",
    "",
]
NAMES = {
    "public.example": [PUBLIC],
    "other.example": [PUBLIC],
    "inside.example": ["10.0.0.7"],
    "mixed.example": ["127.0.0.1", PUBLIC, "::1"],
}


def image(body: bytes, **headers: str) -> Answer:
    return 200, {"Content-Type": "image/png", **headers}, body


def moved(where: str, status: int = 302) -> Answer:
    return status, {"Location": where}, b"nothing"


ANSWERS = {
    "/a.png": image(b"one"),
    "/b.png?c=1": image(b"two"),
    "/any": (200, {"Content-Type": "application/octet-stream"}, b"any"),
    "/page": (200, {"Content-Type": "text/html"}, b"<html>"),
    "/untyped": (200, {}, b"one"),
    "/packed": image(b"one", **{"Content-Encoding": "gzip"}),
    "/long": image(b"x" * 101),
    "/says-long": image(b"", **{"Content-Length": "999999999999"}),
    "/moved": moved("/a.png"),
    "/moved-on": moved("//other.example/moved", 308),
    "/round": moved("/round"),
    "/to-inside": moved("http://inside.example/a.png"),
    "/to-address": moved("http://169.254.169.254/latest/meta-data"),
    "/to-file": moved("file:///etc/passwd"),
    "/slow": image(b"late"),
}


async def resolve(host: str, port: int) -> list[str]:
    return NAMES[host]


@pytest.fixture(scope="module")
def web() -> Iterator[tuple[type[Handler], int]]:
    with site(ANSWERS) as running:
        yield running


def fetch(port: int, url: str, **limits: int) -> bytes:
    fetcher = MediaFetcher(resolve, Internet(port))
    return asyncio.run(fetcher.fetch(url, **limits))


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_that_are_not_of_the_internet(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", [PUBLIC, "8.8.8.8", "2606:2800:21f:cb07::1", "::ffff:8.8.8.8"])
def test_addresses_that_are(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://public.example/a.png", b"one"),
        ("HTTP://public.example:8080/b.png?c=1#d", b"two"),
        ("http://public.example/any", b"any"),
        ("http://public.example/moved", b"one"),
        ("http://public.example/moved-on", b"one"),
    ],
)
def test_images_are_fetched(web: tuple[type[Handler], int], url: str, expected: bytes) -> None:
    assert fetch(web[1], url) == expected


def test_the_address_that_was_looked_up_is_the_one_that_is_used(
    web: tuple[type[Handler], int],
) -> None:
    """A name that leads inside at the second look-up is not looked up again."""
    answers = [[PUBLIC], ["127.0.0.1"]]

    async def changing(host: str, port: int) -> list[str]:
        return answers.pop(0)

    network = Internet(web[1])
    assert asyncio.run(MediaFetcher(changing, network).fetch("http://any.example:81/a.png"))
    assert network.connected == [(PUBLIC, 81)]
    assert web[0].asked[-1] == ("any.example:81", "/a.png")
    assert answers


def test_of_several_addresses_public_ones_are_used(web: tuple[type[Handler], int]) -> None:
    network = Internet(web[1])
    assert asyncio.run(MediaFetcher(resolve, network).fetch("http://mixed.example/a.png")) == b"one"
    assert network.connected == [(PUBLIC, 80)]


INSIDE = {
    "http://inside.example/a.png": [],
    "http://unknown.example/a.png": [],
    "https://inside.example/a.png": [],
    "http://public.example/to-inside": [(PUBLIC, 80)],
    "http://public.example/to-address": [(PUBLIC, 80)],
    "http://public.example/to-file": [(PUBLIC, 80)],
}


@pytest.mark.parametrize("url", INSIDE)
def test_nothing_leads_inside(web: tuple[type[Handler], int], url: str) -> None:
    async def found(host: str, port: int) -> list[str]:
        if host not in NAMES and host != "169.254.169.254":
            raise OSError("unknown")
        return NAMES.get(host, [host])

    network = Internet(web[1])
    with pytest.raises(RequestError, match="cannot be fetched") as caught:
        asyncio.run(MediaFetcher(found, network).fetch(url))
    assert network.connected == INSIDE[url]
    assert caught.value.param == "messages"


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "0x7f.1", "2130706433", "localhost", "0"])
def test_the_system_s_own_look_up_is_checked(web: tuple[type[Handler], int], host: str) -> None:
    network = Internet(web[1])
    with pytest.raises(RequestError, match="not at a public address"):
        asyncio.run(MediaFetcher(network=network).fetch(f"http://{host}:{web[1]}/own.png"))
    assert not network.connected
    assert "/own.png" not in {asked for _, asked in web[0].asked}


@pytest.mark.parametrize("ends", [("8.8.8.8", "10.0.0.1"), (PUBLIC, PUBLIC)])
def test_the_other_end_of_the_connection_is_checked(
    web: tuple[type[Handler], int], ends: tuple[str, str]
) -> None:
    """What connects may lead elsewhere, or to this machine by its public address."""
    # a path of its own: the site may still be at what a test before had asked it for
    path = f"/to-{ends[1]}.png"
    fetcher = MediaFetcher(resolve, Internet(web[1], ends))
    with pytest.raises(RequestError, match="not at a public address"):
        asyncio.run(fetcher.fetch(f"http://public.example{path}"))
    assert path not in {asked for _, asked in web[0].asked}


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("http://public.example/none", "status 404"),
        ("http://public.example/page", "text/html"),
        ("http://public.example/untyped", "type ''"),
        ("http://public.example/packed", "compressed"),
        ("http://public.example/long", "more than 100 bytes"),
        ("http://public.example/says-long", "more than 100 bytes"),
        ("http://public.example/round", "redirects"),
        ("http://user:secret@public.example/a.png", "password"),
        ("http://", "another kind"),
        ("ftp://public.example/a.png", "another kind"),
        ("http://public.example:99999/a.png", "a port"),
        ("http://[::1/a.png", "cannot be read"),
        ("http://public.example/\n", "cannot be read"),
    ],
)
def test_what_is_not_taken(web: tuple[type[Handler], int], url: str, found: str) -> None:
    with pytest.raises(RequestError, match="cannot be fetched") as caught:
        fetch(web[1], url, most=100)
    assert found in caught.value.found


def test_it_takes_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    with site(ANSWERS) as (_, port):
        monkeypatch.setattr(media, "MAX_SECONDS", 0.05)
        with pytest.raises(RequestError, match="within"):
            fetch(port, "http://public.example/slow")


def test_others_go_on_while_one_is_fetched() -> None:
    async def run(port: int, may_go_on: Callable[[], None]) -> bytes:
        fetcher = MediaFetcher(resolve, Internet(port))
        slow = asyncio.ensure_future(fetcher.fetch("http://public.example/slow"))
        assert await fetcher.fetch("http://public.example/a.png") == b"one"
        assert not slow.done()
        may_go_on()
        return await slow

    with site(ANSWERS) as (handler, port):
        assert asyncio.run(run(port, handler.may_go_on.set)) == b"late"


class Part(NamesMedia):
    media_fields: ClassVar = ("url",)
    url: str | None = None
    other: str | None = None


class Body(msgspec.Struct):
    parts: list[Part]


def test_what_a_body_names_is_put_there(web: tuple[type[Handler], int]) -> None:
    plain = Part("data:,", "http://public.example/page")
    one, two, again = (Part(f"http://public.example/{x}") for x in ("a.png", "any", "a.png"))
    body = Body([one, plain, two, again, Part()])
    assert [url for _, _, url in named_media(body)] == [one.url, two.url, again.url]
    network = Internet(web[1])
    sizes: list[int] = []
    fetcher = MediaFetcher(resolve, network)
    asyncio.run(fetch_media(body, fetcher, most_images=2, most_bytes=6, grow=sizes.append))
    assert [read_data_url(each.url or "") for each in (one, two, again)] == [b"one", b"any", b"one"]
    assert one.url == "http://public.example/a.png"
    assert sizes == [3, 6]
    assert len(network.connected) == 2
    assert not isinstance(plain.url, FetchedUrl)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"most_images": 1, "most_bytes": 6}, "too many images"),
        ({"most_images": 2, "most_bytes": 5}, "too large together"),
        ({"most_images": 2, "most_bytes": 2}, "cannot be fetched"),
    ],
)
def test_limits_of_a_body(
    web: tuple[type[Handler], int], limits: dict[str, int], message: str
) -> None:
    body = Body([Part("http://public.example/a.png"), Part("http://public.example/any")])
    fetcher = MediaFetcher(resolve, Internet(web[1]))
    with pytest.raises(RequestError, match=message):
        asyncio.run(fetch_media(body, fetcher, **limits, grow=lambda _: None))
    assert not any(isinstance(each.url, FetchedUrl) for each in body.parts)


def test_a_client_that_leaves_ends_what_is_fetched() -> None:
    async def run(port: int, asked: list[tuple[str, str]]) -> None:
        body = Body([Part("http://public.example/slow")])
        fetcher = MediaFetcher(resolve, Internet(port))
        task = asyncio.ensure_future(
            fetch_media(body, fetcher, most_images=1, most_bytes=9, grow=lambda _: None)
        )
        await asyncio.to_thread(wait_until, lambda: bool(asked))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(asyncio.all_tasks()) == 1

    with site(ANSWERS) as (handler, port):
        asyncio.run(run(port, handler.asked))
