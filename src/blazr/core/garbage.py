"""When Python's garbage collector runs, and when freed memory goes back to the system."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

_M_ARENA_MAX = -8  # of glibc's malloc.h


@contextmanager
def frozen_after() -> Iterator[None]:
    """Pause the collector, then exempt every object that exists at the end from later collections.

    For loading what a process keeps, such as a model: a collection that visits all of torch's
    objects takes a tenth of a second. Only `collect_all` visits frozen objects again. A load that
    fails freezes nothing, since it may leave reference cycles through its error's traceback.
    """
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the collector during work that makes many objects and no reference cycles.

    Decoding a million lists from JSON takes a tenth of a second, and one second with collections.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def collect_all() -> None:
    """Free unreachable objects, also those that `frozen_after` has frozen."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def limit_malloc_arenas() -> None:
    """Limit glibc's malloc to two arenas, for all threads that start from now on.

    By default there are up to eight per processor, and each keeps the most that it ever needed: a
    server with many threads held 100 to 150 MB more after bursts of requests.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # only glibc has it
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 2)


def trim_memory() -> None:
    """Collect garbage, and return the memory that malloc keeps to the system."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it
    if trim is not None:
        trim(0)
