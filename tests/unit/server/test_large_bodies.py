"""Large bodies: the event loop, which all clients share, neither decodes nor translates them."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import sys
import threading
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any

import httpx2
import msgspec
import pytest

from blazr.core.errors import ConfigError
from blazr.server import messages, params, response_format, tool_choice
from blazr.server.config import LARGE_BODY_BYTES, ServerConfig
from blazr.server.endpoint import MAX_JSON_VALUES, Call, Route
from blazr.server.params import MAX_VARIABLE_NAME, MAX_VARIABLES
from blazr.server.routes import ROUTES
from blazr.server.state import BodyBudget
from blazr.server.tool_choice import MAX_TOOL_NAME
from tests.support.loopback import Loopback, serving
from tests.support.scripted import scripted_core, wait_until
from tests.unit.server.test_openapi import BODIES

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
PADDING = "a" * LARGE_BODY_BYTES
# What goes through a body to translate it, whatever the dialect, and where that is.
TRANSLATORS = {"sampling_params", "to_messages", "to_prompts", "tool_choice", "one_grammar"}
TRANSLATING = {each.__file__ for each in (messages, params, response_format, tool_choice)}


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


class Called(msgspec.Struct):
    """Functions of `TRANSLATING` that the event loop's thread has called."""

    names: list[str]


async def name_threads(call: Call[NotingBody]) -> Threads:
    """Name the threads."""
    return Threads(call.body.thread, threading.current_thread().name)


_called: set[str] = set()


