"""What ranks tell each other within a step, by torch.distributed.

The group belongs to one model and is nobody's default, so that a program may have several, and
groups of its own.
"""

from __future__ import annotations

import ctypes
import threading
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._distributed_c10d import FileStore, PrefixStore, ProcessGroup, ProcessGroupGloo, Work
from typing_extensions import override

from blazr.core.errors import EngineError
from blazr.nn.layers.ranks import Rank, Ranks

# A rank that ends is noticed by its process, one that computes for long is not to be given up.
_TIMEOUT = timedelta(days=1)
_MEETING = timedelta(minutes=1)  # until all ranks, which have started, have found each other
_LOOK = timedelta(seconds=1)  # how often a rank that waits looks whether all have been given up
_LOCAL = "127.0.0.1"


class ProcessRanks(Ranks):
    """The ranks of a process group.

    Sums are made of all parts in the order of the ranks. They are the same on every rank, and in
    whatever batch a token is: a sum in the order in which parts come would depend on the batch.

    Args:
        rank: Which one this is.
        folder: An empty directory of all ranks' own, where they find each other.
        kind: Kind of the device that they compute on.

    Raises:
        RuntimeError: Another rank does not come.
    """

    def __init__(self, rank: Rank, folder: Path, kind: str) -> None:
        self.rank = rank
        store = PrefixStore("group", FileStore(str(folder / "ranks"), rank.count))
        make = _nccl if kind == "cuda" else _gloo
        self._is_nccl = kind == "cuda"
        self._is_aborted = False
        self._group = make(store, rank)

    @override
    def gather(self, x: Tensor) -> list[Tensor]:
        x = x.contiguous()
        found = [torch.empty_like(x) for _ in range(self.rank.count)]
        self._finish(self._group.allgather([found], [x]))
        return found

    @override
    def sum(self, x: Tensor) -> Tensor:
        total, *others = self.gather(x)
        for each in others:
            total += each
        return total

    @override
    def join_columns(self, x: Tensor, columns: tuple[range, ...]) -> Tensor:
        widest = max(map(len, columns))
        parts = self.gather(F.pad(x, (0, widest - x.shape[-1])))
        return torch.cat([p[..., : len(own)] for p, own in zip(parts, columns, strict=True)], -1)

    @override
    def send(self, x: Tensor, number: int) -> None:
        self._finish_pair(self._group.send([x.contiguous()], number, 0))

    @override
    def receive(self, like: Tensor, number: int) -> Tensor:
        found = torch.empty_like(like)
        self._finish_pair(self._group.recv([found], number, 0))
        return found

    def wait(self, device: torch.device) -> None:
        """Wait for all others to come to the same point."""
        self.gather(torch.zeros(1, device=device))

    def abort(self) -> None:
        """End what waits for others that have gone."""
        self._is_aborted = True
        if self._is_nccl:
            self._group.abort()
        else:  # its threads may wait for ever, and would be joined when it is destroyed
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._group))

    def _finish(self, work: Work) -> None:
        """Wait for an exchange.

        Gloo mostly notices by itself that another rank has gone, but not if that happens just as an
        exchange begins.

        Raises:
            RuntimeError: Another rank has gone.
        """
        if self._is_nccl:
            work.wait()
            return
        while True:
            try:
                work.wait(_LOOK)
            except RuntimeError:
                if self._is_aborted or work.is_completed():
                    raise
            else:
                return

    def _finish_pair(self, work: Work) -> None:
        """Wait for an exchange between two, which gloo gives up when a wait for it ends early.

        Raises:
            RuntimeError: The other rank has gone.
            EngineError: All have been given up.
        """
        if self._is_nccl:
            work.wait()
            return
        ends: SimpleQueue[RuntimeError | None] = SimpleQueue()
        threading.Thread(target=_await, args=(work, ends), daemon=True).start()
        while not self._is_aborted:
            with suppress(Empty):
                error = ends.get(timeout=_LOOK.total_seconds())
                if error is not None:
                    raise error
                return
        raise EngineError("the ranks have been given up.")


def _await(work: Work, ends: SimpleQueue[RuntimeError | None]) -> None:
    try:
        work.wait()
    except RuntimeError as error:
        ends.put(error)
    else:
        ends.put(None)


def _gloo(store: PrefixStore, rank: Rank) -> ProcessGroup:
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # its stub lacks them
    options._timeout = _MEETING
    options._devices = [ProcessGroupGloo.create_device(hostname=_LOCAL)]
    found: Any = ProcessGroupGloo(store, rank.number, rank.count, options)
    found._set_default_timeout(_TIMEOUT)
    return found


def _nccl(store: PrefixStore, rank: Rank) -> ProcessGroup:
    from torch._C._distributed_c10d import ProcessGroupNCCL  # which torch for CPUs lacks

    options = ProcessGroupNCCL.Options()
    options._timeout = _TIMEOUT
    found: Any = ProcessGroupNCCL(store, rank.number, rank.count, options)
    return found
