"""Faults at named points: ``forward:step=7``, ``alloc:n=3``, ``clock:jump=-3600``.

They are put around the parts that a simulation builds; production code knows nothing of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import msgspec

from blazr.engine.cache.manager import CacheManager
from blazr.server import sse
from blazr.text.stream import TextStream
from tests.support.fake_model import FakeModel

POINTS = {
    "forward": "step",  # a step raises
    "stall": "step",  # a step takes 40 s
    "nan": "n",  # the n-th token drawn has no scores
    "alloc": "n",  # the n-th page or state cannot be had
    "publish": "n",  # the n-th time that blocks are put where others find them raises
    "text": "n",  # the n-th piece of a reply cannot be turned into text
    "encode": "n",  # the n-th event of a stream cannot be encoded
    "build": "n",  # the n-th engine cannot be made
    "clock": "jump",  # the time of day is another
    "drain": "s",  # SIGTERM after so long
}


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong once.

    Args:
        point: Where.
        value: When, or by how much.
    """

    point: str
    value: int

    def __str__(self) -> str:
        return f"{self.point}:{POINTS[self.point]}={self.value}"


def parse(text: str) -> tuple[Fault, ...]:
    """Read ``point:key=value``, several of them with commas between.

    Raises:
        ValueError: There is no such point.
    """
    faults = []
    for each in filter(None, text.split(",")):
        point, _, rest = each.partition(":")
        key, _, value = rest.partition("=")
        if POINTS.get(point) != key:
            known = ", ".join(f"{point}:{key}=N" for point, key in POINTS.items())
            raise ValueError(f"there is no fault {each!r}; there are {known}")
        faults.append(Fault(point, int(value)))
    return tuple(faults)


class InjectedError(BaseException):
    """Like a panic in an extension module: no Exception."""


class Injector:
    """Counts how often each point is passed, and raises where a fault says so.

    Args:
        faults: What is to go wrong.
    """

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        self.faults = faults
        self.passed: Counter[str] = Counter()
        self.hit: list[str] = []

    def is_hit(self, point: str) -> bool:
        """Pass a point; whether a fault is there."""
        self.passed[point] += 1
        fault = Fault(point, self.passed[point])
        if fault in self.faults:
            self.hit.append(str(fault))
            return True
        return False

    def check(self, point: str) -> None:
        """Pass a point.

        Raises:
            InjectedError: A fault is there.
        """
        if self.is_hit(point):
            raise InjectedError(f"injected at {point}")

    @contextmanager
    def surround_replies(self) -> Iterator[None]:
        """Put the faults of replies into what turns tokens to text, and events to bytes."""
        push = TextStream.push

        def push_or_fail(*args, **kwargs):
            self.check("text")
            return push(*args, **kwargs)

        def encode_or_fail(event):
            self.check("encode")
            return msgspec.json.encode(event)

        TextStream.push = push_or_fail
        sse.msgspec = SimpleNamespace(json=SimpleNamespace(encode=encode_or_fail))
        try:
            yield
        finally:
            TextStream.push = push
            sse.msgspec = msgspec

    def surround(self, memory: CacheManager, model: FakeModel, *, sleep, token_s) -> None:
        """Put the faults of an engine around its memory and its model, which takes time."""
        allocate, publish, execute = memory.arena.allocate, memory._publish, model.execute

        def allocate_or_fail(cls):
            self.check("alloc")
            return allocate(cls)

        def publish_or_fail(sequence):
            self.check("publish")
            return publish(sequence)

        def execute_or_fail(plan):
            sleep(40.0 if self.is_hit("stall") else 0.002 + token_s * plan.num_tokens)
            self.check("forward")
            result = execute(plan)
            for place, sampled in enumerate(result.sampled):
                if self.is_hit("nan"):
                    result.sampled[place] = sampled._replace(
                        token_id=-1, error="the scores are not finite"
                    )
            return result

        memory.arena.allocate = allocate_or_fail
        memory._publish = publish_or_fail
        model.execute = execute_or_fail
