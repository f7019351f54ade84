"""Steps that are made again: the calls of kernels, kept with their addresses, and nothing between.

While a step is recorded nothing is computed. Modules run on memory that is theirs from then on, and
where they would call a kernel the call is kept. What is more than kernels (see `ForeignError`) is
kept as it is and runs in Python, part by part of a layer (see `recordable`).
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


class ForeignError(Exception):
    """An operation that computes and is no kernel, or looks at numbers a recording has not."""


class _PerThread(threading.local):
    recording: Recording | None = None


_per_thread = _PerThread()


def recording() -> Recording | None:
    """The one this thread is making."""
    return _per_thread.recording


class Region:
    """Memory that is given out from its beginning, again and again."""

    def __init__(self) -> None:
        self._chunks: list[Tensor] = []
        self.reset()

    def reset(self) -> None:
        """Begin anew: what was given out is given out again."""
        self._chunk = self._offset = 0

    def take(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """A tensor of that shape, with anything in it."""
        count = shape.numel() * dtype.itemsize
        while self._chunk < len(self._chunks):
            chunk = self._chunks[self._chunk]
            if self._offset + count <= len(chunk):
                first = self._offset
                self._offset += -(-count // _ALIGNMENT) * _ALIGNMENT
                return chunk[first : first + count].view(dtype).view(shape)
            self._chunk += 1
            self._offset = 0
        # numpy's, as new tensors are the recording's; it aligns to 16 bytes, and vectors that lie
        # in two lines of a cache take twice as long to load
        room = np.empty(max(count, _CHUNK) + _ALIGNMENT, np.uint8)
        self._chunks.append(torch.from_numpy(room[-room.ctypes.data % _ALIGNMENT :]))
        return self.take(shape, dtype)


class Arena:
    """What passes between the calls of a recording; recordings that never overlap share one.

    Parts of layers take turns in two regions: what one leaves is there until the next is done.
    """

    def __init__(self) -> None:
        self._between = Region()
        self._parts = (Region(), Region())
        self.begin()

    def begin(self) -> None:
        """For a recording: all memory is free."""
        self._between.reset()
        self._turn = 0
        self._region = self._between

    def enter_part(self) -> None:
        """What follows belongs to a part of a layer."""
        self._turn += 1
        self._region = self._parts[self._turn % 2]
        self._region.reset()

    def leave_part(self) -> None:
        """What follows lasts as long as the recording."""
        self._region = self._between

    def take(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """A tensor of that shape, with anything in it."""
        return self._region.take(shape, dtype)


class Recording:
    """Calls in order, made while this is entered; see the module.

    Args:
        arena: Memory for what passes between them.
        step: Stands for the step's inputs in arguments of parts; at replay the real ones do.
    """

    def __init__(self, arena: Arena, step: object) -> None:
        self.calls: list[NativeCall | PythonCall] = []
        self._arena = arena
        self._step = step
        self._depth = 0
        self._mode = _RecordingMode(arena)
        arena.begin()

    def __enter__(self) -> Self:
        """From here on calls are kept."""
        _per_thread.recording = self
        self._mode.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: object) -> None:
        """From here on calls are made again."""
        _per_thread.recording = None
        self._mode.__exit__(*raised)  # type: ignore[no-untyped-call]

    def keep(self, address: int, call: ctypes.Structure) -> None:
        """A kernel's call."""
        self.calls.append((address, call))

    def run_part(
        self, function: Callable[..., Tensor], args: tuple[object, ...], like: Tensor
    ) -> Tensor:
        """See `recordable`."""
        mark = len(self.calls)
        outermost = self._depth == 0
        if outermost:
            self._arena.enter_part()
        self._depth += 1
        try:
            return function(*args)
        except ForeignError:
            del self.calls[mark:]
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
            if outermost:
                self._arena.leave_part()


class _Dispatch:
    """What `_RecordingMode` does with an operation.

    Apart from it, because torch wraps a ``__torch_dispatch__`` that a mode itself defines, and the
    wrapper imports torch.compile's modules at its first call: hundreds, and seconds.
    """

    _arena: Arena

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Views are harmless, new memory comes from the arena, all else is foreign."""
        kwargs = kwargs or {}
        if func in _EMPTY:
            like = args[0] if isinstance(args[0], Tensor) else None
            size = args[0] if like is None else args[1] if len(args) > 1 else like.shape
            dtype = kwargs.get("dtype") or (torch.float32 if like is None else like.dtype)
            return self._arena.take(torch.Size(size), dtype)
        # operations made of others are judged by these: a reshape may be a copy
        with self:  # type: ignore[attr-defined]  # a mode
            found = func.decompose(*args, **kwargs)
        if found is not NotImplemented:
            return found
        if func.is_view:
            return func(*args, **kwargs)
        raise ForeignError(str(func))


class _RecordingMode(_Dispatch, TorchDispatchMode):
    """Sees every operation of torch; nothing that computes goes through."""

    def __init__(self, arena: Arena) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._arena = arena


def recordable(function: Callable[..., Tensor], *args: Any, like: Tensor) -> Tensor:
    """Run a part of a layer; while a step is recorded, keep it as kernels or else as it is.

    Args:
        function: The part.
        args: What it takes.
        like: What it puts out has this one's shape and dtype.
    """
    here = _per_thread.recording
    return function(*args) if here is None else here.run_part(function, args, like)
