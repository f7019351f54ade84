"""Where and of what a run was made, and the file that remembers runs: one JSON line each."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import blazr

_HERE = Path(__file__).resolve().parent


def origin() -> dict[str, object]:
    """When, which blazr, which machine."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "blazr": blazr.__version__,
        "commit": _commit(),
        "machine": {
            "system": platform.platform(),
            "python": platform.python_version(),
            "torch": version("torch"),
            "processors": len(os.sched_getaffinity(0)),
            "memory_bytes": pages * size,
        },
    }


def append(path: Path, report: Mapping[str, object]) -> None:
    """Add a run to the file of runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(report, sort_keys=True) + "\n")


def _commit() -> str | None:
    """The commit this code is at, ``-dirty`` where it was changed since; None where none knows."""
    # an installed copy may lie inside somebody else's repository, which does not track it
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    return _git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")


def _git(*arguments: str) -> str | None:
    line = ["git", "-C", str(_HERE), *arguments]
    try:
        done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
