"""What is asked before a template's operators, methods and filters are done, and counted.

Python's own operators cannot be stopped: ``==`` of two lists goes through everything in them, as
often as it occurs there, and a hash does too. So each guard counts the work ahead on the `Meter` of
the rendering, and refuses what would take too much of it.
"""

from __future__ import annotations

import re
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    Sequence,
    Sized,
)
from types import BuiltinMethodType, MethodType

from jinja2 import Undefined
from jinja2.runtime import LoopContext

from blazr.text.templates.program import (
    BYTES_PER_TICK,
    ITEMS_PER_TICK,
    MAX_INTEGER_BITS,
    SCALARS,
    Extent,
    TooMuchError,
    check_deep,
    check_integer,
    meter,
)

# Comparisons of single characters.
_COMPARISONS_PER_TICK = 25_000
_MAX_COMPARISONS_PER_CHARACTER = 100
_MAX_PRECISION = 100
_MAX_FIELD_WIDTH = 999
# Keys that are no texts may be chosen such that they all collide, which takes quadratic time.
_MAX_ODD_KEYS = 1000

_NUMBERS = (int, float, complex)
_OPERANDS = (*_NUMBERS, str, list, tuple, dict, type(None), Undefined)
_WIDE = re.compile(r"[0-9]{4,}|[*{]")
_PERCENT = re.compile(r"%[^a-zA-Z%]*")
_FIELD = re.compile(r"[{]([^{}]*[{]?)")


def collect(items: Iterable[object]) -> list[object]:
    """The items of an iterator, counted, and checked while they are made."""
    here = meter()
    kept: list[object] = []
    total = 0
    for item in items:
        total += len(item) if isinstance(item, str) else 1
        here.check(total)
        here.check_items(len(kept))
        here.spend(1)
        kept.append(item)
    return kept


class Lazy(Iterator[object]):
    """An iterator that counts its items. Python frees a deep nest of these without recursion."""

    def __init__(self, items: Iterable[object], check: Callable[[object], object]) -> None:
        self._items = iter(items)
        self._check = check

    def __next__(self) -> object:
        item = next(self._items)
        meter().spend(1)
        self._check(item)
        return item


def _accept(item: object) -> None:
    """Any item will do."""


# --- comparing, searching, hashing


def check_compared(value: object) -> object:
    """A side of a comparison."""
    if type(value) not in SCALARS:
        check_deep(value)
    elif isinstance(value, int):
        check_integer(value)
    return value


