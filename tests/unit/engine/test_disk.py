"""Pages and states in files: nothing wrong is ever read, whatever happens to the files."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from blazr.core.errors import ConfigError
from blazr.engine.block import Node, StateKind
from blazr.engine.cache.arena import ItemClass
from blazr.engine.cache.disk import MOST_WAITING, DiskCache, DiskItem, next_name
from tests.support.seeds import run_seed

SIZE = 1000
PAGE, STATE = ItemClass.PAGE, ItemClass.STATE


class Memory:
    """Items whose contents are known, and a disk beside them."""

    def __init__(self, directory: Path, *, limit: int = 2**30, model: bytes = b"model") -> None:
        self.items: dict[tuple[ItemClass, int], bytes] = {}
        self.disk = DiskCache(
            directory,
            limit=limit,
            fingerprint=model,
            sizes={PAGE: SIZE, STATE: 2 * SIZE},
            read=lambda cls, item: self.items[cls, item],
            write=self.write,
        )

    def write(self, cls: ItemClass, item: int, content: bytearray) -> None:
        self.items[cls, item] = bytes(content)

    def keep(
        self, cls: ItemClass, name: bytes, *, kind: StateKind = "end", saves: int = 64
    ) -> bytes:
        content = name * (SIZE // len(name) * (1 if cls is PAGE else 2))
        content = content.ljust(SIZE if cls is PAGE else 2 * SIZE, b"!")
        self.items[cls, 0] = content
        self.disk.save(DiskItem(cls, name, kind, 1, saves), 0)
        self.disk.flush()
        return content

    def read(self, cls: ItemClass, name: bytes) -> bytes | None:
        return None if self.disk.load(cls, name, 1) is None else self.items[cls, 1]


@contextmanager
def closing(memory: Memory) -> Iterator[Memory]:
    try:
        yield memory
    finally:
        memory.disk.close()


def names(count: int) -> list[bytes]:
    found = [next_name(b"root", b"")]
    while len(found) < count:
        found.append(next_name(found[-1], b"block"))
    return found


def files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def test_what_was_written_is_found_after_a_start(tmp_path: Path) -> None:
    first, second = names(2)
    with closing(Memory(tmp_path)) as before:
        page = before.keep(PAGE, first)
        state = before.keep(STATE, second, kind="anchor")
    with closing(Memory(tmp_path)) as after:
        assert after.disk.has(PAGE, first)
        assert not after.disk.has(STATE, first)
        assert after.read(PAGE, first) == page
        assert after.disk.load(STATE, second, 5) == "anchor"
        assert after.items[STATE, 5] == state
        after.keep(PAGE, first)
        assert after.disk.counts.written == 0, "a file that is there is not written again"


def test_another_model_finds_nothing(tmp_path: Path) -> None:
    (name,) = names(1)
    with closing(Memory(tmp_path)) as one, closing(Memory(tmp_path, model=b"other")) as other:
        one.keep(PAGE, name)
        assert other.read(PAGE, name) is None
        # even where somebody has put its files into the other's directory
        (file,) = files(tmp_path)
        place = tmp_path / b"other".hex() / file.parent.name
        place.mkdir()
        salted = next_name(b"other", b"")
        file.rename(place / f"{salted.hex()}.page")
        assert other.read(PAGE, salted) is None
        one.disk.use(b"new weights")
        assert not one.disk.has(PAGE, name)


def test_names_are_of_everything_before() -> None:
    found = {next_name(before, key) for before in names(3) for key in (b"a", b"b", b"ab")}
    assert len(found) == 9


def test_a_block_is_named_by_its_model_salt_and_tokens(tmp_path: Path) -> None:
    def chain(*keys: bytes) -> Node:
        node = Node(None, keys[0], -1, 0)
        for key in keys[1:]:
            node = Node(node, key, -1, node.depth + 1)
        return node

    with closing(Memory(tmp_path)) as one, closing(Memory(tmp_path, model=b"other")) as other:
        paths = [(b"salt", b"a", b"b"), (b"", b"a", b"b"), (b"salt", b"ab"), (b"salt", b"a", b"c")]
        found = [disk.name(chain(*path)) for disk in (one.disk, other.disk) for path in paths]
        assert len(set(found)) == 8
        assert one.disk.name(chain(*paths[0])) == found[0]


@pytest.mark.parametrize("place", [0, 8, 13, 17, 21, 40, 200, -1])
def test_a_flipped_byte(tmp_path: Path, place: int, caplog: pytest.LogCaptureFixture) -> None:
    (name,) = names(1)
    with closing(Memory(tmp_path)) as memory:
        memory.keep(PAGE, name)
        (file,) = files(tmp_path)
        content = bytearray(file.read_bytes())
        content[place] ^= 1
        file.write_bytes(content)
        assert memory.read(PAGE, name) is None
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert not file.exists(), "so that it can be written again"
        memory.keep(PAGE, name)
        assert memory.read(PAGE, name) is not None


def test_a_file_of_another_length(tmp_path: Path) -> None:
    (name,) = names(1)
    lengths = {0, 5, 63, 64, 500, SIZE + 63, SIZE + 65}
    lengths |= set(random.Random(run_seed(21)).sample(range(SIZE + 64), 100))
    with closing(Memory(tmp_path)) as memory:
        for length in lengths:
            memory.keep(PAGE, name)
            assert memory.read(PAGE, name) is not None
            (file,) = files(tmp_path)
            file.write_bytes(file.read_bytes()[:length].ljust(length, b"?"))
            assert memory.read(PAGE, name) is None


def test_a_state_is_no_page(tmp_path: Path) -> None:
    (name,) = names(1)
    with closing(Memory(tmp_path)) as memory:
        memory.keep(STATE, name)
        (file,) = files(tmp_path)
        file.rename(file.with_suffix(".page"))
        assert memory.read(PAGE, name) is None


def test_a_file_that_is_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (name,) = names(1)
    with closing(Memory(tmp_path)) as memory:
        memory.keep(PAGE, name)
        files(tmp_path)[0].unlink()  # another server had no room
        assert memory.read(PAGE, name) is None
        assert not memory.disk.has(PAGE, name)
        assert not caplog.records


def test_files_are_their_owners_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        with closing(Memory(tmp_path / "made" / "for it")) as memory:
            memory.keep(PAGE, names(1)[0])
    finally:
        os.umask(old)
    (file,) = files(tmp_path)
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert file.parent.parent.stat().st_mode & 0o777 == 0o700


def test_a_directory_that_others_may_write_to(tmp_path: Path) -> None:
    own = tmp_path / b"model".hex()
    own.mkdir()
    own.chmod(0o777)
    with pytest.raises(ConfigError, match="others may write"):
        Memory(tmp_path)


def test_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be used"):
        Memory(tmp_path / "file")


def test_files_of_others_stay(tmp_path: Path) -> None:
    page = "ab" * 32 + ".page"
    stale = ["ab/cd/tmpabcd_123.part", "ab/texts/tmpabcd_123.part"]
    theirs = [
        "notes.txt",
        "film.part",
        "films/new/film.part",
        "films/new/game.state",
        f"films/ab/{page}",
        "ab/cd/film.part",
        "ab/cd/front.page",
        f"ab/cd/ef/{page}",
        "ab/cd/tmpabcd_124.part",  # a process writes it
    ]
    for name in (*theirs, *stale, f"ab/cd/{page}"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("something")
        if name != theirs[-1]:
            os.utime(path, (0, 0))
    with closing(Memory(tmp_path, limit=1)) as memory:
        memory.disk.flush()
        assert memory.disk.num_bytes == 0
    assert {str(path.relative_to(tmp_path)) for path in files(tmp_path)} == set(theirs)


def test_the_least_worth_goes_first(tmp_path: Path) -> None:
    """Of equal age: what is unlikely to be used, or saves little, and blocks before deeper ones."""
    kept = names(8)
    with closing(Memory(tmp_path, limit=10**9)) as memory:
        for depth, name in enumerate(kept[:4]):
            memory.items[PAGE, 0] = b"." * SIZE
            memory.disk.save(DiskItem(PAGE, name, "end", depth, 64), 0)
        memory.keep(STATE, kept[4], kind="geometric", saves=64)
        memory.keep(STATE, kept[5], kind="anchor", saves=10_000)
        memory.keep(STATE, kept[6], kind="end", saves=10_000)
        memory.keep(STATE, kept[7], kind="end", saves=100)
        memory.disk.mark_used(kept)
        memory.disk.flush()
        for path in files(tmp_path):
            os.utime(path, (1, 1))
        order = [(STATE, 4), (STATE, 7), (PAGE, 3), (PAGE, 2), (PAGE, 1), (PAGE, 0), (STATE, 5)]
        expected = {(cls, kept[number]) for cls, number in order} | {(STATE, kept[6])}
        for cls, number in order:
            total = sum(path.stat().st_size for path in files(tmp_path))
            memory.disk._limit = total - 1
            memory.disk._queue.put(memory.disk._measure)
            memory.disk.flush()
            expected.discard((cls, kept[number]))
            found = {
                (cls, name) for cls in ItemClass for name in kept if memory.disk.has(cls, name)
            }
            assert found <= expected, "something of more worth remains"
            assert memory.disk.num_bytes <= memory.disk._limit


def test_what_was_used_stays(tmp_path: Path) -> None:
    with closing(Memory(tmp_path, limit=20 * SIZE)) as memory:
        wanted = names(1)[0]
        content = memory.keep(PAGE, wanted)
        for number in range(100):
            name = next_name(b"text", number.to_bytes(2, "big"))
            memory.keep(PAGE, name)
            old = time.time_ns() - (1000 - number) * 10**9
            os.utime(memory.disk._path(PAGE, name), ns=(old, old))
            memory.disk.mark_used([wanted])
        assert memory.read(PAGE, wanted) == content
        assert memory.disk.num_bytes <= 20 * SIZE
        assert sum(path.stat().st_size for path in files(tmp_path)) <= 20 * SIZE


def test_two_servers_on_one_directory(tmp_path: Path) -> None:
    """They write the same, read each other's, and delete what is too much for both."""
    wanted = names(60)
    limit = 25 * SIZE
    wrong = []

    def serve(seed: int) -> None:
        with closing(Memory(tmp_path, limit=limit)) as memory:
            for turn in range(300):
                name = wanted[(turn * 7 + seed * 31) % len(wanted)]
                found = memory.read(PAGE, name)
                content = memory.keep(PAGE, name)
                if found is not None and found != content:
                    wrong.append(name)

    servers = [Thread(target=serve, args=(seed,)) for seed in range(2)]
    for server in servers:
        server.start()
    for server in servers:
        server.join()
    assert not wrong
    # each counts the other's files when it has written a tenth of the limit
    assert sum(path.stat().st_size for path in files(tmp_path)) <= 1.3 * limit


