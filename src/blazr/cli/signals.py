"""Signals that end a command, as exits: what it has begun is then stopped or taken away."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def exiting_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exit, so that what was started is stopped, too.

    Ctrl+C raises `KeyboardInterrupt`, also in an import. A signal that is ignored stays so, as
    SIGHUP is under ``nohup``.
    """

    def leave(number: int, _frame: object) -> None:
        sys.exit(128 + number)  # the status that shells give a process that a signal has ended

    wanted = {
        signal.SIGTERM: leave,
        signal.SIGHUP: leave,
        signal.SIGINT: signal.default_int_handler,
    }
    found = {each: signal.getsignal(each) for each in wanted}
    before = {each: handler for each, handler in found.items() if handler is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, wanted[number])
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_async(work: Coroutine[object, object, T]) -> T:
    """`asyncio.run`, in which Ctrl+C cancels the work.

    That is so only where Python's own handler is found.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return asyncio.run(work)
    finally:
        signal.signal(signal.SIGINT, before)
