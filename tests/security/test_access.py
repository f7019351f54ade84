"""Keys, CORS, request ids."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from blazr.core.errors import ConfigError
from blazr.server.config import ServerConfig
from blazr.server.routes import ROUTES
from tests.support.loopback import Loopback, serving
from tests.support.scripted import scripted_core


@pytest.fixture(scope="module")
def guarded() -> Iterator[Loopback]:
    with serving(scripted_core(), api_keys=("first", "second")) as running:
        yield running


CLOSED = [row for row in ROUTES.values() if not row.is_open]
BAD = [
    {},
    {"Authorization": "Bearer wrong"},
    {"Authorization": "Bearer"},
    {"Authorization": "Bearer first second"},
    {"Authorization": "Basic first"},
    {"Authorization": "first"},
    {"Authorization": "Bearer firs"},
    {"x-api-key": "FIRST"},
    {"x-api-key": "first,second"},
]


@pytest.mark.parametrize("row", CLOSED, ids=lambda row: row.path)
def test_every_route_asks_for_a_key_before_it_reads(guarded: Loopback, row) -> None:
    for headers in BAD:
        reply = guarded.client.request(row.method, row.path, content=b"{", headers=headers)
        assert reply.status_code == 401
        assert reply.headers["www-authenticate"] == "Bearer"
        told = reply.json()
        error = told["error"] if "error" in told else told["message"]  # which is Cohere's
        kind = {"type": "authentication_error"}
        assert "key" in error if isinstance(error, str) else kind.items() <= error.items()


def test_unknown_routes_ask_too(guarded: Loopback) -> None:
    assert guarded.client.get("/nope").status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer first"},
        {"Authorization": "bearer second"},
        {"x-api-key": "second"},
    ],
)
def test_any_key_opens(guarded: Loopback, headers: dict) -> None:
    assert guarded.client.get("/v1/models", headers=headers).is_success


def test_health_is_open(guarded: Loopback) -> None:
    assert guarded.client.get("/health").is_success
    assert guarded.client.get("/ready").is_success


def test_keys_do_not_share_prefixes(guarded: Loopback) -> None:
    salts = []
    for key in ("first", "second", "first"):
        guarded.client.post("/generate", json={"prompt": "a"}, headers={"x-api-key": key})
        salts.append(guarded.engine.submitted[-1].cache_salt)
    assert salts[0] == salts[2] != salts[1]
    assert "first" not in salts[0]


def test_browsers_on_this_machine_may_call(loopback: Loopback) -> None:
    preflight = {"Access-Control-Request-Method": "POST"}
    for origin in ("http://localhost:3000", "http://127.0.0.1", "https://[::1]:8000"):
        headers = {"Origin": origin, **preflight}
        reply = loopback.client.options("/v1/chat/completions", headers=headers)
        assert reply.is_success
        assert reply.headers["access-control-allow-origin"] == origin
        assert "access-control-allow-credentials" not in reply.headers
        plain = loopback.client.post("/generate", json={"prompt": "a"}, headers={"Origin": origin})
        assert plain.headers["access-control-allow-origin"] == origin


@pytest.mark.parametrize(
    ("body", "status"), [({"model": "none", "prompt": "a"}, 404), ({"prompt": 5}, 400)]
)
def test_browsers_can_read_why_they_are_refused(
    loopback: Loopback, body: dict, status: int
) -> None:
    origin = {"Origin": "http://localhost:3000"}
    reply = loopback.client.post("/v1/completions", json=body, headers=origin)
    assert reply.status_code == status
    assert reply.headers["access-control-allow-origin"] == "http://localhost:3000"


@pytest.mark.parametrize("origin", ["https://evil.example", "http://localhost.evil.example"])
def test_other_origins_may_not(loopback: Loopback, origin: str) -> None:
    reply = loopback.client.get("/v1/models", headers={"Origin": origin})
    assert "access-control-allow-origin" not in reply.headers


OWN_NAMES = [
    *("localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:8080", "192.168.1.20:8080", "[::1]"),
    *("[fe80::1]:8080", "blazr", "blazr:8080", "chat.localhost:8080", socket.gethostname()),
]
FOREIGN_NAMES = [
    *("evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example"),
    *("1.2.3.4.5", "[evil.example]", "evil.example.", "x.local", "127.0.0.1@evil.example"),
]


@pytest.fixture(scope="module", params=["127.0.0.1", "0.0.0.0"])
def keyless(request: pytest.FixtureRequest) -> Iterator[Loopback]:
    with serving(scripted_core(), host=request.param) as running:
        yield running


def test_without_keys_only_own_names_are_answered(keyless: Loopback) -> None:
    """A page of another name may have been pointed here: to the browser it is this server's."""
    for path in ("/", "/health", "/v1/models", "/nope"):
        for name in OWN_NAMES:
            assert keyless.client.get(path, headers={"Host": name}).status_code != 421, name
        for name in FOREIGN_NAMES:
            reply = keyless.client.get(path, headers={"Host": name})
            assert (reply.status_code, "--allowed-host" in reply.text) == (421, True), name