def test_a_full_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second, third = names(3)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with closing(Memory(tmp_path)) as memory:
        memory.keep(PAGE, first)
        resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE // 2, old[1]))
        try:
            memory.keep(PAGE, second)
            memory.keep(PAGE, third)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
        assert len(files(tmp_path)) == 1, "nothing of what failed is left"
        assert memory.disk.counts.errors == 1
        assert len(caplog.records) == 1, "it pauses instead of failing again and again"
        assert memory.read(PAGE, second) is None
        assert memory.read(PAGE, first) is not None
        memory.disk._writes_again_at = 0.0
        memory.keep(PAGE, third)
        assert memory.read(PAGE, third) is not None


def test_a_disk_that_fails_is_no_reason_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    first, second = names(2)
    with closing(Memory(tmp_path)) as before:
        page = before.keep(PAGE, first)
    with closing(Memory(tmp_path)) as memory:
        memory.disk.flush()  # the thread has counted the files that were there
        with monkeypatch.context() as patch:
            patch.setattr(Path, "stat", fail)
            assert not memory.disk.has(PAGE, first)
            patch.setattr(Path, "open", fail)
            assert memory.read(PAGE, first) is None
        assert memory.disk.counts.errors == 2
        assert memory.read(PAGE, first) == page
        assert not memory.disk.has(PAGE, second)


