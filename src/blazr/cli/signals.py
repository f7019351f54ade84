"""Signals that end a command, as exits: what it has begun is then stopped or taken away."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def exiting_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exit, so that what was started is stopped, too.

    One that is ignored stays so, as SIGHUP is under ``nohup``.
    """

    def leave(number: int, _frame: object) -> None:
        sys.exit(128 + number)  # the status that shells give a process that a signal has ended

    found = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)}
    before = {each: handler for each, handler in found.items() if handler is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
