"""The application, built from the ROUTES table."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from blazr.server.anthropic.rendering import VERSION_HEADER
from blazr.server.anthropic.rendering import error_object as anthropic_error
from blazr.server.config import LOOPBACK_ORIGIN
from blazr.server.endpoint import Endpoint
from blazr.server.errors import HttpError, Shape
from blazr.server.middleware import Gate, Surroundings
from blazr.server.models import Models
from blazr.server.ollama.models import error_object as ollama_error
from blazr.server.openapi import describe
from blazr.server.routes import ROUTES
from blazr.server.run import DROPPED_HEADER, PREFIX_HEADER
from blazr.server.tracing import Tracer


def build_app(models: Models, *, tracer: Tracer | None = None) -> Starlette:
    """Build the application around some models, which are not closed with it.

    Args:
        models: What it serves, and how it is to behave.
        tracer: What traces are sent with.
    """
    state, config = models.state, models.state.config
    document = describe(ROUTES.values())
    state.document = document | {"servers": [{"url": config.root_path or "/"}]}
    open_paths = frozenset(row.path for row in ROUTES.values() if row.is_open)
    command_paths = frozenset(row.path for row in ROUTES.values() if row.is_command)
    return Starlette(
        routes=[
            StarletteRoute(row.path, Endpoint(row, models), methods=[row.method])
            for row in ROUTES.values()
        ],
        middleware=[
            Middleware(  # outermost, or a page could not read why it was refused
                CORSMiddleware,
                allow_origins=config.cors_origins,
                allow_origin_regex=LOOPBACK_ORIGIN,
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=["*"],
                expose_headers=["X-Request-Id", PREFIX_HEADER, DROPPED_HEADER],
            ),
            Middleware(Surroundings, state=state, shape_of=_shape_of, tracer=tracer),
            Middleware(Gate, state=state, open_paths=open_paths, command_paths=command_paths),
        ],
        exception_handlers={HTTPException: _refuse},
    )


_BEGINNINGS = (("/api/", ollama_error), ("/v1/messages/", anthropic_error))
_SHAPES = {row.path: row.shape for row in ROUTES.values() if row.shape is not None}


def _shape_of(path: str, headers: Headers) -> Shape | None:
    """How errors are written: as the dialect of the path has them, or as the client's."""
    known = _SHAPES.get(path)
    if known is None:  # a path that there is not may still be of one
        known = next((shape for begin, shape in _BEGINNINGS if f"{path}/".startswith(begin)), None)
    return known or (anthropic_error if VERSION_HEADER in headers else None)


async def _refuse(request: Request, error: Exception) -> Response:
    """Starlette's own refusals (no such route, wrong method) become ours."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = {"Allow": ", ".join(_methods(request))} if status == 405 else None
    messages = {404: "there is no such endpoint.", 405: f"{request.method[:10]} is not for this."}
    message = messages.get(status, "the request cannot be answered.")
    codes = {404: "not_found", 405: "method_not_allowed"}
    raise HttpError(status, message, code=codes.get(status), headers=headers)


def _methods(request: Request) -> list[str]:
    """What a path may be asked with, in all of its rows: those with its very name, if there are."""
    path = request.scope["path"]
    routes = [each for each in request.app.routes if isinstance(each, StarletteRoute)]
    fitting = [each for each in routes if each.path_regex.match(path)]
    fitting = [each for each in fitting if each.path == path] or fitting
    return sorted({method for each in fitting for method in each.methods or ()})
