"""Serving replicas: the process in front, from its first to its last moment."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic

import uvicorn

from blazr.server.config import ServerConfig
from blazr.server.liveness import Liveness
from blazr.server.replicas.front import build_front
from blazr.server.replicas.pool import Choose, Pool, cheapest
from blazr.server.serve import DrainingServer, run_server, uvicorn_config


def serve_replicas(
    arguments: Sequence[str],
    config: ServerConfig,
    sock: socket.socket,
    liveness: Liveness | None = None,
    *,
    on_ready: Callable[[], None] = lambda: None,
    choose: Choose = cheapest,
) -> None:
    """Serve until a signal says to stop; SIGUSR1 restarts the replicas one by one.

    Args:
        arguments: The command line of a replica, without what makes it one.
        config: How to behave, and how many replicas there are.
        sock: What `listen` returned. Closed at the end.
        liveness: Answers ``/health`` besides.
        on_ready: Called when the first replica is ready.
        choose: Which of several replicas is sent a prompt.

    Raises:
        EngineError: No replica could be started.
    """
    pool = Pool(arguments, config, choose=choose)
    server = FrontServer(uvicorn_config(build_front(pool), config), pool)
    pool.on_ready = on_ready
    try:
        run_server(server, sock, liveness)
    finally:
        pool.close()
    if pool.failure is not None:
        raise pool.failure


class FrontServer(DrainingServer):
    """A server that starts replicas when it begins to listen, and stops them last.

    Args:
        settings: uvicorn's.
        pool: The replicas.
    """

    def __init__(self, settings: uvicorn.Config, pool: Pool) -> None:
        super().__init__(settings, pool)
        self._pool = pool

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and start the replicas."""
        await super().startup(sockets)
        if threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._pool.restart)
        self._pool.on_failure = self._give_up
        self._pool.begin()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, and then the replicas."""
        await super().shutdown(sockets)
        left_s = 0.0 if self.deadline_s is None else self.deadline_s - monotonic()
        await self._pool.stop(left_s)

    def _give_up(self) -> None:
        self.should_exit = True


def end_with_parent(folder: Path) -> None:
    """Stop this process, a replica, when the one in front has gone, however that ended.

    Args:
        folder: Where the replicas have their files, responses of clients among them; the process in
            front may have had no time to remove it.
    """

    def wait() -> None:
        while os.read(0, 1):
            pass
        shutil.rmtree(folder, ignore_errors=True)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="blazr-parent", daemon=True).start()
