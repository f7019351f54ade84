"""Large bodies: the event loop, which all clients share, does not decode them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from blazr.server.endpoint import LARGE_BODY_BYTES, Call, Route
from blazr.server.routes import ROUTES
from tests.support.loopback import Loopback, serving
from tests.support.scripted import scripted_core


class NotingBody(msgspec.Struct, kw_only=True):
    """A body that notes on which thread it was decoded."""

    values: list[Any]
    thread: str = ""

    def __post_init__(self) -> None:
        self.thread = threading.current_thread().name


class Threads(msgspec.Struct):
    """Where a request was decoded, and where it is answered."""

    decoded_on: str
    answered_on: str


async def name_threads(call: Call[NotingBody]) -> Threads:
    """Name the threads."""
    return Threads(call.body.thread, threading.current_thread().name)


@pytest.fixture(scope="module")
def running() -> Iterator[Loopback]:
    row = Route("POST", "/threads", name_threads, needs_model=False)
    with serving(scripted_core(), routes=[*ROUTES.values(), row]) as running:
        yield running


@pytest.mark.parametrize("value", [1, "a", [1], {"a": 1}])
def test_a_large_body_is_decoded_on_another_thread(running: Loopback, value: object) -> None:
    reply = running.client.post("/threads", json={"values": [value] * LARGE_BODY_BYTES})
    assert reply.is_success, reply.text
    assert reply.json()["decoded_on"] != reply.json()["answered_on"]


def test_a_small_body_is_decoded_at_once(running: Loopback) -> None:
    reply = running.client.post("/threads", json={"values": [1] * 100}).json()
    assert reply["decoded_on"] == reply["answered_on"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("[" + "1," * LARGE_BODY_BYTES + "]", "not JSON"),
        ("[" + "1," * LARGE_BODY_BYTES + "[" * 100 + "]" * 101, "nested too deep"),
        ("1" + " " * LARGE_BODY_BYTES, "Expected `array`"),
    ],
)
def test_what_is_wrong_with_a_large_body_is_said(
    running: Loopback, values: str, expected: str
) -> None:
    reply = running.client.post("/threads", content='{"values": ' + values + "}")
    assert reply.status_code == 400
    assert expected in reply.json()["error"]["message"]
