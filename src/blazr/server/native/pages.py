"""``GET /`` and ``/docs``: the chat page, the viewer of the API, and the files they load.

All of it comes from this package; nothing is fetched from elsewhere, and the headers forbid it.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from starlette.responses import PlainTextResponse, Response

from blazr.server.endpoint import Call
from blazr.server.errors import HttpError

_TYPES = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "svg": "image/svg+xml",
    "txt": "text/plain",
}
# Scripts and styles are files of ours, and text from a model can become neither.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' blob:",  # pictures and sounds that the page itself holds
        "media-src blob:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


async def chat_page(call: Call[None]) -> Response:
    """A page to chat with the model; only a line of text with ``--no-ui``."""
    if not call.state.config.has_ui:
        return PlainTextResponse("blazr is running")
    return _file(call, "index.html")


async def docs_page(call: Call[None]) -> Response:
    """A page that shows the endpoints and tries them."""
    return _file(call, "docs.html")


async def asset(call: Call[None]) -> Response:
    """A file that the pages load."""
    return _file(call, call.path["name"])


def _file(call: Call[None], name: str) -> Response:
    found = _contents().get(name) if call.state.config.has_ui else None
    if found is None:
        raise HttpError(404, "there is no such page.", code="not_found")
    return Response(found, headers=_HEADERS, media_type=_TYPES[name.rpartition(".")[2]])


@cache
def _contents() -> dict[str, bytes]:
    """Every file by its name: read once, so that no name leads out of the directory."""
    directory = files("blazr.server") / "ui"
    return {each.name: each.read_bytes() for each in directory.iterdir()}
