"""Captures of steps on a GPU, as far as they can be followed without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from threading import Barrier, BrokenBarrierError, Thread

import pytest
import torch

from blazr.nn.kernels.recording import UnrecordableError
from blazr.nn.ops.graphs import CudaGraphs


class _Stream:
    """Has the face of torch's."""

    def __init__(self, *_: object) -> None:
        self.waits_for: list[object] = []

    def wait_stream(self, other: object) -> None:
        self.waits_for.append(other)


class _Gpus:
    """Has the face of ``torch.cuda``, as far as captures use it.

    Attributes:
        usual: What is computed on outside of a capture.
        entered: Streams that something was computed on, in that order.
        captured: On which stream each graph was captured.
        most: Graphs that were being captured at the same time.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.usual = _Stream()
        self.entered: list[object] = []
        self.captured: list[object] = []
        self.most = self._now = 0
        patch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
        patch.setattr(torch.cuda, "current_stream", lambda _: self.usual)
        patch.setattr(torch.cuda, "Stream", _Stream)
        patch.setattr(torch.cuda, "stream", self._stream)
        patch.setattr(torch.cuda, "CUDAGraph", _Graph)
        patch.setattr(torch.cuda, "graph", self._graph)

    def _stream(self, other: object) -> nullcontext[None]:
        self.entered.append(other)
        return nullcontext()

    @contextmanager
    def _graph(self, _: object, *, stream: object = None, **__: object) -> Iterator[None]:
        self.captured.append(stream)
        self._now += 1
        self.most = max(self.most, self._now)
        yield
        self._now -= 1


class _Graph:
    def replay(self) -> None:
        """Nothing was captured."""


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> _Gpus:
    return _Gpus(monkeypatch)


def _read() -> None:
    torch.ones(3).tolist()


def test_what_is_done_behind_a_refused_capture_waits_for_what_was_tried(gpus: _Gpus) -> None:
    with pytest.raises(UnrecordableError):
        CudaGraphs(torch.device("cuda")).capture(_read)
    (aside,) = gpus.entered
    assert isinstance(aside, _Stream)
    assert aside.waits_for == [gpus.usual]
    assert gpus.usual.waits_for == [aside]


def test_each_gpu_captures_on_a_stream_of_its_own(gpus: _Gpus) -> None:
    first, second = (CudaGraphs(torch.device("cuda", index)) for index in range(2))
    for graphs in (first, second, first):
        graphs.capture(lambda: None)
    assert gpus.captured == gpus.entered  # where it was tried, so that libraries have memory there
    one, other, again = gpus.captured
    assert None not in gpus.captured  # which is torch's, on the first GPU it captured on
    assert one is again
    assert one is not other


def test_one_graph_is_captured_at_a_time(gpus: _Gpus) -> None:
    runs_of_a_capture, wait_s = 4, 0.2  # three of them to see whether it can be captured
    met = Barrier(2)

    def capture() -> None:
        count = 0

        def run() -> None:
            nonlocal count
            count += 1
            if count == runs_of_a_capture:
                with suppress(BrokenBarrierError):
                    met.wait(wait_s)

        CudaGraphs(torch.device("cuda")).capture(run)

    threads = [Thread(target=capture) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(gpus.captured) == len(threads)
    assert gpus.most == 1
