"""Faults in the six places that a request passes in a real server: each ends one at most."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import httpx2
import msgspec
import pytest
from torch import Tensor

from blazr.core import env
from blazr.engine.cache.arena import Arena, OutOfMemoryError
from blazr.engine.sampling.sampler import Draws, Sampler
from blazr.llm.load import load_text_engine
from blazr.llm.options import LoadOptions
from blazr.nn.kernels.cpu import compiled
from blazr.server import sse
from blazr.text.stream import TextStream
from blazr.text.tokenizer import Tokenizer
from tests.faults.nth import Nth
from tests.support import tiny
from tests.support.leaks import check_memory_is_back
from tests.support.loopback import Loopback, serving
from tests.support.scripted import wait_until
from tests.support.seeds import run_seed

pytestmark = pytest.mark.skipif(
    bool(compiled.missing()) or env.get("BLAZR_KERNELS") == "reference",
    reason="torch's operations are not exact",
)
MODEL = tiny.Tiny(layers=("Mamba2", "StandardTransformer", "MlaWithMoe"), vocab_size=100315)
PROMPTS = tuple(f"once upon a time {'there was a princess ' * n}" for n in (1, 5, 12, 2))


class InjectedError(BaseException):
    """Like a panic in an extension module: no Exception."""


def injected() -> InjectedError:
    return InjectedError("injected")


Place = Callable[[pytest.MonkeyPatch, int], Nth]


def around(owner: object, name: str, error: Callable[[], BaseException]) -> Place:
    """The n-th call of a function or method fails."""

    def put(patch: pytest.MonkeyPatch, n: int) -> Nth:
        nth = Nth(n, error)
        patch.setattr(owner, name, nth.around(getattr(owner, name)))
        return nth

    return put


def spoil_scores(patch: pytest.MonkeyPatch, n: int) -> Nth:
    """The scores of one row become NaN, in the n-th step."""
    draws, nth = Sampler.draws, Nth(n, injected)

    def spoiled(self: Sampler, logits: Tensor) -> Draws:
        try:
            nth.check()
        except InjectedError:
            logits = logits.clone()
            logits[n % len(logits), 0] = float("nan")
        return draws(self, logits)

    patch.setattr(Sampler, "draws", spoiled)
    return nth


def fail_events(patch: pytest.MonkeyPatch, n: int) -> Nth:
    """The n-th event of a stream cannot be encoded."""
    nth = Nth(n, injected)
    encoder = SimpleNamespace(encode=nth.around(msgspec.json.encode))
    patch.setattr(sse, "msgspec", SimpleNamespace(json=encoder))
    return nth


# where; and up to which call something is failed, of the many that four replies make
PLACES: dict[str, tuple[Place, int]] = {
    "the prompt's tokens": (around(Tokenizer, "encode", injected), 4),
    "memory": (around(Arena, "allocate", OutOfMemoryError), 12),
    "a kernel of a step": (around(compiled, "kernels", lambda: RuntimeError("injected")), 200),
    "scores": (spoil_scores, 12),
    "text": (around(TextStream, "push", injected), 32),
    "an event": (fail_events, 32),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    path = tiny.save(MODEL, tmp_path_factory.mktemp("models") / "model")
    options = LoadOptions(str(path), device="cpu", memory="8MiB", max_running=4, max_seq_len=256)
    with serving(load_text_engine(options)) as running:
        yield running


def say(server: Loopback, prompt: str) -> str | None:
    """All that a stream says, with its log-probabilities; None where it ends in an error."""
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "logprobs": 1, "stream": True}
    said = []
    with httpx2.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as reply:
        lines = [line.removeprefix("data: ") for line in reply.iter_lines() if line]
    if reply.status_code != 200:
        assert reply.status_code == 500
        return None
    assert lines.count("[DONE]") <= 1
    for line in lines:
        if line == "[DONE]":
            continue
        event = json.loads(line)
        if "error" in event:
            return None
        said += event["choices"]
    ends = [choice["finish_reason"] for choice in said if choice["finish_reason"]]
    assert len(ends) == 1, "a reply ends once"
    return repr([(choice["text"], choice["logprobs"]) for choice in said])


def say_all(server: Loopback) -> list[str | None]:
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        return list(pool.map(lambda prompt: say(server, prompt), PROMPTS))


def inject(server: Loopback, place: str, count: int) -> Counter[int]:
    """Inject so many faults in one place; how many requests failed at each."""
    put, most = PLACES[place]
    chance = random.Random(f"{run_seed(15)} {place}")
    engine, failed = server.core.engine, Counter[int]()
    engine.forget_prefixes()
    right = [say(server, prompt) for prompt in PROMPTS]  # each of them alone
    assert None not in right
    while failed.total() < count:
        engine.forget_prefixes()
        with pytest.MonkeyPatch.context() as patch:
            nth = put(patch, chance.randint(1, most))
            found = say_all(server)
        if not nth.was_hit:
            most = max(1, nth.passed)  # there are not so many calls
            continue
        failed[found.count(None)] += 1
        assert all(each in (None, said) for each, said in zip(found, right, strict=True)), nth.n
        assert found.count(None) <= 1, nth.n
    assert say_all(server) == right
    wait_until(lambda: server.state.num_working == 0)
    assert server.client.get("/health").is_success
    assert engine.stats()["restarts"] == 0
    engine.call(lambda: check_memory_is_back(engine._engine))
    return failed


def check(server: Loopback, place: str, count: int) -> None:
    failed = inject(server, place, count)
    if place == "memory":  # its want makes a request wait
        assert failed == {0: count}
    elif place != "a kernel of a step":  # each row is computed again by itself, and may succeed
        assert failed == {1: count}


@pytest.mark.sample(4)
@pytest.mark.parametrize("place", PLACES)
def test_a_fault_ends_one_request_at_most(server: Loopback, place: str) -> None:
    check(server, place, 4)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("place", PLACES)
def test_many_faults_end_one_request_each(server: Loopback, place: str) -> None:
    check(server, place, 34)  # 204 in all places
