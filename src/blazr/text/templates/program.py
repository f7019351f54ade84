"""A compiled chat template, and the meter on what one rendering of it does.

Work is counted in ticks: one per turn of a loop, call and filter, and more for large bodies, texts
and lists. Nothing may grow beyond the meter's size. A clock, looked at with each tick, bounds what
counting misjudges. `sandbox` compiles templates, and puts the counting into them; `guards` asks
before an operation what it will take.
"""

from __future__ import annotations

import math
import time
from collections.abc import ItemsView, Iterable, KeysView, Mapping, ValuesView
from contextvars import ContextVar
from itertools import chain
from typing import NamedTuple

from jinja2 import Template, TemplateError, Undefined, pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, LoopContext
from jinja2.utils import Cycler, Namespace

from blazr.core.errors import RequestError, TemplateLimitError

# Of one rendering that makes MIN_SIZE characters at most; one that may make more has more of them.
MAX_TICKS = 200_000
MAX_SECONDS = 1.0  # of the thread's processor time: a loaded machine refuses no chat
# After which other threads may run, which Python would let wait for five times as long.
SLICE_SECONDS = 0.001
MIN_SIZE = 1_000_000
BYTES_PER_TICK = 250
ITEMS_PER_TICK = 20
_SUBSCRIPTS_PER_TICK = 8
# An item of a container takes many times the memory of a character.
_CHARACTERS_PER_ITEM = 10
MAX_INTEGER_BITS = 4096
# Nested more deeply, a tuple's hash could exhaust the stack, on which Python has no check.
_MAX_DEPTH = 200
SCALARS = frozenset({bool, float, int, type(None), Undefined})


class TooMuchError(Exception):
    """A template does more than a chat can need."""


