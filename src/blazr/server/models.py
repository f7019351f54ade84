"""The life of the models: each is loaded when it is first asked for, and may be let go again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from itertools import count

from blazr.core.errors import BlazrError, CapacityError
from blazr.core.garbage import unload
from blazr.llm.async_llm import AsyncLLM
from blazr.server.config import ServerConfig
from blazr.server.errors import HttpError, clean
from blazr.server.state import ModelSource, Newsroom, Seat, ServerState, Service

_log = logging.getLogger(__name__)

_MAX_NAMES = 5  # in a message


class Models:
    """The models of a server. Everything but `close` happens on the event loop.

    One is loaded at a time; the others go on meanwhile. Where memory is bounded, the least recently
    used ones give way, each after the requests that use it have ended.

    Args:
        sources: What there is; the first is the one meant where none is named.
        config: How to behave.
    """

    def __init__(self, sources: Sequence[ModelSource], config: ServerConfig) -> None:
        self.state = ServerState(config)
        self.seats = [Seat(source, source.num_bytes) for source in sources]
        self._by_name = {"default": self.seats[0]}
        for seat in self.seats:
            for name in (seat.source.name, *seat.source.aliases):
                self._by_name.setdefault(name, seat)
        self._live: set[Service] = set()  # also those that are let go when their requests end
        self._emptied = asyncio.Event()
        self.news = Newsroom()
        self.changing = asyncio.Lock()  # who holds it lets models come and go
        self.updating = asyncio.Lock()
        self._clock = count(1)
        self._working: set[asyncio.Task[None]] = set()

    @classmethod
    def of(
        cls, llm: AsyncLLM, config: ServerConfig | None = None, *, aliases: tuple[str, ...] = ()
    ) -> Models:
        """One model, loaded already."""
        config = config or ServerConfig()
        name, *others = config.served_names or (llm.core.info.name,)
        known = (*others, *aliases)
        source = ModelSource(name=name, open=lambda: llm, aliases=known, stays=True)
        models = cls([source], config)
        models.adopt(llm)
        return models

    def adopt(self, llm: AsyncLLM) -> None:
        """The first model has been loaded already: this is it."""
        self._seat_down(self.seats[0], llm)
        name = self.seats[0].source.name
        self.state.metrics.count("blazr_model_loads", model=name, outcome="ok")

    def find(self, name: str | None) -> Seat:
        """The model of a name; none is the first. ``:latest`` says nothing.

        Raises:
            HttpError: 404, naming some that there are.
        """
        if not name:
            return self.seats[0]
        seat = self._by_name.get(name) or self._by_name.get(name.removesuffix(":latest"))
        if seat is None and self.state.config.accept_any_model:
            return self.seats[0]
        if seat is None:
            known = ", ".join(repr(each.source.name) for each in self.seats[:_MAX_NAMES])
            more = ", …" if len(self.seats) > _MAX_NAMES else ""
            raise HttpError(
                404,
                f"there is no model {clean(name, 100)!r} here; this server has {known}{more}.",
                param="model",
                code="model_not_found",
            )
        return seat

    @asynccontextmanager
    async def using(self, name: str | None) -> AsyncIterator[Service]:
        """A model, loaded if it is not, and kept in memory meanwhile.

        Raises:
            HttpError: 404, there is none of that name; 500 or 503, it cannot be loaded.
        """
        seat = self.find(name)
        service = await self._take(seat)
        seat.used = next(self._clock)
        if seat.timer is not None:
            seat.timer.cancel()
        try:
            yield service
        finally:
            service.release()

    def idle_s(self, seat: Seat) -> float:
        """Silence after which a model leaves the memory; infinity where it stays."""
        wanted = self.state.config.idle_unload_s if seat.idle_s is None else seat.idle_s
        return float("inf") if wanted is None or seat.source.stays else wanted

    def loaded(self) -> list[Service]:
        """The models in memory."""
        return [seat.service for seat in self.seats if seat.service is not None]

    def begin(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Begin what goes on to its end, whether anybody waits for it or not."""
        task = asyncio.create_task(work)
        self._working.add(task)  # the loop alone would forget it
        task.add_done_callback(self._working.discard)
        return task

    async def let_go(self, seat: Seat) -> None:
        """Take a model from memory once those who use it have ended; nobody new gets it.

        Whoever calls it holds `changing`.
        """
        service, seat.service = seat.service, None
        assert service is not None
        while service.num_users:
            self._emptied.clear()
            await self._emptied.wait()
        self._live.discard(service)
        self.state.metrics.unwatch(service.name)
        await service.llm.close()
        _log.info("%s is let go", service.name)
        del service
        await asyncio.to_thread(unload)  # engines are full of cycles
        self.news.tell(seat)

    def stop(self) -> None:
        """End every running reply with an error: the time to drain is over."""
        for service in self._live:
            service.stop(HttpError(503, "the server is stopping.", code="stopping"))

    def close(self) -> None:
        """Stop all engines, after the event loop has ended."""
        for service in self._live:
            service.llm.core.close()

    async def _take(self, seat: Seat) -> Service:
        """A model, held; whoever takes it releases it."""
        seat.check_awake()
        if seat.service is not None:
            seat.service.hold()
            return seat.service
        if seat.loading is None:
            seat.loading = asyncio.create_task(self._load(seat))
            self.news.tell(seat)
        turn: asyncio.Future[Service] = asyncio.get_running_loop().create_future()
        seat.waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and turn.exception() is None:
                turn.result().release()  # it came in the same moment
            raise

    async def _load(self, seat: Seat) -> None:
        """Bring a model into memory, at its turn; those who wait get it, or the error."""
        name, failure = seat.source.name, None
        try:
            async with self.changing:
                seat.check_awake()
                if seat.info is not None:  # its size is known, not guessed
                    self._check_size(seat)
                await self._make_room(seat)
                _log.info("loading %s", name)
                llm = await asyncio.to_thread(seat.open)
                await self._admit(seat, llm)
            _log.info("%s is loaded, %.1f MiB", name, seat.num_bytes / 2**20)
        except HttpError as error:
            failure = error
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001  (a panic in a native library is one)
            _log.exception("%s cannot be loaded", name)
            failure = _failure(name, error)
        finally:
            seat.loading = None
        outcome = "ok" if failure is None else "failed"
        self.state.metrics.count("blazr_model_loads", model=name, outcome=outcome)
        seat.has_failed = failure is not None
        self.news.tell(seat)
        if failure is not None:
            for turn in seat.take_waiting():
                turn.set_exception(failure)

    async def _admit(self, seat: Seat, llm: AsyncLLM) -> None:
        """A model is in memory: see whether it may stay, and whether others still can."""
        seat.info, seat.num_bytes = llm.core.info, memory_of(llm)
        try:
            self._check_size(seat)
        except HttpError:
            await llm.close()
            raise
        self._seat_down(seat, llm)
        await self._make_room(seat)

    def _seat_down(self, seat: Seat, llm: AsyncLLM) -> None:
        service = Service(llm, seat.source.name, self.state, on_idle=self._on_idle)
        seat.service, seat.info, seat.num_bytes = service, llm.core.info, memory_of(llm)
        seat.used, seat.resting = next(self._clock), None
        self._live.add(service)
        for turn in seat.take_waiting():
            service.hold()  # so that it stays until they are there
            turn.set_result(service)

    @property
    def _bound(self) -> float:
        return self.state.config.models_memory_bytes or float("inf")

    async def _make_room(self, newcomer: Seat) -> None:
        """Let the least recently used models go until the rest fits with the newcomer."""
        while True:
            others = [each for each in self.seats if each is not newcomer and each.held_bytes]
            total = newcomer.num_bytes + sum(each.held_bytes for each in others)
            if total <= self._bound or not others:
                return
            oldest = min(others, key=lambda each: each.used)
            if oldest.service is not None:
                await self.let_go(oldest)
            oldest.resting = None

    def _check_size(self, seat: Seat) -> None:
        """Refuse a model that is too large even alone."""
        if seat.num_bytes > self._bound:
            raise HttpError(
                500,
                f"the model {clean(seat.source.name, 100)!r} cannot be loaded: it takes "
                f"{_mib(seat.num_bytes)}, and --models-memory allows {_mib(self._bound)}.",
                param="model",
                code="model_not_loaded",
            )

    def _on_idle(self, service: Service) -> None:
        self._emptied.set()
        seat = next((each for each in self.seats if each.service is service), None)
        if seat is None:
            return
        if seat.timer is not None:
            seat.timer.cancel()
        idle_s, loop = self.idle_s(seat), asyncio.get_running_loop()
        seat.timer = (
            None if idle_s == float("inf") else loop.call_later(idle_s, self._time_out, seat)
        )

    def _time_out(self, seat: Seat) -> None:
        async def leave() -> None:
            async with self.changing:
                if seat.service is not None and not seat.service.num_users:
                    await self.let_go(seat)

        if seat.service is not None and not seat.service.num_users:
            self.begin(leave())


def memory_of(llm: AsyncLLM) -> int:
    """Bytes of its weights and caches."""
    caches = llm.core.engine.stats().get("cache_bytes", 0)
    return llm.core.info.size_bytes + int(caches)


def _failure(name: str, error: BaseException) -> HttpError:
    lacks_memory = isinstance(error, CapacityError | MemoryError)
    reason = error.message if isinstance(error, BlazrError) else type(error).__name__
    return HttpError(
        503 if lacks_memory else 500,
        f"the model {clean(name, 100)!r} cannot be loaded: {reason}",
        param="model",
        code="model_not_loaded",
        headers={"Retry-After": "10"} if lacks_memory else None,
    )


def _mib(num_bytes: float) -> str:
    return f"{num_bytes / 2**20:.0f} MiB"
