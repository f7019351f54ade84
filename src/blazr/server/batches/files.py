"""The folder that files and batches are kept in, which outlives the server.

An entry is a file of JSON, and what was uploaded or answered lies beside it. Names begin with the
time, so that their order is that in which they were made. A key sees its own entries alone.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from time import time_ns
from typing import Literal, TypeVar
from uuid import uuid4

import msgspec

from blazr.core.errors import ConfigError, EngineError, as_config_error
from blazr.core.files import is_partial, try_lock, write_whole
from blazr.server.errors import HttpError, clean
from blazr.server.params import unix_time

_log = logging.getLogger(__name__)

MAX_KEPT = 1000  # of a key: files, and batches
_ENTRY, _CONTENT = ".json", ".jsonl"
FILE = "file-"  # the beginning of ids
ROOM_S = 60  # until somebody has made room

S = TypeVar("S", bound=msgspec.Struct)


class FileObject(msgspec.Struct, kw_only=True):
    """A file that is kept."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None = None
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"] = "processed"


class KeptFile(msgspec.Struct):
    """A file's entry, as it is written."""

    tenant: str
    file: FileObject


class FileStore:
    """Files, and the entries of those who work on them; no other server uses the folder.

    Args:
        folder: Where they are.
        most_bytes: Most bytes of all files.

    Raises:
        ConfigError: The folder cannot be written, or another server uses it.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._changing = Lock()
        with as_config_error("the folder for files cannot be written."):
            self._lock = (folder / "lock").open("a")
        if not try_lock(self._lock.fileno()):
            self._lock.close()
            raise ConfigError(
                "the folder for files is used by another server.",
                found=str(folder)[:200],
                expected="a folder for each",
            )
        for path in filter(is_partial, list(folder.iterdir())):
            path.unlink(missing_ok=True)
        self._files = dict(self.read(FILE, KeptFile))
        self._sizes = {path.stem: path.stat().st_size for path in folder.glob(f"*{_CONTENT}")}

    def close(self) -> None:
        """Let another server use the folder."""
        self._lock.close()

    def read(self, prefix: str, kind: type[S]) -> Iterator[tuple[str, S]]:
        """The entries whose names begin with something, the oldest first.

        One that cannot be read is left where it is, with a line in the log.
        """
        for path in sorted(self._folder.glob(f"{prefix}*{_ENTRY}")):
            try:
                yield path.stem, msgspec.json.decode(path.read_bytes(), type=kind)
            except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                _log.error("%s cannot be read: %s", path, str(error)[:200])

    def write(self, name: str, entry: msgspec.Struct) -> None:
        """Write an entry, or replace it.

        Raises:
            EngineError: It cannot be written.
        """
        try:
            write_whole(self._folder / f"{name}{_ENTRY}", msgspec.json.encode(entry))
        except OSError as error:
            raise EngineError(
                "the folder for files cannot be written.", found=error.strerror or "an error"
            ) from None

    def remove(self, name: str) -> None:
        """Remove an entry, and its content if it has any."""
        for ending in (_ENTRY, _CONTENT):
            (self._folder / f"{name}{ending}").unlink(missing_ok=True)
        self._sizes.pop(name, None)

    def path_of(self, name: str) -> Path:
        """Where the content of a file is, or will be."""
        return self._folder / f"{name}{_CONTENT}"

    def resize(self, name: str, num_bytes: int) -> None:
        """Count a file that is being written, by its length so far.

        Raises:
            EngineError: All files together have become too long.
        """
        self._sizes[name] = num_bytes
        if sum(self._sizes.values()) > self._most_bytes:
            raise EngineError(
                "there is no room for more answers.",
                found=f"{self._most_bytes:,} bytes of files, as many as may be kept",
                hint="delete files",
            )

    def put(self, tenant: str, filename: str, content: bytes) -> FileObject:
        """Keep what a client has sent; on any thread.

        Raises:
            HttpError: 413, it or one more is too much; 503, the disk is full.
        """
        name = fresh_id(FILE)
        with self._changing:
            held = sum(self._sizes.values())
            if held + len(content) > self._most_bytes:
                raise _full(f"{held:,} bytes of files are kept, of {self._most_bytes:,}")
            if len(self.files_of(tenant)) >= MAX_KEPT:
                raise _full(f"{MAX_KEPT:,} files are kept, as many as a key may have")
            self._sizes[name] = len(content)
        try:
            write_whole(self.path_of(name), content)
            return self.add(tenant, name, clean(filename, 200), "batch")
        except (OSError, EngineError):
            self.remove(name)
            message = "the file cannot be written: the disk is full, or the folder is gone."
            raise HttpError(503, message, code="disk_full", retry_after_s=ROOM_S) from None

    def add(
        self, tenant: str, name: str, filename: str, purpose: Literal["batch", "batch_output"]
    ) -> FileObject:
        """Let a file be seen, whose content has been written.

        Raises:
            EngineError: Its entry cannot be written.
        """
        num_bytes = self._sizes[name] = self.path_of(name).stat().st_size
        file = FileObject(
            id=name,
            bytes=num_bytes,
            created_at=unix_time(),
            filename=filename,
            purpose=purpose,
        )
        kept = KeptFile(tenant, file)
        self.write(name, kept)
        self._files[name] = kept
        return file

    def find(self, tenant: str, name: str, *, param: str | None = None) -> FileObject:
        """A file of a key.

        Args:
            tenant: The key.
            name: Its id.
            param: The field that names it, if one does.

        Raises:
            HttpError: 404, it has none of this name.
        """
        kept = self._files.get(name)
        if kept is None or kept.tenant != tenant:
            raise HttpError.missing("file", name, param=param)
        return kept.file

    def files_of(self, tenant: str) -> list[FileObject]:
        """The files of a key."""
        return [each.file for each in self._files.values() if each.tenant == tenant]

    def delete(self, tenant: str, name: str) -> None:
        """Delete a file of a key.

        Raises:
            HttpError: 404, it has none of this name.
        """
        self.find(tenant, name)
        del self._files[name]
        self.remove(name)

    def sweep(self, used: set[str]) -> None:
        """Remove contents that neither an entry nor a batch names: a crash left them."""
        for name in self._sizes.keys() - self._files.keys() - used:
            self.remove(name)


def fresh_id(prefix: str) -> str:
    """An id that nobody can guess, and that is behind all earlier ones in their order."""
    return f"{prefix}{time_ns():016x}{uuid4().hex[:16]}"


def is_id(prefix: str, name: str) -> bool:
    """Whether `fresh_id` may have given a name; what it named may be gone."""
    return re.fullmatch(f"{prefix}[0-9a-f]{{32}}", name) is not None


def _full(found: str) -> HttpError:
    message = f"the file has no room: {found}. Delete some."
    return HttpError(413, message, param="file", code="files_full")
