"""The other ranks as the first one sees them: processes that it starts, tells and watches."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Self, TypeVarTuple

from blazr.core.child import end_child, start_child
from blazr.core.errors import EngineError
from blazr.engine.outputs import describe_error
from blazr.engine.ranks import orders
from blazr.engine.ranks.collectives import ProcessRanks
from blazr.nn.device import Device, use_threads
from blazr.nn.layers.ranks import Rank

Arguments = TypeVarTuple("Arguments")
_POLL_S = 0.02
_START_S = 300.0  # for importing torch, which many do at once, perhaps from a slow disk
_KNOWN_S = 5.0  # until a process that has ended is known to have


class RankProcesses:
    """All ranks but the first, which is this process.

    They compute the same steps at the same time, each its part and on its share of the CPU's
    threads, and decide nothing: what this one computes, it first orders. When one of them ends, the
    others cannot go on; all of them end, and `failure` says why. They end with this process, too,
    however that ends.

    Args:
        count: Ranks, this one included.
        device: What they compute on; of several GPUs, each has the one of its number.

    Attributes:
        ranks: What the layers of this process's part hear of the others by.
        failure: Why nothing can be computed any more; empty while it can.

    Raises:
        EngineError: One of them could not be started.
    """

    def __init__(self, count: int, device: Device) -> None:
        self.failure = ""
        self._is_closing = False
        self._lock = threading.Lock()
        self._storages = 0
        self._folder = Path(tempfile.mkdtemp(prefix="blazr-ranks-"))  # only this user's
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._ends = weakref.finalize(self, _end, os.getpid(), self._processes, self._folder)
        self._threads = device.num_threads
        own_threads = max(1, self._threads // count)
        try:
            for number in range(1, count):
                arguments = (number, count, device.kind, own_threads, self._folder)
                self._processes[number] = start_child(
                    "blazr.engine.ranks.worker", *map(str, arguments), is_module=True
                )
            self._wait_for_all()
            self.ranks = self._meet(count, device)
        except OSError as error:
            self.close()
            raise EngineError("a rank cannot be started.", found=error.strerror or "") from None
        except BaseException:
            self.close()
            raise
        use_threads(own_threads)
        me = weakref.ref(self)
        for number, process in self._processes.items():
            threading.Thread(
                target=_watch, args=(me, number, process), name=f"blazr-rank-{number}", daemon=True
            ).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def tell(
        self, order: Callable[[orders.Member, *Arguments], None], *arguments: *Arguments
    ) -> None:
        """Have all others do something; nobody waits for it.

        Args:
            order: See `blazr.engine.ranks.orders`.
            arguments: Its own, behind the member.

        Raises:
            EngineError: One of them has ended.
        """
        self.check()
        content = orders.dump((order, arguments))
        try:
            for process in self._processes.values():
                assert process.stdin is not None
                process.stdin.write(content)
                process.stdin.flush()
        except (OSError, ValueError) as error:
            raise self.fail(error) from None

    def wait(self, device: Device) -> None:
        """Wait until all others have done what they were told.

        Raises:
            EngineError: One of them has ended.
        """
        with self.together():
            self.tell(orders.wait)
            self.ranks.wait(device.torch_device)

    def new_number(self) -> int:
        """A number that no memory has yet."""
        self._storages += 1
        return self._storages

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is computed here and by all others; if it fails, they do not go together any more.

        Raises:
            EngineError: It failed.
        """
        self.check()
        try:
            yield
        except Exception as error:
            raise self.fail(error) from error

    def check(self) -> None:
        """Refuse to go on when one has ended.

        Raises:
            EngineError: One has, or all have been closed.
        """
        if self._is_closing or self.failure:
            raise self._why()

    def fail(self, error: Exception) -> EngineError:
        """Give up after an error, whose cause most often is that a rank has ended."""
        if self._is_closing and not self.failure:
            return self._why()
        # connections break a little before it is known why
        deadline_s = monotonic() + (_KNOWN_S if isinstance(error, RuntimeError | OSError) else 0)
        while not self.failure and monotonic() < deadline_s:
            sleep(_POLL_S)
        self._give_up(f"a step failed on the first rank: {describe_error(error)}")
        return self._why()

    def _why(self) -> EngineError:
        """Why nothing can be computed any more: a failure, or all have been closed."""
        if not self.failure:
            return EngineError("the ranks were closed.")
        return EngineError(self.failure, hint="start the program again")

    def close(self) -> None:
        """End all others. May be called twice."""
        self._is_closing = True
        self._ends()
        use_threads(self._threads)

    def _wait_for_all(self) -> None:
        """Wait until each has started, which takes a second or two.

        Raises:
            EngineError: One has ended, or hangs.
        """
        waited = set(self._processes)
        deadline_s = monotonic() + _START_S
        while waited:
            for number in tuple(waited):
                if (self._folder / f"{number}.started").exists():
                    waited.discard(number)
                elif self._processes[number].poll() is not None:
                    raise EngineError(_ended(number, self._processes[number]))
            if waited and monotonic() > deadline_s:
                raise self._hangs(min(waited))
            sleep(_POLL_S)

    def _meet(self, count: int, device: Device) -> ProcessRanks:
        """Find the others, all of which have started.

        Raises:
            EngineError: One has ended, or hangs.
        """
        try:
            return ProcessRanks(Rank(0, count), self._folder, device.kind)
        except RuntimeError as error:
            for number, process in self._processes.items():
                if process.poll() is not None:
                    raise EngineError(_ended(number, process)) from error
            raise EngineError(
                "the ranks do not find each other.",
                found=str(error)[:200],
                hint="start the program again; a firewall must let this machine connect to itself",
            ) from error

    def _hangs(self, number: int) -> EngineError:
        return EngineError(
            f"rank {number} does not start.",
            found=f"process {self._processes[number].pid}, silent for {_START_S:.0f} s",
            hint="look whether the machine swaps, or the disk with Python's packages answers; "
            "then start the program again",
        )

    def _give_up(self, why: str) -> None:
        with self._lock:
            if self._is_closing or self.failure:
                return
            self.failure = why
        for process in self._processes.values():
            with suppress(OSError):
                process.kill()
        self.ranks.abort()


def _watch(
    owner: weakref.ref[RankProcesses], number: int, process: subprocess.Popen[bytes]
) -> None:
    """Notice that a process has ended."""
    process.wait()
    ranks = owner()
    if ranks is not None:
        ranks._give_up(_ended(number, process))


def _ended(number: int, process: subprocess.Popen[bytes]) -> str:
    code = process.poll()
    how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
    return f"rank {number} has ended (process {process.pid}, {how})."


def _end(owner: int, processes: dict[int, subprocess.Popen[bytes]], folder: Path) -> None:
    if os.getpid() != owner:  # a fork of it, which ends or lets go of its copy
        return
    for process in processes.values():
        end_child(process)
    shutil.rmtree(folder, ignore_errors=True)
