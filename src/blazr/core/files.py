"""Files that are there as a whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import mkstemp

PARTIAL = ".part"  # how the name of a file ends that is being written


def write_whole(path: Path, *parts: bytes) -> None:
    """Write a file, for its owner alone, which appears when it is whole.

    Raises:
        OSError: It cannot be written; nothing of it is left.
    """
    place, part = mkstemp(dir=path.parent, suffix=PARTIAL)
    try:
        with os.fdopen(place, "wb") as file:
            file.writelines(parts)
        Path(part).replace(path)
    except OSError:
        Path(part).unlink(missing_ok=True)
        raise