async def watch_loop(call: Call[None]) -> Called:
    """Watch what the event loop's thread calls from now on."""

    def note(frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and frame.f_code.co_filename in TRANSLATING:
            _called.add(frame.f_code.co_name)

    _called.clear()
    sys.setprofile(note)
    return Called([])


async def end_watch(call: Call[None]) -> Called:
    """Say what it has called."""
    sys.setprofile(None)
    return Called(sorted(_called))


@pytest.fixture(scope="module")
def running() -> Iterator[Loopback]:
    rows = [
        Route("POST", "/threads", name_threads, needs_model=False),
        Route("POST", "/watch", watch_loop, needs_model=False),
        Route("POST", "/watched", end_watch, needs_model=False),
    ]
    with serving(scripted_core(), routes=[*ROUTES.values(), *rows]) as running:
        yield running


@pytest.mark.parametrize("value", [1, "a", [1]])
def test_a_large_body_is_decoded_on_another_thread(running: Loopback, value: object) -> None:
    reply = running.client.post("/threads", json={"values": [value] * LARGE_BODY_BYTES})
    assert reply.is_success, reply.text
    assert reply.json()["decoded_on"] != reply.json()["answered_on"]


def test_a_small_body_is_decoded_at_once(running: Loopback) -> None:
    reply = running.client.post("/threads", json={"values": [1] * 100}).json()
    assert reply["decoded_on"] == reply["answered_on"]


def called_on_loop(running: Loopback, path: str, body: dict[str, object]) -> set[str]:
    assert running.client.post("/watch").is_success
    try:
        reply = running.client.post(path, json=body)
        assert reply.status_code < 500, reply.text
    finally:
        found = running.client.post("/watched").json()["names"]
    return TRANSLATORS & {*found}


@pytest.mark.sample
@pytest.mark.parametrize("path", sorted(BODIES))
def test_a_large_body_is_translated_on_another_thread(running: Loopback, path: str) -> None:
    for body in BODIES[path]:
        assert not called_on_loop(running, path, {**body, "padding": PADDING})


def test_a_small_body_is_translated_at_once(running: Loopback) -> None:
    assert "sampling_params" in called_on_loop(running, "/v1/chat/completions", CHAT)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("[" + "1," * LARGE_BODY_BYTES + "]", "not JSON"),
        ("[" + "1," * LARGE_BODY_BYTES + "[" * 100 + "]" * 101, "nested too deep"),
        ("1" + " " * LARGE_BODY_BYTES, "Expected `array`"),
        ("[" + "[]," * MAX_JSON_VALUES + "[]]", "too many objects"),
        ("[" + '{"a": 1},' * (MAX_JSON_VALUES // 2) + "{}]", "too many objects"),
    ],
)
def test_what_is_wrong_with_a_large_body_is_said(
    running: Loopback, values: str, expected: str
) -> None:
    reply = running.client.post("/threads", content='{"values": ' + values + "}")
    assert reply.status_code == 400
    assert expected in reply.json()["error"]["message"]


def test_as_many_token_ids_as_a_body_holds_are_no_values(running: Loopback) -> None:
    most = ServerConfig().max_body_bytes // 4
    reply = running.client.post("/v1/completions", json={"prompt": [1] * most})
    assert reply.status_code == 400
    assert "context" in reply.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/apply-template"])
def test_template_variables_are_bounded(running: Loopback, path: str) -> None:
    most = {f"{i:0{MAX_VARIABLE_NAME}}": i for i in range(MAX_VARIABLES)}
    assert running.client.post(path, json={**CHAT, "chat_template_kwargs": most}).is_success
    for more in ({**most, "a": 1}, {"a" * (MAX_VARIABLE_NAME + 1): 1}):
        reply = running.client.post(path, json={**CHAT, "chat_template_kwargs": more})
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "chat_template_kwargs"


def test_the_name_of_a_tool_is_bounded(running: Loopback) -> None:
    def call(name: str) -> httpx2.Response:
        tool = {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
        return running.client.post("/v1/chat/completions", json={**CHAT, "tools": [tool]})

    assert call("a" * MAX_TOOL_NAME).is_success
    reply = call("a" * (MAX_TOOL_NAME + 1))
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "tools"


def begin(running: Loopback, length: int, sent: int) -> socket.socket:
    """Send the head of a request, and some of its body."""
    url = httpx2.URL(running.url)
    connection = socket.create_connection((url.host, url.port), timeout=30)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
    connection.sendall(head.encode() + b" " * sent)
    return connection


def test_bodies_that_are_held_leave_room_for_short_ones() -> None:
    whole = json.dumps({"prompt": "Hello", "max_tokens": 1, "user": "u" * 180_000})
    with serving(scripted_core(), max_body_bytes=200_000, max_bodies_bytes=200_000) as running:
        held = begin(running, 190_000, 180_000)
        bodies = running.models.state.bodies
        wait_until(lambda: bodies.held)
        refused = running.client.post("/v1/completions", content=whole)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) > 0
        assert refused.json()["error"]["code"] == "bodies_too_large"
        short = running.client.post("/v1/completions", json={"prompt": "Hello", "max_tokens": 1})
        assert short.status_code == 200
        held.close()
        wait_until(lambda: not bodies.held)
        assert running.client.post("/v1/completions", content=whole).status_code == 200
        wait_until(lambda: not bodies.held)


def test_memory_goes_back_after_long_bodies() -> None:
    class Cycle:
        own: Cycle

    cycle = Cycle()
    cycle.own = cycle
    alive = weakref.ref(cycle)
    with serving(scripted_core()) as running:
        gc.disable()
        try:
            del cycle
            body = json.dumps({"prompt": "Hello", "max_tokens": 1}) + " " * LARGE_BODY_BYTES
            assert running.client.post("/v1/completions", content=body).status_code == 200
            wait_until(lambda: alive() is None)
        finally:
            gc.enable()


def test_the_longest_body_fits_among_all() -> None:
    with pytest.raises(ConfigError, match="--max-bodies leaves no room"):
        ServerConfig(max_body_bytes=2**30)


def test_memory_is_not_given_back_where_the_server_has_ended_meanwhile() -> None:
    async def end() -> None:
        loop = asyncio.get_running_loop()
        await loop.shutdown_default_executor()
        BodyBudget(1000)._give_back()

    asyncio.run(end())
