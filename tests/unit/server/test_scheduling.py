"""cache_salt, cache_anchors, priority, timeout: what a client says of when a request runs."""

from __future__ import annotations

import pytest

from blazr.engine.request import Request
from tests.support.loopback import Loopback, serving
from tests.support.scripted import scripted_core

PATHS = ("/v1/completions", "/v1/chat/completions")
PROMPT = {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}


def submitted(running: Loopback, path: str, key: str = "", **body: object) -> Request:
    """The engine's request that a body becomes."""
    headers = {"x-api-key": key} if key else {}
    reply = running.client.post(path, json={**PROMPT, **body}, headers=headers)
    assert reply.is_success, reply.text
    return running.engine.submitted[-1]


@pytest.mark.parametrize("path", PATHS)
def test_without_wishes_everything_is_equal(loopback: Loopback, path: str) -> None:
    request = submitted(loopback, path)
    nothing = submitted(loopback, path, cache_salt=None, priority=None, timeout=None)
    assert (request.cache_salt, request.priority, request.timeout_s) == ("", 0, 600.0)
    assert (nothing.cache_salt, nothing.priority, nothing.timeout_s) == ("", 0, 600.0)
    assert submitted(loopback, path, cache_salt="").cache_salt == ""


@pytest.mark.parametrize("path", PATHS)
def test_anchors(loopback: Loopback, path: str) -> None:
    assert submitted(loopback, path).anchors == ()
    assert submitted(loopback, path, cache_anchors=[7, 0]).anchors == (7, 0)
    for wrong in ([-1], ["a"], [0] * 1025, 5):
        reply = loopback.client.post(path, json={**PROMPT, "cache_anchors": wrong})
        assert reply.status_code == 400, wrong
        assert reply.json()["error"]["param"] == "cache_anchors"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("priority", [-100, -1, 100])
def test_priority(loopback: Loopback, path: str, priority: int) -> None:
    assert submitted(loopback, path, priority=priority).priority == priority


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("timeout", "expected"), [(0.5, 0.5), (30, 30.0), (10**9, 600.0)])
def test_timeout_shortens_the_server_s(
    loopback: Loopback, path: str, timeout: float, expected: float
) -> None:
    assert submitted(loopback, path, timeout=timeout).timeout_s == expected


def test_salts_divide_a_key_s_prefixes_and_never_join_two_keys() -> None:
    keys, salts = ("first", "second"), ("", "a", "b", "/a", "é" * 256)
    with serving(scripted_core(), api_keys=keys) as running:
        found = {
            (key, salt): submitted(running, PATHS[0], key, cache_salt=salt).cache_salt
            for key in keys
            for salt in salts
        }
        assert len(set(found.values())) == len(found)
        # a client that knows another's own salt still does not reach its prefixes
        stolen = submitted(running, PATHS[0], "first", cache_salt=found["second", ""]).cache_salt
        assert stolen not in found.values()
        again = submitted(running, PATHS[1], "second", cache_salt="a").cache_salt
        assert again == found["second", "a"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("cache_salt", "x" * 257),
        ("cache_salt", 5),
        ("priority", 101),
        ("priority", -101),
        ("priority", 10**30),
        ("priority", 0.5),
        ("priority", "high"),
        ("timeout", 0),
        ("timeout", -1),
        ("timeout", "soon"),
    ],
)
def test_refusals_name_the_field(loopback: Loopback, path: str, param: str, value: object) -> None:
    reply = loopback.client.post(path, json={**PROMPT, param: value})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param
