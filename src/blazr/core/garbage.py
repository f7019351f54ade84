"""Loading without searches for garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading() -> Iterator[None]:
    """While a process imports and makes what it keeps, look for no cycles among it, nor later.

    A full search goes through everything torch has made, a tenth of a second. For a process of
    ours, not for a user's: what is frozen is only found again after `unload`.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()


def unload() -> None:
    """Free what nobody refers to any more, loaded things among it."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
