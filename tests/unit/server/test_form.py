"""Forms that no honest client sends are refused, and never end in an error of the server's."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from starlette.datastructures import Headers

from blazr.server.errors import HttpError
from blazr.server.form import decode_form


class Body(msgspec.Struct):
    file: bytes
    prompt: str | None = None
    kinds: list[str] | None = None
    filename: str = "a"


FILE = ("file", b"sound")


def decode(*fields: tuple[str, bytes], more: str = "") -> Body:
    raw = b""
    for name, value in fields if FILE in fields else (FILE, *fields):
        file = '; filename="a"' if name == "file" else ""
        raw += f'--x\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode()
        raw += value + b"\r\n"
    headers = Headers({"content-type": f"multipart/form-data; boundary=x{more}"})
    return asyncio.run(decode_form(headers, raw + b"--x--\r\n", Body))


def test_fields_and_items_of_lists() -> None:
    found = decode(("prompt", "é".encode()), ("kinds[]", b"a"), ("kinds[]", b"b"))
    assert found == Body(b"sound", "é", ["a", "b"])


@pytest.mark.parametrize("names", [("kinds", "kinds"), ("kinds[]", "kinds"), ("kinds", "kinds[]")])
def test_a_list_without_brackets(names: tuple[str, str]) -> None:
    one, other = names
    assert decode((one, b"a"), (other, b"b")) == Body(b"sound", None, ["a", "b"])
    assert decode(("kinds", b"null")) == Body(b"sound", None, None)


def test_a_name_that_is_given_goes_before_that_of_the_file() -> None:
    name = ("filename", b"b")
    assert decode(name, FILE) == decode(FILE, name) == Body(b"sound", filename="b")


@pytest.mark.parametrize("encoding", ["utf-8", "UTF-8", '"utf8"'])
def test_forms_are_in_utf8(encoding: str) -> None:
    assert decode(("prompt", "é".encode()), more=f"; charset={encoding}").prompt == "é"


@pytest.mark.parametrize(
    ("encoding", "value"),
    [
        ("unicode_escape", b"\\ud800"),
        ("utf-7", b"+2AA-"),
        ("punycode", b"a" * 100),
        ("undefined", b"a"),
        ("no such", b"a"),
        ("\x00", b"a"),
        ("", b"a"),
    ],
)
def test_other_encodings_are_refused(encoding: str, value: bytes) -> None:
    with pytest.raises(HttpError, match="UTF-8") as caught:
        decode(("prompt", value), more=f'; charset="{encoding}"')
    assert caught.value.status == 400
    assert caught.value.code == "invalid_form"


def test_what_is_wrong_with_a_form_is_one_sentence() -> None:
    headers = Headers({"content-type": "multipart/form-data"})
    with pytest.raises(HttpError, match=r"boundary in multipart\.$"):
        asyncio.run(decode_form(headers, b"--x--", Body))
