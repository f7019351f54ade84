"""Captures of steps on a GPU, as far as they can be followed without one."""

from __future__ import annotations

from contextlib import nullcontext

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


def _read() -> None:
    torch.ones(3).tolist()


def test_what_is_done_behind_a_refused_capture_waits_for_what_was_tried(monkeypatch):
    usual, entered = _Stream(), []

    def stream(other: object) -> nullcontext[None]:
        entered.append(other)
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: usual)
    monkeypatch.setattr(torch.cuda, "Stream", _Stream)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    with pytest.raises(UnrecordableError):
        CudaGraphs(torch.device("cuda")).capture(_read)
    (aside,) = entered
    assert aside.waits_for == [usual]
    assert usual.waits_for == [aside]
