"""The pages in a real Chromium, when there is one: Debian's, driven by playwright."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from blazr.llm.async_llm import AsyncLLM
from blazr.server.config import ServerConfig
from blazr.server.models import Models, ModelSource
from tests.support.loopback import Loopback, serving_models
from tests.support.scripted import thinking_core

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def models_saying(*texts: str, **settings: object) -> Models:
    """Models that each say one thing, to everything."""
    sources = []
    for place, text in enumerate(texts):
        name = f"model-{place}"
        core = thinking_core(text, name=name, max_seq_len=4096)
        sources.append(ModelSource(name=name, open=lambda core=core: AsyncLLM.of(core)))
    return Models(sources, ServerConfig(**{"host": "127.0.0.1", "port": 0, **settings}))


@pytest.fixture
def saying() -> Iterator:
    """Start a server whose models say these texts."""
    with ExitStack() as stack:

        def start(*texts: str, **settings: object) -> Loopback:
            return stack.enter_context(serving_models(models_saying(*texts, **settings)))

        yield start


class Steps:
    """Stands where an engine's ``go`` is: lets it take so many steps, and no more until `set`."""

    def __init__(self, count: int) -> None:
        self._left = threading.Semaphore(count)

    def wait(self) -> None:
        self._left.acquire()

    def set(self) -> None:
        self._left.release(1_000_000)


@pytest.fixture(scope="module")  # while it runs, nothing else may start an event loop
def chromium() -> Iterator:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no chromium")
    with sync_api.sync_playwright() as playwright:
        # the microphone beeps
        flags = ("--no-sandbox", "--use-fake-device-for-media-stream")
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(flags))
        yield browser
        browser.close()


@pytest.fixture
def new_page(chromium) -> Iterator:
    """Open pages in a fresh profile. What the page complains about fails the test."""
    contexts, complaints = [], []

    def start(url: str, **settings: object):
        context = chromium.new_context(**{"viewport": {"width": 1200, "height": 800}, **settings})
        context.set_default_timeout(30_000)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: said.type == "error" and complaints.append(said.text))
        page.on("requestfailed", lambda request: page.failed.append(request.url))
        page.failed = []
        page.complaints = complaints
        page.goto(url)
        return page

    yield start
    for context in contexts:
        context.close()
    assert complaints == []
