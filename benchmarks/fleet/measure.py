"""A run of one real server, and the same run simulated: is the simulation to be believed?

The model's steps are timed in this process first, on a workload with another seed, and a
`FittedDevice` is fitted to them. Then ``blazr serve`` answers conversations over HTTP. Both are
done twice, by turns. What was timed and what the server did is written down, so that the simulation
can be compared with it again without the model.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import median
from time import perf_counter

import httpx2
import msgspec
import torch

from benchmarks.fleet.devices import features, fit
from benchmarks.fleet.replica import SimulatedReplica
from benchmarks.fleet.simulate import Fleet, figures, round_robin
from benchmarks.fleet.workload import Plan, Turn, User
from blazr.bench.load import Record
from blazr.bench.online import connect
from blazr.bench.report import origin
from blazr.bench.workload import BenchRequest
from blazr.engine.cache.budget import plan_caches
from blazr.engine.cache.manager import CacheManager, CacheShape
from blazr.engine.cache.storage import plan_layout
from blazr.engine.config import EngineConfig
from blazr.engine.runner import ModelRunner, StepResult
from blazr.engine.scheduler import StepPlan
from blazr.models.causal_lm import CausalLM
from blazr.models.loading.load import load
from blazr.nn.device import resolve_device

MEASURED = Plan(users=8, system=256, kinds=2, question=96, reply=48, turns=6, think_s=0.2)
MEMORY = "256MiB"
CONTEXT = 4096
ROUNDS = 2
_LATENCY_ASKS = 30
# What the model says is not what the plan has it say: a prompt goes on from the one before alone.
_NO_TOKEN = 0
_ADDRESS = re.compile(r"on (http://127\.0\.0\.1:\d+)")


class Run(msgspec.Struct):
    """What clients saw of a server, each reply by its first token and its last."""

    plan: Plan
    records: list[Record]


class Measured(msgspec.Struct):
    """Steps that were timed, and what a server did.

    Args:
        origin: When, and on which machine.
        model: Its name.
        shape: Of the engine's memory.
        latency_s: What an answer takes that computes nothing.
        samples: Features of steps, and their seconds.
        runs: Of the server.
    """

    origin: dict[str, object]
    model: str
    shape: CacheShape
    latency_s: float
    samples: list[tuple[tuple[float, ...], float]]
    runs: list[Run]


def conversations(plan: Plan) -> list[tuple[float, list[Turn]]]:
    """When each user begins, and one conversation of each, of ``plan.turns`` turns."""
    found = []
    for number in range(plan.users):
        turns = list(islice(User(plan, number).turns(), plan.turns))
        found.append((turns[0].think_s, turns))
    return found


class Timed:
    """The real network in the place of a device: `Device` and the execution of its plans.

    Args:
        model: The network.
        config: How its engine divides the memory.
    """

    def __init__(self, model: CausalLM, config: EngineConfig) -> None:
        layout = plan_layout(model.config.cache_specs(model.dtype))
        device = resolve_device("cpu")
        (self.shape,) = plan_caches([layout], config, device=device, max_seq_len=CONTEXT)
        self.samples: list[tuple[tuple[float, ...], float]] = []
        self._runner = ModelRunner(model, layout, self.shape)

    def replica(self, config: EngineConfig) -> SimulatedReplica:
        """A replica whose steps are really computed, and take as long as that took."""
        return _RealReplica(self, config)

    def execute(self, plan: StepPlan, memory: CacheManager) -> StepResult:
        """Compute a step."""
        return self._runner.execute(plan, memory)


class _RealReplica(SimulatedReplica):
    def __init__(self, timed: Timed, config: EngineConfig) -> None:
        super().__init__(
            0,
            timed.shape,
            device=_NotAsked(),
            config=config,
            next_token=lambda *_: _NO_TOKEN,
        )
        self._timed = timed

    def _execute(self, plan: StepPlan) -> StepResult:
        given = features(plan)
        started_s = perf_counter()
        result = self._timed.execute(plan, self._memory)
        self._seconds = perf_counter() - started_s
        self._timed.samples.append((given, self._seconds))
        return result


class _NotAsked:
    def step_s(self, plan: StepPlan) -> float:
        raise NotImplementedError(plan)


def run_simulated(replica: SimulatedReplica, plan: Plan, latency_s: float = 0.0) -> list[Record]:
    """The conversations of a plan against one replica, as clients would have seen them."""
    fleet = Fleet([replica], round_robin(), latency_s=latency_s)
    for begin_s, turns in conversations(plan):
        fleet.add(iter(turns), begin_s)
    fleet.run()
    return fleet.records


@contextmanager
def real_server(path: str, vocab: str | None) -> Iterator[str]:
    """A server of its own process on one thread; its address."""
    command = [sys.executable, "-m", "blazr", "serve", path, "--host", "127.0.0.1", "--port", "0"]
    command += ["--device", "cpu", "--threads", "1", "--memory", MEMORY]
    command += ["--max-seq-len", str(CONTEXT), *(["--vocab", vocab] if vocab else [])]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = (_ADDRESS.search(line) for line in process.stderr)
            yield next(found[1] for found in lines if found)
        finally:
            process.terminate()


async def run_real(url: str, plan: Plan) -> list[Record]:
    """The conversations of a plan over HTTP."""
    async with connect(url, model=None, api_key="") as target:

        async def ask(turn: Turn) -> Record:
            request = BenchRequest(
                prompt_ids=turn.prompt, output_tokens=len(turn.reply), cache_anchors=turn.anchors
            )
            record = Record(prompt_tokens=len(turn.prompt), arrival_s=perf_counter())
            await target.run(request, record, salt=str(plan.seed))
            record.end_s = perf_counter()
            record.token_s = [record.token_s[0], record.token_s[-1]]
            return record

        async def converse(begin_s: float, turns: list[Turn]) -> list[Record]:
            await asyncio.sleep(begin_s)
            records = [await ask(turns[0])]
            for turn in turns[1:]:
                await asyncio.sleep(turn.think_s)
                records.append(await ask(turn))
            return records

        found = await asyncio.gather(*(converse(*each) for each in conversations(plan)))
    return [record for records in found for record in records]


async def latency_of(url: str) -> float:
    """What an answer takes that computes nothing, as the median."""
    async with httpx2.AsyncClient(base_url=url) as client:
        taken = []
        for _ in range(_LATENCY_ASKS):
            started_s = perf_counter()
            (await client.post("/tokenize", json={"prompt": "a"})).raise_for_status()
            taken.append(perf_counter() - started_s)
    return median(taken)


def measure(path: str, vocab: str | None) -> Measured:
    """Time steps and run a real server, by turns."""
    torch.set_num_threads(1)
    config = EngineConfig(memory=MEMORY)
    timed = Timed(load(path, device=resolve_device("cpu")).module, config)
    warm_up = replace(MEASURED, users=3, turns=1, seed=99)
    run_simulated(timed.replica(config), warm_up)
    timed.samples.clear()
    runs = []
    with real_server(path, vocab) as url:
        asyncio.run(run_real(url, warm_up))
        latency_s = asyncio.run(latency_of(url))
        for number in range(ROUNDS):
            run_simulated(timed.replica(config), replace(MEASURED, seed=10 + number))
            plan = replace(MEASURED, seed=20 + number)
            records = asyncio.run(run_real(url, plan))
            runs.append(Run(plan, records))
    samples = [(given, round(seconds, 6)) for given, seconds in timed.samples]
    return Measured(origin(), Path(path).name, timed.shape, latency_s, samples, runs)


def compare(found: Measured) -> str:
    """A measured run and the same run simulated, beside each other."""
    device = fit(found.samples)
    lines = ["run  figure            measured   simulated   ratio"]
    for number, run in enumerate(found.runs):
        config = EngineConfig()
        replica = SimulatedReplica(
            0, found.shape, device=device, config=config, next_token=lambda *_: _NO_TOKEN
        )
        others = run_simulated(replica, run.plan, found.latency_s)
        real, made = figures(run.records), figures(others)
        for name in real:
            ratio = made[name] / real[name] if real[name] else 1.0
            lines.append(
                f"{number}    {name:15} {real[name]:10.3f} {made[name]:11.3f} {ratio:7.2f}"
            )
    return "\n".join(lines)
