"""A model in memory, its place there, and what the server knows about itself."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Literal, NamedTuple

from blazr.core.metrics import Metrics
from blazr.llm.async_llm import AsyncLLM, AsyncReply
from blazr.llm.bundle import ModelBundle, ModelInfo
from blazr.llm.load import start_engine
from blazr.server.config import ServerConfig
from blazr.server.errors import HttpError, clean
from blazr.server.store import Store

MAX_REMEMBERED = 100

ModelState = Literal["loaded", "loading", "sleeping", "unloaded"]


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


@dataclass(frozen=True, slots=True)
class Recording:
    """A profile being made.

    Args:
        stop: Ends it.
        task: Makes it, and writes the file.
    """

    stop: asyncio.Event
    task: asyncio.Task[Path]


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
        self.profiling = asyncio.Lock()
        self.recording: Recording | None = None
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
        self._replies: dict[AsyncReply, Set[str]] = {}
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

    def track(self, reply: AsyncReply, names: Set[str]) -> None:
        """Have `stop` and `cut` reach this reply, by any of its names, until `forget`."""
        self._replies[reply] = names
        if self._stopped is not None:
            reply.fail(self._stopped)

    def forget(self, reply: AsyncReply) -> None:
        """The reply has ended. Idempotent."""
        self._replies.pop(reply, None)

    def cut(self, names: Set[str] | None = None) -> int:
        """End the running replies of some names, or all, where they stand; how many those were."""
        found = [each for each, own in self._replies.items() if names is None or own & names]
        for reply in found:
            reply.cut()
        return len(found)

    def stop(self, error: HttpError) -> None:
        """End every running reply with an error, and each one to come."""
        self._stopped = error
        for reply in self._replies:
            reply.fail(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model there is, in memory or not.

    Args:
        name: What clients call it.
        open: Loads it; called on a worker thread, and again after it was let go.
        aliases: More names it answers to.
        num_bytes: Memory it is expected to take, before it was ever loaded.
        stays: It cannot be loaded again, and so is never let go.
    """

    name: str
    open: Callable[[], AsyncLLM]
    aliases: tuple[str, ...] = ()
    num_bytes: int = 0
    stays: bool = False


@dataclass(slots=True, eq=False)
class Seat:
    """A model's place in the server.

    Args:
        source: Where it comes from.
        num_bytes: Memory it takes, or is expected to take.
        service: The model, while it is in memory.
        loading: What loads it, meanwhile.
        info: About it, once it is known.
        used: When it was last used, in the order of all uses.
        waiting: Who will be told when it is loaded.
        timer: What will let it go when nobody uses it.
        idle_s: Silence after which it leaves, if a client has asked for that; infinity keeps it.
        resting: Its weights, where they stay in memory without an engine.
        opener: Loads it, where its weights are not those of its source any more.
        is_asleep: Whether nobody gets it until it is woken.
        wakes: Whether it then comes back into memory by itself.
        has_failed: Whether it could not be loaded when that was last tried.
    """

    source: ModelSource
    num_bytes: int
    service: Service | None = None
    loading: asyncio.Task[None] | None = None
    info: ModelInfo | None = None
    used: int = 0
    waiting: list[asyncio.Future[Service]] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None
    idle_s: float | None = None
    resting: ModelBundle | None = None
    opener: Callable[[], ModelBundle] | None = None
    is_asleep: bool = False
    wakes: bool = False
    has_failed: bool = False

    @property
    def status(self) -> ModelState:
        """Where it is in its life."""
        if self.is_asleep:
            return "sleeping"
        if self.service is not None:
            return "loaded"
        return "unloaded" if self.loading is None else "loading"

    @property
    def held_bytes(self) -> int:
        """Memory it takes now."""
        if self.service is not None:
            return self.num_bytes
        return 0 if self.resting is None else self.resting.info.size_bytes

    @property
    def opened(self) -> ModelBundle | None:
        """Its weights in memory; None without, or where no engine can be started again."""
        return self.resting if self.service is None else self.service.llm.core.bundle

    def open(self) -> AsyncLLM:
        """Load it; on a worker thread."""
        if self.resting is not None:
            return AsyncLLM.of(start_engine(self.resting))
        return (
            self.source.open() if self.opener is None else AsyncLLM.of(start_engine(self.opener()))
        )

    def check_awake(self) -> None:
        """Refuse it to those who come while it sleeps.

        Raises:
            HttpError: 503.
        """
        if self.is_asleep:
            raise HttpError(
                503,
                f"the model {clean(self.source.name, 100)!r} is asleep: POST /wake_up ends that.",
                code="model_asleep",
                headers={"Retry-After": "10"},
            )

    def check_returns(self) -> None:
        """Refuse to lose it.

        Raises:
            HttpError: 400, it could not be loaded again.
        """
        if self.source.stays:
            name = clean(self.source.name, 100)
            raise HttpError(400, f"the model {name!r} cannot be loaded again, so it stays.")

    def take_waiting(self) -> list[asyncio.Future[Service]]:
        """Those who wait and have not left; they are to be told now."""
        waiting, self.waiting = self.waiting, []
        return [turn for turn in waiting if not turn.done()]


class News(NamedTuple):
    """Where a model is in its life, and whether it has just failed to be loaded."""

    model: str
    status: ModelState
    has_failed: bool


class Newsroom:
    """Tells those who watch what becomes of the models."""

    def __init__(self) -> None:
        self._watchers: set[asyncio.Queue[News | None]] = set()

    @contextmanager
    def watching(self) -> Iterator[asyncio.Queue[News | None]]:
        """All news from now on; None is the end."""
        watcher: asyncio.Queue[News | None] = asyncio.Queue()
        self._watchers.add(watcher)
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)

    def tell(self, seat: Seat) -> None:
        """A model's state has changed."""
        for watcher in self._watchers:
            watcher.put_nowait(News(seat.source.name, seat.status, seat.has_failed))

    def end(self) -> None:
        """There will be no more."""
        for watcher in self._watchers:
            watcher.put_nowait(None)