def check_searched(value: object) -> object:
    """What ``in`` looks into."""
    if isinstance(value, LoopContext):
        raise TypeError("a loop has no items to look for")
    if isinstance(value, Iterator):
        value = collect(value)
    if isinstance(value, range):
        meter().spend(len(value) // ITEMS_PER_TICK)
    elif not isinstance(value, Mapping | KeysView):  # these only hash
        check_deep(value)
    return value


def check_key(value: object) -> object:
    """What is hashed."""
    if isinstance(value, str):
        meter().spend(len(value) // BYTES_PER_TICK)
    elif type(value) not in SCALARS:
        check_deep(value)
    return value


def check_pairs(pairs: object) -> object:
    """What a mapping is made of: another, or pairs."""
    if isinstance(pairs, Iterator):
        pairs = collect(pairs)
    check_deep(pairs)
    if not isinstance(pairs, Mapping) and isinstance(pairs, Iterable):
        keys = (pair[0] for pair in pairs if isinstance(pair, list | tuple) and pair)
        if sum(not isinstance(key, str) for key in keys) > _MAX_ODD_KEYS:
            raise TooMuchError("it makes a mapping with too many keys that are no texts")
    return pairs


# --- operators


def check_operator(operator: str, left: object, right: object) -> None:
    """Guard the binary operators before they are done.

    Raises:
        TooMuchError: It would take too much.
        TypeError: A side is nothing that templates compute with.
    """
    if isinstance(left, _NUMBERS) and isinstance(right, _NUMBERS):
        _check_numbers(operator, left, right)
        return
    for side in (left, right):
        # views of a mapping can be subtracted, which hashes what is in the other side
        if not isinstance(side, _OPERANDS):
            raise TypeError(f"unsupported operand type for {operator}: {type(side).__name__!r}")
    if operator == "+":
        _check_sum(left, right)
    elif operator == "*":
        _check_product(left, right)
        _check_product(right, left)
    elif operator == "%" and isinstance(left, str):
        values = right if isinstance(right, tuple) else (right,)
        _check_format(left, _PERCENT.findall(left), left.count("%"), values)


def _check_sum(left: object, right: object) -> None:
    if isinstance(left, str) and isinstance(right, str):
        meter().check(len(left) + len(right))
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
        meter().check_items(len(left) + len(right))


def _check_product(many: object, times: object) -> None:
    if isinstance(times, int) and isinstance(many, str):
        meter().check(len(many) * times)
    elif isinstance(times, int) and isinstance(many, list | tuple):
        meter().check_items(len(many) * times)


def _check_numbers(operator: str, left: complex, right: complex) -> None:
    for side in (left, right):
        if isinstance(side, int):
            check_integer(side)
    if isinstance(left, int) and isinstance(right, int) and operator in {"*", "**"}:
        bits = left.bit_length()
        grown = bits * max(right, 0) if operator == "**" else bits + right.bit_length()
        if grown > MAX_INTEGER_BITS:
            raise TooMuchError("it makes a number too long")


def _check_format(
    text: str, fields: Sequence[str], most_fields: int, values: Iterable[object]
) -> None:
    """Guard formatting a text, as ``%`` and ``format`` do."""
    if any(_WIDE.search(field) for field in fields):
        raise TooMuchError("it formats a text too wide")
    has_width = any(character.isdigit() for field in fields for character in field)
    here = meter()
    here.spend(len(text) // BYTES_PER_TICK + most_fields)
    longest = _MAX_FIELD_WIDTH if has_width else 0
    for value in values:
        extent = check_deep(value)
        # quotes, commas and brackets of a container
        longest = max(longest, extent.num_characters + 4 * extent.num_items)
    here.check(len(text) + most_fields * longest)


# --- calls

# They compare each character with each of their argument's, at worst.
_QUADRATIC_METHODS = frozenset({
    "lstrip", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "strip",
})  # fmt: skip
_PADDING_METHODS = frozenset({"center", "ljust", "rjust", "zfill"})
# What a template may call of a text: what it asks for takes as long as the text is, or is guarded.
TEXT_METHODS = _QUADRATIC_METHODS | _PADDING_METHODS | {
    "capitalize", "casefold", "count", "endswith", "expandtabs", "find", "format", "index",
    "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric",
    "isprintable", "isspace", "istitle", "isupper", "join", "lower", "partition", "removeprefix",
    "removesuffix", "replace", "split", "splitlines", "startswith", "swapcase", "title", "upper",
}  # fmt: skip


def check_call(function: object, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """Guard any call in a template."""
    meter().spend(1 + (len(args) + len(kwargs)) // ITEMS_PER_TICK)
    method = getattr(function, "__wrapped__", function)
    if not isinstance(method, BuiltinMethodType | MethodType):
        return
    owner = method.__self__
    given = [*args, *kwargs.values()]
    if isinstance(owner, str):
        meter().charge(owner)
        check_method(owner, method.__name__, given)
    elif isinstance(owner, list | tuple | dict):
        check_container_method(owner, method.__name__, given)
    elif isinstance(owner, LoopContext) and method.__name__ == "changed":
        check_deep(given)


def check_container_method(
    owner: list[object] | tuple[object, ...] | dict[object, object],
    method: str,
    arguments: Sequence[object],
) -> None:
    """Guard the methods of a list, tuple or mapping."""
    if method in {"count", "index"}:
        check_deep(owner)
        check_deep(list(arguments))
    elif method == "get":
        for argument in arguments[:1]:
            check_key(argument)
    elif method in {"copy", "pop"}:
        meter().spend(len(owner) // ITEMS_PER_TICK)


def check_method(text: str, method: str, arguments: Sequence[object]) -> None:
    """Guard the methods of a text."""
    first = arguments[0] if arguments else None
    if method in _QUADRATIC_METHODS:
        check_comparisons(text, first)
    elif method in _PADDING_METHODS:
        if isinstance(first, int):
            meter().check(max(len(text), first))
    elif method == "expandtabs":
        width = first if isinstance(first, int) else 8
        meter().check(len(text) + text.count("\t") * width)
    elif method == "replace":
        check_replace(text, arguments)
    elif method == "join":
        check_join(text, first)
    elif method in {"format", "format_map"}:  # Jinja replaces both by its own
        fields = _FIELD.findall(text.replace("{{", ""))
        _check_format(text, fields, text.count("{"), arguments)
    else:
        check_deep(list(arguments))


def check_comparisons(text: str, characters: object) -> None:
    """Guard what compares each character of a text with each of another."""
    if isinstance(characters, str):
        count = len(text) * len(characters)
        meter().check(count // _MAX_COMPARISONS_PER_CHARACTER)
        meter().spend(count // _COMPARISONS_PER_TICK)


def check_replace(text: str, arguments: Sequence[object]) -> None:
    """Guard replacing ``arguments[0]`` in a text by ``arguments[1]``."""
    if len(arguments) >= 2 and isinstance(arguments[0], str):
        new = arguments[1] if isinstance(arguments[1], str) else ""
        meter().check(len(text) + text.count(arguments[0]) * len(new))


def check_join(separator: str, items: object) -> None:
    """Guard joining items by a separator."""
    if not isinstance(items, Sized):
        raise TooMuchError("it joins what has no length")
    check_deep(items)
    meter().check(len(separator) * len(items))


# --- filters

# Filters that look at a container's outside; that go through it item by item as they are asked;
# and that copy it at once. The others read everything in it.
_OUTSIDE_FILTERS = {"attr", "count", "d", "default", "first", "items", "last", "length"}
_LAZY_FILTERS = {"map", "reject", "rejectattr", "select", "selectattr", "unique"}
_COPYING_FILTERS = {"list", "reverse"}
_SORTING_FILTERS = {"dictsort", "groupby", "sort"}


def prepare_filter(name: str, value: object, arguments: list[object]) -> object:
    """What a filter is applied to, counted for the work that the filter has with it."""
    if name in _OUTSIDE_FILTERS:
        meter().spend(1)
        return value
    if name in _LAZY_FILTERS:
        if not isinstance(value, Iterable) or isinstance(value, Undefined):
            return value
        return Lazy(value, check_key if name == "unique" else _accept)
    if isinstance(value, Iterator):
        value = collect(value)
    elif isinstance(value, range):
        value = list(value)
    meter().charge(value)
    if name in _COPYING_FILTERS:
        return value
    check_filter(name, value, check_deep(value), arguments)
    return value


def check_filter(name: str, value: object, extent: Extent, arguments: list[object]) -> None:
    """Guard the filters that may make much more of a value, or take much longer, than its size."""
    texts = [_as_text(each) for each in arguments]
    text = _as_text(value) if name in {"indent", "replace", "trim"} else ""
    if name == "replace":
        check_replace(text, texts)
    elif name == "trim" and texts:
        check_comparisons(text, texts[0])
    elif name == "join" and not isinstance(value, Undefined):
        check_join(texts[0] if texts else "", value)
    elif name == "indent":
        meter().check((len(text.splitlines()) + 1) * sum(map(_width, arguments)))
    elif name == "tojson":
        # indented, each item is on a line of its own; separators are two to an item
        num_widths = extent.num_indents + 2 * extent.num_items
        meter().check(num_widths * sum(map(_width, arguments)))
    elif name == "round":
        if any(isinstance(each, int) and abs(each) > _MAX_PRECISION for each in arguments):
            raise TooMuchError("it rounds to too many digits")
    elif name in _SORTING_FILTERS:
        meter().spend(extent.num_items * extent.num_items.bit_length() // ITEMS_PER_TICK)
    elif name == "urlencode":
        meter().check(12 * extent.num_characters)


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return value
    check_deep(value)
    return str(value)


def _width(argument: object) -> int:
    """Characters that an argument adds to each line."""
    if isinstance(argument, int):
        return max(argument, 0)
    return 0 if argument is None else len(_as_text(argument))


# --- tests


def check_test(name: str, value: object, arguments: list[object]) -> tuple[object, list[object]]:
    """What a test is asked about, and its arguments, counted for the work it has with them."""
    if name == "in":
        return check_compared(value), [check_searched(each) for each in arguments]
    if name in _COMPARING_TESTS:
        return check_compared(value), [check_compared(each) for each in arguments]
    if name in {"divisibleby", "even", "odd"}:
        for number in (value, *arguments):
            if not isinstance(number, int | float | Undefined):
                raise TypeError(f"{type(number).__name__!r} is no number")
            check_operator("%", number, number)
    elif name in {"lower", "upper", "json"}:
        check_deep(value)
    return value, arguments


_COMPARING_TESTS = frozenset({
    "!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "le", "lessthan",
    "lt", "ne",
})  # fmt: skip
