"""Why a prefix was not reused: the header of every reply, and /debug/cache."""

from __future__ import annotations

import pytest

from tests.support.loopback import Loopback, serving
from tests.support.scripted import scripted_core, wait_until

HEADER = "X-Blazr-Prefix-Cache"
CHAT = {"messages": [{"role": "user", "content": "hello"}]}
BODIES = {
    "/v1/completions": {"prompt": [5, 6, 7]},
    "/v1/chat/completions": CHAT,
    "/generate": {"prompt": "a b c"},
}


@pytest.mark.parametrize("path", BODIES)
def test_every_whole_reply_says_what_was_reused(loopback: Loopback, path: str) -> None:
    reply = loopback.client.post(path, json=BODIES[path])
    prompt = len(loopback.engine.submitted[-1].prompt_ids)
    assert reply.headers[HEADER] == f"2/{prompt}; partial"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_every_stream_says_it_in_its_headers(loopback: Loopback, path: str) -> None:
    with loopback.client.stream("POST", path, json={**BODIES[path], "stream": True}) as reply:
        prompt = len(loopback.engine.submitted[-1].prompt_ids)
        assert reply.headers[HEADER] == f"2/{prompt}; partial"
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert reply.read().endswith(b"data: [DONE]\n\n")


def test_of_several_prompts_and_choices_the_first_counts(loopback: Loopback) -> None:
    body = {"prompt": [[1, 2, 3, 4], [5], [6, 7]], "n": 2}
    assert loopback.client.post("/v1/completions", json=body).headers[HEADER] == "2/4; partial"


def test_a_refused_request_has_no_report(loopback: Loopback) -> None:
    before = loopback.client.get("/debug/cache").json()["recent"]
    refused = loopback.client.post("/v1/completions", json={"prompt": ""})
    assert refused.status_code == 400
    assert HEADER not in refused.headers
    assert loopback.client.get("/debug/cache").json()["recent"] == before


def test_a_stream_that_waits_long_begins_without_it() -> None:
    """The connection is kept alive before the prompt is read, and the report comes later."""
    with serving(scripted_core(), keep_alive_s=0.05) as running:
        running.engine.go.clear()
        body = {"prompt": "a", "stream": True}
        with running.client.stream("POST", "/v1/completions", json=body) as reply:
            assert HEADER not in reply.headers
            running.engine.go.set()
            text = reply.read().decode()
        assert text.startswith(": keep-alive\n\n")
        assert text.endswith("data: [DONE]\n\n")
        (report,) = running.client.get("/debug/cache").json()["recent"]
        assert report["reason"] == "partial"


def test_an_engine_that_stops_before_a_stream_begins_is_503() -> None:
    with serving(scripted_core(), keep_alive_s=0.5) as running:
        running.engine.go.clear()
        submit = running.engine.submit

        def submit_and_die(request, sink):
            request_id = submit(request, sink)
            running.engine.broken = "it died"
            return request_id

        running.engine.submit = submit_and_die
        reply = running.client.post("/v1/completions", json={"prompt": "a", "stream": True})
        assert reply.status_code == 503
        assert "it died" in reply.json()["error"]["message"]


def test_the_latest_requests_are_listed_newest_first() -> None:
    with serving(scripted_core()) as running:
        for number in range(103):
            headers = {"X-Request-Id": f"mine-{number}"}
            body = {"prompt": [7] * (1 + number % 5), "max_tokens": 1}
            running.client.post("/v1/completions", json=body, headers=headers)
        found = running.client.get("/debug/cache").json()["recent"]
        assert [each["request_id"] for each in found] == [f"mine-{i}" for i in range(102, 2, -1)]
        assert found[0] == {
            "request_id": "mine-102",
            "model": "scripted",
            "prompt_tokens": 3,
            "cached_tokens": 2,
            "reason": "partial",
            "state": None,
        }


def test_a_client_that_leaves_is_listed_too() -> None:
    with serving(scripted_core()) as running:
        body = {"prompt": "a", "max_tokens": 10**9, "ignore_eos": True, "stream": True}
        with running.client.stream("POST", "/v1/completions", json=body):
            pass
        wait_until(lambda: running.state.num_working == 0)
        assert len(running.client.get("/debug/cache").json()["recent"]) == 1


def test_figures_come_from_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(scripted_core()) as running:
        figures = {"pages_used": 7, "state_evictions": 3, "reuse_no-state": 2, "reuse_whole": 1}
        figures |= {"page_bytes": 640, "state_bytes": 896}
        monkeypatch.setattr(running.engine, "stats", lambda: figures)
        found = running.client.get("/debug/cache").json()
        assert found["pages"] == {
            "used": 7,
            "idle": 0,
            "free": 0,
            "evictions": 0,
            "bytes_each": 640,
        }
        assert found["states"] == {"used": 0, "free": 0, "evictions": 3, "bytes_each": 896}
        assert found["reasons"] == {"no-state": 2, "whole": 1}


def test_a_key_sees_its_own_requests_only() -> None:
    with serving(scripted_core(), api_keys=("first", "second")) as running:
        first, second = ({"x-api-key": key} for key in ("first", "second"))
        body = {"prompt": "a secret"}
        running.client.post("/generate", json=body, headers={**first, "X-Request-Id": "one"})
        seen = running.client.get("/debug/cache", headers=first)
        assert [each["request_id"] for each in seen.json()["recent"]] == ["one"]
        assert "secret" not in seen.text
        assert running.client.get("/debug/cache", headers=second).json()["recent"] == []
        assert running.client.get("/debug/cache").status_code == 401


def test_browsers_may_read_the_header(loopback: Loopback) -> None:
    headers = {"Origin": "http://localhost:3000"}
    reply = loopback.client.post("/generate", json={"prompt": "a"}, headers=headers)
    assert HEADER in reply.headers["access-control-expose-headers"]
