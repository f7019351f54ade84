"""What a server knows about itself, whichever models it has."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import msgspec

from blazr.core import garbage
from blazr.core.metrics import Metrics
from blazr.server.config import LARGE_BODY_BYTES, ServerConfig
from blazr.server.errors import HttpError
from blazr.server.kv_peers import Peers
from blazr.server.media import MediaFetcher
from blazr.server.store import Store

if TYPE_CHECKING:
    from blazr.server.batches.jobs import BatchJobs

MAX_REMEMBERED = 100
_GIVE_BACK_S = 1.0  # after the last long body


class PrefixReport(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a prompt was reused."""

    request_id: str  # the X-Request-Id of its answer
    model: str
    prompt_tokens: int
    cached_tokens: int  # of the prompt's, those not computed again
    reason: str  # why no more of them
    state: str | None = None  # why the recurrent state had been kept from which it went on


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image that was made, to be fetched.

    Args:
        data: The file.
        media_type: What it is.
    """

    data: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class ProfileRecording:
    """A profile being made.

    Args:
        stop: Ends it.
        task: Makes it, and writes the file.
    """

    stop: asyncio.Event
    task: asyncio.Task[Path]


class BodyBudget:
    """The memory that the bodies of requests take together, while these are being answered.

    The first `LARGE_BODY_BYTES` of each body are free, so that short requests are never refused
    because of long ones.

    Args:
        max_bytes: Bytes for all of them together, without the free beginning of each.

    Attributes:
        held: Bytes that count now.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.held = 0

    @contextmanager
    def hold(self) -> Iterator[Callable[[int], None]]:
        """Hold a body until the end of its request, by its length so far.

        The memory of long ones goes back to the system when none is held.

        Raises:
            HttpError: 503, where there is no room for more of it.
        """
        own = 0

        def grow(length: int) -> None:
            nonlocal own
            more = max(length - LARGE_BODY_BYTES, 0) - own
            if self.held + more > self._max_bytes:
                raise HttpError(
                    503,
                    "the server is busy with other long requests.",
                    code="bodies_too_large",
                    retry_after_s=2,
                )
            own += more
            self.held += more

        try:
            yield grow
        finally:
            self.held -= own
            if own and not self.held:
                asyncio.get_running_loop().call_later(_GIVE_BACK_S, self._give_back)

    def _give_back(self) -> None:
        if not self.held:
            with suppress(RuntimeError):  # the server ends, and takes no more work
                asyncio.get_running_loop().run_in_executor(None, garbage.trim_memory)


class ServerState:
    """What the server knows about itself, whichever models it has.

    Args:
        config: How to behave.

    Attributes:
        knows_clients: Whether API keys tell clients apart.
        metrics: What it counts.
        started_s: When it started, by the monotonic clock.
        started: The same, in UTC.
        document: Makes the description of the API (OpenAPI).
        is_draining: Whether it stops, and takes no new requests.
        profiling: Held while a profile is begun or ended.
        recording: The profile being made, if there is one.
        num_working: Requests that are being answered.
        media: Fetches the images that requests name by URL; None where that is not allowed.
        bodies: The memory that bodies of requests take.
        responses: Those that were stored, to be looked up and continued; of what type, the dialect
            that stores them knows.
        peers: The servers that prompts move to and from.
        batches: Batches that are answered in the background; None without a folder for files.
        images: Images that were made, to be fetched by URL.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.knows_clients = len(set(config.api_keys)) > 1
        self.metrics = Metrics()
        self.started_s = monotonic()
        self.started = datetime.now(UTC)
        self.document: Callable[[], Mapping[str, object]] = dict
        self.is_draining = False
        self.profiling = asyncio.Lock()
        self.recording: ProfileRecording | None = None
        self.num_working = 0
        self.media = MediaFetcher() if config.allow_media_urls else None
        self.bodies = BodyBudget(config.max_bodies_bytes)
        self.responses: Store[object] = Store()
        self.peers = Peers(config)
        self.batches: BatchJobs | None = None
        self.images: Store[StoredImage] = Store()
        self._reports: deque[tuple[str, PrefixReport]] = deque(maxlen=MAX_REMEMBERED)

    def check_not_draining(self) -> None:
        """Refuse new requests while the server stops.

        Raises:
            HttpError: 503.
        """
        if self.is_draining:
            raise stopping()

    def close(self) -> None:
        """Let go of what other servers may want."""
        if self.batches is not None:
            self.batches.store.close()

    def remember(self, tenant: str, report: PrefixReport) -> None:
        """Keep a report until there are too many newer ones."""
        self._reports.append((tenant, report))

    def reports(self, tenant: str) -> list[PrefixReport]:
        """The latest reports, newest first; each key sees its own."""
        return [report for whose, report in reversed(self._reports) if whose == tenant]


def stopping() -> HttpError:
    """The error for requests that come, or still run, when the server stops."""
    return HttpError(503, "the server is stopping.", code="stopping", retry_after_s=5)
