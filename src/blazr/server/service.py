"""What one request brings its handler."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec
from starlette.responses import Response

from blazr.server.models import Models
from blazr.server.state import ServerState, Service

Body_co = TypeVar("Body_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[Body_co]):
    """One request, read and decoded.

    Args:
        body: The decoded body.
        models: All that the server has.
        used: The model it is for; None for an endpoint that is about none.
        path: The parameters in its path.
        tenant: Names the API key it came with; empty without keys.
        request_id: Its ``X-Request-Id``.
        id: A name of its own, which its answer's id ends with.
        facts: What is to be told of it besides its answer: in the log, in a trace.
    """

    body: Body_co
    models: Models
    used: Service | None = None
    path: dict[str, str]
    tenant: str = ""
    request_id: str = ""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    facts: dict[str, str | int] = field(default_factory=dict)

    @property
    def service(self) -> Service:
        """The model it is for."""
        assert self.used is not None, "this endpoint's row does not say that it needs a model"
        return self.used

    @property
    def state(self) -> ServerState:
        """What the server knows about itself."""
        return self.models.state


def json_response(value: object, *, headers: Mapping[str, str] | None = None) -> Response:
    """Any value as a JSON answer. NaN and infinities become null."""
    return Response(msgspec.json.encode(value), headers=headers, media_type="application/json")
