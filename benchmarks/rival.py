"""The same model in blazr and in another engine, by turns: A B A B, so that both see one machine.

The other runs in a process of its own, because two engines' threads in one process wait on each
other. Both decode greedily, from prompts of random tokens, and neither stops at an end of text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple, Protocol
from uuid import uuid4

from typing_extensions import override

from benchmarks.rival_process import Job, serve
from blazr.bench.load import drive
from blazr.bench.workload import BenchRequest
from blazr.core.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from blazr.bench.offline import EngineTarget


class Side(Protocol):
    """One of the two."""

    def run(self, job: Job) -> float:
        """Tokens per second: prefilled where a job has one output token, else decoded."""


class BlazrSide(Side):
    """An engine of this process."""

    def __init__(self, target: EngineTarget) -> None:
        self._target = target

    @override
    def run(self, job: Job) -> float:
        requests = [
            BenchRequest(prompt_ids=tuple(ids), output_tokens=job.output_tokens)
            for ids in job.prompts
        ]
        records = asyncio.run(drive(self._target, requests, len(requests), salt=uuid4().hex))
        failed = next((record.error for record in records if record.error), "")
        if failed:
            raise EngineError("a request failed.", found=failed)
        if job.output_tokens == 1:
            return sum(r.prompt_tokens for r in records) / max(r.ttft_s for r in records)
        # while all of them decode
        start = max(record.token_s[0] for record in records)
        end = min(record.token_s[-1] for record in records)
        if end <= start:
            raise EngineError("the sequences never ran together.", hint="raise --output-tokens")
        count = sum(start < at <= end for record in records for at in record.token_s)
        return count / (end - start)


class RivalSide(Side):
    """Another engine, in another process."""

    def __init__(self, rival: str, path: Path, **sizes: int) -> None:
        self._rival = rival
        spawn = get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(
            target=serve, args=(theirs, rival, str(path)), kwargs=sizes, daemon=True
        )
        self._process.start()
        theirs.close()
        self._receive()

    @override
    def run(self, job: Job) -> float:
        self._pipe.send(job)
        return self._receive()

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(10)
        self._process.kill()

    def _receive(self) -> float:
        try:
            answer = self._pipe.recv()
        except EOFError:
            raise EngineError(f"{self._rival}'s process ended.") from None
        if isinstance(answer, str):
            raise EngineError(f"{self._rival} failed.", found=answer[:200])
        return float(answer)


class Rival(NamedTuple):
    """Another engine: what has to be installed, and what it reads."""

    module: str
    package: str
    extra: str
    reads: str
    can_read: Callable[[Path], bool]


RIVALS = {
    "llama.cpp": Rival(
        "llama_cpp", "llama-cpp-python", "llama-cpp", "a .gguf file", lambda p: p.suffix == ".gguf"
    ),
    "transformers": Rival(
        "transformers", "transformers", "transformers", "a directory", Path.is_dir
    ),
}


@contextmanager
def rival(
    name: str, path: Path, *, threads: int, context: int, streams: int
) -> Iterator[RivalSide]:
    """Another engine with a model, until the block ends.

    Args:
        name: Of RIVALS.
        path: A model that both read.
        threads: Of each.
        context: Tokens of a sequence, at most.
        streams: Sequences at once, at most.

    Raises:
        ConfigError: It is unknown or not installed, or does not read such models.
        EngineError: It cannot load this one.
    """
    if name not in RIVALS:
        raise ConfigError("unknown rival.", found=repr(name[:50]), expected=" or ".join(RIVALS))
    engine = RIVALS[name]
    if find_spec(engine.module) is None:
        raise ConfigError(
            f"a comparison with {name} needs {engine.package}.",
            hint=f"pip install 'blazr[{engine.extra}]'",
        )
    if not engine.can_read(path):
        raise ConfigError(
            f"{name} does not read this.", found=str(path)[:100], expected=engine.reads
        )
    side = RivalSide(name, path, threads=threads, context=context, streams=streams)
    try:
        yield side
    finally:
        side.close()


def rival_version(name: str) -> str:
    """Its package and version."""
    return f"{RIVALS[name].package} {version(RIVALS[name].package)}"


@dataclass(frozen=True, slots=True)
class Match:
    """One kind of work, done by both sides by turns.

    Args:
        streams: Sequences at once.
        kind: ``"decode"`` or ``"prefill"``.
        ours: Tokens per second, round by round.
        theirs: The same of the other side.
        bandwidth: Bytes per second that memory gave in each round.
    """

    streams: int
    kind: str
    ours: Sequence[float]
    theirs: Sequence[float]
    bandwidth: Sequence[float]

    def figures(self) -> Mapping[str, object]:
        """Medians, and the median, least and greatest of the rounds' ratios."""
        ratios = [a / b for a, b in zip(self.ours, self.theirs, strict=True)]
        return {
            "streams": self.streams,
            "kind": self.kind,
            "blazr_tokens_per_s": median(self.ours),
            "rival_tokens_per_s": median(self.theirs),
            "ratio": median(ratios),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
            "bandwidth_bytes_per_s": median(self.bandwidth),
        }

    def share(self, nbytes: float) -> float:
        """Of the bandwidth of its own round, where every step reads so many bytes."""
        rates = zip(self.ours, self.bandwidth, strict=True)
        return median(rate / self.streams * nbytes / bandwidth for rate, bandwidth in rates)