def test_what_cannot_be_copied_is_not_waited_for(tmp_path: Path) -> None:
    def no_room(*args: object) -> None:
        raise MemoryError

    first, second = names(2)
    with closing(Memory(tmp_path)) as memory:
        content = memory.keep(PAGE, second)
        memory.disk._read, read = no_room, memory.disk._read
        memory.keep(PAGE, first)
        assert not memory.disk.has(PAGE, first)
        assert not memory.disk._num_waiting
        memory.disk._write, write = no_room, memory.disk._write
        assert memory.read(PAGE, second) is None
        memory.disk._read, memory.disk._write = read, write
        assert memory.read(PAGE, second) == content
        memory.keep(PAGE, first)
        assert memory.disk.has(PAGE, first)


def test_what_waits_is_bounded(tmp_path: Path) -> None:
    with closing(Memory(tmp_path)) as memory:
        memory.disk.flush()
        memory.disk._num_waiting = MOST_WAITING  # as if a slow disk had so much to write
        memory.keep(PAGE, names(1)[0])
        assert memory.disk.counts.skipped == 1
        memory.disk._num_waiting = 0
        memory.keep(PAGE, names(1)[0])
        assert memory.disk.counts.written == 1


def test_after_its_end_nobody_waits_for_the_disk(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    with closing(memory):
        memory.keep(PAGE, names(1)[0])

    def ask() -> None:
        memory.keep(PAGE, names(2)[1])
        memory.disk._num_waiting = MOST_WAITING  # as if a slow disk had had so much to write
        memory.disk.save(DiskItem(PAGE, names(3)[2], "end", 1, 64), 0, waits=True)
        memory.disk.clear()

    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert not any(memory.disk.has(PAGE, name) for name in names(3))


def test_clearing_takes_this_models_files(tmp_path: Path) -> None:
    with closing(Memory(tmp_path)) as one, closing(Memory(tmp_path, model=b"other")) as other:
        for name in names(3):
            one.keep(PAGE, name)
            other.keep(PAGE, name)
        one.disk.clear()
        assert not any(one.disk.has(PAGE, name) for name in names(3))
        assert all(other.read(PAGE, name) for name in names(3))


def test_what_was_cleared_is_not_counted(tmp_path: Path) -> None:
    with closing(Memory(tmp_path)) as memory:
        for name in names(3):
            memory.keep(PAGE, name)
        assert memory.disk.num_bytes > 3 * SIZE
        memory.disk.clear()
        memory.disk.flush()
        assert memory.disk.num_bytes == 0


def test_a_text_under_a_name(tmp_path: Path) -> None:
    tokens = array("i", range(300))
    with closing(Memory(tmp_path, limit=1)) as one, closing(Memory(tmp_path, model=b"b")) as other:
        one.disk.save_text("mine.page", tokens, "salt")
        one.disk.clear()
        one.disk._queue.put(one.disk._measure)
        one.disk.flush()
        assert one.disk.load_text("mine.page") == (tokens, "salt")
        for memory, name in ((one, "yours"), (other, "mine.page")):
            with pytest.raises(OSError, match="No such file"):
                memory.disk.load_text(name)
        (file,) = files(tmp_path)
        content = bytearray(file.read_bytes())
        for place in (0, 40, -1):
            file.write_bytes(content[:place] + b"?" + content[place:][1:])
            with pytest.raises(ValueError, match="mine"):
                one.disk.load_text("mine.page")


_WRITER = """
import sys
from pathlib import Path
from tests.unit.engine.test_disk import PAGE, STATE, Memory, names
memory = Memory(Path(sys.argv[1]))
print("ready", flush=True)
for number, name in enumerate(names(100_000)):
    memory.items[PAGE, 0] = memory.items[STATE, 0] = b""
    memory.keep(PAGE if number % 3 else STATE, name)
"""


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.15])
def test_killed_while_it_writes(tmp_path: Path, delay: float) -> None:
    command = [sys.executable, "-c", _WRITER, str(tmp_path)]
    root = Path(__file__).parents[3]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        time.sleep(delay)
        writer.send_signal(signal.SIGKILL)
    with closing(Memory(tmp_path)) as memory:
        for number, name in enumerate(names(5000)):
            cls = PAGE if number % 3 else STATE
            is_there = memory.disk.has(cls, name)
            assert (memory.read(cls, name) is not None) == is_there
        assert memory.disk.counts.spoiled == 0, "a file appears whole or not at all"
