"""``/health`` on a port and by a process of its own, beside an event loop that is busy."""

from __future__ import annotations

import mmap
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic

import msgspec

from blazr.core.child import end_child, start_child
from blazr.core.errors import ConfigError
from blazr.server import liveness_process
from blazr.server.errors import HttpError, openai_error
from blazr.server.liveness_process import ANSWER, NEWS, PLACE, SIZE

# An event loop that has not come round for so long does not live, however busy it is.
LOOP_STALL_S = 30.0
_EVERY_S = 0.1  # from one look at the engines to the next
_RESTART_S = 1.0  # until a process that has died is replaced
_BACKLOG = 128


class Liveness:
    """Answers ``GET /health``, without TLS and keys, while the event loop serves a crowd.

    On the loop a request waits for all that came before it, and thousands of new connections take
    seconds; on any thread it waits for the interpreter's lock, which reading one long body holds.
    So a process of its own answers (`liveness_process.py`), with what a thread told it last. It
    tells neither models nor version, as anyone who reaches the port may ask.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 picks a free one.

    Raises:
        ConfigError: It is in use or not allowed, or there is no such address.
    """

    def __init__(self, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"cannot listen on {host[:100]} port {port} for /health.", found=str(error)
            ) from None
        self.port = int(self._socket.getsockname()[1])  # where it listens

    @contextmanager
    def answering(self, check: Callable[[], None]) -> Iterator[None]:
        """Answer until the block ends, and listen no longer.

        Args:
            check: Raises where something does not work; called ten times a second, on a thread of
                its own.
        """
        is_over = threading.Event()
        with self._socket, tempfile.TemporaryFile() as file:
            file.write(bytes(SIZE))  # or a full disk would end the server when it is written to
            file.flush()
            bulletin = _Bulletin(file.fileno(), check)
            bulletin.renew()
            descriptors = self._socket.fileno(), file.fileno()
            arguments = bulletin, descriptors, _start(descriptors), is_over
            thread = threading.Thread(
                target=_keep_answering, args=arguments, name="blazr-liveness", daemon=True
            )
            thread.start()
            try:
                yield
            finally:
                is_over.set()
                thread.join()


def _keep_answering(
    bulletin: _Bulletin,
    descriptors: tuple[int, int],
    process: subprocess.Popen[bytes],
    is_over: threading.Event,
) -> None:
    """Tell the process what it is to answer, and replace it where it has died."""
    while not is_over.wait(_EVERY_S):
        bulletin.renew()
        if process.poll() is not None and not is_over.wait(_RESTART_S):
            end_child(process)
            with suppress(OSError):  # no memory for it at present: later, then
                process = _start(descriptors)
    end_child(process)


def _start(descriptors: tuple[int, int]) -> subprocess.Popen[bytes]:
    return start_child(liveness_process.__file__, *map(str, descriptors), pass_fds=descriptors)


class _Bulletin:
    """What the process is to answer, in a file that both share; its docstring gives the layout."""

    def __init__(self, descriptor: int, check: Callable[[], None]) -> None:
        self._memory = mmap.mmap(descriptor, SIZE)
        self._check = check
        self._said = (0, b"")
        self._place = 0

    def renew(self) -> None:
        """Look, and say what was found."""
        answer = _answer(self._check)
        if answer != self._said:
            self._said, self._place = answer, 1 - self._place
            status, body = answer
            start = NEWS.size + self._place * PLACE
            end = start + ANSWER.size + len(body)
            self._memory[start:end] = ANSWER.pack(status, len(body)) + body
        NEWS.pack_into(self._memory, 0, monotonic(), self._place)


def _answer(check: Callable[[], None]) -> tuple[int, bytes]:
    """The status of HTTP and the body that say whether everything works."""
    try:
        check()
    except Exception as error:  # noqa: BLE001  (without an answer there would be no news at all)
        refusal = HttpError.of(error)
        body = msgspec.json.encode(openai_error(refusal))
        if len(body) > PLACE - ANSWER.size:  # a reason of thousands of letters
            body = msgspec.json.encode(openai_error(HttpError(refusal.status, "it does not work.")))
        return refusal.status, body
    return 200, b'{"status":"ok"}'
