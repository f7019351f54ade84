"""Whether other threads run while something is done, as they cannot while it holds the GIL."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_TICK_S = 0.001


def ticks_during(work: Callable[[], object]) -> int:
    """How often another thread, which wants to run every millisecond, does so meanwhile."""
    ticks = 0
    is_over = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not is_over.is_set():
            time.sleep(_TICK_S)
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        before = ticks
        work()
        return ticks - before
    finally:
        is_over.set()
        thread.join()
