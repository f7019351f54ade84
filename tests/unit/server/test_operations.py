"""What operators ask for: TLS, socket files, a proxy's prefix, access logs, traces."""

from __future__ import annotations

import json
import re
import shutil
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import urljoin

import httpx2
import msgspec
import pytest

from blazr.core.errors import ConfigError
from blazr.server.config import ServerConfig
from blazr.server.endpoint import Call, Route
from blazr.server.routes import ROUTES
from blazr.server.serve import address_of, listen
from tests.support.loopback import serving
from tests.support.scripted import scripted_core

BODY = {"prompt": "a secret prompt", "max_tokens": 3}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for this machine, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    place = tmp_path_factory.mktemp("tls")
    cert, key = str(place / "cert.pem"), str(place / "key.pem")
    line = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    more = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-out", cert, "-keyout", key]
    subprocess.run([*line.split(), *more, *files], check=True, capture_output=True)
    return cert, key


def test_tls(certificate: tuple[str, str]) -> None:
    cert, key = certificate
    with serving(scripted_core(), tls_cert=cert, tls_key=key) as running:
        url = running.url.replace("http:", "https:")
        trusted = ssl.create_default_context(cafile=cert)
        reply = httpx2.post(f"{url}/v1/completions", json={**BODY, "stream": True}, verify=trusted)
        assert reply.text.endswith("data: [DONE]\n\n")
        with pytest.raises(httpx2.HTTPError):
            running.client.get("/health")
    sock = listen(ServerConfig(host="127.0.0.1", port=0))
    assert address_of(sock, is_tls=True).startswith("https://127.0.0.1:")
    sock.close()


def test_certificates_that_cannot_be_used(certificate: tuple[str, str], tmp_path: Path) -> None:
    cert, key = certificate
    with pytest.raises(ConfigError, match="both or neither"):
        ServerConfig(tls_cert=cert)
    for pair in ((cert, cert), (key, key), (str(tmp_path / "none"), key), (cert, "/dev/null")):
        with pytest.raises(ConfigError, match="certificate cannot be used"):
            listen(ServerConfig(host="127.0.0.1", port=0, tls_cert=pair[0], tls_key=pair[1]))


@pytest.mark.parametrize(("host", "port"), [("none.invalid", 0), ("127.0.0.1", 99999)])
def test_an_address_that_is_none_is_not_called_taken(host: str, port: int) -> None:
    with pytest.raises(ConfigError, match="cannot listen") as raised:
        listen(ServerConfig(host=host, port=port))
    assert raised.value.hint == "--host 127.0.0.1 --port 8080"


def test_a_socket_file(tmp_path: Path) -> None:
    path = tmp_path / "blazr.sock"
    with serving(scripted_core(), uds=str(path)) as running:
        assert running.url == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(path))) as client:
            for host in ("localhost", "whatever.example"):  # nobody's browser gets here
                assert client.post(f"http://{host}/v1/completions", json=BODY).is_success
        with pytest.raises(ConfigError, match="cannot listen"):
            listen(ServerConfig(uds=str(path)))


def test_a_socket_file_left_behind_is_replaced_but_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "blazr.sock"
    listen(ServerConfig(uds=str(path))).close()
    assert path.is_socket()
    with serving(scripted_core(), uds=str(path)):
        pass
    path.unlink()
    path.write_text("mine")
    with pytest.raises(ConfigError, match="cannot listen"):
        listen(ServerConfig(uds=str(path)))
    assert path.read_text() == "mine"


def test_a_proxy_s_prefix_may_be_there_or_not() -> None:
    with serving(scripted_core(), root_path="/llm/one", api_keys=("k",)) as running:
        key = {"x-api-key": "k"}
        for prefix in ("", "/llm/one"):
            assert running.client.get(f"{prefix}/health").is_success
            assert running.client.get(f"{prefix}/v1/models").status_code == 401
            assert running.client.get(f"{prefix}/v1/models", headers=key).is_success
            reply = running.client.post(f"{prefix}/v1/completions", json=BODY, headers=key)
            assert reply.is_success
            # errors keep their dialect
            reply = running.client.post(f"{prefix}/v1/messages", json={}, headers=key)
            assert reply.json()["type"] == "error"
        assert running.client.get("/llm/onehealth", headers=key).status_code == 404
        document = running.client.get("/openapi.json", headers=key).json()
        assert document["servers"] == [{"url": "/llm/one"}]


@pytest.mark.parametrize("prefix", ["", "/llm/one"])
@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/v1/models/", "/v1/models"),
        ("/v1/models/?a=%20b&c", "/v1/models?a=%20b&c"),
        ("/docs/", "/docs"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
    ],
)
def test_a_slash_too_many_leads_to_the_same_server(prefix: str, path: str, found: str) -> None:
    """Of a proxy the server knows neither the name nor that it speaks HTTPS."""
    with serving(scripted_core(), root_path="/llm/one") as running:
        reply = running.client.get(f"{prefix}{path}", headers={"Host": "127.0.0.1:1"})
    assert reply.status_code == 307
    for public in ("https://llm.example/llm/one", "http://127.0.0.1:8080"):
        assert urljoin(public + path, reply.headers["location"]) == public + found


