"""A real server on a loopback port, in a thread."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import httpx2

from blazr.llm.async_llm import AsyncLLM
from blazr.llm.text_engine import TextEngine
from blazr.server.app import build_app
from blazr.server.config import ServerConfig
from blazr.server.endpoint import Route
from blazr.server.models import Models
from blazr.server.routes import ROUTES
from blazr.server.serve import DrainingServer, address_of, listen, make_server
from blazr.server.state import ServerState
from blazr.server.tracing import Tracer
from tests.support.scripted import ScriptedEngine, wait_until


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Loopback:
    url: str
    models: Models
    server: DrainingServer
    client: httpx2.Client
    thread: threading.Thread

    @property
    def state(self) -> ServerState:
        return self.models.state

    @property
    def core(self) -> TextEngine:
        model = self.models.slots[0].model
        assert model is not None
        return model.llm.core

    @property
    def engine(self) -> ScriptedEngine:
        return cast("ScriptedEngine", self.core.engine)


@contextmanager
def serving(
    core: TextEngine,
    *,
    tracer: Tracer | None = None,
    routes: Iterable[Route] = ROUTES.values(),
    **settings: object,
) -> Iterator[Loopback]:
    """Serve a core until the block ends. The core is closed with it."""
    config = ServerConfig(**{"host": "127.0.0.1", "port": 0, **settings})
    models = Models.of(AsyncLLM.of(core), config, aliases=("org/name",))
    with serving_models(models, tracer, routes) as running:
        yield running


@contextmanager
def serving_models(
    models: Models, tracer: Tracer | None = None, routes: Iterable[Route] = ROUTES.values()
) -> Iterator[Loopback]:
    """Serve models until the block ends. They are closed with it."""
    config = models.state.config
    sock = listen(config)
    url = address_of(sock)
    server = make_server(build_app(models, routes=routes, tracer=tracer), models)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    wait_until(lambda: server.started)
    try:
        with httpx2.Client(base_url=url, timeout=30) as client:
            yield Loopback(url, models, server, client, thread)
    finally:
        server.should_exit = True
        thread.join()
        models.close()
