"""Pages and states in files, so that what was computed outlives the process.

A file holds the page of one block, or the recurrent state after it. Its name is a hash of all that
decides its content: the model and how it is computed (`blazr.engine.cache.fingerprint`), the salt,
and every token up to there. So a name never means two contents, several servers may use one
directory, and a file that is there need not be written again.

    DIRECTORY/<hash of the model>/<two digits>/<hash of the prefix>.page (or .state)

A file appears whole or not at all, and its content is checked by a hash when it is read. Where
there is too much, files go in the order of (tokens saved x likelihood of use) / (bytes x time since
the last use).
"""

from __future__ import annotations

import json
import logging
import os
import re
import stat
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import blake2b
from itertools import chain, takewhile
from pathlib import Path
from queue import SimpleQueue
from struct import Struct
from typing import NamedTuple, get_args

from blazr.core.errors import ConfigError
from blazr.core.files import is_partial, write_whole
from blazr.engine.block import Node, StateKind
from blazr.engine.cache.arena import ItemClass
from blazr.engine.cache.prefix import CHANCES

MOST_WAITING = 2**28  # bytes to be written; what a request leaves beyond that is not kept
_MAGIC = b"blazrkv1"
# magic, kind, number of the block in its text, tokens that it saves, bytes and hash of the content
_HEADER = Struct("<8sB3xIIQ32s")
_KINDS: tuple[StateKind, ...] = get_args(StateKind)
_SUFFIXES = {ItemClass.PAGE: ".page", ItemClass.STATE: ".state"}
_MODEL = re.compile(r"[0-9a-f]+")  # how the folder of a model is named
_OWN = re.compile(r"[0-9a-f]{64}\.(page|state)")  # and the files below it
_STALE_NS = 3600 * 10**9  # whoever writes a temporary file as old as that has ended
_KEPT_SHARE = 0.9  # of the limit, after files were deleted
_LOOK_S = 0.1  # between two looks whether the thread that writes has ended
_PAUSE_S = 60.0  # without writing, after an error such as a full disk

_Bytes = bytes | bytearray | memoryview
_Fields = tuple[StateKind, int, int, int, bytes]  # of a header, but for the magic

_log = logging.getLogger(__name__)


class DiskItem(NamedTuple):
    """What a file holds.

    Args:
        item_class: A page or a state.
        name: Hash of all that decides its content, 32 bytes.
        kind: Why the state is kept; of a page, "end".
        depth: Blocks up to there.
        saves: Tokens that need not be computed with it.
    """

    item_class: ItemClass
    name: bytes
    kind: StateKind
    depth: int
    saves: int


@dataclass(slots=True)
class DiskCounts:
    """What has happened, for the metrics."""

    read_pages: int = 0
    read_states: int = 0
    written: int = 0
    deleted: int = 0
    spoiled: int = 0
    skipped: int = 0
    errors: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


