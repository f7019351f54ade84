"""Grammars as llama.cpp writes them, translated to Lark.

In GBNF characters are all there is. Lark has terminals, which its lexer reads as far as it can, so
that a terminal of spaces leaves none to a space that must follow. Where no rule refers to itself,
the whole grammar is one terminal, and where some do, those that do not are terminals, unless one
could take what follows it.

Source: grammars/README.md and llama-grammar.cpp of llama.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from blazr.core.errors import GrammarError
from blazr.text.grammars.plain import UNFORCED, checked_text, literal

MAX_CHARACTERS = 1 << 16
MAX_RULES = 500
MAX_REPETITIONS = 2000  # as in llama.cpp
_MAX_DEPTH = 120
# A larger grammar is not asked what follows what.
_MAX_EXAMINED = 1000
_LAST = 0x10FFFF
_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_COUNT = re.compile(r"\{\s*(\d{1,9})\s*(?:(,)\s*(\d{1,9})?\s*)?\}")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_ESCAPED = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}


@dataclass(frozen=True, eq=False, slots=True)
class _Chars:
    """One character of some ranges, first and last."""

    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False, slots=True)
class _Sequence:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, eq=False, slots=True)
class _Choice:
    options: tuple[_Node, ...]


@dataclass(frozen=True, eq=False, slots=True)
class _Repeat:
    part: _Node
    least: int
    most: int | None


@dataclass(frozen=True, eq=False, slots=True)
class _Reference:
    name: str


_Node = _Chars | _Sequence | _Choice | _Repeat | _Reference


def gbnf(value: object, special_ids: Mapping[str, int]) -> str:  # noqa: ARG001
    """A context-free grammar as llama.cpp writes it.

    Raises:
        GrammarError: The value is no string, is too long, or is no such grammar.
    """
    source = checked_text(value, "gbnf")
    if len(source) > MAX_CHARACTERS:
        expected = f"at most {MAX_CHARACTERS} characters"
        raise GrammarError("the GBNF grammar is too long.", expected=expected)
    return _Writer(_Reader(source).rules()).write()


# --- reading


class _Reader:
    """Reads rules.

    Args:
        text: What they are written in.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0
        self._depth = 0
        self._named: set[str] = set()  # rules that are referred to

    def rules(self) -> dict[str, _Node]:
        """The rules by name.

        Raises:
            GrammarError: Something else is written, or a rule is missing.
        """
        rules: dict[str, _Node] = {}
        self._skip(_LINES)
        while self._place < len(self._text):
            name = self._take(_NAME)
            self._skip(_SPACE)
            self._expect("::=")
            self._skip(_LINES)
            rules[name] = self._choice()
            if self._place < len(self._text) and self._text[self._place] not in "\r\n":
                raise self._unexpected()
            self._skip(_LINES)
        if len(rules) > MAX_RULES:
            expected = f"at most {MAX_RULES} rules"
            raise GrammarError("the GBNF grammar is too long.", expected=expected)
        missing = [each for each in ("root", *sorted(self._named)) if each not in rules]
        if missing:
            raise _invalid(f"no rule {missing[0][:50]!r}")
        return rules

    def _choice(self) -> _Node:
        options = [self._sequence()]
        while self._text.startswith("|", self._place):
            self._place += 1
            self._skip(_LINES)
            options.append(self._sequence())
        return options[0] if len(options) == 1 else _Choice(tuple(options))

    def _sequence(self) -> _Node:
        space = _LINES if self._depth else _SPACE
        parts: list[_Node] = []
        while (part := self._part()) is not None:
            self._skip(space)
            counts = self._counts()
            parts.append(part if counts is None else _Repeat(part, *counts))
            self._skip(space)
        return parts[0] if len(parts) == 1 else _Sequence(tuple(parts))

    def _part(self) -> _Node | None:
        c = self._peek()
        if c == '"':
            self._place += 1
            return self._literal()
        if c == "[":
            self._place += 1
            return self._class()
        if c == "(":
            self._place += 1
            return self._group()
        if c == ".":
            self._place += 1
            return _Chars(((0, _LAST),))
        match = _NAME.match(self._text, self._place)
        if match is None:
            return None
        self._place = match.end()
        self._named.add(match[0])
        return _Reference(match[0])

    def _group(self) -> _Node:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            expected = f"at most {_MAX_DEPTH} levels of brackets"
            raise GrammarError("the GBNF grammar is not valid.", expected=expected)
        self._skip(_LINES)
        inner = self._choice()
        self._expect(")")
        self._depth -= 1
        return inner

    def _literal(self) -> _Node:
        parts: list[_Node] = []
        while not self._text.startswith('"', self._place):
            code = self._character()
            parts.append(_Chars(((code, code),)))
        self._place += 1
        return parts[0] if len(parts) == 1 else _Sequence(tuple(parts))

    def _class(self) -> _Node:
        is_negated = self._text.startswith("^", self._place)
        self._place += is_negated
        ranges: list[tuple[int, int]] = []
        while not self._text.startswith("]", self._place):
            low = high = self._character()
            if self._text.startswith("-", self._place) and self._peek(1) != "]":
                self._place += 1
                high = self._character()
            if high < low:
                raise self._unexpected()
            ranges.append((low, high))
        if not ranges:
            raise self._unexpected()
        self._place += 1
        return _Chars(_others(ranges) if is_negated else tuple(ranges))

    def _character(self) -> int:
        c = self._peek()
        if c != "\\":
            if not c:
                raise self._unexpected()
            self._place += 1
            return ord(c)
        match = _ESCAPE.match(self._text, self._place)
        if match is None or (match[4] and match[4] not in _ESCAPED):
            raise self._unexpected()
        code = match[1] or match[2] or match[3]
        found = int(code, 16) if code else ord(_ESCAPED[match[4]])
        if found > _LAST or 0xD800 <= found < 0xE000:
            raise self._unexpected()
        self._place = match.end()
        return found

    def _counts(self) -> tuple[int, int | None] | None:
        """How often what was read may be repeated; None is once."""
        c = self._peek()
        if c in {"*", "+", "?"}:
            self._place += 1
            return (c == "+", 1 if c == "?" else None)
        if c != "{":
            return None
        match = _COUNT.match(self._text, self._place)
        if match is None:
            raise self._unexpected()
        least = int(match[1])
        most = (int(match[3]) if match[3] else None) if match[2] else least
        if max(least, most or 0) > MAX_REPETITIONS or (most is not None and most < least):
            raise self._unexpected()
        self._place = match.end()
        return least, most

    def _peek(self, ahead: int = 0) -> str:
        place = self._place + ahead
        return self._text[place : place + 1]

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self._text, self._place)
        assert match is not None
        self._place = match.end()

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._place)
        if match is None:
            raise self._unexpected()
        self._place = match.end()
        return match[0]

    def _expect(self, text: str) -> None:
        if not self._text.startswith(text, self._place):
            raise self._unexpected()
        self._place += len(text)

    def _unexpected(self) -> GrammarError:
        line = self._text.count("\n", 0, self._place) + 1
        rest = self._text[self._place : self._place + 40]
        return _invalid(f"line {line}: {rest!r}" if rest else "its end")


