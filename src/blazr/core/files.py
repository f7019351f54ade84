"""Files that are there as a whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from pathlib import Path
from tempfile import mkstemp

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Error numbers of a disk that has no room, or none for this user."""

_PARTIAL = re.compile(r"tmp\w{8}\.part")  # as `mkstemp` names it; browsers have .part, too


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
