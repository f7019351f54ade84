"""What a chat template may cost: a meter on its work, and guards on what makes text grow.

The sandbox keeps a template from the machine, not from filling its memory or running for ever:
``'a'.center(10**9)`` is allowed there. Work is counted in ticks: one per turn of a loop, call and
filter, and more for long texts and lists. Nothing may grow beyond the meter's size, and what
multiplies is asked for its size before it is done. A clock catches what no count does.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from contextvars import ContextVar

MAX_TICKS = 200_000
MAX_SECONDS = 5.0
CHARACTERS_PER_TICK = 2000
ITEMS_PER_TICK = 20
MIN_SIZE = 1_000_000
_LARGEST_INTEGER_BITS = 4096
_WIDE = re.compile(r"[0-9]{4,}|[*{]")
_PERCENT = re.compile(r"%[^a-zA-Z%]*")


class TooMuchError(Exception):
    """A template does more than a chat can need."""


class Meter:
    """What one rendering has left.

    Args:
        size: The most characters or items of anything it makes.
    """

    def __init__(self, size: int = MIN_SIZE) -> None:
        self.size = size
        self.ticks = MAX_TICKS
        self._deadline = time.monotonic() + MAX_SECONDS

    def spend(self, ticks: int) -> None:
        """Count work.

        Raises:
            TooMuchError: There is none left.
        """
        self.ticks -= ticks
        if self.ticks < 0 or time.monotonic() > self._deadline:
            raise TooMuchError("it loops too long")

    def check(self, size: int) -> None:
        """Refuse what is larger than anything may be.

        Raises:
            TooMuchError: It is.
        """
        if size > self.size:
            raise TooMuchError("it makes a text too long")

    def charge(self, value: object) -> None:
        """Check and count a value that was made or is about to be read."""
        if isinstance(value, str):
            self.check(len(value))
            self.spend(1 + len(value) // CHARACTERS_PER_TICK)
        elif isinstance(value, list | tuple | dict):
            self.check(len(value))
            self.spend(1 + len(value) // ITEMS_PER_TICK)
        else:
            self.spend(1)

    def check_deep(self, value: object) -> None:
        """Check and count a value with everything in it, before it is written out."""
        total = 0
        num_items = 0
        stack = [value]
        while stack:
            item = stack.pop()
            num_items += 1
            total += len(item) if isinstance(item, str) else 1
            self.check(total)
            if isinstance(item, Mapping):
                stack += item.keys()
                stack += item.values()
            elif isinstance(item, list | tuple | set | frozenset):
                stack += item
        self.spend(num_items // ITEMS_PER_TICK)


_METER: ContextVar[Meter] = ContextVar("meter")


def use_meter(meter: Meter) -> None:
    """Make a meter the one of this thread's rendering."""
    _METER.set(meter)


def meter() -> Meter:
    """The meter of the rendering in progress. A template is compiled without one: a small one."""
    return _METER.get(Meter())


def join(parts: Iterable[str]) -> str:
    """Join parts of text that were made one by one."""
    here = meter()
    kept: list[str] = []
    total = 0
    for part in parts:
        total += len(part)
        here.check(total)
        kept.append(part)
    here.spend(1 + total // CHARACTERS_PER_TICK)
    return "".join(kept)


def loop_over(items: object) -> object:
    """Count the turns of a loop: at once where there is a length, else one by one."""
    if isinstance(items, Sized):
        meter().spend(len(items))
        return items
    return _counted(items) if isinstance(items, Iterable) else items


def collect(items: Iterable[object]) -> list[object]:
    """The items of a generator, counted, and checked while they are made."""
    here = meter()
    kept: list[object] = []
    total = 0
    for item in items:
        total += len(item) if isinstance(item, str) else 1
        here.check(total)
        here.spend(1)
        kept.append(item)
    return kept


def _counted(items: Iterable[object]) -> Iterable[object]:
    here = meter()
    for item in items:
        here.spend(1)
        yield item


def check_operator(operator: str, left: object, right: object) -> None:
    """Guard ``+ * ** %`` before they are done."""
    here = meter()
    if operator == "+":
        if isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            here.check(len(left) + len(right))
    elif operator == "%" and isinstance(left, str):
        _check_percent(left, right)
    elif isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length()
        grown = bits * max(right, 0) if operator == "**" else bits + right.bit_length()
        if operator != "%" and grown > _LARGEST_INTEGER_BITS:
            raise TooMuchError("it makes a number too long")
    elif operator == "*":
        for many, times in ((left, right), (right, left)):
            if isinstance(many, str | list | tuple) and isinstance(times, int):
                here.check(len(many) * times)


def _check_percent(text: str, values: object) -> None:
    if any(_WIDE.search(found) for found in _PERCENT.findall(text)):
        raise TooMuchError("it formats a text too wide")
    listed = values if isinstance(values, tuple) else (values,)
    _check_formatted(text, text.count("%"), listed)


def _check_formatted(text: str, num_fields: int, values: Iterable[object]) -> None:
    here = meter()
    longest = 0
    for value in values:
        here.check_deep(value)
        longest = max(longest, len(str(value)))
    here.check(len(text) + num_fields * longest)


def check_method(text: str, method: str, arguments: Sequence[object]) -> None:
    """Guard the methods of a text that can make a much longer one, before they are called."""
    guard = _METHOD_GUARDS.get(method)
    if guard is not None:
        guard(text, arguments)


def _check_width(text: str, arguments: Sequence[object]) -> None:
    if arguments and isinstance(arguments[0], int):
        meter().check(max(len(text), arguments[0]))


def _check_tabs(text: str, arguments: Sequence[object]) -> None:
    size = arguments[0] if arguments else 8
    meter().check(len(text) + text.count("\t") * (size if isinstance(size, int) else 8))


def check_replace(text: str, arguments: Sequence[object]) -> None:
    """Guard replacing ``arguments[0]`` in a text by ``arguments[1]``."""
    if len(arguments) >= 2 and isinstance(arguments[0], str):
        new = arguments[1] if isinstance(arguments[1], str) else ""
        meter().check(len(text) + text.count(arguments[0]) * len(new))


def check_join(separator: str, items: object) -> None:
    """Guard joining items by a separator."""
    if not isinstance(items, Sized):
        raise TooMuchError("it joins what has no length")
    meter().check_deep(items)
    meter().check(len(separator) * len(items))


def _check_join_method(text: str, arguments: Sequence[object]) -> None:
    if arguments:
        check_join(text, arguments[0])


def _check_format(text: str, arguments: Sequence[object]) -> None:
    fields = re.findall(r"[{]([^{}]*[{]?)", text.replace("{{", ""))
    if any(_WIDE.search(field) for field in fields):
        raise TooMuchError("it formats a text too wide")
    _check_formatted(text, text.count("{"), arguments)


def _refuse(text: str, arguments: Sequence[object]) -> None:  # noqa: ARG001  (a guard's shape)
    raise TooMuchError("it uses a method that can make any length of text")


_METHOD_GUARDS: Mapping[str, Callable[[str, Sequence[object]], None]] = {
    "center": _check_width,
    "ljust": _check_width,
    "rjust": _check_width,
    "zfill": _check_width,
    "expandtabs": _check_tabs,
    "replace": check_replace,
    "join": _check_join_method,
    "format": _check_format,
    "format_map": _refuse,
    "translate": _refuse,
}
