"""Sound, images, summaries: the routes clients try, answered so that they know."""

from __future__ import annotations

from starlette.responses import Response

from blazr.server.errors import HttpError
from blazr.server.service import Call

PATHS = (
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/audio/speech",
    "/v1/images/generations",
    "/v1/images/edits",
    "/v1/images/variations",
    "/v1/responses/compact",
)


async def refuse(call: Call[None]) -> Response:  # noqa: ARG001
    """Say that this server has neither sound nor images, and shortens no conversation."""
    raise HttpError(
        501,
        "this server has neither sound nor images, and shortens no conversation.",
        code="not_implemented",
        headers={"X-Should-Retry": "false"},  # OpenAI's client would
    )
