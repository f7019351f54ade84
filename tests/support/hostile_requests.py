"""Requests that no honest client sends, from a seed: over every route, as the bytes on the wire.

Bodies are made from the fields that a route's type names, so that new routes and fields are tried
as soon as they exist.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import socket
from dataclasses import dataclass
from time import monotonic
from typing import Any

from blazr.server.endpoint import Route
from blazr.server.routes import ROUTES

# What everybody may do to a server without keys, or what ends only with the client.
NOT_TRIED = frozenset({"/models/load", "/models/unload", "/api/pull", "/models/sse"})
ROWS = [row for row in ROUTES.values() if row.path not in NOT_TRIED]
CHAT = [{"role": "user", "content": "a"}]
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "array", "items": {"$ref": "#"}}}}
SOUND: dict[str, Any] = {
    "model": "model",
    "prompt": "once upon a time",
    "messages": CHAT,
    "input": "a",
    "max_tokens": 4,
    "max_output_tokens": 16,
    "n_predict": 4,
    "sampling_params": {"max_new_tokens": 4},
    "text": "a",
    "text_1": "a",
    "text_2": "b",
    "query": "a",
    "documents": ["b"],
    "questions": [{"type": "predicate", "instructions": "a"}],
    "tokens": [5],
    "content": "a",
}
VALUES: tuple[object, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**40, 0.5, -1e308, 1e-320, 1e400,
    "", "a", "\x00", "\ud800", "\u202e\u0301" * 50, "a" * 20_000, "{{ messages }}", "<|im_start|>",
    "(a+)+$", "[[[", "\\", "../../etc/passwd", "file:///etc/passwd", "http://127.0.0.1:1/",
    "data:image/png;base64,AAAA", "root ::= root root", "none", "auto", "stop", "json_object",
    [], {}, [None], [[]], [{}], [[[[]]]], {"": None}, [0] * 2000, ["a"] * 300, [-1], [2**40],
    {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
    {"type": "function", "function": FUNCTION}, {"type": "text", "text": "a"}, {"a": {"b": [1]}},
    [{"type": "function", "function": FUNCTION}], [{"role": "user"}], [*CHAT, {"role": "bogus"}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}],
    [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
    [{"role": "tool", "content": "a", "tool_call_id": "none"}], SCHEMA, {"type": ["null"]},
    {"0": 1e9, "99999999": -100, "x": 1}, {"include_usage": "yes"}, {"type": "enabled"},
)  # fmt: skip
HEADERS = (
    "Content-Encoding: gzip",
    "Content-Encoding: br",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: gzip, chunked",
    "Content-Length: 5",
    "Content-Length: -1",
    "Content-Length: 99999999999999999999",
    "Content-Type: multipart/form-data; boundary=x",
    "Content-Type: application/json; charset=utf-16",
    "Content-Type: \xff",
    "Expect: 100-continue",
    "Expect: everything",
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: eA==",
    "Upgrade: h2c\r\nHTTP2-Settings: AAAA",
    "Host: evil.example.com",
    "Host: [::1",
    "Host:",
    "Authorization: Bearer \xff",
    "Authorization: Basic Og==",
    "X-Api-Key: " + "k" * 5000,
    "Origin: null",
    "Origin: https://evil.example.com\r\nAccess-Control-Request-Method: POST",
    "Sec-Fetch-Site: cross-site",
    "Accept: ;;q=\xe9",
    "Accept-Encoding: gzip;q=nan",
    "Range: bytes=0-1,5-,-1",
    "If-None-Match: *",
    "Last-Event-Id: -1",
    "X-Request-Id: \x07\x1b[31m" + "x" * 500,
    "traceparent: 00-zz-zz-zz",
    "anthropic-version: 1",
    "X-Forwarded-For: \xff, 1",
    "Cookie: " + "a=b; " * 500,
    "X: " + "y" * 20_000,
    "\r\nGET /health HTTP/1.1",
    "no colon",
    " folded: x",
    "a b: c",
)
TARGETS = (
    "/", "//", "/%00", "/%ff%fe", "/..%2f..%2fetc/passwd", "/ui/../../config.py", "/ui/%2e%2e",
    "/v1/models/" + "a" * 5000, "/v1/completions/", "/V1/COMPLETIONS", "*", "http://x/health",
    "/?" + "a=b&" * 1000, "/health?verbose=%ZZ", "/metrics#x", "/\xff", "/ui/" + "%41" * 3000,
)  # fmt: skip
METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "PATCH", "get")


@dataclass(frozen=True, slots=True)
class Hostile:
    """One request.

    Args:
        raw: Its bytes.
        leaves: Whether its client sends no more afterwards, and says so.
    """

    raw: bytes
    leaves: bool

    def __repr__(self) -> str:
        return f"{self.raw[:1500]!r} ({len(self.raw)} bytes)"


def hostile_request(chance: random.Random) -> Hostile:
    """One request of the many."""
    row = chance.choice(ROWS)
    body = b""
    if row.method == "POST":
        body = _spoiled(_body(row, chance), chance)
    method, target = row.method, _target(row, chance)
    if chance.random() < 0.05:
        method = chance.choice(METHODS)
    if chance.random() < 0.05:
        target = chance.choice(TARGETS)
    headers = ["Host: x", "Connection: close"]
    if chance.random() < 0.8:
        headers.append("Content-Type: application/json")
    if chance.random() < 0.9:
        headers.append(f"Content-Length: {len(body)}")
    if chance.random() < 0.4:
        headers += chance.choices(HEADERS, k=chance.choice((1, 1, 2, 4)))
    if chance.random() < 0.02:
        headers += [f"x-{i}: 1" for i in range(chance.choice((99, 150, 900)))]
    version = chance.choice(("HTTP/1.1",) * 20 + ("HTTP/1.0", "HTTP/0.9", "HTTP/9.9", ""))
    head = "\r\n".join([f"{method} {target} {version}", *headers, "", ""])
    raw = head.encode("latin-1") + body
    if chance.random() < 0.03:
        raw = _spoiled(raw, chance)
    return Hostile(raw, leaves=chance.random() < 0.5)


def _target(row: Route, chance: random.Random) -> str:
    odd = ("x", "0", "-1", "resp_0", "%00", "%ff", "..%2f..", "a" * 3000, "model", "99999999999")
    target = re.sub(r"\{[^}]*\}", lambda _: chance.choice(odd), row.path)
    if chance.random() < 0.3:
        values = ("model=x", "verbose=1", "timeout_s=nan", "a=%ff", "limit=-1", "fail_on_no_slot=1")
        target += "?" + "&".join(chance.choices(values, k=chance.choice((1, 2, 5))))
    return target


def _body(row: Route, chance: random.Random) -> bytes:
    fields = list(getattr(row.body, "__struct_fields__", ()))
    body = {name: value for name, value in SOUND.items() if name in fields}
    for _ in range(chance.choice((0, 1, 1, 1, 2, 4))):
        name = chance.choice(fields) if fields and chance.random() < 0.95 else "unknown"
        body[name] = _value(chance)
    if "stream" in fields and chance.random() < 0.3:
        body["stream"] = True
    text = json.dumps(body)
    if chance.random() < 0.02:
        text = text[:-1] + f', "x": {"[" * 5000}{"]" * 5000}}}'
    if chance.random() < 0.02 and body:
        text = text[:-1] + ", " + text[1:]  # every name twice
    return text.encode()


def _value(chance: random.Random) -> object:
    value = chance.choice(VALUES)
    for _ in range(chance.choice((0, 0, 0, 1, 2, 70))):
        value = [value] if chance.random() < 0.5 else {chance.choice(("type", "a", "")): value}
    return value


def _spoiled(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    spoiled = (
        lambda: data[:at],
        lambda: data[:at] + chance.randbytes(chance.randrange(1, 9)) + data[at:],
        lambda: data.decode("utf-8", "replace").encode("utf-16"),
        lambda: b"\xef\xbb\xbf" + data,
        lambda: gzip.compress(data),
        lambda: data + data,
        lambda: chance.randbytes(chance.choice((1, 100, 70_000))),
    )
    return chance.choice(spoiled)() if chance.random() < 0.2 else data


def send(host: str, port: int, request: Hostile, *, timeout_s: float) -> tuple[int, float]:
    """Send a request; the status of its answer, 0 where none came, and how many seconds it took."""
    started_s = monotonic()
    ended_s = 0.0
    reply = b""
    with socket.create_connection((host, port), timeout=timeout_s) as connection:
        try:
            connection.sendall(request.raw)
            if request.leaves:
                connection.shutdown(socket.SHUT_WR)
            while monotonic() - started_s < timeout_s and (data := connection.recv(2**16)):
                reply += data
                ended_s = monotonic()  # a connection that stays open is no slow answer
        except (ConnectionError, TimeoutError):
            pass  # what came before is judged, and the time
    while reply.startswith(b"HTTP/1.1 1"):
        reply = reply.partition(b"\r\n\r\n")[2]
    status = re.match(rb"HTTP/1\.1 (\d{3})", reply)
    return (int(status[1]) if status else 0), (ended_s or monotonic()) - started_s
