"""Variations of images, summaries: the routes clients try, answered so that they know."""

from __future__ import annotations

from typing import NoReturn

from blazr.server.endpoint import Call
from blazr.server.errors import HttpError


async def refuse_variations(call: Call[None]) -> NoReturn:  # noqa: ARG001
    """Say that images are not varied without a text."""
    raise HttpError.unsupported(
        "this server makes no variations of images without a text. Try: /v1/images/edits with a "
        "prompt."
    )


async def refuse_compact(call: Call[None]) -> NoReturn:  # noqa: ARG001
    """Say that this server summarizes no conversation."""
    raise HttpError.unsupported(
        'this server summarizes no conversation. Try: "truncation": "auto" in /v1/responses, '
        "which leaves the oldest messages out where they do not fit."
    )