class Meter:
    """What one rendering has left.

    Args:
        size: The most characters of anything it makes.
        deadline: The `time.thread_time` at which it ends, if not before.
    """

    def __init__(self, size: int = MIN_SIZE, *, deadline: float = math.inf) -> None:
        share = max(size, MIN_SIZE) / MIN_SIZE
        self.size = size
        self.num_items = max(size, MIN_SIZE) // _CHARACTERS_PER_ITEM
        self.ticks = int(share * MAX_TICKS)
        self._deadline = min(deadline, time.thread_time() + share * MAX_SECONDS)
        self._subscripts = 0
        self._begin_slice()

    def spend(self, ticks: int) -> None:
        """Count work.

        Raises:
            TooMuchError: There is none left.
        """
        self.ticks -= ticks
        if time.monotonic() > self._slice_end:
            time.sleep(0)
            self._begin_slice()
        if self.ticks < 0 or self._left <= 0:
            raise TooMuchError("it loops too long")

    def _begin_slice(self) -> None:
        """Look how much time is left, which takes ten times as long as a look at the wall clock."""
        self._left = self._deadline - time.thread_time()
        self._slice_end = time.monotonic() + min(self._left, SLICE_SECONDS)

    def count_subscript(self) -> None:
        """Count one ``a[b]``, which costs less than a tick."""
        self._subscripts += 1
        if self._subscripts % _SUBSCRIPTS_PER_TICK == 0:
            self.spend(1)

    def check(self, size: int) -> None:
        """Refuse a text longer than any may be.

        Raises:
            TooMuchError: It is.
        """
        if size > self.size:
            raise TooMuchError("it makes a text too long")

    def check_items(self, num_items: int) -> None:
        """Refuse a container larger than any may be.

        Raises:
            TooMuchError: It is.
        """
        if num_items > self.num_items:
            raise TooMuchError("it makes a list too long")

    def charge(self, value: object) -> None:
        """Check and count a value that was made or is about to be read; its outside only."""
        if isinstance(value, str):
            self.check(len(value))
            # of bytes: one character beyond the usual ones makes each take four
            self.spend(1 + value.__sizeof__() // BYTES_PER_TICK)
        elif isinstance(value, list | tuple | dict):
            self.check_items(len(value))
            self.spend(1 + len(value) // ITEMS_PER_TICK)
        elif isinstance(value, int):
            check_integer(value)
            self.spend(1)
        else:
            self.spend(1)


def check_integer(value: int) -> None:
    """Refuse an integer with which arithmetic would take long.

    Raises:
        TooMuchError: It has too many bits.
    """
    if value.bit_length() > MAX_INTEGER_BITS:
        raise TooMuchError("it makes a number too long")


_METER: ContextVar[Meter] = ContextVar("meter")


def use_meter(meter: Meter) -> None:
    """Make a meter the one of this thread's rendering."""
    _METER.set(meter)


def meter() -> Meter:
    """The meter of the rendering in progress."""
    return _METER.get()


class Extent(NamedTuple):
    """How much there is in a value, with all that is in it."""

    num_characters: int
    num_items: int
    depth: int
    num_indents: int = 0  # of all lines, where each item in a container is on one of its own


def check_deep(value: object) -> Extent:
    """Check and count a value with everything in it, as often as it occurs there.

    Raises:
        TooMuchError: It is too much, or nested too deeply.
    """
    here = meter()
    if type(value) in SCALARS:
        return Extent(_written_length(value), 1, 1)
    if isinstance(value, str):
        here.check(len(value))
        here.spend(len(value) // BYTES_PER_TICK)
        return Extent(len(value), 1, 1)
    num_characters = num_items = depth = num_indents = 0
    level: list[object] = [value]
    while level:
        depth += 1
        if depth > _MAX_DEPTH:
            raise TooMuchError("it nests too deeply")
        num_items += len(level)
        inner: list[object] = []
        for item in level:
            if isinstance(item, str):
                num_characters += len(item)
            elif type(item) in SCALARS:
                num_characters += _written_length(item)
            else:
                num_before = len(inner)
                inner.extend(_parts(item))
                here.check_items(num_items + len(inner))
                num_lines = len(inner) - num_before
                num_lines -= len(item) if isinstance(item, Mapping) else 0  # a pair is one
                num_indents += depth * num_lines + depth - 1  # and one where it closes
        here.check(num_characters)
        here.spend(len(level) // ITEMS_PER_TICK)
        level = inner
    here.spend(num_characters // BYTES_PER_TICK)
    return Extent(num_characters, num_items, depth, num_indents)


def _written_length(value: object) -> int:
    return 1 + value.bit_length() // 3 if isinstance(value, int) else 24


def _parts(value: object) -> Iterable[object]:
    """What a value holds, by any way that a template has to it."""
    if isinstance(value, Mapping):
        return chain(value.keys(), value.values())
    if isinstance(value, list | tuple | KeysView | ValuesView | ItemsView):
        return value
    if isinstance(value, Namespace):  # which hides even its attributes' names
        attributes: dict[str, object] = object.__getattribute__(value, "_Namespace__attrs")
        return attributes.values()
    if isinstance(value, Cycler):
        return value.items
    if isinstance(value, LoopContext):
        raise TooMuchError("it uses a loop as a value")
    return ()


def join(parts: Iterable[str]) -> str:
    """Join parts of text that were made one by one."""
    here = meter()
    kept: list[str] = []
    total = 0
    for part in parts:
        total += len(part)
        here.check(total)
        kept.append(part)
    text = "".join(kept)
    here.charge(text)
    return text


class RaisedError(TemplateError):
    """The template called ``raise_exception``: it does not take these messages."""


def write(value: object) -> object:
    """What ``{{ value }}`` writes."""
    if not isinstance(value, str | int | float | Undefined | None):
        check_deep(value)
    return value


@pass_context  # so that it is not done once, when the template is compiled
def spend(_: Context, ticks: int) -> bool:
    """Count one turn of a body; true, because it also stands in conditions."""
    meter().spend(ticks)
    return True


class ChatTemplateProgram:
    """A compiled template. Immutable; threads may render it at once.

    Args:
        template: Compiled in the sandbox.
        name: What to call it in messages.
    """

    def __init__(self, template: Template, *, name: str) -> None:
        self.name = name
        self._template = template

    def render(
        self, variables: Mapping[str, object], *, size: int, deadline: float = math.inf
    ) -> str:
        """Render the template.

        Args:
            variables: What it sees. It may change the lists in them.
            size: The most characters it may make.
            deadline: The `time.thread_time` at which it ends, if not before.

        Raises:
            TemplateLimitError: It does too much, or reaches for what the sandbox forbids.
            RequestError: It refuses the messages or fails on them; ``param`` is ``"messages"``.
        """
        here = Meter(size, deadline=deadline)
        use_meter(here)
        try:
            here.spend(1)  # the time may be over already
            return self._template.render(variables)
        except TooMuchError as error:
            raise TemplateLimitError(
                "the model's chat template does more than a chat can need.",
                param="messages",
                found=str(error),
                hint="a shorter chat, or another template (blazr serve --chat-template)",
            ) from None
        except RaisedError as error:
            raise RequestError(
                "the model's chat template does not take these messages.",
                param="messages",
                found=str(error)[:100],
            ) from None
        except SecurityError as error:
            raise TemplateLimitError(
                "the model's chat template does what none may.",
                param="messages",
                found=str(error)[:100],
                hint="another template (blazr serve --chat-template)",
            ) from error
        except Exception as error:
            raise RequestError(
                "the model's chat template cannot render these messages.",
                param="messages",
                found=f"{type(error).__name__}: {error}"[:100],
            ) from error

    def takes(self, name: str) -> bool:
        """Whether a variable of this name hides nothing that templates rely on."""
        return name not in self._template.globals
