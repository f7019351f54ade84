"""The application, built from the ROUTES table."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from blazr.llm.async_llm import AsyncLLM
from blazr.server.config import ServerConfig
from blazr.server.endpoint import Endpoint
from blazr.server.errors import HttpError
from blazr.server.middleware import Gate, Surroundings
from blazr.server.openapi import describe
from blazr.server.routes import ROUTES
from blazr.server.run import PREFIX_HEADER
from blazr.server.service import Service

_LOOPBACK_ORIGIN = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"


def build_app(
    llm: AsyncLLM, config: ServerConfig | None = None, *, aliases: tuple[str, ...] = ()
) -> Starlette:
    """Build the application around a model.

    Args:
        llm: The model. It is not closed with the application.
        config: How to behave; None takes the defaults.
        aliases: More names the model answers to.

    Returns:
        The application; its ``state.service`` is the `Service`.
    """
    config = config or ServerConfig()
    service = Service(llm, config, aliases=aliases)
    service.document = describe(ROUTES.values())
    open_paths = frozenset(row.path for row in ROUTES.values() if row.is_open)
    shapes = {row.path: row.shape for row in ROUTES.values() if row.shape is not None}
    app = Starlette(
        routes=[
            StarletteRoute(row.path, Endpoint(row, service), methods=[row.method])
            for row in ROUTES.values()
        ],
        middleware=[
            Middleware(Surroundings, service=service, shapes=shapes),
            Middleware(
                CORSMiddleware,
                allow_origins=config.cors_origins,
                allow_origin_regex=_LOOPBACK_ORIGIN,
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=["*"],
                expose_headers=["X-Request-Id", PREFIX_HEADER],
            ),
            Middleware(Gate, service=service, open_paths=open_paths),
        ],
        exception_handlers={HTTPException: _render},
    )
    app.state.service = service
    return app


async def _render(request: Request, error: Exception) -> Response:
    """Starlette's own refusals (no such route, wrong method) in the shape of ours."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = error.headers if isinstance(error, HTTPException) else None
    messages = {404: "there is no such endpoint.", 405: f"{request.method[:10]} is not for this."}
    message = messages.get(status, "the request cannot be answered.")
    codes = {404: "not_found", 405: "method_not_allowed"}
    return HttpError(status, message, code=codes.get(status), headers=headers).response()