def test_names_can_be_allowed() -> None:
    names = ("llm.example.com", "Other.example.com")
    with serving(scripted_core(), host="0.0.0.0", allowed_hosts=names) as running:
        for name, status in (
            ("llm.example.com", 200), ("LLM.example.com.:80", 200), ("other.example.com", 200),
            ("a.llm.example.com", 421), ("example.com", 421),
        ):  # fmt: skip
            assert running.client.get("/ready", headers={"Host": name}).status_code == status, name
    for more in ({"allowed_hosts": ("*",)}, {"api_keys": ("k",)}):
        with serving(scripted_core(), host="0.0.0.0", **more) as running:
            assert running.client.get("/ready", headers={"Host": "any.example"}).is_success


@pytest.mark.parametrize("name", ["", "http://a.example", "a.example:80", "a/b", "*.example"])
def test_what_is_no_name_is_not_allowed(name: str) -> None:
    with pytest.raises(ConfigError, match="allowed host"):
        ServerConfig(allowed_hosts=(name,))


@pytest.mark.parametrize("name", ["", "a.example", "a.example:80", "https://a.example/"])
def test_what_no_browser_sends_is_no_origin(name: str) -> None:
    with pytest.raises(ConfigError, match="origin"):
        ServerConfig(cors_origins=("*", "null", "app://notes", "https://a.example:8443", name))


def test_origins_of_pages_extensions_and_programs() -> None:
    ServerConfig(cors_origins=("*", "null", "app://notes", "https://a.example:8443"))


FORM = {"Content-Type": "text/plain"}  # what a page may send without a preflight


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "http://localhost.evil.example", "Sec-Fetch-Site": "same-site"},
        {"Origin": "null", "Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
@pytest.mark.parametrize("path", ["/generate", "/api/generate", "/models/unload", "/sleep"])
def test_pages_of_other_sites_cannot_post(loopback: Loopback, headers: dict, path: str) -> None:
    sent = len(loopback.engine.submitted)
    body = {"content": b'{"prompt": "a"}', "headers": {**FORM, **headers}}
    reply = loopback.client.post(path, **body)
    assert reply.status_code == 403
    assert "--cors-origin" in reply.text
    assert len(loopback.engine.submitted) == sent


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"},
        {"Origin": "https://behind.proxy", "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
        # a browser asked first, or this is none
        {"Origin": "app://notes", "Content-Type": "application/json"},
    ],
)
def test_others_can_post(loopback: Loopback, headers: dict) -> None:
    headers = {**FORM, **headers}
    reply = loopback.client.post("/generate", content=b'{"prompt": "a"}', headers=headers)
    assert reply.is_success


def test_a_page_of_this_server_can_post(loopback: Loopback) -> None:
    base = loopback.client.base_url
    headers = {**FORM, "Origin": f"{base.scheme}://{base.netloc.decode()}"}
    reply = loopback.client.post("/generate", content=b'{"prompt": "a"}', headers=headers)
    assert reply.is_success


def test_origins_can_be_allowed() -> None:
    with serving(scripted_core(), cors_origins=("https://app.example",)) as running:
        reply = running.client.get("/health", headers={"Origin": "https://app.example"})
        assert reply.headers["access-control-allow-origin"] == "https://app.example"
        refused = running.client.get("/nope", headers={"Origin": "https://app.example"})
        assert refused.status_code == 404
        assert refused.headers["access-control-allow-origin"] == "https://app.example"
        headers = {"Origin": "https://app.example", "Sec-Fetch-Site": "cross-site", **FORM}
        assert running.client.post(
            "/generate", content=b'{"prompt":"a"}', headers=headers
        ).is_success


@pytest.mark.parametrize("given", ["abc-1", "x" * 128])
def test_request_ids_are_echoed(loopback: Loopback, given: str) -> None:
    for path in ("/health", "/nope"):
        reply = loopback.client.get(path, headers={"X-Request-Id": given})
        assert reply.headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "x" * 129, "a\tb"])
def test_unfit_request_ids_are_replaced(loopback: Loopback, given: str) -> None:
    found = loopback.client.get("/health", headers={"X-Request-Id": given}).headers["x-request-id"]
    assert found != given
    assert len(found) == 32


@pytest.mark.parametrize("key", ["", " a", "a\n", "ä"])
def test_unusable_keys_are_refused(key: str) -> None:
    with pytest.raises(ConfigError):
        ServerConfig(api_keys=(key,))


def test_a_wrong_method_is_told_every_right_one(loopback: Loopback) -> None:
    for path, allowed in (("resp_1", "DELETE, GET, HEAD"), ("input_tokens", "POST")):
        for method in ("PUT", "OPTIONS"):
            reply = loopback.client.request(method, f"/v1/responses/{path}")
            assert reply.status_code == 405
            assert reply.headers["allow"] == allowed
