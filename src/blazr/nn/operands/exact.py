"""Whether a row's numbers must not depend on how many rows there are, where that costs time.

On a CPU they never do. On a GPU cuBLAS chooses by the number of rows in which order it adds up.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_STATE = {"is_exact": False}


def is_exact() -> bool:
    """Whether exactness was asked for in this process."""
    return _STATE["is_exact"]


def require_exact() -> None:
    """Ask for it, for all networks of this process."""
    _STATE["is_exact"] = True


@contextmanager
def exactness(*, is_exact: bool) -> Iterator[None]:
    """Within, it is asked for or not."""
    before, _STATE["is_exact"] = _STATE["is_exact"], is_exact
    try:
        yield
    finally:
        _STATE["is_exact"] = before
