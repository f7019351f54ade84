"""Records the kernel calls of a step, with their addresses, so that they can be replayed alone.

Nothing is computed while a step is recorded. Modules run on tensors that belong to the recording,
and a call that would reach a kernel is stored instead. A part of a layer that does more than call
kernels (see `UnrecordableError`) is stored as a Python call and runs as such at every replay (see
`recordable`).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_ALIGNMENT, _CHUNK = 64, 1 << 24
_EMPTY = {
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.new_empty.default,
    torch.ops.aten.empty_like.default,
}

NativeCall = tuple[int, ctypes.Structure]  # the kernel's address, its arguments
PythonCall = Callable[[object], None]  # given the step that is computed


class UnrecordableError(Exception):
    """An operation that a recording cannot hold: torch would compute, or values would be read."""


class _PerThread(threading.local):
    recording: Recording | None = None


_per_thread = _PerThread()


def recording() -> Recording | None:
    """The recording that this thread is making, or None."""
    return _per_thread.recording


class Region:
    """A bump allocator: memory is handed out front to back, and all of it is freed at once."""

    def __init__(self) -> None:
        self._chunks: list[Tensor] = []
        self.reset()

    def reset(self) -> None:
        """Free everything; the same memory is handed out again."""
        self._chunk = self._offset = 0

    def take(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """An uninitialized tensor."""
        count = shape.numel() * dtype.itemsize
        while self._chunk < len(self._chunks):
            chunk = self._chunks[self._chunk]
            if self._offset + count <= len(chunk):
                first = self._offset
                self._offset += -(-count // _ALIGNMENT) * _ALIGNMENT
                return chunk[first : first + count].view(dtype).view(shape)
            self._chunk += 1
            self._offset = 0
        # from numpy, because the mode that records would catch torch.empty; numpy aligns to 16
        # bytes only, and a vector across two cache lines takes twice as long to load
        room = np.empty(max(count, _CHUNK) + _ALIGNMENT, np.uint8)
        self._chunks.append(torch.from_numpy(room[-room.ctypes.data % _ALIGNMENT :]))
        return self.take(shape, dtype)


class Arena:
    """Memory for intermediate tensors; recordings that are never replayed at once share one.

    Parts of layers use two regions alternately, so the output of one lasts until the next is done.
    """

    def __init__(self) -> None:
        self._between = Region()
        self._parts = (Region(), Region())
        self.begin()

    def begin(self) -> None:
        """Free all memory, for a new recording."""
        self._between.reset()
        self._turn = 0
        self._region = self._between

    def enter_part(self) -> None:
        """Allocate from the other of the two regions of parts, which is freed."""
        self._turn += 1
        self._region = self._parts[self._turn % 2]
        self._region.reset()

    def leave_part(self) -> None:
        """Allocate memory that lasts as long as the recording."""
        self._region = self._between

    def take(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """An uninitialized tensor."""
        return self._region.take(shape, dtype)


class Recording:
    """The calls of a step, in order; a context manager within which they are recorded.

    Args:
        arena: Memory for intermediate tensors.
        step: A placeholder for the step's inputs among the arguments of parts; each replay puts
            its own in its place.

    Attributes:
        calls: What was recorded so far.
    """

    def __init__(self, arena: Arena, step: object) -> None:
        self.calls: list[NativeCall | PythonCall] = []
        self._arena = arena
        self._step = step
        self._depth = 0
        self._mode = _RecordingMode(arena)
        arena.begin()

    def __enter__(self) -> Self:
        """Begin to record, on this thread."""
        _per_thread.recording = self
        self._mode.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: object) -> None:
        """End the recording; kernels are called again."""
        _per_thread.recording = None
        self._mode.__exit__(*raised)  # type: ignore[no-untyped-call]

    def keep(self, address: int, call: ctypes.Structure) -> None:
        """Record a call of the kernel at an address."""
        self.calls.append((address, call))

    def run_part(
        self, function: Callable[..., Tensor], args: tuple[object, ...], like: Tensor
    ) -> Tensor:
        """See `recordable`."""
        num_before = len(self.calls)
        is_outermost = self._depth == 0
        if is_outermost:
            self._arena.enter_part()
        self._depth += 1
        try:
            return function(*args)
        except UnrecordableError:
            del self.calls[num_before:]
            out = self._arena.take(like.shape, like.dtype)
            places = [index for index, each in enumerate(args) if each is self._step]

            def call(step: object) -> None:
                given = list(args)
                for place in places:
                    given[place] = step
                out.copy_(function(*given))

            self.calls.append(call)
            return out
        finally:
            self._depth -= 1
            if is_outermost:
                self._arena.leave_part()


class _Dispatch:
    """The ``__torch_dispatch__`` of `_RecordingMode`.

    In a base class, because torch wraps one that a mode itself defines, and the wrapper's first
    call imports hundreds of torch.compile's modules, which takes seconds.
    """

    _arena: Arena

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Let views pass, allocate from the arena, and refuse everything else."""
        kwargs = kwargs or {}
        if func in _EMPTY:
            like = args[0] if isinstance(args[0], Tensor) else None
            size = args[0] if like is None else args[1] if len(args) > 1 else like.shape
            dtype = kwargs.get("dtype") or (torch.float32 if like is None else like.dtype)
            return self._arena.take(torch.Size(size), dtype)
        # a composite operation is as recordable as its parts: a reshape may be a view or a copy
        with self:  # type: ignore[attr-defined]  # a mode
            found = func.decompose(*args, **kwargs)
        if found is not NotImplemented:
            return found
        if func.is_view:
            return func(*args, **kwargs)
        raise UnrecordableError(str(func))


class _RecordingMode(_Dispatch, TorchDispatchMode):
    """Intercepts every torch operation, and refuses those that compute."""

    def __init__(self, arena: Arena) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._arena = arena


def recordable(function: Callable[..., Tensor], *args: Any, like: Tensor) -> Tensor:
    """Run a part of a layer, or record it.

    Its kernel calls are recorded, or the call of ``function`` itself where it does more.

    Args:
        function: The part.
        args: Its arguments.
        like: A tensor with the shape and dtype of its result.
    """
    here = _per_thread.recording
    return function(*args) if here is None else here.run_part(function, args, like)
