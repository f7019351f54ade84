"""Python programs of blazr's own that run as child processes."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Sequence


def start_child(
    program: str,
    *arguments: str,
    pass_fds: Sequence[int] = (),
    stdout: int | None = None,
    is_module: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a program that ends when its standard input does, so that it never outlives its parent.

    Args:
        program: Path of a Python file, or the name of a module.
        arguments: After it on the command line.
        pass_fds: Descriptors that it inherits.
        stdout: As `subprocess.Popen` takes it; where given, standard error is dropped.
        is_module: Whether the program is a module's name.

    Raises:
        OSError: The process cannot be started.
    """
    return subprocess.Popen(
        # -P keeps the modules beside the program from hiding others of the same name
        [sys.executable, "-P", *(["-m"] if is_module else []), program, *arguments],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=None if stdout is None else subprocess.DEVNULL,
        pass_fds=pass_fds,
        start_new_session=True,  # an interrupt at the terminal is not for it
    )


def end_child(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and leave nothing of it behind."""
    process.kill()
    with contextlib.suppress(OSError), process:  # closes the pipes, waits
        pass
