"""A replica: the engine that a server has, whose steps take as long as a device says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.fleet.devices import Device
from blazr.engine.cache.arena import ItemClass
from blazr.engine.cache.manager import CacheManager, CacheShape
from blazr.engine.config import EngineConfig
from blazr.engine.engine import Engine
from blazr.engine.outputs import TokenOutput
from blazr.engine.pacing import Pacing
from blazr.engine.request import Request
from blazr.engine.runner import StepResult
from blazr.engine.sampling.sampler import Sampled
from blazr.engine.scheduler import Scheduler, StepPlan
from blazr.server.replicas.prefixes import SentPrefixes

VOCAB_SIZE = 2_048  # nano has no more


@dataclass(frozen=True)
class Stepped:
    """What a step was."""

    seconds: float
    outputs: list[TokenOutput]


class SimulatedReplica:
    """A scheduler, a cache and a pacing of its own; and what a router knows of it.

    Args:
        number: Which one it is.
        shape: Of its memory.
        device: How long its steps take.
        config: How it divides them.
        next_token: What a request draws, by its id and how many it has drawn.

    Attributes:
        sent: What it was sent, as the front of real replicas notes it.
        waiting_blocks: Blocks of prompts that it has yet to read, as far as that knows.
        num_running: Requests that it has not answered to the end.
        busy_s: Seconds of its steps.
        is_stepping: Whether a step is being computed.
        inbox: What has come since the present step began.
    """

    def __init__(
        self,
        number: int,
        shape: CacheShape,
        *,
        device: Device,
        config: EngineConfig,
        next_token: Callable[[int, int], int],
    ) -> None:
        self.number = number
        self.sent = SentPrefixes()
        self.waiting_blocks = 0
        self.num_running = 0
        self.busy_s = 0.0
        self.is_stepping = False
        self.inbox: list[tuple[int, Request]] = []
        self._device = device
        self._next_token = next_token
        self._memory = CacheManager(shape)
        scheduler = Scheduler(self._memory, token_budget=config.token_budget)
        self.engine = Engine(
            scheduler,
            self._execute,
            vocab_size=VOCAB_SIZE,
            max_seq_len=shape.grid * shape.max_blocks,
        )
        if shape.has_pages:
            self.sent.most_blocks = self._memory.arena.room(ItemClass.PAGE)
        self._pacing = Pacing(share=config.prefill_share, token_budget=config.token_budget)
        self._seconds = 0.0

    @property
    def has_work(self) -> bool:
        """Whether a step would compute something."""
        return bool(self.inbox) or self.engine.has_work()

    def step(self, now_s: float) -> Stepped:
        """Take in what has come, and compute a step as the engine's thread does."""
        for request_id, request in self.inbox:
            self.engine.add(request, request_id=request_id, now=now_s, seed=0)
        self.inbox.clear()
        scheduler = self.engine.scheduler
        before = self.engine.counts.computed_tokens
        decodes = sum(each.remaining == 1 for each in scheduler.running)
        prompts = len(scheduler.running) - decodes + len(scheduler.waiting)
        self._seconds = 0.0
        outputs = self.engine.step(now_s, self._pacing.prefill_budget(decodes, prompts))
        computed = self.engine.counts.computed_tokens - before
        self._pacing.learn(decodes, max(computed - decodes, 0), self._seconds)
        self.busy_s += self._seconds
        return Stepped(self._seconds, outputs)

    def _execute(self, plan: StepPlan) -> StepResult:
        self._seconds = self._device.step_s(plan)
        drawing = [row.sequence for row in plan.rows if row.samples]
        drawing += [fork.sequence for fork in plan.forks if fork.samples]
        return StepResult(
            [Sampled(self._next_token(each.request_id, each.num_output)) for each in drawing]
        )
