"""What the handlers share, and what one request brings them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Generic, TypeVar

import msgspec
from starlette.responses import Response

from blazr.core.metrics import Metrics
from blazr.llm.async_llm import AsyncLLM, AsyncReply
from blazr.server.config import ServerConfig
from blazr.server.errors import HttpError, clean
from blazr.server.store import Store

Body_co = TypeVar("Body_co", covariant=True)

MAX_REMEMBERED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixReport:
    """How much of a prompt was reused; nothing of what it says.

    Args:
        request_id: The ``X-Request-Id`` of its answer.
        prompt_tokens: Tokens of the prompt.
        cached_tokens: Of these, tokens that were not computed again.
        reason: Why no more of them.
    """

    request_id: str
    prompt_tokens: int
    cached_tokens: int
    reason: str


class Service:
    """The model, and what the server knows about itself.

    Args:
        llm: The model.
        config: How to behave.
        aliases: More names the model answers to.
    """

    def __init__(self, llm: AsyncLLM, config: ServerConfig, *, aliases: tuple[str, ...]) -> None:
        self.llm = llm
        self.config = config
        self.metrics = Metrics(llm.core.engine.stats)
        self.name = config.served_name or llm.core.info.name
        self.started_s = monotonic()
        self.document: Mapping[str, object] = {}
        self.is_draining = False
        self.num_working = 0
        self.kept: Store[object] = Store()
        self._reports: deque[tuple[str, PrefixReport]] = deque(maxlen=MAX_REMEMBERED)
        self._names = frozenset({"default", self.name, *aliases})
        self._replies: set[AsyncReply] = set()
        self._stopped: HttpError | None = None

    def check_model(self, name: str | None) -> None:
        """Refuse a model that is not the one loaded.

        Raises:
            HttpError: 404, naming the one that is.
        """
        if name and name not in self._names and not self.config.accept_any_model:
            raise HttpError(
                404,
                f"there is no model {clean(name, 100)!r} here; this server has {self.name!r}.",
                param="model",
                code="model_not_found",
            )

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count a request as running, so that a stopping server waits for it."""
        self.num_working += 1
        try:
            yield
        finally:
            self.num_working -= 1

    def remember(self, tenant: str, report: PrefixReport) -> None:
        """Keep a report until there are too many newer ones."""
        self._reports.append((tenant, report))

    def reports(self, tenant: str) -> list[PrefixReport]:
        """The latest reports, newest first; each key sees its own."""
        return [report for whose, report in reversed(self._reports) if whose == tenant]

    def track(self, reply: AsyncReply) -> None:
        """Have `stop` reach this reply until `forget`."""
        self._replies.add(reply)
        if self._stopped is not None:
            reply.fail(self._stopped)

    def forget(self, reply: AsyncReply) -> None:
        """The reply has ended. Idempotent."""
        self._replies.discard(reply)

    def stop(self) -> None:
        """End every running reply with an error: the time to drain is over."""
        self._stopped = HttpError(503, "the server is stopping.", code="stopping")
        for reply in self._replies:
            reply.fail(self._stopped)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[Body_co]):
    """One request, read and decoded.

    Args:
        body: The decoded body.
        service: What the handlers share.
        path: The parameters in its path.
        tenant: Names the API key it came with; empty without keys.
        request_id: Its ``X-Request-Id``.
    """

    body: Body_co
    service: Service
    path: dict[str, str]
    tenant: str = ""
    request_id: str = ""


def json_response(value: object, *, headers: Mapping[str, str] | None = None) -> Response:
    """Any value as a JSON answer. NaN and infinities become null."""
    return Response(msgspec.json.encode(value), headers=headers, media_type="application/json")
