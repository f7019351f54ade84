"""Waiting for room in a queue that others fill."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from blazr.core.errors import CapacityError

# How long to wait before trying again.
RETRY_S = 0.05

T = TypeVar("T")


async def with_room(start: Callable[[], T]) -> T:
    """Return what a call gives, as soon as it finds room."""
    while True:
        try:
            return start()
        except CapacityError:
            await asyncio.sleep(RETRY_S)
