"""One run: a server, its clients, its faults, and what must hold at the end."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import signal
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random

from blazr.engine.async_engine import AsyncEngine
from blazr.engine.cache.manager import CacheManager, CacheShape
from blazr.engine.engine import Engine
from blazr.engine.outputs import TokenOutput
from blazr.engine.pacing import Pacing
from blazr.engine.request import Request
from blazr.engine.scheduler import Scheduler
from blazr.llm.async_llm import AsyncLLM
from blazr.llm.bundle import ModelInfo
from blazr.llm.text_engine import TextEngine
from blazr.server.app import build_app
from blazr.server.config import ServerConfig
from blazr.server.models import Models
from blazr.server.serve import DrainingServer, PatientProtocol, make_server
from blazr.text.tokenizer import Tokenizer
from blazr.text.tokenizers.choose import find_tokenizer, load_tokenizer
from tests.simulation.clients import OPERATORS_KEY, Asked, Client, Outcome, Wrong
from tests.simulation.faults import Fault, Injector
from tests.simulation.machine import Machine
from tests.simulation.network import Connection
from tests.support.fake_model import GRID, FakeModel
from tests.support.leaks import check_memory_is_back

VOCAB_SIZE = 100_331  # of the tokenizer; the model says only the first five
MOST_SEQ_LEN = 256
LONGEST_S = 5000.0
_LATE = {"error in stream", "error 504", "error 408", "error 503"}


@dataclass
class Result:
    """What a run came to.

    Args:
        trace: Hash of everything that was sent and received, and when.
        outcomes: How many requests ended in which way.
        hit: The faults that happened.
        steps: Of the engine.
        preempted: Sequences that gave way.
        virtual_s: Simulated time.
    """

    trace: str
    outcomes: Counter[str] = field(default_factory=Counter)
    hit: list[str] = field(default_factory=list)
    steps: int = 0
    preempted: int = 0
    virtual_s: float = 0.0


def _num_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@cache
def _tokenizer() -> Tokenizer:
    found = load_tokenizer(find_tokenizer(vocab="cl100k_base"))
    assert found is not None
    return found


def draw_faults(rng: Random) -> tuple[Fault, ...]:
    """Nothing in every third run, else one fault or two."""
    most = {
        "forward": 150,
        "nan": 200,
        "alloc": 60,
        "publish": 100,
        "text": 200,
        "encode": 200,
        "build": 3,
        "stall": 100,
    }
    drawn = []
    for _ in range(rng.choice([0, 1, 2])):
        point = rng.choice([*most, "clock", "drain"])
        if point == "clock":
            drawn.append(Fault(point, rng.choice([-86400, -3600, 3600, 86400])))
        elif point == "drain":
            drawn.append(Fault(point, rng.randint(1, 10)))
        else:
            drawn.append(Fault(point, rng.randint(1 + (point == "build"), most[point])))
    return tuple(drawn)


class Simulation:
    """A server and its clients on a simulated machine.

    Args:
        seed: Decides everything.
        faults: What goes wrong; None draws them.
        plant: Breaks the server, to show that it would be seen.
    """

    def __init__(
        self,
        seed: int,
        faults: tuple[Fault, ...] | None = None,
        plant: Callable[[Simulation], None] | None = None,
    ) -> None:
        self.machine = Machine(seed)
        rng = self.machine.random
        drawn = draw_faults(rng)
        self.injector = Injector(drawn if faults is None else faults)
        self.engines: list[Engine] = []
        self.connections: list[Connection] = []
        self.outcomes: list[tuple[Asked, Outcome]] = []
        self._trace = hashlib.sha256()
        self._plant = plant
        self.log: list[str] = []
        self.is_listening = True
        self.has_operator = False
        self._num_taken = 0  # requests that the engine has not refused

    def run(self) -> Result:
        """Run until every client has what it wants.

        Raises:
            AssertionError: Something that must hold does not.
        """
        before = _num_descriptors()
        asyncio.set_event_loop(self.machine.loop)
        try:
            with self.machine.running_blazr(), self.injector.surround_replies():
                self._build()
                self.machine.loop.run_until_complete(self._main())
                self.models.close()
                self._check_end()
        finally:
            asyncio.set_event_loop(None)
            self.machine.loop.close()
        assert _num_descriptors() == before, "a descriptor is left open"
        engine = self.engines[-1]
        return Result(
            self._trace.hexdigest()[:16],
            Counter(f"{asked.kind}: {outcome.how}" for asked, outcome in self.outcomes),
            self.injector.hit,
            sum(each.counts.steps for each in self.engines),
            engine.scheduler.counts.preempted,
            self.machine.now,
        )

    def tell(self, *what: object) -> None:
        """Add to the trace."""
        line = f"{self.machine.now:.6f} {what!r}"
        self._trace.update(line.encode())
        self.log.append(line)

    def _build(self) -> None:
        rng = self.machine.random
        max_running = rng.choice([2, 4, 8])
        self._shape = CacheShape(
            grid=GRID,
            num_superpages=max_running + 1 + rng.choice([5, 6, 8, 30]),  # 1 state, 2 more of each
            pages_per_superpage=8,
            states_per_superpage=2,
            max_running=max_running,
            max_blocks=MOST_SEQ_LEN // GRID,
        )
        token_s = rng.choice([0.0005, 0.01])
        budget = rng.choice([4, 16, 64])
        config = ServerConfig(
            host="127.0.0.1",
            access_log="off",
            admin_api_keys=(OPERATORS_KEY,),
            send_timeout_s=20.0,
            body_timeout_s=10.0,
            request_timeout_s=rng.choice([2.0, 100.0, 100.0]),
            drain_timeout_s=rng.choice([0.1, 5.0]),
        )

        def build() -> Engine:
            self.injector.check("build")
            memory = CacheManager(self._shape)
            model = FakeModel(memory)
            self.injector.surround(memory, model, sleep=self.machine.sleep, token_s=token_s)
            engine = Engine(
                Scheduler(memory, token_budget=budget),
                model.execute,
                vocab_size=VOCAB_SIZE,
                max_seq_len=MOST_SEQ_LEN,
            )
            self.engines.append(engine)
            return engine

        self.engine = AsyncEngine(
            build,
            logits=lambda *_: None,
            replace=lambda _: None,
            pacing=Pacing(share=2.0, token_budget=budget),
            max_unfinished=rng.choice([6, 16]),
        )
        info = ModelInfo(
            name="simulated", family="fake", vocab_size=VOCAB_SIZE, max_seq_len=MOST_SEQ_LEN
        )
        core = TextEngine(self.engine, info, tokenizer=_tokenizer())
        self.models = Models.of(AsyncLLM.of(core), config)
        self.server: DrainingServer = make_server(build_app(self.models), self.models)
        self.server.config.load()
        self.server.lifespan = self.server.config.lifespan_class(self.server.config)
        self.server.servers = []
        submit = self.engine.submit

        def count_taken(request: Request, sink: Callable[[TokenOutput], None]) -> int:
            request_id = submit(request, sink)
            self._num_taken += 1
            return request_id

        self.engine.submit = count_taken
        if self._plant is not None:
            self._plant(self)

    def _connect(self) -> Connection | None:
        if not self.is_listening:
            return None
        connection = Connection(self.machine, self.machine.random.choice([0.0001, 0.001, 0.03]))
        protocol = PatientProtocol(
            config=self.server.config,
            server_state=self.server.server_state,
            app_state={},
            _loop=self.machine.loop,
        )
        connection.connect(protocol)
        self.connections.append(connection)
        return connection

    async def _main(self) -> None:
        rng = self.machine.random
        prefixes = [tuple(rng.randrange(5) for _ in range(60)), (0,) * 9]
        limit = min(self._shape.max_tokens, MOST_SEQ_LEN)
        clients = []
        for number in range(rng.randint(2, 14)):
            client = Client(self.machine, number, self._connect, self.tell, limit)
            own = Random(rng.getrandbits(32))
            clients.append(asyncio.create_task(client.work(own, prefixes, self.outcomes)))
        # a command waits for the step that runs, and the simulated event loop for the command
        stalls = any(each.point == "stall" for each in self.injector.faults)
        if rng.random() < 0.3 and not stalls:
            self.has_operator = True
            operator = Client(self.machine, -1, self._connect, self.tell, limit)
            clients.append(
                asyncio.create_task(operator.operate(Random(rng.getrandbits(32)), self.outcomes))
            )
        faults = asyncio.create_task(self._go_wrong())
        try:
            async with asyncio.timeout(LONGEST_S):
                await asyncio.gather(*clients)
        except TimeoutError:
            raise Wrong("a client waits for ever") from None
        faults.cancel()
        await asyncio.gather(faults, return_exceptions=True)
        # the next heartbeat of an idle engine, and every timeout of a connection
        await asyncio.sleep(100.0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks are left: {left}"

    async def _go_wrong(self) -> None:
        """The faults that come at a time."""
        rng = self.machine.random
        for fault in self.injector.faults:
            if fault.point == "clock":
                await asyncio.sleep(rng.uniform(0.0, 3.0))
                self.machine.wall_offset += fault.value
                self.injector.hit.append(str(fault))
            elif fault.point == "drain":
                await asyncio.sleep(fault.value)
                self.injector.hit.append(str(fault))
                self.server.handle_exit(signal.SIGTERM, None)
                while not await self.server.on_tick(1):
                    await asyncio.sleep(0.1)
                self.is_listening = False
                await self.server.shutdown()

    def _check_end(self) -> None:
        machine = self.machine
        points = {each.split(":")[0] for each in self.injector.hit}
        assert not machine.loop.failures, machine.loop.failures
        for thread in machine.threads:
            assert thread.failure is None, f"a thread ended with {thread.failure!r}"
            assert not thread.is_alive(), "a thread is left"
        for asked, outcome in self.outcomes:
            self._check_outcome(asked, outcome, points)
        state = self.models.state
        assert state.num_working == 0, "requests are counted that have ended"
        for slot in self.models.slots:
            assert slot.model is None or slot.model.num_users == 0, "a user is left"
            assert slot.model is None or not slot.model._replies, "a reply is tracked still"
        assert self._num_counted() == self._num_taken, "a request ended twice, or never"
        assert not self.engine._unfinished, "places in the queue are taken still"
        assert not self.engine._sinks, "a reader is kept"
        assert not self.server.server_state.tasks, "a handler still runs"
        assert all(each.is_lost for each in self.connections), "a connection is open"
        check_memory_is_back(self.engine._engine)

    def _num_counted(self) -> int:
        """Requests that the server says it has answered in one way or another, or lost."""
        lines = self.models.state.metrics.render().decode().splitlines()
        ends = [each for each in lines if each.startswith("blazr_requests_total{")]
        return sum(int(float(each.split()[-1])) for each in ends if '"rejected"' not in each)

    def _check_outcome(self, asked: Asked, outcome: Outcome, points: set[str]) -> None:
        how = outcome.how
        allowed = {"ok"} if 200 in asked.expected else set()
        allowed |= {f"error {status}" for status in asked.expected if status != 200}
        if asked.leaves_after is not None:
            allowed |= {"left"}
        if asked.pause_s >= 1:
            allowed |= {"cut"}  # it reads too slowly
        if asked.kind == "completion":
            allowed |= {"error 429"} | _ends_of_replies(points)
            if self.models.state.config.request_timeout_s < 50:
                allowed |= _LATE
            if self.has_operator:
                allowed |= {"aborted", "error 503", "error in stream"}
        if "drain" in points:
            allowed |= {"error 503", "error in stream", "refused"}
            if not outcome.data:
                allowed |= {"cut"}
        if how not in allowed:
            raise Wrong(f"{asked} ended with {how}: {outcome.data[:300]!r}")


def _ends_of_replies(points: set[str]) -> set[str]:
    """How else than well a reply may end after faults at these points."""
    ends = set()
    if "stall" in points:
        ends |= _LATE
    if points & {"forward", "alloc", "publish", "build", "nan", "text"}:
        ends |= {"error 500", "error 503", "error in stream"}
    if "encode" in points:
        ends |= {"error 500", "error in stream"}
    if {"encode"} < points:
        ends |= {"cut"}  # the event that tells of the other fault cannot be encoded
    return ends


def simulate(
    seed: int,
    faults: tuple[Fault, ...] | None = None,
    plant: Callable[[Simulation], None] | None = None,
) -> Result:
    """Run one seed.

    Raises:
        AssertionError: Something that must hold does not; it says how to run it again.
    """
    simulation = Simulation(seed, faults, plant)
    is_collecting = gc.isenabled()
    gc.disable()  # a finalizer must not run somewhere else each time
    try:
        return simulation.run()
    except BaseException as error:
        spec = ",".join(str(each) for each in simulation.injector.faults)
        again = f"python -m tests.simulation --seed {seed} --fault '{spec}'"
        error.add_note(f"run it again: {again}")
        error.add_note("\n".join(line[:200] for line in simulation.log[-30:]))
        raise
    finally:
        if is_collecting:
            gc.enable()


def run_seed(faults: tuple[Fault, ...] | None, seed: int) -> tuple[int, str, Counter[str], str]:
    """A seed, its trace, how its requests ended, and what is wrong."""
    logging.disable(logging.CRITICAL)  # faults are reported there
    try:
        result = simulate(seed, faults)
    except BaseException:  # noqa: BLE001  (it is reported with its seed)
        return seed, "", Counter(), traceback.format_exc()
    ends: Counter[str] = Counter()
    for how, count in result.outcomes.items():
        ends[how.partition(": ")[2]] += count
    ends["faults"] = len(result.hit)
    ends["steps"] = result.steps
    ends["preemptions"] = result.preempted
    return seed, result.trace, ends, ""
