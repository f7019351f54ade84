"""Detached threads: work as on any other, and an end of the process that does not wait for it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from blazr.core.detached import run_detached

ENDING = """
import asyncio, atexit, sys, threading
from blazr.core.detached import exit_process, run_detached

async def main():
    started = threading.Event()
    asyncio.ensure_future(run_detached(lambda: started.set() or threading.Event().wait()))
    await asyncio.to_thread(started.wait)

atexit.register(print, "tidied")
if sys.argv[1:]:
    asyncio.run(main())
exit_process(3)
"""


def test_work_is_done_on_another_thread_and_awaited() -> None:
    found = asyncio.run(run_detached(threading.current_thread))
    assert found is not threading.current_thread()


def test_errors_are_raised_where_it_is_awaited() -> None:
    with pytest.raises(ValueError, match="x"):
        asyncio.run(run_detached(lambda: int("x")))


@pytest.mark.parametrize("arguments", [[], ["with a thread that never ends"]])
def test_a_process_ends_in_order_whatever_runs_detached(arguments: list[str]) -> None:
    command = [sys.executable, "-c", ENDING, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (3, "tidied\n", "")
