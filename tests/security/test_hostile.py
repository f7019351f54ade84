"""Whatever is sent, the answer is a JSON error of the documented shape, never a 500."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blazr.server.routes import ROUTES
from tests.support.loopback import Loopback
from tests.support.seeds import examples

JSON = {"Content-Type": "application/json"}


def send(loopback: Loopback, raw: bytes, path: str = "/v1/completions", **headers: str):
    return loopback.client.post(path, content=raw, headers={**JSON, **headers})


def check_error(response, status: int) -> dict:
    assert response.status_code == status
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert len(error["message"]) <= 600
    return error


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        b"5",
        b"{",
        b'{"prompt": "a"} x',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "\xff"}',
        b'{"prompt": "a", "unknown": "\xff"}',
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": Infinity}',
        b'{"prompt": "a", "temperature": 1e999}',
        b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
        b'{"prompt": "a", "max_tokens": "5"}',
        b'{"prompt": "a", "max_tokens": 1.5}',
        b'{"prompt": null}',
        b'{"prompt": {"a": 1}}',
        b'{"prompt": [true]}',
        b"{}",
        b'{"prompt": "a", "logit_bias": {"x": 1}}',
        b'{"prompt": "a", "x": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}",
        b'{"prompt": "a", "response_format": {"a":' + b"[" * 70 + b"]" * 70 + b"}}",
        b"\xef\xbb\xbf{}",
    ],
)
def test_bad_bodies_are_400(loopback: Loopback, raw: bytes) -> None:
    check_error(send(loopback, raw), 400)


def test_input_is_not_echoed(loopback: Loopback) -> None:
    raw = json.dumps({"prompt": "a", "model": "\x1b[31m" * 99}).encode()
    error = check_error(send(loopback, raw), 404)
    assert "\x1b" not in error["message"]
    assert len(error["message"]) < 250


def test_nul_and_emoji_are_text(loopback: Loopback) -> None:
    assert send(loopback, json.dumps({"prompt": "a\0b 👩‍👩‍👧"}).encode()).status_code == 200


KINDS = ("text/plain", "application/x-www-form-urlencoded", "")


@pytest.mark.parametrize("kind", KINDS)
def test_bodies_are_json_whatever_they_are_called(loopback: Loopback, kind: str) -> None:
    headers = {"Content-Type": kind}
    response = loopback.client.post("/generate", content=b'{"prompt": "a"}', headers=headers)
    assert response.is_success
    wrong = loopback.client.post("/generate", content=b"prompt=a", headers=headers)
    assert check_error(wrong, 400)["code"] == "invalid_json"


def test_a_charset_is_fine(loopback: Loopback) -> None:
    headers = {"Content-Type": "application/json; charset=utf-8"}
    assert loopback.client.post("/generate", content=b'{"prompt":"a"}', headers=headers).is_success


def test_unknown_paths_and_methods(loopback: Loopback) -> None:
    assert check_error(loopback.client.get("/nope"), 404)["code"] == "not_found"
    response = loopback.client.get("/v1/completions")
    assert check_error(response, 405)["code"] == "method_not_allowed"
    assert response.headers["allow"] == "POST"


def test_long_bodies_are_413_by_length_and_by_count(loopback: Loopback) -> None:
    raw = b'{"prompt": "' + b"a" * 10_000_001 + b'"}'
    assert check_error(send(loopback, raw), 413)["code"] == "body_too_large"

    def pieces():
        for start in range(0, len(raw), 1_000_000):
            yield raw[start : start + 1_000_000]

    response = loopback.client.post("/v1/completions", content=pieces(), headers=JSON)
    check_error(response, 413)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/audio/transcriptions"])
def test_compressed_bodies_are_refused_as_that(loopback: Loopback, path: str) -> None:
    """Nothing is unpacked: it could be a thousand times as long."""
    raw = gzip.compress(b" " * 1_000_000 + b'{"prompt": "a"}')
    for encoding in ("gzip", "zstd", "br, gzip"):
        reply = loopback.client.post(path, content=raw, headers={"Content-Encoding": encoding})
        assert check_error(reply, 415)["code"] == "unsupported_encoding"
        assert encoding in reply.text
        assert reply.headers["accept-encoding"] == "identity"
    headers = {**JSON, "Content-Encoding": "identity"}
    plain = loopback.client.post("/v1/completions", content=b'{"prompt": "a"}', headers=headers)
    assert plain.is_success


def test_many_or_large_headers_are_refused(loopback: Loopback) -> None:
    many = {f"x-{i}": "1" for i in range(120)}
    check_error(loopback.client.get("/health", headers=many), 431)
    large = loopback.client.get("/health", headers={"x-large": "a" * 20_000})
    assert large.status_code in {400, 431}


HELLO = [{"role": "user", "content": "a"}]
CHATS = ("/v1/chat/completions", "/api/chat", "/v1/messages", "/apply-template")


@pytest.mark.parametrize("path", CHATS)
@pytest.mark.parametrize("role", ["bogus", "User", "user\n", "<|im_end|>", "assistant "])
def test_messages_of_nobody_are_400(loopback: Loopback, path: str, role: str) -> None:
    body = {"messages": [*HELLO, {"role": role, "content": "a"}]}
    if path == "/v1/messages":
        body["max_tokens"] = 1
    reply = loopback.client.post(path, json=body)
    assert reply.status_code == 400, reply.text
    assert "role" in reply.text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat"])
@pytest.mark.parametrize(
    "tool",
    [
        {"type": "function"},
        {"type": "function", "function": {}},
        {"type": "function", "function": {"name": ""}},
        {"type": "function", "function": {"name": 5}},
        {"type": "function", "function": "f"},
        {"type": "custom"},
        {},
    ],
)
def test_tools_without_a_name_are_400(loopback: Loopback, path: str, tool: dict) -> None:
    body = {"messages": HELLO, "tools": [tool]}
    reply = loopback.client.post(path, json=body)
    assert reply.status_code == 400, reply.text
    assert "tool" in reply.text


@pytest.mark.parametrize("kind", [[], {}, [["function"]], {"a": 1}])
def test_kinds_that_are_no_words_are_400(loopback: Loopback, kind: object) -> None:
    grammar = {"type": "grammar", "syntax": kind, "definition": "a"}
    tools = [
        {"type": kind, "name": "f"},
        {"type": "custom", "name": "f", "format": {"type": kind}},
        {"type": "custom", "name": "f", "format": grammar},
    ]
    paths = {"chat/completions": {"messages": HELLO}, "responses": {"input": "a"}}
    for tool in tools:
        for path, more in paths.items():
            reply = loopback.client.post(f"/v1/{path}", json={**more, "tools": [tool]})
            assert check_error(reply, 400)["param"] == "tools"


def test_foreign_hosts_are_misdirected(loopback: Loopback) -> None:
    check_error(loopback.client.get("/health", headers={"Host": "evil.example"}), 421)
    assert loopback.client.get("/health", headers={"Host": "localhost:80"}).is_success


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
)


def nested(inner: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)


VALUES = st.recursive(SCALARS, nested, max_leaves=8)
FIELDS = (
    *("prompt", "messages", "n", "stop", "stream", "temperature", "top_p", "top_k", "max_tokens"),
    *("logprobs", "echo", "logit_bias", "seed", "model", "tools", "tool_choice", "min_tokens"),
    *("stream_options", "response_format", "chat_template_kwargs", "top_logprobs", "content"),
    *("add_special", "stop_token_ids", "max_completion_tokens", "best_of", "suffix"),
)


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    path=st.sampled_from(["/v1/completions", "/v1/chat/completions", "/generate", "/tokenize"]),
    changes=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4),
)
def test_no_json_makes_a_500(loopback: Loopback, path: str, changes: dict) -> None:
    body = {"prompt": "a", "messages": [{"role": "user", "content": "a"}], **changes}
    response = loopback.client.post(path, json=body)
    assert response.status_code in {200, 400, 404}
    if response.status_code != 200:
        check_error(response, response.status_code)


# A body for each endpoint, to be spoiled one field at a time.
MESSAGES = [{"role": "user", "content": "a"}]
SOUND = {
    "messages": MESSAGES,
    "prompt": "a",
    "input": "a",
    "max_tokens": 2,
    "text_1": "a",
    "text_2": "b",
    "query": "a",
    "documents": ["b"],
    "questions": [{"type": "predicate", "instructions": "a"}],
    "tokens": [5],
}
POSTS = [row for row in ROUTES.values() if row.body is not None]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(st.data())
@settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_no_field_of_any_endpoint_breaks_it(loopback: Loopback, data: st.DataObject) -> None:
    row = data.draw(st.sampled_from(POSTS))
    fields = row.body.__struct_fields__
    body = {name: value for name, value in SOUND.items() if name in fields}
    if "content" in fields or row.body.__name__ == "ChatTextBody":
        body.pop("prompt", None)
    if row.path.startswith("/tokenize"):
        body.pop("messages")
    spoiled = data.draw(st.sampled_from(fields))
    raw = json.dumps({**body, spoiled: data.draw(VALUES)}).replace("Infinity", "1e999")
    reply = send(loopback, raw.replace("NaN", "null").encode(), row.path)
    # 501 is what a server says of endpoints that none of its models has
    assert reply.status_code < 500 or reply.status_code == 501, (row.path, raw, reply.text)
    if not reply.is_success:
        assert reply.json()["error"]
