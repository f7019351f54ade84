"""Steps recorded once and made again: Python's part of a step falls away."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

from torch import Tensor

from blazr.nn.kernels.cpu.compiled import missing, replayer
from blazr.nn.kernels.recording import (
    Arena,
    NativeCall,
    PythonCall,
    Recording,
    UnrecordableError,
    recordable,
)

__all__ = ["Arena", "Replay", "UnrecordableError", "can_replay", "record", "recordable"]


def can_replay(device: str) -> bool:
    """Whether steps can be recorded on this kind of device."""
    return device == "cpu" and not missing()


class Replay:
    """A recorded step.

    Args:
        calls: What was kept.
        output: Where the result lies after each replay.
        arena: Memory that the calls use.
    """

    def __init__(self, calls: list[NativeCall | PythonCall], output: Tensor, arena: Arena) -> None:
        self.output = output
        self._arena = arena  # the calls know addresses in it
        self._parts: list[PythonCall] = []
        for is_python, some in groupby(calls, callable):
            if is_python:
                self._parts += some  # type: ignore[arg-type]  # what groupby found
            else:
                self._parts.append(_without_step(replayer(list(some))))  # type: ignore[arg-type]
        self.num_python = sum(map(callable, calls))

    def __call__(self, step: object) -> Tensor:
        """Make the calls again.

        Args:
            step: What parts that run in Python are given in the place of the recorded step.
        """
        for each in self._parts:
            each(step)
        return self.output


def record(run: Callable[[], Tensor], step: object, arena: Arena) -> Replay | None:
    """Keep what ``run`` would do, without doing it; None if it cannot be kept.

    Args:
        run: Calls modules, with parts of layers in `recordable`.
        step: What it hands to parts as the step's inputs.
        arena: Memory for what passes between calls.
    """
    recording = Recording(arena, step)
    try:
        with recording:
            output = run()
    except UnrecordableError:
        return None
    return Replay(recording.calls, output, arena)


def _without_step(again: Callable[[], None]) -> PythonCall:
    return lambda _: again()
