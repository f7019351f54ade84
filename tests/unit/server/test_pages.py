"""The pages come whole, from here alone, and open to all; without them there is a line."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from tests.support.loopback import Loopback, serving
from tests.support.scripted import scripted_core

FILES = sorted(each.name for each in (files("blazr.server") / "ui").iterdir())
TYPES = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "svg": "image/svg+xml",
    "txt": "text/plain",
}
PAGES = ["/", "/docs"]
VENDORED = {"temml.js", "temml.LICENSE.txt"}


def text_of(name: str) -> str:
    return (files("blazr.server") / "ui" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", [*PAGES, *(f"/ui/{name}" for name in FILES)])
def test_each_file_is_served_with_a_strict_policy(loopback: Loopback, path: str) -> None:
    reply = loopback.client.get(path)
    kind = reply.headers["content-type"].partition(";")[0]
    assert kind == TYPES.get(path.rpartition(".")[2], "text/html")
    policy = dict(
        part.split(" ", 1) for part in reply.headers["content-security-policy"].split("; ")
    )
    assert policy["default-src"] == policy["trusted-types"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert loopback.client.head(path).status_code == 200


@pytest.mark.parametrize(
    "path", ["/ui/", "/ui/nope.js", "/ui/..%2fapp.py", "/ui/../app.py", "/ui/%2e%2e/app.py"]
)
def test_no_name_leads_elsewhere(loopback: Loopback, path: str) -> None:
    assert loopback.client.get(path).status_code == 404


@pytest.mark.parametrize("name", FILES)
def test_what_a_file_loads_is_there_and_ours(name: str) -> None:
    text = text_of(name)
    loaded = re.findall(r'(?:src|href)="([^"#]+)"', text) if name.endswith("html") else []
    loaded += re.findall(r'from "\./([^"]+)"', text)
    for each in loaded:
        assert each.removeprefix("ui/") in {*FILES, "./", "docs", "openapi.json"}
    assert set(re.findall(r"https?://[\w.]+", text)) <= {"http://www.w3.org"}
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text)
    assert name in VENDORED or "style=" not in text


def test_vendored_code_is_named_with_its_licence() -> None:
    notice = (Path(__file__).parents[3] / "NOTICE").read_text(encoding="utf-8")
    version = re.match(r"// Temml ([\d.]+) of", text_of("temml.js"))
    assert version is not None
    assert f"Temml {version[1]}" in notice
    assert "Permission is hereby granted" in text_of("temml.LICENSE.txt")


def test_every_file_is_loaded_by_another() -> None:
    said = "".join(text_of(name) for name in FILES)
    pages = {"index.html", "docs.html"}
    assert [name for name in FILES if name not in pages and name not in said] == []


def test_the_pages_need_no_key_but_what_they_ask_for_does() -> None:
    with serving(scripted_core(), api_keys=("secret",)) as running:
        for path in (*PAGES, "/ui/chat.js"):
            assert running.client.get(path).is_success
        for path in ("/openapi.json", "/v1/models", "/uix", "/docs/x"):
            assert running.client.get(path).status_code == 401


def test_without_the_pages_there_is_a_line() -> None:
    with serving(scripted_core(), has_ui=False) as running:
        assert running.client.get("/").text == "blazr is running"
        assert running.client.head("/").is_success
        for path in ("/docs", "/ui/chat.js"):
            assert running.client.get(path).status_code == 404