class DiskCache:
    """Reads the pages and states of earlier processes, and writes this one's.

    Called on the engine's thread, but for `has`, `read_raw`, `write_raw` and `flush`, which any
    thread may call. Files are written, marked as used and deleted on another one.

    Args:
        directory: Where each model has a directory of its own; made if need be.
        limit: Most bytes of all files there.
        fingerprint: What the model is, and how it is computed.
        sizes: Bytes of a page and of a state.
        read: Gives the content of an item in memory.
        write: Puts a content into an item in memory.

    Attributes:
        sizes: Bytes of a page and of a state; 0 where the model has none.
        file_sizes: What their files take.

    Raises:
        ConfigError: The directory cannot be used, or somebody else could write there.
    """

    def __init__(
        self,
        directory: Path,
        *,
        limit: int,
        fingerprint: bytes,
        sizes: Mapping[ItemClass, int],
        read: Callable[[ItemClass, int], bytes],
        write: Callable[[ItemClass, int, bytearray], None],
    ) -> None:
        self.counts = DiskCounts()
        self.num_bytes = 0
        self._directory = directory
        self._limit = limit
        self.sizes = sizes
        self.file_sizes = {item_class: _HEADER.size + size for item_class, size in sizes.items()}
        self._read = read
        self._write = write
        self._known: set[Path] = set()
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._unmeasured = 0  # bytes written since all files were counted
        self._num_waiting = 0  # bytes to be written
        self._written = threading.Condition()
        self._writes_again_at = 0.0
        self.use(fingerprint)
        self._thread = threading.Thread(target=self._work, name="blazr-disk", daemon=True)
        self._thread.start()
        self._queue.put(self._measure)

    def use(self, fingerprint: bytes) -> None:
        """From now on the model is this one.

        Raises:
            ConfigError: Its directory cannot be used, or somebody else could write there.
        """
        self.fingerprint = fingerprint
        self._own = self._directory / fingerprint.hex()
        _make_private(self._own)

    def name(self, node: Node) -> bytes:
        """The name of a block that is in memory, or of a root."""
        unnamed = list(takewhile(lambda each: not each.name, node.to_root()))
        for each in reversed(unnamed):
            before = self.fingerprint if each.parent is None else each.parent.name
            each.name = next_name(before, each.key)
        return node.name

    def has(self, item_class: ItemClass, name: bytes) -> bool:
        """Whether there is a file."""
        path = self._path(item_class, name)
        try:
            if path not in self._known:
                path.stat()  # not exists(), which since Python 3.14 hides that a disk fails
                self._known.add(path)
        except FileNotFoundError:
            return False
        except OSError as error:  # a disk that fails, a directory that may no longer be read
            self._note_error(f"{path} cannot be looked for", error)
        return path in self._known

    def load(self, item_class: ItemClass, name: bytes, item: int) -> StateKind | None:
        """Read a file into memory.

        Args:
            item_class: A page or a state.
            name: Its name.
            item: Where in memory it goes.

        Returns:
            Why the state is kept; None where there is no file, or its content is not what was
            written: it is deleted then.
        """
        path = self._path(item_class, name)
        try:
            found = _read_file(path, item_class, name, self.sizes[item_class])
            if found is not None:
                self._write(item_class, item, found[1])
        except FileNotFoundError:
            self._known.discard(path)
            return None
        except (OSError, MemoryError) as error:
            self._known.discard(path)
            self._note_error(f"{path} cannot be read", error)
            return None
        if found is None:
            _log.warning("%s is spoiled or of another program: it is deleted", path)
            self.counts.spoiled += 1
            self._delete(path)
            return None
        if item_class is ItemClass.PAGE:
            self.counts.read_pages += 1
        else:
            self.counts.read_states += 1
        return found[0]

    def save(self, what: DiskItem, item: int, *, waits: bool = False) -> None:
        """Have an item of memory written, unless there is such a file.

        Args:
            what: What it is.
            item: Where in memory it is; it is copied at once.
            waits: Whether to wait while much is to be written; else it is not kept then.
        """
        if self.has(what.item_class, what.name):
            return
        path = self._path(what.item_class, what.name)
        size = self.sizes[what.item_class]
        with self._written:
            while self._num_waiting + size > max(MOST_WAITING, size):
                if not (waits and self._thread.is_alive()):
                    self.counts.skipped += 1
                    return
                self._written.wait(_LOOK_S)
            self._num_waiting += size
        try:
            content = self._read(what.item_class, item)
        except MemoryError as error:
            self._note_error(f"{path} is not written", error)
            self._release_waiting(size)
            return
        self._known.add(path)
        self._queue.put(partial(self._store, path, what, content))

    def read_raw(self, item_class: ItemClass, name: bytes) -> bytes | None:
        """A file as it is, for another process, which checks it; None where there is none."""
        try:
            data = self._path(item_class, name).read_bytes()
        except OSError:
            return None
        if len(data) != self.file_sizes[item_class]:
            return None
        self._queue.put(partial(self._count_moved, sent=len(data)))
        return data

    def write_raw(self, item_class: ItemClass, name: bytes, data: bytes) -> bool:
        """Keep a file that another process has sent, if it is what that has written.

        Returns:
            Whether it is; else nothing is kept of it.

        Raises:
            OSError: The disk is full, or the like.
        """
        header, content = data[: _HEADER.size], memoryview(data)[_HEADER.size :]
        if (
            len(content) != self.sizes[item_class]
            or _kind_if_whole(header, item_class, name, content) is None
        ):
            return False
        path = self._path(item_class, name)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_whole(path, data)
        self._queue.put(partial(self._count_moved, received=len(data)))
        return True

    def mark_used(self, names: Iterable[bytes]) -> None:
        """The files of these names have been used or written: they are worth more than others."""
        paths = [self._path(item_class, name) for name in names for item_class in ItemClass]
        self._queue.put(partial(_touch, paths, time.time_ns()))

    def save_text(self, name: str, tokens: array[int], salt: str) -> None:
        """Keep a text's tokens under a name, at once; it is no cache, and never deleted.

        Raises:
            OSError: The disk is full, or the like.
        """
        path = self._text_path(name)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        content = json.dumps([tokens.tolist(), salt]).encode()
        write_whole(path, blake2b(content, digest_size=32).digest(), content)

    def load_text(self, name: str) -> tuple[array[int], str]:
        """The tokens and the salt that were kept under a name.

        Raises:
            OSError: There is nothing of that name.
            ValueError: It is not what was written.
        """
        whole = self._text_path(name).read_bytes()
        content = whole[32:]
        if blake2b(content, digest_size=32).digest() != whole[:32]:
            raise ValueError(name)
        tokens, salt = json.loads(content)
        return array("i", tokens), salt

    def clear(self) -> None:
        """Delete this model's files."""
        self.flush()
        for path, _ in _files([self._own]):
            self._delete(path)
        self._known.clear()
        self._queue.put(self._measure)

    def flush(self) -> None:
        """Wait until everything is written; not after `close`, which has waited."""
        done = threading.Event()
        self._queue.put(done.set)
        while not done.wait(_LOOK_S) and self._thread.is_alive():
            pass

    def close(self) -> None:
        """Wait until everything is written, and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def stats(self) -> dict[str, float]:
        """Figures for the metrics, by name."""
        counts = {f"disk_{name}": count for name, count in asdict(self.counts).items()}
        return {"disk_bytes": self.num_bytes, **counts}

    def _path(self, item_class: ItemClass, name: bytes) -> Path:
        digits = name.hex()
        return self._own / digits[:2] / (digits + _SUFFIXES[item_class])

    def _text_path(self, name: str) -> Path:
        return self._own / "texts" / f"{name}.text"

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            try:
                job()
            except Exception:  # noqa: BLE001  (it is logged)
                self.counts.errors += 1
                _log.exception("the cache on disk failed; it goes on")

    def _store(self, path: Path, what: DiskItem, content: bytes) -> None:
        size = 0
        try:
            if time.monotonic() >= self._writes_again_at:
                size = _write_file(path, what, content)
                self.counts.written += 1
            else:
                self._known.discard(path)
        except OSError as error:
            self._known.discard(path)
            self.counts.errors += 1
            self._writes_again_at = time.monotonic() + _PAUSE_S
            _log.warning("the cache on disk writes nothing for %d s: %s", _PAUSE_S, error)
        finally:
            self._release_waiting(self.sizes[what.item_class])
        self._count_written(size)

    def _count_moved(self, *, sent: int = 0, received: int = 0) -> None:
        self.counts.sent_bytes += sent
        self.counts.received_bytes += received
        self._count_written(received)

    def _count_written(self, size: int) -> None:
        """Count bytes that were written, and delete files if there are too many now."""
        self.num_bytes += size
        self._unmeasured += size
        # other processes write there, too
        if max(self.num_bytes, self._unmeasured / (1 - _KEPT_SHARE)) > self._limit:
            self._measure()

    def _release_waiting(self, size: int) -> None:
        """Count bytes as no longer waiting to be written, and wake a `save` that waits for room."""
        with self._written:
            self._num_waiting -= size
            self._written.notify()

    def _note_error(self, message: str, error: Exception) -> None:
        """Count and log an error. The cache only saves time, so it never raises one."""
        self.counts.errors += 1
        _log.warning("%s: %s", message, str(error) or type(error).__name__)

    def _measure(self) -> None:
        """Count what is there, of all models and processes; delete what is too much."""
        files = list(_files(self._directory.iterdir()))
        total = sum(found.st_size for _, found in files)
        if total > self._limit:
            now_ns = time.time_ns()
            files.sort(key=lambda file: _worth(file[0], file[1], now_ns))
            for path, found in files:
                if total <= _KEPT_SHARE * self._limit:
                    break
                self._delete(path)
                total -= found.st_size
        self.num_bytes = total
        self._unmeasured = 0

    def _delete(self, path: Path) -> None:
        self._known.discard(path)
        with suppress(OSError):
            path.unlink()
            self.counts.deleted += 1


def _files(folders: Iterable[Path]) -> Iterator[tuple[Path, os.stat_result]]:
    """Pages and states of models; temporary files that nobody writes are deleted.

    Args:
        folders: Those of models, and perhaps others: a directory may hold more than this cache, and
            what is not named as it names its own is not looked at.
    """
    models = [each for each in folders if _MODEL.fullmatch(each.name)]
    for path in chain.from_iterable(each.glob("*/*.*") for each in models):
        if not (is_part := is_partial(path)) and not _OWN.fullmatch(path.name):
            continue
        with suppress(OSError):  # another process may have deleted it
            found = path.lstat()
            if not is_part:
                yield path, found
            elif time.time_ns() - found.st_mtime_ns > _STALE_NS:
                path.unlink()


def next_name(before: bytes, key: bytes) -> bytes:
    """The name of a block.

    Args:
        before: Of the block before it; of the first one, the root's; of a root, the fingerprint.
        key: The block's tokens; of a root, its salt.
    """
    return blake2b(key, key=before, digest_size=32).digest()


def _digest(what: DiskItem, content: _Bytes) -> bytes:
    facts = repr((int(what.item_class), what.kind, what.depth, what.saves)).encode()
    digest = blake2b(content, key=what.name, digest_size=32)
    digest.update(facts)
    return digest.digest()


def _write_file(path: Path, what: DiskItem, content: bytes) -> int:
    """Write a file, which appears when it is whole; its size in bytes."""
    header = _HEADER.pack(
        _MAGIC,
        _KINDS.index(what.kind),
        what.depth,
        what.saves,
        len(content),
        _digest(what, content),
    )
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_whole(path, header, content)
    return len(header) + len(content)


def _read_file(
    path: Path, item_class: ItemClass, name: bytes, size: int
) -> tuple[StateKind, bytearray] | None:
    """What a file holds; None where that is not what was written under this name."""
    with path.open("rb") as file:
        header, content = file.read(_HEADER.size), bytearray(size)
        if file.readinto(content) != size or file.read(1):
            return None
    kind = _kind_if_whole(header, item_class, name, content)
    return None if kind is None else (kind, content)


def _kind_if_whole(
    header: bytes, item_class: ItemClass, name: bytes, content: _Bytes
) -> StateKind | None:
    """Why a state is kept; None where the content is not what was written under this name."""
    fields = _unpack(header)
    if fields is None:
        return None
    kind, depth, saves, num_bytes, digest = fields
    is_whole = num_bytes == len(content)
    is_whole = is_whole and digest == _digest(
        DiskItem(item_class, name, kind, depth, saves), content
    )
    return kind if is_whole else None


def _touch(paths: Iterable[Path], now_ns: int) -> None:
    for path in paths:
        with suppress(OSError):
            os.utime(path, ns=(now_ns, now_ns))


def _unpack(header: bytes) -> _Fields | None:
    if len(header) < _HEADER.size:
        return None
    magic, number, *rest = _HEADER.unpack(header)
    if magic != _MAGIC or number >= len(_KINDS):
        return None
    depth, saves, size, digest = rest
    return _KINDS[number], depth, saves, size, digest


def _worth(path: Path, found: os.stat_result, now_ns: int) -> tuple[float, int]:
    """What a file is worth; the first blocks of a text before those that need them."""
    try:
        with path.open("rb") as file:
            fields = _unpack(file.read(_HEADER.size))
    except OSError:
        fields = None
    if fields is None:
        return 0.0, 0
    kind, depth, saves, _, _ = fields
    unused_ns = max(now_ns - found.st_mtime_ns, 10**9)
    return CHANCES[kind] * saves / (found.st_size * unused_ns), -depth


def _make_private(directory: Path) -> None:
    """Make a directory for its owner alone.

    Raises:
        ConfigError: It cannot be made, or somebody else could write there.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.stat()
    except OSError as error:
        raise ConfigError(
            "the directory of the cache cannot be used.",
            found=f"{directory}: {error.strerror}",
            expected="a directory in which this user may write",
        ) from error
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(
            "others may write into the directory of the cache, which decides what is replied.",
            found=f"{directory}, of user {found.st_uid}, mode {stat.S_IMODE(found.st_mode):o}",
            expected=f"of user {os.geteuid()}, writable by nobody else",
            hint="choose another --cache-dir, or delete it",
        )
