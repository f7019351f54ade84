"""The models of a server, of whichever kind.

Each model is loaded when it is first asked for, and may be unloaded again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Container, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from blazr.agent.config import read_mcp_config
from blazr.agent.toolbox import Toolbox
from blazr.core import garbage
from blazr.core.detached import run_detached
from blazr.core.errors import BlazrError, CapacityError, ConfigError, EngineError
from blazr.core.sizes import size_text
from blazr.llm.adapters import Adapters
from blazr.llm.async_llm import AsyncLLM
from blazr.llm.bundle import ModelBundle, ModelInfo
from blazr.llm.load import start_engine
from blazr.pipelines.kinds import (
    CLASSIFICATION,
    COMPLETION,
    EMBEDDING,
    IMAGE,
    LANGUAGE_MODEL,
    RERANKING,
    SPEECH,
    TRANSCRIPTION,
)
from blazr.server.config import ServerConfig
from blazr.server.errors import STOPS, HttpError, clean
from blazr.server.model_events import EventBus, ModelEvent, ModelState
from blazr.server.served import ServedLLM, ServedModel, ServedPipeline
from blazr.server.state import ServerState, stopping

if TYPE_CHECKING:
    from blazr.pipelines.pipeline import Pipeline, PipelineInfo

_log = logging.getLogger(__name__)

_MAX_NAMES = 5  # in a message
# What a model with a capability can do, in messages.
_ABILITIES = {
    COMPLETION: "generate text",
    EMBEDDING: "embed texts",
    RERANKING: "score texts",
    CLASSIFICATION: "classify texts",
    TRANSCRIPTION: "transcribe speech",
    SPEECH: "turn text into speech",
    IMAGE: "generate images",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """Where a model comes from.

    Args:
        name: What clients call it.
        open: Loads it; called on a worker thread, and again after it was unloaded.
        aliases: More names it answers to.
        adapters: Directories of the adapters that are loaded with it, by name.
        num_bytes: Memory it is expected to take, before it was ever loaded.
        is_pinned: Whether it is never unloaded, because it could not be loaded again.
        capabilities: What it can do; None where that is not known before it is loaded.
    """

    name: str
    open: Callable[[], AsyncLLM | Pipeline]
    aliases: tuple[str, ...] = ()
    adapters: Mapping[str, Path] = field(default_factory=dict)
    num_bytes: int = 0
    is_pinned: bool = False
    capabilities: tuple[str, ...] | None = LANGUAGE_MODEL


@dataclass(slots=True, eq=False)
class ModelSlot:
    """A model the server has, in memory or not.

    Args:
        source: Where it comes from.
        num_bytes: Memory it takes, or is expected to take.
        capabilities: What it can do; None where that is not known yet.
        model: The model itself, while it is in memory.
        loading: The task that loads it, meanwhile.
        info: Its size and limits, once it was loaded.
        last_used: When it was last used, in the order of all uses.
        waiting: Requests that wait until it is loaded.
        timer: Unloads it when nobody uses it.
        idle_s: Idle seconds until it is unloaded, as a client has asked; infinity keeps it.
        offloaded: Its weights, where they stay in memory without an engine.
        loader: Loads it, where its weights are not those of its source any more.
        kept_adapters: The adapters it had when it was unloaded; None before that.
        is_asleep: Whether nobody gets it until it is woken.
        reloads_on_wake: Whether waking it brings it back into memory at once.
        has_failed: Whether it could not be loaded when that was last tried.
    """

    source: ModelSource
    num_bytes: int
    capabilities: tuple[str, ...] | None
    model: ServedModel | None = None
    loading: asyncio.Task[None] | None = None
    info: ModelInfo | PipelineInfo | None = None
    last_used: int = 0
    waiting: list[asyncio.Future[ServedModel]] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None
    idle_s: float | None = None
    offloaded: ModelBundle | None = None
    loader: Callable[[], ModelBundle] | None = None
    kept_adapters: Mapping[str, Path] | None = None
    is_asleep: bool = False
    reloads_on_wake: bool = False
    has_failed: bool = False

    @property
    def status(self) -> ModelState:
        """Whether it is in memory, on its way there, or asleep."""
        if self.is_asleep:
            return "sleeping"
        if self.model is not None:
            return "loaded"
        return "unloaded" if self.loading is None else "loading"

    @property
    def llm(self) -> AsyncLLM | None:
        """The language model, while it is in memory."""
        return self.model.llm if isinstance(self.model, ServedLLM) else None

    @property
    def is_paused(self) -> bool:
        """Whether it computes nothing, so that nothing that it has begun comes to an end."""
        return self.llm is not None and self.llm.core.engine.is_paused

    @property
    def held_bytes(self) -> int:
        """Memory it takes now."""
        if self.model is not None:
            return self.num_bytes
        return 0 if self.offloaded is None else self.offloaded.info.size_bytes

    @property
    def adapters(self) -> Mapping[str, Path]:
        """Directories of the adapters that it has, or will have once it is in memory, by name."""
        if self.llm is not None:
            return self.llm.core.adapters.paths
        return self.source.adapters if self.kept_adapters is None else self.kept_adapters

    @property
    def bundle(self) -> ModelBundle | None:
        """Its weights in memory; None without, or where no engine can be started again."""
        bundle = self.offloaded if self.llm is None else self.llm.core.bundle
        # other ranks end with the engine
        return None if bundle is None or bundle.processes is not None else bundle

    def open(self) -> AsyncLLM | Pipeline:
        """Load it, with the adapters that it had; on a worker thread."""
        opened: AsyncLLM | Pipeline
        if self.offloaded is not None:
            opened = AsyncLLM.of(start_engine(self.offloaded))
        elif self.loader is not None:
            opened = AsyncLLM.of(start_engine(self.loader()))
        else:
            opened = self.source.open()
        if isinstance(opened, AsyncLLM) and self.kept_adapters is not None:
            _restore_adapters(opened.core.adapters, self.kept_adapters)
        return opened

    def check_awake(self) -> None:
        """Refuse requests while it sleeps.

        Raises:
            HttpError: 503.
        """
        if self.is_asleep:
            raise HttpError(
                503,
                f"the model {clean(self.source.name, 100)!r} is asleep: POST /wake_up ends that.",
                code="model_asleep",
                retry_after_s=10,
            )

    def check_reloadable(self) -> None:
        """Refuse to unload what could not be loaded again.

        Raises:
            HttpError: 400, it could not be loaded again.
        """
        if self.source.is_pinned:
            name = clean(self.source.name, 100)
            raise HttpError(400, f"the model {name!r} cannot be loaded again, so it stays.")

    @property
    def event(self) -> ModelEvent:
        """What subscribers get after a change."""
        return ModelEvent(self.source.name, self.status, self.has_failed)

    def take_waiting(self) -> list[asyncio.Future[ServedModel]]:
        """The requests that wait and have not been cancelled; nobody waits after that."""
        waiting = self.waiting
        self.waiting = []
        return [waiter for waiter in waiting if not waiter.done()]


class Models:
    """The models of a server. Everything but `close` happens on the event loop.

    One is loaded at a time; the others go on meanwhile. Where memory is bounded, the least recently
    used ones give way, each after the requests that use it have ended.

    Args:
        sources: What there is; the first is the one meant where none is named.
        config: How to behave.

    Raises:
        ConfigError: An adapter has the name of a model, which it would answer for.
    """

    def __init__(self, sources: Sequence[ModelSource], config: ServerConfig) -> None:
        self.state = ServerState(config)
        self.slots = [ModelSlot(each, each.num_bytes, each.capabilities) for each in sources]
        self._by_name = {"default": self.slots[0]}
        for slot in self.slots:
            for name in (slot.source.name, *slot.source.aliases):
                self._by_name.setdefault(name, slot)
        for name in (each for slot in self.slots for each in slot.adapters):
            if name in self._by_name:
                raise ConfigError(
                    "an adapter has the name of a model.",
                    found=f"--adapter {name[:50]}=...",
                    expected="a name of its own, by which requests ask for it",
                )
        self._live: set[ServedModel] = set()  # also those that are unloaded when their requests end
        self._emptied = asyncio.Event()
        self.events = EventBus()
        self.changing = asyncio.Lock()  # held while a model is loaded or unloaded
        self.updating = asyncio.Lock()
        self._clock = count(1)
        self._working: set[asyncio.Task[None]] = set()
        self.toolbox: Toolbox | None = None
        if config.mcp_config is not None:
            self.toolbox = Toolbox(read_mcp_config(config.mcp_config))
        elif config.allow_mcp_urls:
            self.toolbox = Toolbox()

    @classmethod
    def of(
        cls, llm: AsyncLLM, config: ServerConfig | None = None, *, aliases: tuple[str, ...] = ()
    ) -> Models:
        """One model, loaded already."""
        config = config or ServerConfig()
        name, *others = config.served_names or (llm.core.info.name,)
        known = (*others, *aliases)
        source = ModelSource(name=name, open=lambda: llm, aliases=known, is_pinned=True)
        models = cls([source], config)
        models.adopt(llm)
        return models

    def adopt(self, opened: AsyncLLM | Pipeline) -> None:
        """The first model has been loaded already: this is it."""
        slot = self.slots[0]
        self._settle(slot, self._wrap(slot, opened))
        self.state.metrics.count("blazr_model_loads", model=slot.source.name, outcome="ok")

    def find(self, name: str | None) -> ModelSlot:
        """The model of a name; none is the first. ``:latest`` says nothing.

        Raises:
            HttpError: 404, naming some that there are.
        """
        if not name:
            return self.slots[0]
        slot = self._by_name.get(untagged(name, self._by_name) or "")
        slot = slot or next((x for x in self.slots if untagged(name, x.adapters)), None)
        if slot is None and self.state.config.accept_any_model:
            return self.slots[0]
        if slot is None:
            models = [each.source.name for each in self.slots]
            adapters = [name for each in self.slots for name in each.adapters]
            names = list(dict.fromkeys([*models, *adapters]))
            known = ", ".join(map(repr, names[:_MAX_NAMES]))
            more = ", …" if len(names) > _MAX_NAMES else ""
            here = f" here; this server has {known}{more}"
            raise HttpError.missing("model", name, here, param="model")
        return slot

    def owner_of_adapter(self, name: str) -> ModelSlot | None:
        """The model that has an adapter of exactly that name; None where none has."""
        return next((each for each in self.slots if name in each.adapters), None)

    def has(self, name: str) -> bool:
        """Whether a model or an adapter has that name."""
        return name in self._by_name or self.owner_of_adapter(name) is not None

    def choose(self, name: str | None, capability: str | None) -> ModelSlot:
        """The model of a name; without one, the first that can do what is asked.

        Where any model will do, the first is one that writes text, if there is such a model.

        Raises:
            HttpError: 404, there is none of that name; 400, it cannot do that; 501, none can.
        """
        if capability is None:
            if name and name != "default":
                return self.find(name)
            texts = (x for x in self.slots if COMPLETION in (x.capabilities or LANGUAGE_MODEL))
            return next(texts, self.slots[0])
        able = [x for x in self.slots if x.capabilities is None or capability in x.capabilities]
        if not able:
            raise HttpError.unsupported(f"no model of this server can {_ABILITIES[capability]}.")
        # a model that has not told its capabilities yet most likely writes text
        likely = [x for x in able if x.capabilities or capability in LANGUAGE_MODEL]
        first = (likely or able)[0]
        if not name or name == "default":
            return first
        slot = self.find(name)
        if slot in able:
            return slot
        if self.state.config.accept_any_model:
            return first
        raise unsuited(slot.source.name, capability)

    @asynccontextmanager
    async def using(
        self, name: str | None, capability: str | None = COMPLETION
    ) -> AsyncIterator[ServedModel]:
        """A model that can do something, loaded if it is not, and kept in memory meanwhile.

        Args:
            name: Which.
            capability: What it has to be able to do; None takes any model.

        Raises:
            HttpError: What `choose` raises; 500 or 503, it cannot be loaded.
        """
        slot = self.choose(name, capability)
        async with self.holding(slot) as model:
            if capability is not None and capability not in model.capabilities:
                raise unsuited(slot.source.name, capability)
            yield model

    @asynccontextmanager
    async def using_llm(self, name: str | None) -> AsyncIterator[ServedLLM]:
        """A language model, loaded if it is not, and kept in memory meanwhile.

        Raises:
            HttpError: What `using` raises.
        """
        async with self.using(name) as model:
            assert isinstance(model, ServedLLM)
            yield model

    @asynccontextmanager
    async def holding(self, slot: ModelSlot) -> AsyncIterator[ServedModel]:
        """A model, loaded if it is not, and kept in memory meanwhile.

        Raises:
            HttpError: 500 or 503, it cannot be loaded.
        """
        model = await self._acquire(slot)
        slot.last_used = next(self._clock)
        if slot.timer is not None:
            slot.timer.cancel()
        try:
            yield model
        finally:
            model.release()

    async def load(self, slot: ModelSlot) -> None:
        """Bring a model into memory, as if somebody had used it.

        Raises:
            HttpError: 500 or 503, it cannot be loaded.
        """
        async with self.holding(slot):
            pass

    def idle_s(self, slot: ModelSlot) -> float:
        """Silence after which a model leaves the memory; infinity where it stays."""
        wanted = self.state.config.idle_unload_s if slot.idle_s is None else slot.idle_s
        return float("inf") if wanted is None or slot.source.is_pinned else wanted

    def loaded(self) -> list[ServedModel]:
        """The models in memory."""
        return [slot.model for slot in self.slots if slot.model is not None]

    def working(self, slot: ModelSlot) -> list[ServedModel]:
        """A slot's model in memory, also while it only finishes what it has begun."""
        return [model for model in self._live if model.name == slot.source.name]

    def check(self) -> None:
        """Raise where a model in memory does not work; on any thread.

        Raises:
            EngineError: With its reason.
        """
        for model in self.loaded():
            model.check()

    @property
    def failure(self) -> EngineError | None:
        """Why the server can only end: an engine has failed for good."""
        for model in self.loaded():
            if isinstance(model, ServedLLM) and (why := model.llm.core.engine.lasting_failure()):
                return EngineError(
                    f"the model {clean(model.name, 100)!r} cannot go on.",
                    found=why,
                    hint="start the server again",
                )
        return None

    def begin(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Start a task that runs to its end, whether anybody awaits it or not."""
        task = asyncio.create_task(work)
        self._working.add(task)  # the loop alone would forget it
        task.add_done_callback(self._working.discard)
        return task

    async def unload(self, slot: ModelSlot) -> None:
        """Free a model's memory once the requests that use it have ended; no new one gets it.

        The caller holds `changing`.
        """
        model = slot.model
        assert model is not None
        slot.kept_adapters = slot.adapters
        slot.model = None
        while model.num_users:
            self._emptied.clear()
            await self._emptied.wait()
        if isinstance(model, ServedLLM):
            slot.kept_adapters = model.llm.core.adapters.paths  # a command may have changed them
        self._live.discard(model)
        self.state.metrics.unwatch(model.name)
        await asyncio.to_thread(model.close)
        _log.info("%s is unloaded", model.name)
        del model
        await asyncio.to_thread(garbage.collect_all)  # engines are full of cycles
        self.events.publish(slot.event)

    def fail(self) -> None:
        """End every request that runs or waits with an error: the time to drain is over."""
        for model in self._live:
            model.fail(stopping())
        for waiter in (each for slot in self.slots for each in slot.take_waiting()):
            waiter.set_exception(stopping())

    def close(self) -> None:
        """Stop all engines, after the event loop has ended."""
        for model in self._live:
            model.close()
        self.state.close()
        if self.toolbox is not None:
            self.toolbox.close()

    async def _acquire(self, slot: ModelSlot) -> ServedModel:
        """A model, loaded and held; the caller releases it."""
        slot.check_awake()
        if slot.model is not None:
            slot.model.hold()
            return slot.model
        if slot.loading is None:
            slot.loading = asyncio.create_task(self._load(slot))
            self.events.publish(slot.event)
        waiter: asyncio.Future[ServedModel] = asyncio.get_running_loop().create_future()
        slot.waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled() and waiter.exception() is None:
                waiter.result().release()  # it came in the same moment
            raise

    async def _load(self, slot: ModelSlot) -> None:
        """Bring a model into memory, one at a time; those who wait get it, or the error."""
        name = slot.source.name
        failure = None
        try:
            async with self.changing:
                slot.check_awake()
                if slot.info is not None:  # its size is known, not guessed
                    self._check_size(slot)
                await self._make_room(slot)
                _log.info("loading %s", name)
                opened = await run_detached(slot.open)
                await self._admit(slot, opened)
            if slot.model is not None and not slot.model.num_users:
                self._on_idle(slot.model)  # whoever asked for it has left
            _log.info("%s is loaded, %s", name, size_text(slot.num_bytes, binary=True))
        except HttpError as error:
            failure = error
        except STOPS:
            raise
        except BaseException as error:  # noqa: BLE001  (see STOPS)
            is_told = isinstance(error, BlazrError)  # what is wrong
            _log.error("%s cannot be loaded: %s", name, error, exc_info=not is_told)
            lacks_memory = isinstance(error, CapacityError | MemoryError)
            reason = error.message if isinstance(error, BlazrError) else type(error).__name__
            failure = HttpError(
                503 if lacks_memory else 500,
                f"the model {clean(name, 100)!r} cannot be loaded: {reason}",
                param="model",
                code="model_not_loaded",
                retry_after_s=10 if lacks_memory else None,
            )
        finally:
            slot.loading = None
        outcome = "ok" if failure is None else "failed"
        self.state.metrics.count("blazr_model_loads", model=name, outcome=outcome)
        slot.has_failed = failure is not None
        self.events.publish(slot.event)
        if failure is not None:
            for waiter in slot.take_waiting():
                waiter.set_exception(failure)

    async def _admit(self, slot: ModelSlot, opened: AsyncLLM | Pipeline) -> None:
        """Put a model that was loaded into its slot, if it fits; others may have to go."""
        model = self._wrap(slot, opened)
        try:
            self._check_size(slot)
        except HttpError:
            self.state.metrics.unwatch(model.name)
            await asyncio.to_thread(model.close)
            raise
        self._settle(slot, model)
        await self._make_room(slot)

    def _wrap(self, slot: ModelSlot, opened: AsyncLLM | Pipeline) -> ServedModel:
        """A model that was loaded, as the server keeps it; its size is known from now on."""
        name = slot.source.name
        model: ServedModel
        if isinstance(opened, AsyncLLM):
            model = ServedLLM(opened, name, self.state, on_idle=self._on_idle)
        else:
            model = ServedPipeline(opened, name, self.state, on_idle=self._on_idle)
        slot.info = model.info
        slot.num_bytes = model.num_bytes
        return model

    def _settle(self, slot: ModelSlot, model: ServedModel) -> None:
        slot.model = model
        slot.capabilities = model.capabilities
        slot.last_used = next(self._clock)
        slot.offloaded = None
        self._live.add(model)
        for waiter in slot.take_waiting():
            model.hold()  # so that it stays until they are there
            waiter.set_result(model)

    @property
    def _bound(self) -> float:
        return self.state.config.models_memory_bytes or float("inf")

    async def _make_room(self, newcomer: ModelSlot) -> None:
        """Unload the least recently used models until the others fit with the newcomer."""
        while True:
            others = [each for each in self.slots if each is not newcomer and each.held_bytes]
            total = newcomer.num_bytes + sum(each.held_bytes for each in others)
            if total <= self._bound or not others:
                return
            oldest = min(others, key=lambda each: each.last_used)
            if oldest.model is not None:
                await self.unload(oldest)
            oldest.offloaded = None

    def _check_size(self, slot: ModelSlot) -> None:
        """Refuse a model that is too large even alone."""
        if slot.num_bytes > self._bound:
            raise HttpError(
                500,
                f"the model {clean(slot.source.name, 100)!r} cannot be loaded: it takes "
                f"{size_text(slot.num_bytes, binary=True)}, and --models-memory allows "
                f"{size_text(self._bound, binary=True)}.",
                param="model",
                code="model_not_loaded",
            )

    def _on_idle(self, model: ServedModel) -> None:
        self._emptied.set()
        slot = next((each for each in self.slots if each.model is model), None)
        if slot is None:
            return
        if slot.timer is not None:
            slot.timer.cancel()
        slot.timer = None

        async def unload_if_idle() -> None:
            async with self.changing:
                if slot.model is not None and not slot.model.num_users:
                    await self.unload(slot)

        idle_s = self.idle_s(slot)
        if idle_s != float("inf"):
            loop = asyncio.get_running_loop()
            slot.timer = loop.call_later(idle_s, lambda: self.begin(unload_if_idle()))


def untagged(name: str, known: Container[str]) -> str | None:
    """A name as it is known, with or without Ollama's ``:latest``; None where it is not."""
    return next((x for x in (name, name.removesuffix(":latest")) if x in known), None)


def _restore_adapters(adapters: Adapters, wanted: Mapping[str, Path]) -> None:
    """Have a model hold the adapters that are wanted, in that order, and no others.

    One that cannot be read any more is left out, so that the model serves everybody else.
    """
    pairs = zip(adapters.paths.items(), wanted.items(), strict=False)
    num_right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    for name in [*adapters.paths][num_right:]:
        adapters.unload(name)
    for name, path in [*wanted.items()][num_right:]:
        try:
            adapters.load(name, path)
        except BlazrError as error:
            _log.error("the adapter %r cannot be loaded again: %s", name, error)


def unsuited(name: str, capability: str) -> HttpError:
    """The error of a model that cannot do what is asked."""
    return HttpError(
        400,
        f"the model {clean(name, 100)!r} cannot {_ABILITIES[capability]}.",
        param="model",
        code="model_not_suited",
    )