def test_the_prefix_alone_leads_to_the_page() -> None:
    """The page names its files from where it is, which is wrong without the slash."""
    with serving(scripted_core(), root_path="/llm/one", api_keys=("k",)) as running:
        reply = running.client.get("/llm/one?a=b")
        assert reply.status_code == 307
        public = "https://llm.example/llm/one"
        assert urljoin(public, reply.headers["location"]) == f"{public}/?a=b"
        assert running.client.get("/llm/one/").is_success
        assert running.client.get("/nope/", headers={"x-api-key": "k"}).status_code == 404


class Place(msgspec.Struct):
    """Where the server is."""

    url: str


async def tell_place(call: Call[None]) -> Place:
    """Tell where the server is."""
    return Place(call.base_url)


@pytest.mark.parametrize("root", ["", "/llm"])
def test_addresses_that_replies_give_are_those_of_the_proxy(root: str) -> None:
    rows = [*ROUTES.values(), Route("GET", "/place", tell_place, needs_model=False)]
    with serving(scripted_core(), routes=rows, root_path=root) as running:
        for said, scheme in ((), "http"), (("https, http",), "https"), (("ftp://x?",), "http"):
            headers = [("Host", "localhost:81"), *(("X-Forwarded-Proto", each) for each in said)]
            told = running.client.get("/place", headers=headers).json()["url"]
            assert told == f"{scheme}://localhost:81{root}/"


@pytest.mark.parametrize("path", ["llm", "/llm/", "/", "/a b", "/a?b", "//a"])
def test_wrong_prefixes_are_refused(path: str) -> None:
    with pytest.raises(ConfigError):
        ServerConfig(root_path=path)


def test_the_log_has_no_prompts(capfd: pytest.CaptureFixture[str]) -> None:
    with serving(scripted_core(), access_log="json") as running:
        given = {"X-Request-Id": 'mine"1'}
        running.client.post("/v1/completions", json=BODY, headers=given)
        running.client.get("/nope%0A%1B[31m?secret=1")
        running.client.post("/v1/completions", json={**BODY, "max_tokens": -2})
    lines = capfd.readouterr().err.splitlines()
    told = [json.loads(line) for line in lines if line.startswith("{")]
    # an answer may arrive before its line is written
    first, third, second = sorted(told, key=lambda each: each["status"])
    times = {name: first.pop(name) for name in ("time", "ms")}
    assert times["ms"] > 0
    assert first == {
        "method": "POST",
        "path": "/v1/completions",
        "status": 200,
        "request_id": 'mine"1',
        "model": "scripted",
        "outcome": "ok",
        "prompt_tokens": 3,
        "cached_tokens": 2,
        "output_tokens": 3,
    }
    assert (second["status"], second["path"]) == (404, "/nope\\n\\x1b[31m")
    assert third["status"] == 400
    assert "secret" not in "".join(lines)


@pytest.mark.parametrize("form", ["text", "off"])
def test_the_log_as_text_or_not_at_all(form: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="blazr")
    with serving(scripted_core(), access_log=form) as running:
        running.client.get("/health", headers={"X-Request-Id": "mine"})
    told = [each.getMessage() for each in caplog.records if "GET /health 200" in each.getMessage()]
    assert len(told) == (form == "text")
    with pytest.raises(ConfigError):
        ServerConfig(access_log="xml")


@contextmanager
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """Takes traces as OpenTelemetry sends them."""
    found: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_traces() -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    from blazr.server.tracing import Tracer

    trace = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01", "X-Request-Id": "mine"}
    with collector() as (url, found):
        tracer = Tracer(url)
        with serving(scripted_core(), tracer=tracer) as running:
            running.client.post("/v1/completions", json=BODY, headers=headers)
            running.engine.fails_with = "on fire"
            running.client.post("/v1/completions", json=BODY)
        tracer.close()
    spans = [
        span
        for sent in found
        for resource in ExportTraceServiceRequest.FromString(sent).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    first, second = spans
    facts = {each.key: each.value for each in first.attributes}
    assert first.name == "POST /v1/completions"
    assert first.trace_id.hex() == trace
    assert first.end_time_unix_nano > first.start_time_unix_nano
    assert facts["http.response.status_code"].int_value == 200
    assert facts["gen_ai.request.model"].string_value == "scripted"
    assert facts["gen_ai.usage.output_tokens"].int_value == 3
    assert facts["blazr.request_id"].string_value == "mine"
    assert second.status.code == 2
    assert b"secret" not in b"".join(found)


def test_opentelemetry_is_not_imported_unasked() -> None:
    code = "import sys, blazr.server.app; sys.exit(any('opentelemetry' in m for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_a_limit_is_a_number_above_zero(value: float) -> None:
    with pytest.raises(ConfigError, match="the limit --request-timeout ") as raised:
        ServerConfig(request_timeout_s=value)
    error = raised.value
    assert error.found == repr(value)
    assert (error.expected, error.hint) == ("a finite number above 0", "leave it out for 600.0")


def test_without_a_key_nothing_but_what_is_open_answers() -> None:
    """Where a page is open, what else is asked of its path is not."""
    with serving(scripted_core(), api_keys=("secret",)) as running:
        for row in ROUTES.values():
            path = re.sub(r"{[^}]*}", "x", row.path)
            reply = running.client.request(row.method, path, content=b"{}")
            assert (reply.status_code == 401) is not row.is_open, (row.method, row.path)
            if row.is_open:
                assert running.client.head(path).status_code != 401
                assert running.client.post(path, content=b"{}").status_code == 401
