"""Thousands of random requests: everything comes back, nothing grows, the answer stays the same."""

from __future__ import annotations

import gc
import random
import resource
import threading
from queue import Empty, SimpleQueue

import pytest

from blazr.core.errors import CapacityError
from blazr.engine.async_engine import AsyncEngine
from blazr.engine.build import build_engine
from blazr.engine.config import EngineConfig
from blazr.engine.outputs import FinishReason
from blazr.engine.request import Request
from blazr.engine.sampling_params import SamplingParams
from blazr.nn.device import resolve_device
from tests.support.examples import MIXES
from tests.support.networks import VOCAB, build_network
from tests.support.seeds import run_seed

PROBE = tuple(range(1, 50)) * 2
CLIENTS = 24


class Soak:
    """Clients that ask, read, stop reading and cancel, from one seed."""

    def __init__(self, engine: AsyncEngine, *, seed: int) -> None:
        self.engine = engine
        self.rng = random.Random(run_seed(seed))
        self.shared = [self.tokens(n) for n in (64, 90, 128, 200)]
        self.lock = threading.Lock()
        self.ended: dict[FinishReason, int] = dict.fromkeys(FinishReason, 0)
        self.refused = 0
        self.probes: list[tuple[int, ...]] = []

    def tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(VOCAB) for _ in range(count)]

    def request(self) -> tuple[Request, int | None]:
        """A random request, and after how many tokens its client leaves."""
        with self.lock:
            rng = self.rng
            prefix = rng.choice(self.shared) if rng.random() < 0.5 else []
            prompt = prefix + self.tokens(rng.choice([5, 30, 70, 150]))
            params = SamplingParams(
                temperature=rng.choice([0.0, 0.7, 1.0]),
                max_tokens=rng.randint(1, 12),
                n=rng.choice([1, 1, 1, 1, 2]),
                seed=rng.choice([None, 1, 2]),
                top_k=rng.choice([0, 5]),
            )
            leaves = rng.choice([None, None, None, 0, 3])
            salt = rng.choice(["", "", "tenant"])
        return Request(prompt_ids=tuple(prompt), params=params, cache_salt=salt), leaves

    def client(self, count: int) -> None:
        for _ in range(count):
            request, leaves = self.request()
            outputs: SimpleQueue = SimpleQueue()
            try:
                request_id = self.engine.submit(request, outputs.put)
            except CapacityError:
                with self.lock:
                    self.refused += 1
                continue
            self.read(request_id, request.params.n, outputs, leaves)

    def read(self, request_id: int, choices: int, outputs: SimpleQueue, leaves: int | None) -> None:
        taken, open_choices = 0, choices
        if leaves == 0:
            self.engine.abort(request_id)
        while open_choices:
            output = outputs.get(timeout=60)
            taken += len(output.token_ids)
            if output.finish_reason is not None:
                open_choices -= 1
                with self.lock:
                    self.ended[output.finish_reason] += 1
            elif leaves is not None and taken >= leaves:
                self.engine.abort(request_id)
        with pytest.raises(Empty):
            outputs.get_nowait()

    def probe(self) -> None:
        """The same greedy question, among whatever else runs."""
        outputs: SimpleQueue = SimpleQueue()
        params = SamplingParams(temperature=0, max_tokens=8)
        self.engine.submit(Request(prompt_ids=PROBE, params=params), outputs.put)
        tokens: list[int] = []
        while True:
            output = outputs.get(timeout=60)
            tokens.extend(output.token_ids)
            if output.finish_reason is not None:
                self.probes.append(tuple(tokens))
                return


def soak(mix: str, *, memory: str, requests: int) -> None:
    config = EngineConfig(max_running=12, max_waiting=40, memory=memory, token_budget=96)
    engine = build_engine(build_network(MIXES[mix], seed=8), resolve_device("cpu"), config=config)
    run = Soak(engine, seed=1)
    run.probe()
    per_client = 20
    rounds = requests // (CLIENTS * per_client)
    peaks: list[int] = []
    for _ in range(rounds):
        threads = [threading.Thread(target=run.client, args=(per_client,)) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for _ in range(max(1, CLIENTS * per_client // 100)):
            run.probe()
        for thread in threads:
            thread.join()
        gc.collect()
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    stats = engine.stats()
    assert stats["num_running"] == stats["num_waiting"] == 0
    assert stats["pages_used"] == stats["pages_idle"], "pages are held by nobody but the trie"
    assert stats["page_evictions"] + stats["state_evictions"] > 0, "memory should have been short"
    assert not run.ended[FinishReason.ERROR]
    assert run.ended[FinishReason.ABORT] > 0
    assert len(set(run.probes)) == 1, "a probe's answer changed"
    half = len(peaks) // 2
    if half >= 2:
        assert peaks[-1] - peaks[half] < 20_000, f"memory drifts: {peaks} kB"
    engine.close()


@pytest.mark.parametrize(
    ("mix", "memory"),
    [
        ("hybrid", "1.6MiB"),
        pytest.param("pure mamba2", "860KiB", marks=pytest.mark.slow),
        pytest.param("gqa and mlp", "600KiB", marks=pytest.mark.slow),
    ],
)
def test_a_short_soak(mix, memory):
    soak(mix, memory=memory, requests=480)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_long_soak():
    soak("hybrid", memory="1.6MiB", requests=20_160)
