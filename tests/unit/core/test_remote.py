"""How clients name a server."""

from __future__ import annotations

import pytest

from blazr.core.remote import auth_headers, root_url

ROOT = "http://127.0.0.1:8080"


@pytest.mark.parametrize("url", [ROOT, f"{ROOT}/", f"{ROOT}/v1", f"{ROOT}/v1/"])
def test_a_server_has_one_root_however_it_is_named(url: str) -> None:
    assert root_url(url) == ROOT


def test_a_key_is_a_bearer_token_and_none_is_no_header() -> None:
    assert auth_headers("secret") == {"Authorization": "Bearer secret"}
    assert auth_headers("") == auth_headers(None) == {}
