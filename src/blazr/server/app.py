"""The application, built from the ROUTES table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial

import httpx2
from starlette.applications import Starlette
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp

from blazr.core.errors import EngineError
from blazr.core.remote import auth_headers
from blazr.server import mcp_endpoint
from blazr.server.anthropic.rendering import VERSION_HEADER, anthropic_error
from blazr.server.batches.files import FileStore
from blazr.server.batches.jobs import BatchJobs
from blazr.server.config import LOOPBACK_ORIGIN, ServerConfig
from blazr.server.endpoint import Endpoint, Route
from blazr.server.errors import ErrorShape, HttpError, openai_error
from blazr.server.mcp_endpoint import McpEndpoint
from blazr.server.middleware import (
    AuthMiddleware,
    BodyMiddleware,
    RequestContextMiddleware,
    digest_of,
    redirect,
)
from blazr.server.models import Models
from blazr.server.ollama.catalog import ollama_error
from blazr.server.openai.cohere import cohere_error
from blazr.server.openapi import describe
from blazr.server.routes import ROUTES, batch_paths
from blazr.server.run import DROPPED_HEADER, PREFIX_HEADER
from blazr.server.state import ServerState
from blazr.server.tracing import Tracer

# Paths under these that are no endpoint are still a dialect's.
_PREFIXES = (("/api/", ollama_error), ("/v1/messages/", anthropic_error), ("/v2/", cohere_error))


class _Name(PathConvertor):
    """The rest of a path, if there is any: without it, a slash at the end is left out."""

    regex = ".+"


register_url_convertor("name", _Name())


def build_app(
    models: Models, *, routes: Iterable[Route] = ROUTES.values(), tracer: Tracer | None = None
) -> Starlette:
    """Build the application around some models, which are not closed with it.

    Args:
        models: What it serves, and how it is to behave.
        routes: The endpoints.
        tracer: What traces are sent with.
    """
    rows = list(routes)
    servers = [{"url": models.state.config.root_path or "/"}]
    # made when it is first asked for, because it takes longer than everything else
    models.state.document = cache(lambda: describe(rows) | {"servers": servers})
    return assemble(models.state, rows, lambda row: Endpoint(row, models), tracer=tracer)


def assemble(
    state: ServerState,
    rows: Sequence[Route],
    endpoint: Callable[[Route], ASGIApp],
    *,
    tracer: Tracer | None = None,
) -> Starlette:
    """Put the middleware around endpoints, and let batches be answered by them.

    Args:
        state: What the server knows about itself.
        rows: The endpoints.
        endpoint: What answers the requests of a row.
        tracer: What traces are sent with.

    Raises:
        ConfigError: The folder for files cannot be used.
    """
    config = state.config
    shapes = {row.path: row.error for row in rows if row.error is not openai_error}

    def shape_of(path: str, headers: Headers) -> ErrorShape:
        """How errors are written: as the dialect of the path has them, or as the client's."""
        if path in shapes:
            return shapes[path]
        for prefix, shape in _PREFIXES:
            if f"{path}/".startswith(prefix):
                return shape
        return anthropic_error if VERSION_HEADER in headers else openai_error

    app = Starlette(
        routes=[StarletteRoute(row.path, endpoint(row), methods=[row.method]) for row in rows],
        middleware=[
            Middleware(  # outermost, or a page could not read why it was refused
                CORSMiddleware,
                allow_origins=config.cors_origins,
                allow_origin_regex=LOOPBACK_ORIGIN,
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=["*"],
                expose_headers=["X-Request-Id", PREFIX_HEADER, DROPPED_HEADER],
            ),
            Middleware(BodyMiddleware, max_body_bytes=config.max_body_bytes),
            Middleware(RequestContextMiddleware, state=state, shape_of=shape_of, tracer=tracer),
            Middleware(AuthMiddleware, state=state, routes=rows),
        ],
        exception_handlers={HTTPException: _refuse},
    )
    app.router.redirect_slashes = False  # `_refuse` does it, and does not lose a proxy's prefix
    if config.files_dir is not None:
        store = FileStore(config.files_dir, config.files_disk_bytes)
        state.batches = BatchJobs(store, partial(_connect, app, config), batch_paths(rows))
    if config.mcp:
        app.routes.append(
            StarletteRoute(mcp_endpoint.PATH, McpEndpoint(state, app), methods=mcp_endpoint.METHODS)
        )
    return app


def _connect(app: Starlette, config: ServerConfig, tenant: str) -> httpx2.AsyncClient:
    """What sends a key's requests to the application, in this process.

    Raises:
        EngineError: The server has no such key any more.
    """
    keys = {digest_of(key).hex(): key for key in config.api_keys + config.admin_api_keys}
    if (tenant and tenant not in keys) or (config.api_keys and not tenant):
        raise EngineError("the API key that sent the batch is no longer one of this server.")
    return httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app),
        base_url="http://localhost",
        headers=auth_headers(keys[tenant] if tenant else None),
        timeout=None,
    )


async def _refuse(request: Request, error: Exception) -> Response:
    """Starlette's own refusals (no such route, wrong method) become ours."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    path = request.scope["path"]
    routes = [each for each in request.app.routes if isinstance(each, StarletteRoute)]
    if status == 404:
        shorter = path.removesuffix("/")
        if shorter != path and any(each.path_regex.match(shorter) for each in routes):
            return redirect(request.scope, shorter)
        raise HttpError(404, "there is no such endpoint.", code="not_found")
    if status != 405:
        raise HttpError(status, "the request cannot be answered.")
    # a path may match several rows; those with its very name go before those with parameters
    matching = [each for each in routes if each.path_regex.match(path)]
    matching = [each for each in matching if each.path == path] or matching
    methods = sorted({method for each in matching for method in each.methods or ()})
    raise HttpError(
        405,
        f"{request.method[:10]} is not for this.",
        code="method_not_allowed",
        headers={"Allow": ", ".join(methods)},
    )
