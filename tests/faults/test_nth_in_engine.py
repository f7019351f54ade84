"""Each call that an engine makes fails once: whoever is not concerned gets the same tokens."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from blazr.core import files
from blazr.engine.async_engine import AsyncEngine
from blazr.engine.cache.arena import ItemClass, OutOfMemoryError
from blazr.engine.cache.disk import DiskCache
from blazr.engine.cache.manager import CacheManager, CacheShape
from blazr.engine.engine import Engine
from blazr.engine.outputs import FinishReason, TokenOutput
from blazr.engine.pacing import Pacing
from blazr.engine.request import Request
from blazr.engine.sampling_params import SamplingParams
from blazr.engine.scheduler import Scheduler
from tests.faults.nth import Nth, every_nth
from tests.support.fake_model import GRID, ITEM_BYTES, VOCAB, FakeModel, next_token
from tests.support.leaks import check_memory_is_back
from tests.support.scripted import wait_until

MAX_TOKENS = 6
SHARED = (3, 1, 4, 1, 0, 2, 2, 3, 1, 2, 0, 4)
PROMPTS = ((*SHARED, 1, 2), (*SHARED, 3), (0, 1, 2, 3, 4, 0, 1, 2, 3))
CHOICES = (1, 2, 1)
NEW = (2, 2, 2, 2, 2, 0)
GOLDEN = (*SHARED, 4, 4, 1)


class InjectedError(RuntimeError):
    """What was asked to fail."""


@dataclass
class Asked:
    """A request and what came back.

    Args:
        prompt: Token ids.
        choices: Replies.
    """

    prompt: tuple[int, ...]
    choices: int = 1

    def __post_init__(self) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(self.choices)]
        self.ends: list[list[FinishReason]] = [[] for _ in range(self.choices)]

    def take(self, output: TokenOutput) -> None:
        self.tokens[output.index].extend(output.token_ids)
        if output.finish_reason is not None:
            self.ends[output.index].append(output.finish_reason)

    @property
    def has_ended(self) -> bool:
        return all(self.ends)

    @property
    def is_ok(self) -> bool:
        """Whether all was said; else it failed, once, and no token of it is wrong."""
        history = list(self.prompt)
        for _ in range(MAX_TOKENS):
            history.append(next_token(history))
        right = history[len(self.prompt) :]
        for tokens, ends in zip(self.tokens, self.ends, strict=True):
            assert len(ends) == 1, "a reply ends once"
            if ends == [FinishReason.LENGTH]:
                assert tokens == right
            else:
                assert ends == [FinishReason.ERROR]
                assert tokens == right[: len(tokens)]
        return all(ends == [FinishReason.LENGTH] for ends in self.ends)


class Bench:
    """An engine over exact arithmetic with a disk, in which one call fails.

    Args:
        directory: Of the disk.
        surround: Puts the fault into each engine that is made.
        nth: The fault.
    """

    def __init__(
        self, directory: Path, surround: Callable[[Bench, Nth], None], nth: Nth | None
    ) -> None:
        self._surround = surround
        self._nth = nth
        self.shape = CacheShape(
            grid=GRID, num_superpages=10, pages_per_superpage=4, states_per_superpage=2,
            max_running=3, max_blocks=32,
        )  # fmt: skip
        self.disk = DiskCache(
            directory,
            limit=2**20,
            fingerprint=b"model",
            sizes=dict.fromkeys(ItemClass, ITEM_BYTES),
            read=self._read,
            write=self._write,
        )
        self.num_restarts = -1
        self.engine = AsyncEngine(
            self._build,
            logits=lambda *_: None,
            replace=lambda _: None,
            pacing=Pacing(share=2.0, token_budget=64),
            max_unfinished=16,
        )

    def ask(self, *prompts: tuple[int, ...], choices: tuple[int, ...] = (1,)) -> list[Asked]:
        """Ask for replies at once and wait until all have ended."""
        asked = [Asked(*each) for each in zip(prompts, choices, strict=True)]
        for each in asked:
            params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, n=each.choices)
            self.engine.submit(Request(prompt_ids=each.prompt, params=params), each.take)
        wait_until(lambda: all(each.has_ended for each in asked))
        return asked

    def _read(self, cls: ItemClass, item: int) -> bytes:
        return self.model.read(cls, item)

    def _write(self, cls: ItemClass, item: int, content: bytearray) -> None:
        self.model.write(cls, item, content)

    def _build(self) -> Engine:
        self.memory = CacheManager(self.shape, disk=self.disk)
        self.model = FakeModel(self.memory)
        self.num_restarts += 1
        self.scheduler = Scheduler(self.memory, token_budget=16)
        if self._nth is not None:
            self._surround(self, self._nth)
        return Engine(
            self.scheduler,
            self.model.execute,
            vocab_size=VOCAB,
            max_seq_len=100,
        )


@contextmanager
def opened(
    directory: Path,
    surround: Callable[[Bench, Nth], None] = lambda *_: None,
    nth: Nth | None = None,
) -> Iterator[Bench]:
    bench = Bench(directory, surround, nth)
    try:
        yield bench
    finally:
        bench.engine.close()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A disk on which the prompts have been kept."""
    directory = tmp_path_factory.mktemp("kept")
    with opened(directory) as bench:
        assert all(each.is_ok for each in bench.ask(*PROMPTS, choices=CHOICES))
    assert bench.disk.counts.written
    return directory


