"""When Python searches for garbage, and when memory goes back to the system."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

_M_ARENA_MAX = -8  # of glibc's malloc.h


@contextmanager
def loading() -> Iterator[None]:
    """While a process of ours makes what it keeps, look for no cycles in it, nor later.

    A search goes through all that torch has made, a tenth of a second. Only `unload` ends this.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def not_collected() -> Iterator[None]:
    """Look for no cycles meanwhile, for work that makes many objects and no cycles.

    A million lists are decoded from JSON in a tenth of a second, and in one second with searches.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def unload() -> None:
    """Free what nobody refers to any more, loaded things among it."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def share_heaps() -> None:
    """Have all threads that are yet to start take memory from two heaps of the C library.

    Otherwise each gets one of its own, up to eight for a processor, which keeps what it ever needed
    at once: a server of many threads held 100 to 150 MB more after storms of requests.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's alone
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 2)


def give_back() -> None:
    """Free cycles made lately, and give the system the memory that the C library keeps."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
    if trim is not None:
        trim(0)
