"""From files to a GPU: what is read lies in pinned memory, and is copied while more is read."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor

from blazr.nn.ops.graphs import GraphDevice, graph_device

STAGE_BYTES = 1 << 25


class Stages:
    """Two buffers that take turns: one is filled while the other is copied to the device.

    Args:
        graphs: Has pinned memory, and copies without being waited for.
        nbytes: Of each buffer, a multiple of eight.
    """

    def __init__(self, graphs: GraphDevice, nbytes: int = STAGE_BYTES) -> None:
        self._graphs = graphs
        self._buffers = [graphs.pinned(nbytes // 8).view(torch.uint8) for _ in range(2)]
        self._waits: list[Callable[[], None] | None] = [None, None]  # for the copy of each
        self._turn = 0

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Copy bytes to the device; they are there for what it is given from now on.

        Args:
            source: (n,), uint8, of the host; it may change as soon as this returns.
            target: (n,), uint8, of the device.
        """
        size = len(self._buffers[0])
        for first in range(0, len(source), size):
            wait = self._waits[self._turn]
            if wait is not None:
                wait()
            part = source[first : first + size]
            staged = self._buffers[self._turn][: len(part)]
            staged.copy_(part)
            place = target[first : first + size]
            self._waits[self._turn] = self._graphs.launch(partial(self._copy, staged, place))
            self._turn = 1 - self._turn

    def _copy(self, staged: Tensor, place: Tensor) -> None:
        place.copy_(self._graphs.upload(staged))


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """The same on the device.

    Args:
        tensor: Of the host, as a file has it.
        device: Where it goes.
    """
    stages = _stages_of(device)
    if stages is None:
        return tensor.to(device)
    found = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    stages.copy(tensor.contiguous().view(-1).view(torch.uint8), found.view(-1).view(torch.uint8))
    return found


@cache
def _stages_of(device: torch.device) -> Stages | None:
    graphs = graph_device(device)
    return None if graphs is None else Stages(graphs)
