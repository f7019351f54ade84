"""A device in the place of a GPU: it captures steps as graphs, and does its work when it likes.

What is captured is a list of operations and the tensors that they are done on. Launching it again
runs no line of the network: whatever the host decided at the capture stays as it was. The captured
run is refused where a graph could not hold it. Work waits in a queue until somebody waits for it,
so that what the host changes too early is seen; or all of it is done as soon as somebody waits for
some, so that what the host reads too late is seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef

from blazr.nn.kernels.recording import UnrecordableError
from blazr.nn.ops.graphs import (
    CaptureGuard,
    GraphDevice,
    UsedMemory,
    address_of,
    guarding_capture,
    tensors_in,
)
from tests.support.other_device import OtherTensor


class RecordedGraphs(GraphDevice):
    """Graphs of the CPU, or of the device beside it.

    Args:
        device: Where the network lies.
        hurries: Whether all work is done when somebody waits for some; else no more than that.

    Attributes:
        num_captured: Steps captured.
        num_launched: Steps launched again.
        uploaded: How many numbers each upload brought.
    """

    def __init__(self, device: str = "cpu", *, hurries: bool = False) -> None:
        self._device = device
        self._hurries = hurries
        self._queue: list[_Work] = []
        self._pinned: list[Tensor] = []
        self.num_captured = 0
        self.num_launched = 0
        self.uploaded: list[int] = []

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        self.join()
        run()  # layers prepare some tensors in their first step
        with UsedMemory() as used:
            run()
        kept = _Kept(used)
        with guarding_capture(kept):
            run()
        self.num_captured += 1
        operations = kept.operations  # and not what it has seen, which would keep memory alive

        def again() -> None:
            self.num_launched += 1
            for operation in operations:
                operation()

        return again

    def launch(self, work: Callable[[], None]) -> Callable[[], None]:
        self._queue.append(_Work(self, work))
        return self._queue[-1].wait

    def upload(self, values: Tensor) -> Tensor:
        self._check(values)
        self.uploaded.append(values.numel())
        return values.to(self._device, copy=True)

    def download(self, values: Tensor, target: Tensor) -> None:
        self._check(target)
        target.copy_(values)

    def join(self) -> None:
        while self._queue:
            self._queue.pop(0).run()

    def pinned(self, *shape: int) -> Tensor:
        self._pinned.append(torch.zeros(shape, dtype=torch.int64))
        return self._pinned[-1]

    def finish(self, work: _Work) -> None:
        """Do the work up to this."""
        while work in self._queue or (self._hurries and self._queue):
            self._queue.pop(0).run()

    def _check(self, values: Tensor) -> None:
        if not values.is_contiguous():
            raise UnrecordableError("a copy of what does not lie side by side")
        if address_of(values) not in map(address_of, self._pinned):
            raise UnrecordableError("a copy from or to memory of the host that is not pinned")


class _Work:
    def __init__(self, device: RecordedGraphs, work: Callable[[], None]) -> None:
        self._device = device
        self._work = work

    @torch.inference_mode()
    def run(self) -> None:
        self._work()

    def wait(self) -> None:
        self._device.finish(self)


class _Kept(CaptureGuard):
    """Keeps the operations that were not refused."""

    def __init__(self, used: UsedMemory) -> None:
        super().__init__(used)
        self.operations: list[Callable[[], None]] = []

    def keep(
        self,
        func: OpOverload,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        found: object,
    ) -> None:
        given = {address_of(each) for each in tensors_in((args, kwargs))}
        made = [each for each in tensors_in(found) if address_of(each) not in given]
        if func.is_view or (not made and not func._schema.is_mutable):
            return  # it shows memory that is there already
        call_args, call_kwargs = self._hold(args), self._hold(kwargs)

        def again() -> None:
            again = func(*_given(call_args), **_given(call_kwargs))
            if made:
                for mine, new in zip(made, tensors_in(again), strict=True):
                    assert mine.shape == new.shape, "a shape depends on the device"
                    mine.copy_(new)

        self.operations.append(again)

    def _hold(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return _External(value) if self.used.has(value) else value
        if isinstance(value, dict):
            return {name: self._hold(each) for name, each in value.items()}
        if isinstance(value, (tuple, list)):
            return tuple(map(self._hold, value))
        return value


class _External:
    """A tensor that a graph knows by its address alone: whose memory it is may go away."""

    def __init__(self, tensor: Tensor) -> None:
        self._storage = StorageWeakRef(tensor.untyped_storage())
        self._like = tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride()
        self._is_wrapped = isinstance(tensor, OtherTensor)

    def tensor(self) -> Tensor:
        storage = torch.UntypedStorage._new_with_weak_ptr(self._storage.cdata)
        if storage is None:
            raise UnrecordableError("memory that a graph uses is there no more")
        dtype, *where = self._like
        found = torch.empty(0, dtype=dtype).set_(storage, *where)
        return OtherTensor(found) if self._is_wrapped else found


def _given(value: Any) -> Any:
    if isinstance(value, _External):
        return value.tensor()
    if isinstance(value, dict):
        return {name: _given(each) for name, each in value.items()}
    return tuple(map(_given, value)) if isinstance(value, (tuple, list)) else value
