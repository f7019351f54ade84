"""A model in memory, of whichever kind, with the replies that run on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Set
from typing import TYPE_CHECKING, Protocol

from typing_extensions import override

from blazr.core.errors import EngineError
from blazr.llm.async_llm import AsyncLLM
from blazr.llm.bundle import ModelInfo
from blazr.pipelines.kinds import AUDIO, LANGUAGE_MODEL, VISION
from blazr.server.errors import HttpError
from blazr.server.state import ServerState

if TYPE_CHECKING:
    from blazr.pipelines.pipeline import Pipeline, PipelineInfo


class ReplyHandle(Protocol):
    """What a model in memory does for a request."""

    def abort(self) -> None:
        """End it where it stands. Idempotent."""

    def fail(self, error: Exception) -> None:
        """End it with an error."""


class ServedModel(ABC):
    """A model in memory, of whichever kind.

    Args:
        name: What clients call it.
        state: What all models share.
        info: What there is to know about the model.
        capabilities: What it can do.
        num_bytes: Memory that it takes.
        on_idle: Called when the last request that used it has ended.
    """

    def __init__(
        self,
        name: str,
        state: ServerState,
        *,
        info: ModelInfo | PipelineInfo,
        capabilities: tuple[str, ...],
        num_bytes: int,
        on_idle: Callable[[ServedModel], None],
    ) -> None:
        self.name = name
        self.state = state
        self.info = info
        self.capabilities = capabilities
        self.num_bytes = num_bytes
        self.config = state.config
        self.num_users = 0
        self.whole_request = state.metrics.observer("blazr_request_seconds", model=name)
        self._on_idle = on_idle
        self._replies: dict[ReplyHandle, Set[str]] = {}
        self._failure: HttpError | None = None

    @abstractmethod
    def check(self) -> float:
        """Look whether it works; on any thread.

        Returns:
            Seconds since its last sign of life.

        Raises:
            EngineError: It does not, with its reason.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop it, which takes a while; nobody uses it any more."""

    def hold(self) -> None:
        """Count a user; it stays in memory until as many calls of `release`."""
        self.num_users += 1

    def release(self) -> None:
        """A user has ended."""
        self.num_users -= 1
        if not self.num_users:
            self._on_idle(self)

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter of this model."""
        self.state.metrics.count(name, amount, model=self.name, **labels)

    def track(self, reply: ReplyHandle, names: Set[str]) -> None:
        """Have `fail` and `abort` reach this reply, by any of its names, until `forget`."""
        self._replies[reply] = names
        if self._failure is not None:
            reply.fail(self._failure)

    def forget(self, reply: ReplyHandle) -> None:
        """The reply has ended. Idempotent."""
        self._replies.pop(reply, None)

    def abort(self, names: Set[str] | None = None) -> int:
        """End the running replies of some names, or all, where they stand; how many those were."""
        found = [each for each, own in self._replies.items() if names is None or own & names]
        for reply in found:
            reply.abort()
        return len(found)

    def fail(self, error: HttpError) -> None:
        """End every running reply with an error, and each one to come."""
        self._failure = error
        for reply in self._replies:
            reply.fail(error)


class ServedLLM(ServedModel):
    """A language model in memory.

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
        on_idle: Callable[[ServedModel], None],
    ) -> None:
        core = llm.core
        media = ((VISION, core.reads_images), (AUDIO, core.reads_audio))
        stats = core.engine.stats()
        super().__init__(
            name,
            state,
            info=core.info,
            capabilities=(*LANGUAGE_MODEL, *(kind for kind, is_read in media if is_read)),
            num_bytes=core.info.size_bytes + int(stats.get("cache_bytes", 0)),
            on_idle=on_idle,
        )
        self.llm = llm
        self.first_token = state.metrics.observer("blazr_time_to_first_token_seconds", model=name)
        self.between_tokens = state.metrics.observer("blazr_inter_token_seconds", model=name)
        state.metrics.watch(name, core.engine.stats)

    @override
    def check(self) -> float:
        found = self.llm.core.engine.health()
        if not found.ok:
            raise EngineError("the engine does not work.", found=found.reason)
        return found.heartbeat_age_s

    @override
    def close(self) -> None:
        self.llm.core.close()


class ServedPipeline(ServedModel):
    """A model in memory that another library runs.

    Args:
        pipeline: The model.
        name: What clients call it.
        state: What all models share.
        on_idle: Called when the last request that used it has ended.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        name: str,
        state: ServerState,
        *,
        on_idle: Callable[[ServedModel], None],
    ) -> None:
        info = pipeline.info
        super().__init__(
            name,
            state,
            info=info,
            capabilities=info.capabilities,
            num_bytes=info.size_bytes,
            on_idle=on_idle,
        )
        self.pipeline = pipeline
        state.metrics.watch(name, lambda: pipeline.jobs.figures)

    @override
    def check(self) -> float:
        if not self.pipeline.jobs.is_alive:
            raise EngineError("the engine does not work.", found=f"{self.name} has no thread")
        return 0.0

    @override
    def close(self) -> None:
        self.pipeline.close()
