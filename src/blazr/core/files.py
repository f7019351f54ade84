"""Files: written as a whole or not at all, and opened without trusting what lies there."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkstemp
from typing import BinaryIO

from blazr.core.errors import CheckpointError

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Error numbers of a disk that has no room, or none for this user."""

_PARTIAL = re.compile(r"tmp\w{8}\.part")  # as `mkstemp` names it; browsers have .part, too
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


@contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading; never waits, as opening a pipe would.

    Raises:
        CheckpointError: There is no such file, it may not be read, or it is not a regular one or a
            pointer of Git LFS; or the system could not read it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        found, hint = error.strerror or "an error", ""
        if isinstance(error, FileNotFoundError) and path.is_symlink():
            found = "a link to a file that is not there"
            hint = "copy the files that the links point to instead of the links (cp -rL)"
        raise CheckpointError(
            f"{path} cannot be opened.", found=found, expected="a file", hint=hint
        ) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise CheckpointError(
                f"{path} is not a regular file.",
                found="a directory, pipe, socket or device",
                expected="a file of known size",
            )
        if os.pread(descriptor, len(_LFS_POINTER), 0) == _LFS_POINTER:
            raise CheckpointError(
                f"{path} is not the file itself.",
                found="a pointer of Git LFS, as a clone without it has",
                expected="what it points to",
                hint="git lfs pull beside it, or blazr pull org/name",
            )
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read.",
            found=error.strerror or "an error",
            expected="a file on a sound disk",
        ) from error
    finally:
        os.close(descriptor)


def write_whole(path: Path, *parts: bytes) -> None:
    """Write a file, for its owner alone, which appears when it is whole.

    Raises:
        OSError: It cannot be written; nothing of it is left.
    """
    place, part = mkstemp(dir=path.parent, suffix=".part")
    try:
        with os.fdopen(place, "wb") as file:
            file.writelines(parts)
        Path(part).replace(path)
    except OSError:
        Path(part).unlink(missing_ok=True)
        raise


def try_lock(descriptor: int) -> bool:
    """Lock an open file or directory until it is closed, also by the end of the process.

    Returns:
        False where another process has locked it. A file system without locks lets everybody in.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return not isinstance(error, BlockingIOError)
    return True


def is_partial(path: Path) -> bool:
    """Whether a file is named as `write_whole` names one that it has not finished."""
    return _PARTIAL.fullmatch(path.name) is not None