def check(kept: Path, tmp_path: Path, surround: Callable[[Bench, Nth], None], nth: Nth) -> int:
    """Run everything with one fault.

    Returns:
        How many requests failed.
    """
    directory = tmp_path / str(nth.n)
    shutil.copytree(kept, directory)
    threads = set(threading.enumerate())
    with opened(directory, surround, nth) as bench:
        asked = bench.ask(*PROMPTS, choices=CHOICES) + bench.ask(NEW, choices=(3,))
        failed = [each for each in asked if not each.is_ok]
        if nth.was_hit:
            assert all(each.is_ok for each in bench.ask(GOLDEN, PROMPTS[2], choices=(1, 2)))
            wait_until(lambda: bench.engine.health().ok)
            assert not bench.engine._unfinished
            bench.engine.call(lambda: check_memory_is_back(bench.engine._engine))
    # others may end, which an earlier test has left
    assert not set(threading.enumerate()) - threads
    nth.is_over = True  # what is on the disk is right, whatever failed
    with opened(directory) as bench:
        assert all(each.is_ok for each in bench.ask(*PROMPTS, GOLDEN, choices=(*CHOICES, 1)))
    shutil.rmtree(directory)
    return len(failed)


def wrap(owner: str, name: str) -> Callable[[Bench, Nth], None]:
    """Let calls of a method be counted, of an object that the bench has."""

    def surround(bench: Bench, nth: Nth) -> None:
        found: object = bench
        for part in owner.split("."):
            found = getattr(found, part)
        setattr(found, name, nth.around(getattr(found, name)))

    return surround


# what may fail beside the request that was concerned: nothing
CONFINED = {
    "a step": wrap("model", "execute"),
}
# the state of the engine is unknown then: a new one is made, and what ran has failed
FATAL = {
    "a page or state": wrap("memory.arena", "allocate"),
    "a published block": wrap("memory.trie", "insert"),
    "a published state": wrap("memory.trie", "put_state"),
    "a block table": wrap("memory.block_tables", "write"),
    "a start": wrap("memory", "start"),
    "a reservation": wrap("memory", "reserve"),
    "a commit": wrap("memory", "commit"),
    "a fork": wrap("memory", "adopt"),
    "a release": wrap("memory", "release"),
    "a plan": wrap("scheduler", "schedule"),
}


@pytest.mark.parametrize("point", CONFINED)
def test_a_failure_of_one_is_no_failure_of_others(point: str, kept: Path, tmp_path: Path) -> None:
    for nth in every_nth(InjectedError):
        assert check(kept, tmp_path, CONFINED[point], nth) <= 1
    assert nth.n > 5


@pytest.mark.sample(4)
@pytest.mark.parametrize("point", FATAL)
def test_after_any_failure_the_next_are_answered(point: str, kept: Path, tmp_path: Path) -> None:
    for nth in every_nth(InjectedError):
        check(kept, tmp_path, FATAL[point], nth)
    assert nth.n > 2


@pytest.mark.parametrize("cls", ItemClass)
def test_no_room_for_a_page_or_state_is_no_failure(
    cls: ItemClass, kept: Path, tmp_path: Path
) -> None:
    def surround(bench: Bench, nth: Nth) -> None:
        allocate = bench.memory.arena.allocate

        def allocate_or_fail(wanted: ItemClass) -> int:
            if wanted is cls:
                nth.check()
            return allocate(wanted)

        bench.memory.arena.allocate = allocate_or_fail

    for nth in every_nth(OutOfMemoryError):
        assert check(kept, tmp_path, surround, nth) == 0
    assert nth.n > 5


DISK = {
    "what is there": (Path, "stat"),
    "reading": (Path, "open"),
    "making a directory": (Path, "mkdir"),
    "a temporary file": (files, "mkstemp"),
    "renaming": (Path, "replace"),
    "deleting": (Path, "unlink"),
    "looking through": (Path, "lstat"),
}


@pytest.mark.parametrize("call", DISK)
def test_no_error_of_the_disk_is_a_failure(
    call: str, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name = DISK[call]
    real = getattr(owner, name)
    for nth in every_nth(lambda: OSError(errno.EIO, "Input/output error")):

        def surround(bench: Bench, nth: Nth) -> None:
            monkeypatch.setattr(owner, name, nth.around(real))

        try:
            assert check(kept, tmp_path, surround, nth) == 0
        finally:
            monkeypatch.undo()


@pytest.mark.parametrize("call", ["read", "write"])
def test_no_memory_for_a_file_is_no_failure(call: str, kept: Path, tmp_path: Path) -> None:
    for nth in every_nth(MemoryError):
        assert check(kept, tmp_path, wrap("model", call), nth) == 0
