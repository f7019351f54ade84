"""The replicas together: chosen, watched, started again, restarted one by one, stopped."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Protocol, TypeVar

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from blazr.core.errors import EngineError
from blazr.server.config import ServerConfig
from blazr.server.errors import HttpError
from blazr.server.model_events import EventBus
from blazr.server.replicas.prefixes import SentPrefixes
from blazr.server.replicas.replica import Replica, ReplicaRequest
from blazr.server.state import ServerState

_log = logging.getLogger(__name__)

_POLL_S = 0.05
_CHECK_S = 1.0  # between two checks of a replica's health
_CHECK_TIMEOUT_S = 10.0
_HANG_S = 60.0  # a replica that says nothing for so long is killed
_RESTART_S, _MAX_RESTART_S = 0.5, 30.0  # until one that ended is started again
_STOP_S = 5.0
_PAGES = frozenset({"blazr_engine_pages_used", "blazr_engine_pages_free"})
# What a reply that is being written costs another, in blocks to read.
_RUNNING_BLOCKS = 8

Choose = Callable[[Sequence[Replica], Sequence[bytes]], Replica]


class Choosable(Protocol):
    """What the choice looks at; the attributes are those of a ``Replica``."""

    number: int
    num_running: int
    waiting_blocks: int
    sent: SentPrefixes


AnyReplica = TypeVar("AnyReplica", bound=Choosable)


def cheapest(replicas: Sequence[AnyReplica], names: Sequence[bytes]) -> AnyReplica:
    """The replica that has the least to read until a prompt is read.

    That is what it does not know of the prompt, and what waits there already. So the longest known
    prefix wins, until more waits there than it would save. Of equal ones the one with the shortest
    record is taken, so that all caches fill.

    Args:
        replicas: At least one.
        names: The names of the prompt's blocks.
    """

    def cost(replica: AnyReplica) -> tuple[int, int, int]:
        unknown = len(names) - replica.sent.match(names)
        busy = replica.waiting_blocks + _RUNNING_BLOCKS * replica.num_running
        return unknown + busy, len(replica.sent), replica.number

    return min(replicas, key=cost)


class Pool:
    """The replicas of a server.

    Args:
        arguments: The command line of the server.
        config: How the server behaves; it says how many there are.
        choose: Which of several replicas is sent a prompt.

    Attributes:
        state: What the process in front knows about itself.
        replicas: All of them, by number.
        events: Nothing happens to models here.
        on_ready: Called when the first one is ready.
        on_failure: Called when one cannot be started at all.
        failure: Why that was.
        commands: What operators have told all replicas and one that starts must be told, by what it
            is about; a later command about the same thing replaces it.
        headers: Of requests of our own.
        changing: Held while replicas are told something, and while one that started is told all.
    """

    def __init__(
        self, arguments: Sequence[str], config: ServerConfig, *, choose: Choose = cheapest
    ) -> None:
        self.state = ServerState(config)
        self._folder = Path(tempfile.mkdtemp(prefix="blazr-replicas-"))  # only this user's
        self.replicas = [Replica(n, self._folder, arguments) for n in range(config.replicas)]
        self.events = EventBus()
        self.on_ready: Callable[[], None] = lambda: None
        self.on_failure: Callable[[], None] = lambda: None
        self.failure: EngineError | None = None
        self.commands: dict[str, ReplicaRequest] = {}
        self.changing = asyncio.Lock()
        self._choose = choose
        key = next(iter(config.api_keys + config.admin_api_keys), None)
        self.headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
        self._keepers: list[asyncio.Task[None]] = []
        self._rolling: asyncio.Task[None] | None = None
        self._has_begun = False
        self._is_stopping = False

    def begin(self) -> None:
        """Start the replicas and keep them running; in the event loop."""
        self._keepers = [asyncio.create_task(self._keep(each)) for each in self.replicas]

    def choose(
        self, names: Sequence[bytes], *, number: int | None = None, but: Collection[Replica] = ()
    ) -> Replica:
        """The replica for a request.

        Args:
            names: The names of its prompt's blocks; none where it has no prompt.
            number: The replica that must answer, because it alone knows what is asked.
            but: Those that have been tried.

        Raises:
            HttpError: 503, no replica can answer now.
        """
        found = [x for x in self.replicas if x.is_ready and not x.is_leaving and x not in but]
        if number is not None and number < len(self.replicas):
            # one that leaves may still be asked about what it alone knows
            found = [x for x in self.replicas if x.number == number and x.is_ready]
        if not found:
            raise HttpError(
                503,
                "no replica is ready; try again.",
                code="no_replica",
                retry_after_s=1,
            )
        return self._choose(found, names)

    def check(self) -> None:
        """Raise where no replica works; on any thread.

        Raises:
            EngineError: With its reason.
        """
        if not any(each.is_ready for each in self.replicas):
            raise EngineError("no replica is ready.", found=f"{len(self.replicas)} that are not")

    def restart(self) -> None:
        """Restart the replicas one by one, each when it has answered all that it was sent."""
        if self._rolling is None or self._rolling.done():
            self._rolling = asyncio.create_task(self._restart())

    def fail(self) -> None:
        """The time to drain is over: end the replicas, whose requests end with an error."""
        self._is_stopping = True
        for each in self.replicas:
            each.end(at_once=True)

    async def stop(self, timeout_s: float) -> None:
        """Stop the replicas; those that still work in the background may do so for a while."""
        self._is_stopping = True
        for task in (*self._keepers, self._rolling):
            if task is not None:
                task.cancel()
        for each in self.replicas:
            each.end()
        deadline_s = monotonic() + max(timeout_s, _STOP_S)
        while monotonic() < deadline_s and any(x.exit_code() is None for x in self.replicas):
            await asyncio.sleep(_POLL_S)

    def close(self) -> None:
        """Leave nothing of them behind."""
        for each in self.replicas:
            each.close()
        self.state.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _keep(self, replica: Replica) -> None:
        """Start a replica, and again whenever it has ended."""
        delay_s = _RESTART_S
        while not self._is_stopping:
            started_s = monotonic()
            try:
                replica.start()
            except OSError as error:  # no memory for it at present
                _log.error("replica %d cannot be started: %s", replica.number, error.strerror)
            else:
                await self._watch(replica)
            replica.is_ready = False
            if self._is_stopping:
                return
            code = replica.exit_code()
            if not self._has_begun and code:
                # the process has said why; the others would fail as well
                self.failure = EngineError(
                    f"replica {replica.number} could not be started.", found=f"exit code {code}"
                )
                self._is_stopping = True
                self.on_failure()
                return
            if replica.is_leaving:
                continue
            if monotonic() - started_s > _MAX_RESTART_S:
                delay_s = _RESTART_S
            _log.error(
                "replica %d has ended (%s); it is started again",
                replica.number,
                _describe_exit(code),
            )
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _MAX_RESTART_S)

    async def _watch(self, replica: Replica) -> None:
        """Look after a replica until its process ends; one that hangs is killed."""
        heard_s: float | None = None  # from when it listens
        # beside the looks, so that one that hangs while it is told something is killed, too
        admission: asyncio.Task[None] | None = None
        try:
            while replica.exit_code() is None:
                is_healthy = await self._is_healthy(replica)
                if is_healthy is not None:
                    heard_s = monotonic()
                elif heard_s is not None and monotonic() - heard_s > _HANG_S:
                    _log.error("replica %d says nothing any more", replica.number)
                    replica.end(at_once=True)
                if admission is not None and admission.done():
                    admission.result()
                    admission = None
                if not is_healthy:
                    replica.is_ready = False
                elif not (replica.is_ready or replica.is_leaving or admission):
                    admission = asyncio.create_task(self._admit(replica))
                next_s = monotonic() + (_CHECK_S if replica.is_ready else 2 * _POLL_S)
                while monotonic() < next_s and replica.exit_code() is None:
                    await asyncio.sleep(_POLL_S)
        finally:
            if admission is not None:
                admission.cancel()
                await asyncio.gather(admission, return_exceptions=True)

    async def _is_healthy(self, replica: Replica) -> bool | None:
        """Whether its engines work; None where it does not answer."""
        try:
            response = await self._get(replica, b"/health")
        except (httpx2.TransportError, OSError):
            return None
        return response.status_code == 200

    async def _get(self, replica: Replica, target: bytes) -> httpx2.Response:
        request = ReplicaRequest("GET", target, self.headers)
        return await replica.ask(request, timeout_s=_CHECK_TIMEOUT_S)

    async def _admit(self, replica: Replica) -> None:
        """Tell a replica what operators have told the others, and send it requests from now on."""
        async with self.changing:
            with suppress(httpx2.TransportError):
                await self._tell(replica)
                replica.sent.most_blocks = await self._count_pages(replica)
                replica.is_ready = True
        if not replica.is_ready:
            return  # it ended meanwhile
        if not self._has_begun:
            self._has_begun = True
            self.on_ready()
        _log.info("replica %d is ready (process %s)", replica.number, replica.pid)

    async def _tell(self, replica: Replica) -> None:
        for command in self.commands.values():
            response = await replica.ask(command)
            if not response.is_success:
                target = command.target.decode()
                _log.error("replica %d has refused %s", replica.number, target)

    async def _count_pages(self, replica: Replica) -> int:
        """How many pages the caches of a replica have, or how long a record is without."""
        response = await self._get(replica, b"/metrics")
        if not response.is_success:
            return replica.sent.most_blocks
        num_pages = sum(
            sample.value
            for family in text_string_to_metric_families(response.text)
            if family.name in _PAGES
            for sample in family.samples
        )
        return int(num_pages) or replica.sent.most_blocks

    async def _restart(self) -> None:
        for replica in self.replicas:
            others = [each for each in self.replicas if each is not replica]
            while not any(each.is_ready for each in others):
                await asyncio.sleep(_POLL_S)
            replica.is_leaving = True
            while replica.num_running:
                await asyncio.sleep(_POLL_S)
            num_starts = replica.num_starts
            replica.end()
            while replica.num_starts == num_starts:
                await asyncio.sleep(_POLL_S)
            replica.is_leaving = False
            while not replica.is_ready:
                if replica.num_starts > num_starts + 1:
                    _log.error(
                        "replica %d does not come back: the others are not restarted",
                        replica.number,
                    )
                    return
                await asyncio.sleep(_POLL_S)
        _log.info("all replicas were restarted")


def _describe_exit(code: int | None) -> str:
    if code is None:
        return "it was never there"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
