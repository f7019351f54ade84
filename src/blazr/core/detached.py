"""Work on detached threads, for whose end the process does not wait."""

from __future__ import annotations

import atexit
import contextvars
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")

_NAME = "blazr-detached"


async def run_detached(work: Callable[[], T]) -> T:
    """Run what may take minutes, as `asyncio.to_thread` does, but on a detached thread.

    Neither the event loop nor `exit_process` waits for it.

    Raises:
        BaseException: What ``work`` raises.
    """
    import asyncio  # which `blazr --help` does without
    from concurrent.futures import Future

    result: Future[T] = Future()
    result.set_running_or_notify_cancel()  # nothing stops it
    arguments = (contextvars.copy_context(), work, result)
    threading.Thread(target=_run, args=arguments, name=_NAME, daemon=True).start()
    return await asyncio.wrap_future(result)


def _run(context: contextvars.Context, work: Callable[[], T], result: Future[T]) -> None:
    try:
        result.set_result(context.run(work))
    except BaseException as error:  # noqa: BLE001  (raised where it is awaited)
        result.set_exception(error)
        del result  # or its traceback would keep it, and all that the work had


def exit_process(status: int) -> NoReturn:
    """Exit, whatever still runs on detached threads.

    Python's own end would stop them in the middle of native code, which may abort the process. So
    where there are such, nothing runs but the functions that are registered for the end.
    """
    if all(each.name != _NAME for each in threading.enumerate()):
        sys.exit(status)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
