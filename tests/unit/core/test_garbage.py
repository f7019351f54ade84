"""How memory goes back to the system."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import weakref
from contextlib import suppress

import pytest

from blazr.core.garbage import collect_all, frozen_after

_COUNT_HEAPS = """
import ctypes, sys, threading
from blazr.core import garbage

if sys.argv[1] == "shared":
    garbage.limit_malloc_arenas()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.fdopen.restype = ctypes.c_void_p
taken = threading.Barrier(7)

def take():
    assert libc.malloc(ctypes.c_size_t(1000))
    taken.wait()

threads = [threading.Thread(target=take) for _ in range(6)]
for each in threads:
    each.start()
taken.wait()
out = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, out)
libc.fflush(out)
for each in threads:
    each.join()
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="not glibc")
@pytest.mark.parametrize("how", ["shared", "apart"])
def test_threads_share_two_heaps(how: str) -> None:
    script = [sys.executable, "-c", _COUNT_HEAPS, how]
    told = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    count = told.count("<heap nr=")
    assert count <= 2 if how == "shared" else count > 2


def test_what_is_unloaded_is_freed() -> None:
    class Node:
        def __init__(self) -> None:
            self.own = self

    loaded, later = Node(), Node()
    watched = [weakref.ref(loaded), weakref.ref(later)]
    with frozen_after():
        del loaded
    assert watched[0]() is not None
    del later
    collect_all()
    assert [each() for each in watched] == [None, None]


def test_what_a_failed_load_has_left_is_freed() -> None:
    class Node:
        def __init__(self) -> None:
            self.own = self

    left = Node()
    watched = weakref.ref(left)
    with suppress(LookupError), frozen_after():
        del left
        raise LookupError
    gc.collect()
    assert watched() is None
