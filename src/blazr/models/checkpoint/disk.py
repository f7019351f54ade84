"""Reading from disk without trusting it: regular files only, sizes checked, memory bounded."""

from __future__ import annotations

import json
import mmap
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from blazr.core.errors import CheckpointError, ConfigError

MAX_CONFIG_BYTES = 16 * 2**20
# Python 3.11 does not name it: pages are not reserved, so a file larger than memory can be mapped.
_MAP_NORESERVE = 0x4000


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading; never waits, as opening a pipe would.

    Raises:
        CheckpointError: There is no such file, it may not be read, or it is not a regular one.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be opened.", found=error.strerror or "an error", expected="a file"
        ) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointError(
            f"{path} is not a regular file.",
            found="a directory, pipe, socket or device",
            expected="a file of known size",
        )
    return os.fdopen(descriptor, "rb")


def read_json(path: Path) -> Mapping[str, object]:
    """Read a configuration file.

    Raises:
        CheckpointError: It cannot be opened.
        ConfigError: It is not a JSON object, or larger than 16 MiB.
    """
    with open_regular(path) as file:
        text = file.read(MAX_CONFIG_BYTES + 1)
    if len(text) > MAX_CONFIG_BYTES:
        raise ConfigError(f"{path} is too large.", expected=f"at most {MAX_CONFIG_BYTES:,} bytes")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path} is not valid JSON.",
            found=str(error)[:100],
            hint="it may be cut short: copy it again from where the model came from",
        ) from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} is not a JSON object.", found=type(value).__name__)
    return value


class MappedFile:
    """A file in memory, page by page as it is touched.

    Writing to the mapping changes private copies of its pages, never the file.

    Args:
        path: The file.
        size: Its size in bytes when its header was read.

    Raises:
        CheckpointError: It cannot be opened, or its size has changed.
    """

    def __init__(self, path: Path, size: int) -> None:
        with open_regular(path) as file:
            found = os.fstat(file.fileno()).st_size
            if found != size:
                raise CheckpointError(
                    f"{path} has changed while it was being read.",
                    found=f"{found:,} bytes",
                    expected=f"{size:,} bytes",
                )
            self.buffer = mmap.mmap(
                file.fileno(),
                size,
                flags=mmap.MAP_PRIVATE | _MAP_NORESERVE,
                prot=mmap.PROT_READ | mmap.PROT_WRITE,
            )

    def drop(self, start: int, end: int) -> None:
        """Give the whole pages between two offsets back; reading them again reads the file."""
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        length = end // mmap.PAGESIZE * mmap.PAGESIZE - first
        if length > 0:
            self.buffer.madvise(mmap.MADV_DONTNEED, first, length)
