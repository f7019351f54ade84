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
import struct
import zlib
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from time import monotonic
from typing import Any

import msgspec

from blazr.server.endpoint import Route
from blazr.server.routes import ROUTES

# What everybody may do to a server without keys, or what ends only with the client.
NOT_TRIED = frozenset(
    ("/models/load", "/models/unload", "/api/pull", "/models/sse", "/cache_events")
)
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
    "(a+)+$", "a{1000000}", 'root ::= "a"{1000000}', "start: start",
    "[[[", "\\", "../../etc/passwd", "file:///etc/passwd", "http://127.0.0.1:1/",
    "data:image/png;base64,AAAA", "root ::= root root", "none", "auto", "stop", "json_object",
    [], {}, [None], [[]], [{}], [[[[]]]], {"": None}, [5], [0, 2**31],
    [0] * 2000, ["a"] * 300, [-1], [2**40],
    {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
    {"type": "function", "function": FUNCTION}, {"type": "text", "text": "a"}, {"a": {"b": [1]}},
    [{"type": "function", "function": FUNCTION}], [{"role": "user"}], [*CHAT, {"role": "bogus"}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}],
    [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
    [{"role": "tool", "content": "a", "tool_call_id": "none"}], SCHEMA, {"type": ["null"]},
    {"0": 1e9, "99999999": -100, "x": 1}, {"include_usage": "yes"}, {"type": "enabled"},
)  # fmt: skip
NUMBERS = (0, 1, -1, 2, 1e-320, 1e-38, 1e-9, 0.5, 0.99, 10, 100, 1000, 2**31 - 1)
ODD_URLS = (
    "", "data:", "data:,x", "data:;base64,", "data:image/png;base64,====", "http://127.0.0.1:1/a.png",
    "file:///etc/passwd", "//x", "data:image/png;base64," + "%41" * 4000, "\x00",
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
ROLES = ("user",) * 6 + ("assistant", "system", "tool")
MEDIA = [
    row
    for row in ROWS
    if "audio" in row.path or "messages" in getattr(row.body, "__struct_fields__", ())
]
ENCODINGS = ("utf-8", "utf-16", "punycode", "unicode_escape", "idna", "\xff", "undefined", "")
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


def hostile_request(chance: random.Random, models: Sequence[str] = ("model",)) -> Hostile:
    """One request of the many.

    Args:
        chance: Draws it.
        models: Names of models that there are. Where there are several, images and sounds, sound
            and spoiled, are sent to the routes that take some.
    """
    row = chance.choice(MEDIA if len(models) > 1 and chance.random() < 0.7 else ROWS)
    body, media_type = b"", "application/json"
    if row.method == "POST":
        body, media_type = _content(row, chance, models)
        body = _spoiled(body, chance)
    method, target = row.method, _target(row, chance)
    if chance.random() < 0.05:
        method = chance.choice(METHODS)
    if chance.random() < 0.05:
        target = chance.choice(TARGETS)
    headers = ["Host: x", "Connection: close"]
    if chance.random() < 0.8:
        headers.append(f"Content-Type: {media_type}")
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


def _content(row: Route, chance: random.Random, models: Sequence[str]) -> tuple[bytes, str]:
    """A body, and its media type."""
    has_media = len(models) > 1
    if row.is_form and has_media:
        return _form(row, chance, chance.choice(models))
    return _body(row, chance, chance.choice(models), has_media=has_media), "application/json"


def _body(row: Route, chance: random.Random, model: str, *, has_media: bool) -> bytes:
    fields = list(getattr(row.body, "__struct_fields__", ()))
    body = {name: value for name, value in SOUND.items() if name in fields}
    if "model" in body:
        body["model"] = model
    if has_media and "messages" in fields and chance.random() < 0.9:
        parts = [_image_part(chance) for _ in range(chance.choice((1, 1, 1, 2, 40)))]
        body["messages"] = [{"role": chance.choice(ROLES), "content": parts}]
    for _ in range(chance.choice((0, 1, 1, 1, 2, 4))):
        name = chance.choice(fields) if fields and chance.random() < 0.95 else "unknown"
        body[name] = _value(chance)
    numbers = _numbers_of(row.body) if row.body is not None else []
    if numbers and chance.random() < 0.3:  # odd, and yet within many ranges: their mixtures
        for name in chance.choices(numbers, k=chance.choice((1, 2, 4, 8))):
            body[name] = chance.choice(NUMBERS)
    if "stream" in fields and chance.random() < 0.3:
        body["stream"] = True
    text = json.dumps(body)
    if chance.random() < 0.02:
        text = text[:-1] + f', "x": {"[" * 5000}{"]" * 5000}}}'
    if chance.random() < 0.02 and body:
        text = text[:-1] + ", " + text[1:]  # every name twice
    return text.encode()


@cache
def _numbers_of(body: type) -> list[str]:
    """The fields of a body that are numbers."""
    kinds = (msgspec.inspect.IntType, msgspec.inspect.FloatType)
    found = msgspec.inspect.type_info(body)
    return [
        each.encode_name
        for each in getattr(found, "fields", ())
        for kind in getattr(each.type, "types", (each.type,))
        if isinstance(getattr(kind, "type", kind), kinds)
    ]


def _value(chance: random.Random) -> object:
    value = chance.choice(VALUES)
    for _ in range(chance.choice((0, 0, 0, 1, 2, 70))):
        value = [value] if chance.random() < 0.5 else {chance.choice(("type", "a", "")): value}
    return value


def _form(row: Route, chance: random.Random, model: str) -> tuple[bytes, str]:
    """A form with a sound file, and its media type."""
    names = list(getattr(row.body, "__struct_fields__", ()))
    fields = [("model", model.encode()), ("file", _sound(chance))]
    for _ in range(chance.choice((0, 1, 1, 2, 120))):
        name = chance.choice([*names, "unknown", "", "\x00", "a" * 3000])
        value = chance.choice((*VALUES, "verbose_json", "srt", "true", "nan", "word", "segment"))
        text = value if isinstance(value, str) else json.dumps(value)
        fields.append((name + chance.choice(("", "", "[]")), text.encode("utf-8", "surrogatepass")))
    chance.shuffle(fields)
    raw = b""
    for name, value in fields:
        is_file = (name == "file") != (chance.random() < 0.05)
        more = (
            chance.choice(('; filename="a.wav"', "; filename*=utf-16''%ff%fe")) if is_file else ""
        )
        kind = chance.choice(("", "", "Content-Type: text/plain; charset=punycode\r\n"))
        disposition = f'Content-Disposition: form-data; name="{name}"{more}\r\n{kind}\r\n'
        raw += b"--x\r\n" + disposition.encode("latin-1") + value + b"\r\n"
    media_type = "multipart/form-data; boundary=x"
    if chance.random() < 0.1:
        media_type += f"; charset={chance.choice(ENCODINGS)}"
    return raw + chance.choice((b"--x--\r\n", b"--x--\r\n", b"--x", b"")), media_type


def _sound(chance: random.Random) -> bytes:
    """A short WAV file, or one that says other things of itself than it is."""

    def drawn(sound: int, *others: int) -> int:
        return chance.choice(others) if chance.random() < 0.15 else sound

    samples = chance.choice((b"", bytes(8000), chance.randbytes(8000), b"\xff\x7f\x00\x80" * 4000))
    bits = drawn(16, 0, 1, 8, 24, 32, 64, 65535)
    rate = drawn(16_000, 0, 1, 999, 384_000, 2**31, 2**32 - 1)
    channels = drawn(1, 0, 2, 16, 17, 65535)
    form = struct.pack(
        "<4sIHHIIHH", b"fmt ", drawn(16, 0, 2, 18, 40, 2**32 - 1), drawn(1, 0, 2, 3, 17, 0xFFFE),
        channels, rate, drawn(2 * rate % 2**32, 0), drawn(2, 0, 65535), bits,
    )  # fmt: skip
    data = struct.pack("<4sI", b"data", drawn(len(samples), 0, 1, 2**31, 2**32 - 1)) + samples
    size = drawn(len(form) + len(data) + 4, 0, 2**32 - 1)
    found = struct.pack("<4sI4s", b"RIFF", size, b"WAVE") + form + data
    if chance.random() < 0.2:
        mark = chance.choice(
            (b"fLaC\0\0\0\x22", b"OggS\0\x02", b"\xff\xfb\x90\0", b"FORM", b"RF64", b"")
        )
        found = mark + found[:4000] if chance.random() < 0.5 else mark + chance.randbytes(3000)
    return found[: chance.randrange(1, 200)] if chance.random() < 0.1 else found


def _image_part(chance: random.Random) -> object:
    """A part of a message: an image as one dialect or another has it."""
    data = b64encode(_picture(chance)).decode()
    kind = chance.choice(("image/png",) * 6 + ("image/jpeg", "image/svg+xml", "text/html", ""))
    url = f"data:{kind};base64,{data}"
    return chance.choice(
        (
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "image_url", "image_url": url},
            {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}},
            {"type": "image", "source": {"type": "url", "url": url}},
            {"type": "image_url", "image_url": {"url": chance.choice(ODD_URLS)}},
            {"type": "image_url"},
            {"type": "text", "text": "<image>" * chance.choice((1, 500))},
        )
    )


