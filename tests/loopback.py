"""A real server on a loopback port, in a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import httpx2

from blazr.llm.async_llm import AsyncLLM
from blazr.llm.text_engine import TextEngine
from blazr.server.app import build_app
from blazr.server.config import ServerConfig
from blazr.server.serve import DrainingServer, address_of, listen, make_server
from blazr.server.service import Service
from tests.scripted import ScriptedEngine, wait_until


@dataclass
class Loopback:
    url: str
    core: TextEngine
    service: Service
    server: DrainingServer
    client: httpx2.Client

    @property
    def engine(self) -> ScriptedEngine:
        return cast("ScriptedEngine", self.core.engine)


@contextmanager
def serving(core: TextEngine, **settings: object) -> Iterator[Loopback]:
    """Serve a core until the block ends. The core is closed with it."""
    config = ServerConfig(**{"host": "127.0.0.1", "port": 0, **settings})
    sock = listen(config)
    url = address_of(sock)
    app = build_app(AsyncLLM(core), config, aliases=("org/name",))
    server = make_server(app, app.state.service)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    wait_until(lambda: server.started)
    try:
        with httpx2.Client(base_url=url, timeout=30) as client:
            yield Loopback(url, core, app.state.service, server, client)
    finally:
        server.should_exit = True
        thread.join()
        core.close()
