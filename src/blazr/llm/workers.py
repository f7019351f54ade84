"""Threads on which texts become tokens, and tokens texts, while an event loop serves others."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

R = TypeVar("R")
# Characters or token ids that are read beside others. Longer ones take turns, and so do images:
# many at once would leave no thread for others, and each that runs slows down all others.
MAX_CONCURRENT_LENGTH = 100_000
# A lock around `asyncio.to_thread` is free as soon as who waits is cancelled, while its thread
# still works; these threads are free when their work is done.
_for_long_texts = ThreadPoolExecutor(1, thread_name_prefix="blazr-long-texts")
_for_images = ThreadPoolExecutor(1, thread_name_prefix="blazr-images")


async def run_on_worker(work: Callable[[], R], *, length: int, has_images: bool = False) -> R:
    """Run what reads a text or tokens on a worker thread; what is long when its turn comes.

    What is cancelled before its turn is never run.

    Args:
        work: What is done.
        length: How much it reads: characters, token ids, or bytes of images.
        has_images: Whether there are images.

    Raises:
        BaseException: What ``work`` raises.
    """
    if has_images:
        return await _run_in(_for_images, work)
    if length > MAX_CONCURRENT_LENGTH:
        return await run_in_turn(work)
    return await asyncio.to_thread(work)


async def run_in_turn(work: Callable[[], R]) -> R:
    """Run what takes long, one at a time.

    Raises:
        BaseException: What ``work`` raises.
    """
    return await _run_in(_for_long_texts, work)


async def _run_in(pool: ThreadPoolExecutor, work: Callable[[], R]) -> R:
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(pool, context.run, work)