def _picture(chance: random.Random) -> bytes:
    """A small PNG, or one that says other things of itself than it is."""

    def chunk(name: bytes, data: bytes) -> bytes:
        check = zlib.crc32(name + data) if chance.random() < 0.95 else 0
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", check)

    def drawn(sound: int, *others: int) -> int:
        return chance.choice(others) if chance.random() < 0.15 else sound

    odd = (0, 1, 65_535, 2**31 - 1, 2**32 - 1)
    width, height = drawn(chance.randrange(1, 60), *odd), drawn(chance.randrange(1, 60), *odd)
    head = struct.pack(
        ">IIBBBBB", width, height, drawn(8, 0, 1, 4, 16, 255), drawn(2, 0, 3, 4, 6, 7), drawn(0, 1),
        drawn(0, 9), drawn(0, 1, 2),
    )  # fmt: skip
    rows = bytes(min(height * (1 + 3 * width), 40_000)) * chance.choice((1, 1, 1, 300))
    found = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head)
    for _ in range(chance.choice((0, 0, 1, 3))):
        name = chance.choice(
            (b"zTXt", b"iCCP", b"acTL", b"eXIf", b"tRNS", b"PLTE", b"fcTL", b"iTXt")
        )
        bomb = b"a\0\0" + zlib.compress(bytes(2**22))
        found += chunk(name, chance.choice((b"", bytes(8), chance.randbytes(60), bomb)))
    found += chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    if chance.random() < 0.15:
        wide = b"GIF89a\xff\xff\xff\xff\xf0\0\0"
        found = chance.choice(
            (wide, b"\xff\xd8\xff\xe0", b"RIFF\xff\xff\xff\xffWEBPVP8X", b"BM", b"<svg>")
        )
        found += chance.randbytes(chance.choice((0, 10, 3000)))
    return found[: chance.randrange(1, len(found))] if chance.random() < 0.1 else found


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