def _others(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """All characters but those of some ranges."""
    found: list[tuple[int, int]] = []
    start = 0
    for low, high in sorted(ranges):
        if low > start:
            found.append((start, low - 1))
        start = max(start, high + 1)
    return (*found, (start, _LAST)) if start <= _LAST else tuple(found)


def _invalid(found: str) -> GrammarError:
    return GrammarError(
        "the GBNF grammar is not valid.",
        found=found[:100],
        expected='rules, such as root ::= "a" | "b"',
    )


# --- writing


class _Writer:
    """Writes rules in Lark.

    Args:
        rules: By name, with a root.
    """

    def __init__(self, rules: Mapping[str, _Node]) -> None:
        self._rules = rules
        self._regular = _regular_names(rules)
        self._names = {name: f"rule_{number}" for number, name in enumerate(rules)}
        self._lines: dict[str, str] = {}  # by the name that each begins with
        self._waiting: list[tuple[str, str]] = []  # names in Lark and here of what is used
        num_nodes = sum(1 for rule in rules.values() for _ in _nodes(rule))
        self._order = _Order(rules, self._regular) if num_nodes <= _MAX_EXAMINED else None

    def write(self) -> str:
        """All of it."""
        is_flat = "root" in self._regular
        lines = [f"start: {self._terminal('root') if is_flat else self._rule('root')}"]
        for written, name in self._waiting:
            if written not in self._lines:
                spell = self._of_terminal if written.isupper() else self._of_rule
                self._lines[written] = f"{written}: {spell(self._rules[name])}"
        text = "\n".join([*lines, *self._lines.values()])
        return text if is_flat else text + UNFORCED

    def _rule(self, name: str) -> str:
        """A rule's name in Lark."""
        written = self._names[name]
        self._waiting.append((written, name))
        return written

    def _terminal(self, name: str) -> str:
        """The name of a terminal of the same texts."""
        written = self._names[name].upper()
        self._waiting.append((written, name))
        return written

    def _of_rule(self, node: _Node) -> str:
        """A part of a rule."""
        is_regular = all(
            each.name in self._regular for each in _nodes(node) if isinstance(each, _Reference)
        )
        if is_regular and self._order is not None and self._order.takes_what_follows(node):
            is_regular = False
        if isinstance(node, _Reference):
            return self._terminal(node.name) if is_regular else self._rule(node.name)
        if _text_of(node) is None and is_regular and not isinstance(node, _Chars):
            name = f"PART_{len(self._lines)}"
            self._lines[name] = f"{name}: {self._of_terminal(node)}"
            return name
        return _spelled(node, list(map(self._of_rule, _inner(node))))

    def _of_terminal(self, node: _Node) -> str:
        if isinstance(node, _Reference):
            return self._terminal(node.name)
        return _spelled(node, list(map(self._of_terminal, _inner(node))))


def _regular_names(rules: Mapping[str, _Node]) -> tuple[str, ...]:
    """The rules that lead to none that refers to itself, each behind those that it needs."""
    needs = {
        name: {each.name for each in _nodes(rule) if isinstance(each, _Reference)}
        for name, rule in rules.items()
    }
    found: dict[str, None] = {}
    while more := [name for name, names in needs.items() if names <= found.keys()]:
        for name in more:
            found[name] = None
            del needs[name]
    return tuple(found)


def _inner(node: _Node) -> tuple[_Node, ...]:
    if isinstance(node, _Sequence):
        return node.parts
    if isinstance(node, _Choice):
        return node.options
    return (node.part,) if isinstance(node, _Repeat) else ()


def _nodes(node: _Node) -> Iterator[_Node]:
    """A node and all that are in it, references not followed."""
    yield node
    for each in _inner(node):
        yield from _nodes(each)


def _text_of(node: _Node) -> str | None:
    """The only text of a node; None where it is not written as one."""
    if isinstance(node, _Chars):
        [(low, high), *others] = node.ranges
        return chr(low) if low == high and not others else None
    if not isinstance(node, _Sequence) or not node.parts:
        return None
    texts = [_text_of(each) if isinstance(each, _Chars) else None for each in node.parts]
    return None if None in texts else "".join(filter(None, texts))


def _spelled(node: _Node, inner: list[str]) -> str:
    """A node as Lark spells it, whose inner ones are spelled already."""
    text = _text_of(node)
    if text is not None:
        return literal(text)
    if isinstance(node, _Chars):
        return f"/[{''.join(f'{_hex(low)}-{_hex(high)}' for low, high in _sound(node.ranges))}]/"
    if isinstance(node, _Choice):
        return f"({' | '.join(inner)})"
    if not isinstance(node, _Repeat):
        return " ".join(inner) or '""'
    if node.most == 0:
        return '""'
    counts = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((node.least, node.most))
    most = "" if node.most is None else node.most
    return f"({inner[0]}){counts or f'{{{node.least},{most}}}'}"


def _sound(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Ranges whose ends are no halves of surrogate pairs."""
    for low, high in ranges:
        first = 0xE000 if 0xD800 <= low < 0xE000 else low
        last = 0xD7FF if 0xD800 <= high < 0xE000 else high
        if first <= last:
            yield first, last


def _hex(code: int) -> str:
    return f"\\x{{{code:x}}}"


# --- what follows what

_Set = int  # of characters that are written in the grammar: a bit for each


class _Order:
    """Which characters may follow which part of a grammar.

    Args:
        rules: By name.
        regular: Those that do not lead to themselves, each behind those that it needs.
    """

    def __init__(self, rules: Mapping[str, _Node], regular: Iterable[str]) -> None:
        self._rules = rules
        nodes = [each for rule in rules.values() for each in _nodes(rule)]
        self._chars = [each for each in nodes if isinstance(each, _Chars)]
        self._bits = {id(each): 1 << bit for bit, each in enumerate(self._chars)}
        self._optional: set[str] = set()  # rules that derive the empty text
        self._firsts: dict[str, _Set] = dict.fromkeys(rules, 0)
        self._follows: dict[str, _Set] = dict.fromkeys(rules, 0)
        self._after: dict[int, _Set] = {}
        while self._find_firsts():
            pass
        while self._find_follows():
            pass
        self._alls: dict[str, _Set] = {}
        self._mores: dict[str, _Set] = {}
        for name in regular:
            self._alls[name] = self._all(rules[name])
            self._mores[name] = self._more(rules[name])

    def takes_what_follows(self, node: _Node) -> bool:
        """Whether a regular part, read as far as it goes, could take what has to follow it.

        A repetition that follows itself, as of spaces, takes what it could have anyway.
        """
        after = self._after.get(id(node), 0)
        body = node
        while isinstance(body, _Reference):
            body = self._rules[body.name]
        if isinstance(body, _Repeat) and body.most is None and body.least <= 1:
            after &= ~self._first(body)
        return self._meet(self._more(node), after)

    def _find_firsts(self) -> bool:
        changed = False
        for name, rule in self._rules.items():
            first = self._first(rule)
            if self._is_optional(rule) and name not in self._optional:
                self._optional.add(name)
                changed = True
            changed |= first != self._firsts[name]
            self._firsts[name] = first
        return changed

    def _find_follows(self) -> bool:
        before = dict(self._follows)
        for name, rule in self._rules.items():
            self._put(rule, self._follows[name])
        return before != self._follows

    def _put(self, node: _Node, after: _Set) -> None:
        """Note what follows a node and all that are in it."""
        self._after[id(node)] = after
        if isinstance(node, _Reference):
            self._follows[node.name] |= after
        elif isinstance(node, _Repeat):
            self._put(node.part, after | (0 if node.most == 1 else self._first(node.part)))
        elif isinstance(node, _Choice):
            for each in node.options:
                self._put(each, after)
        elif isinstance(node, _Sequence):
            for each in reversed(node.parts):
                self._put(each, after)
                after = self._first(each) | (after if self._is_optional(each) else 0)

    def _is_optional(self, node: _Node) -> bool:
        if isinstance(node, _Reference):
            return node.name in self._optional
        if isinstance(node, _Repeat):
            return node.least == 0 or self._is_optional(node.part)
        if isinstance(node, _Choice):
            return any(map(self._is_optional, node.options))
        return isinstance(node, _Sequence) and all(map(self._is_optional, node.parts))

    def _first(self, node: _Node) -> _Set:
        """What a node begins with."""
        if isinstance(node, _Chars):
            return self._bits[id(node)]
        if isinstance(node, _Reference):
            return self._firsts[node.name]
        found = 0
        for each in _inner(node):
            found |= self._first(each)
            if isinstance(node, _Sequence) and not self._is_optional(each):
                break
        return found

    def _all(self, node: _Node) -> _Set:
        """All that is in a regular node."""
        if isinstance(node, _Reference):
            return self._alls[node.name]
        found = self._bits.get(id(node), 0)
        for each in _inner(node):
            found |= self._all(each)
        return found

    def _more(self, node: _Node) -> _Set:
        """What a whole text of a regular node may go on with, or more than that."""
        if isinstance(node, _Reference):
            return self._mores[node.name]
        found = 0
        if isinstance(node, _Sequence):
            for each in reversed(node.parts):
                found |= self._more(each)
                if not self._is_optional(each):
                    break
                found |= self._first(each)
            return found
        for each in _inner(node):
            found |= self._more(each)
        if isinstance(node, _Repeat) and (node.most != node.least or self._is_optional(node.part)):
            found |= self._first(node.part)
        if isinstance(node, _Choice) and self._meet(*map(self._first, node.options)):
            found |= self._all(node)
        return found

    def _meet(self, *sets: _Set) -> bool:
        """Whether some character is in two of them."""
        ranges = [
            (*each, number) for number, some in enumerate(sets) for each in self._ranges(some)
        ]
        end, last = -1, -1
        for low, high, number in sorted(ranges):
            if low <= end and number != last:
                return True
            end, last = max((end, last), (high, number))
        return False

    def _ranges(self, found: _Set) -> Iterator[tuple[int, int]]:
        while found:
            bit = found.bit_length() - 1
            found ^= 1 << bit
            yield from self._chars[bit].ranges
