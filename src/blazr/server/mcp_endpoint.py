"""``/mcp``: the models of this server as tools of other agents, over streamable HTTP."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httpx2
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from blazr.core.errors import EngineError
from blazr.engine.outputs import describe_error
from blazr.server.endpoint import read_body, working
from blazr.server.state import ServerState

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

PATH = "/mcp"
METHODS = ("POST",)  # without sessions there is nothing to listen to, or to end


class McpEndpoint:
    """The endpoint. No session is kept: each request stands for itself, and is answered as JSON.

    Args:
        state: What the server knows about itself.
        app: The application, whose other endpoints are asked.
    """

    def __init__(self, state: ServerState, app: ASGIApp) -> None:
        # here, because the first request must not wait a second for it, and others with it
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        from blazr.agent.own_server import build_server

        client = httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=app), base_url="http://localhost", timeout=None
        )
        self._state = state
        self._manager = StreamableHTTPSessionManager(
            build_server(client, reads_files=False),
            json_response=True,
            stateless=True,
            max_request_body_size=state.config.max_body_bytes,
        )
        self._begun: asyncio.Future[None] | None = None
        self._holding: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        manager = await self._running()
        with self._state.bodies.hold() as grow, working(self._state):
            body = await read_body(scope, receive, self._state.config, grow)
            has_read = False

            async def replay() -> Message:
                nonlocal has_read
                if has_read:
                    return await receive()
                has_read = True
                return {"type": "http.request", "body": body, "more_body": False}

            await manager.handle_request(scope, replay, send)

    async def _running(self) -> StreamableHTTPSessionManager:
        """The SDK's part of it, which begins with the first request and ends with the loop.

        Raises:
            EngineError: It could not begin.
        """
        if self._begun is None:
            self._begun = asyncio.get_running_loop().create_future()
            self._holding = asyncio.create_task(self._hold(self._begun))
        await asyncio.shield(self._begun)  # others wait for it, too
        return self._manager

    async def _hold(self, begun: asyncio.Future[None]) -> None:
        try:
            async with self._manager.run():
                begun.set_result(None)
                await asyncio.Event().wait()
        except Exception as error:
            if begun.done():
                raise
            failure = EngineError(
                "MCP could not begin.", found=describe_error(error), hint="start the server again"
            )
            failure.__cause__ = error
            begun.set_exception(failure)
