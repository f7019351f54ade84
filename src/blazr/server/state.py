"""A model in memory, and what the server knows about itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

from blazr.core.metrics import Metrics
from blazr.llm.async_llm import AsyncLLM, AsyncReply
from blazr.server.config import ServerConfig
from blazr.server.errors import HttpError
from blazr.server.store import Store

MAX_REMEMBERED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixReport:
    """How much of a prompt was reused; nothing of what it says.

    Args:
        request_id: The ``X-Request-Id`` of its answer.
        model: Whose prompt it was.
        prompt_tokens: Tokens of the prompt.
        cached_tokens: Of these, tokens that were not computed again.
        reason: Why no more of them.
    """

    request_id: str
    model: str
    prompt_tokens: int
    cached_tokens: int
    reason: str


class ServerState:
    """What the server knows about itself, whichever models it has.

    Args:
        config: How to behave.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.metrics = Metrics()
        self.started_s = monotonic()
        self.document: Mapping[str, object] = {}
        self.is_draining = False
        self.num_working = 0
        self.kept: Store[object] = Store()
        self._reports: deque[tuple[str, PrefixReport]] = deque(maxlen=MAX_REMEMBERED)

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


class Service:
    """A model in memory.

    Args:
        llm: The model.
        name: What clients call it.
        state: What all models share.
        on_idle: Called when the last request that used it has ended.
    """

    def __init__(
        self,
        llm: AsyncLLM,
        name: str,
        state: ServerState,
        *,
        on_idle: Callable[[Service], None],
    ) -> None:
        self.llm = llm
        self.name = name
        self.state = state
        self.config = state.config
        self.num_users = 0
        self.first_token = state.metrics.observer("blazr_time_to_first_token_seconds", model=name)
        self.between_tokens = state.metrics.observer("blazr_inter_token_seconds", model=name)
        self.whole_request = state.metrics.observer("blazr_request_seconds", model=name)
        self._on_idle = on_idle
        self._replies: set[AsyncReply] = set()
        self._stopped: HttpError | None = None
        state.metrics.watch(name, llm.core.engine.stats)

    def hold(self) -> None:
        """Keep it in memory until as many calls of `release`."""
        self.num_users += 1

    def release(self) -> None:
        """Whoever called `hold` needs it no more."""
        self.num_users -= 1
        if not self.num_users:
            self._on_idle(self)

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter of this model."""
        self.state.metrics.count(name, amount, model=self.name, **labels)

    def track(self, reply: AsyncReply) -> None:
        """Have `stop` reach this reply until `forget`."""
        self._replies.add(reply)
        if self._stopped is not None:
            reply.fail(self._stopped)

    def forget(self, reply: AsyncReply) -> None:
        """The reply has ended. Idempotent."""
        self._replies.discard(reply)

    def stop(self, error: HttpError) -> None:
        """End every running reply with an error, and each one to come."""
        self._stopped = error
        for reply in self._replies:
            reply.fail(error)
