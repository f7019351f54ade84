"""How clients name a server, and read its streams."""

from __future__ import annotations

import pytest

from blazr.core.errors import ConfigError
from blazr.core.remote import EventReader, auth_headers, root_url

ROOT = "http://127.0.0.1:8080"


@pytest.mark.parametrize("url", [ROOT, f"{ROOT}/", f"{ROOT}/v1", f"{ROOT}/v1/"])
def test_a_server_has_one_root_however_it_is_named(url: str) -> None:
    assert root_url(url) == ROOT


@pytest.mark.parametrize("url", ["", "localhost:8080", "http://", "http:///v1", "ftp://a", "/v1"])
def test_an_address_that_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="URL of the server is not understood"):
        root_url(url)


def test_a_key_is_a_bearer_token_and_none_is_no_header() -> None:
    assert auth_headers("secret") == {"Authorization": "Bearer secret"}
    assert auth_headers("") == auth_headers(None) == {}


EVENTS = 'data: {"a": "x\u2028\u2029\x85y"}\n\nevent: b\r\ndata:c\r\n\r\n: ping\ndata: [DONE]\n\n'


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_events_are_the_same_however_the_bytes_are_cut(size: int) -> None:
    stream, reader = EVENTS.encode(), EventReader()
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    found = [data.decode() for piece in pieces for data in reader.feed(piece)]
    assert found == ['{"a": "x\u2028\u2029\x85y"}', "c"]
