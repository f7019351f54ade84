"""Loading without searches for garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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


def unload() -> None:
    """Free what nobody refers to any more, loaded things among it."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
