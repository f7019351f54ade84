"""A Lark grammar as a part of another: its texts as they are, or as they stand in a JSON string.

The source is read token by token. Grammars whose rules do not refer to themselves become one
terminal. Others stay rules; in JSON they are rules of single characters, because the lexer looks no
further than one byte ahead, and a backslash may go on with a text or begin the line end after it.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from blazr.core.errors import GrammarError
from blazr.text.grammars.plain import UNFORCED, inside_string

MAX_CHARACTERS = 1 << 16
# What a JSON string cannot hold as it is.
_ESCAPED = (*tuple(map(chr, range(32))), '"', "\\")
_PLAIN = r'[^"\\\x00-\x1F]'

_TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|\#[^\n]*)
      |(?P<string>"(?:\\.|[^"\\\n])*"i?)
      |(?P<regex>/(?!/)(?:\\.|[^/\\\n])+/[a-z]*)
      |(?P<directive>%[a-z]+)
      |(?P<name>[!?]*_?[a-zA-Z][\w-]*)
      |(?P<number>-?\d+)
      |(?P<mark>->|\.\.|[][(){}|:?*+~,.=])""",
    re.VERBOSE,
)
# The terminals of Lark's own library [lark/grammars/common.lark].
_COMMON: Mapping[str, str] = {
    "DIGIT": "/[0-9]/",
    "HEXDIGIT": "/[a-fA-F0-9]/",
    "INT": "/[0-9]+/",
    "SIGNED_INT": "/[+-]?[0-9]+/",
    "DECIMAL": r"/[0-9]+\.[0-9]*|\.[0-9]+/",
    "FLOAT": r"/[0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?/",
    "SIGNED_FLOAT": r"/[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)/",
    "NUMBER": r"/([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?/",
    "SIGNED_NUMBER": r"/[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?/",
    "ESCAPED_STRING": r'/"([^"\\\n]|\\[^\n])*"/',
    "LCASE_LETTER": "/[a-z]/",
    "UCASE_LETTER": "/[A-Z]/",
    "LETTER": "/[A-Za-z]/",
    "WORD": "/[A-Za-z]+/",
    "CNAME": "/[_A-Za-z][_A-Za-z0-9]*/",
    "WS_INLINE": r"/[ \t]+/",
    "WS": r"/[ \t\f\r\n]+/",
    "CR": r"/\r/",
    "LF": r"/\n/",
    "NEWLINE": r"/(\r?\n)+/",
    "SH_COMMENT": r"/#[^\n]*/",
    "CPP_COMMENT": r"/\/\/[^\n]*/",
    "SQL_COMMENT": r"/--[^\n]*/",
}


@dataclass(frozen=True, slots=True)
class Embedded:
    """A grammar that another can hold.

    Args:
        source: Its rules.
        start: The name of the one that is the whole of it; None where it is a grammar of its own.
        is_terminal: Whether the rules are terminals.
    """

    source: str
    start: str | None
    is_terminal: bool = False


def embed(source: str, prefix: str, *, in_json: bool) -> Embedded:
    """A Lark grammar to be part of another.

    Args:
        source: The grammar.
        prefix: What the names of its rules are to begin with, small letters.
        in_json: Its texts stand in a JSON string.

    Raises:
        GrammarError: It is no Lark grammar, or uses what cannot be carried over.
    """
    if len(source) > MAX_CHARACTERS:
        expected = f"at most {MAX_CHARACTERS} characters"
        raise GrammarError("the Lark grammar is too long.", expected=expected)
    rules, ignored = _read(source)
    if "start" not in rules:
        raise GrammarError("the Lark grammar has no rule named start.", expected="start: ...")
    is_flat = not _refers_to_itself(rules)
    if not is_flat and not in_json:
        return Embedded(source + UNFORCED, None)
    prefix = prefix.upper() if is_flat else prefix
    names = {name: f"{prefix}_{number}" for number, name in enumerate(rules)}
    skip = f"{prefix}_{'IGNORED' if is_flat else 'ignored'}" if ignored else ""
    lines = []
    for name, body in rules.items():
        is_rule = name.lstrip("_")[:1].islower()
        writer = _Writer(names, skip if is_rule else "", in_json=in_json, is_flat=is_flat)
        lines.append(f"{names[name]}: {writer.write(body)}")
    if ignored:
        writer = _Writer(names, "", in_json=in_json, is_flat=is_flat)
        lines.append(f"{skip}: ({' | '.join(map(writer.write, ignored))})*")
    return Embedded("\n".join(lines), names["start"], is_terminal=is_flat)


# --- reading

_Token = tuple[str, str]  # kind and text
_Body = Sequence[_Token]


def _tokens(source: str) -> list[_Token]:
    """What a grammar is written of, without what a parser would call an alternative."""
    tokens: list[_Token] = []
    place = 0
    while place < len(source):
        match = _TOKEN.match(source, place)
        if match is None:
            raise _refused(source[place : place + 30])
        place = match.end()
        if match.lastgroup != "skip":
            tokens.append((str(match.lastgroup), match[0]))
    kept: list[_Token] = []
    in_import = False  # where names that are given stay
    for at, (kind, text) in enumerate(tokens):
        if kind == "directive":
            in_import = text == "%import"
        elif at + 1 < len(tokens) and tokens[at + 1][1] == ":":
            in_import = False
        is_alias = text == "->" or (at and tokens[at - 1][1] == "->")
        if in_import or not is_alias:
            kept.append((kind, text))
    return kept


def _read(source: str) -> tuple[dict[str, _Body], list[_Body]]:
    """The rules by name, and what is ignored between them."""
    tokens = _tokens(source)
    rules: dict[str, _Body] = {}
    ignored: list[_Body] = []
    place = 0
    while place < len(tokens):
        kind, text = tokens[place]
        if kind == "directive":
            end = _statement_end(tokens, place + 1)
            statement = tokens[place + 1 : end]
            if text == "%import":
                rules |= _imported(statement)
            elif text == "%ignore":
                ignored.append(statement)
            else:
                raise _refused(text)
        else:
            start = place + 1
            if start + 1 < len(tokens) and tokens[start][1] == ".":  # a priority, which is dropped
                start += 2
            if kind != "name" or start >= len(tokens) or tokens[start][1] != ":":
                raise _refused(text)
            end = _statement_end(tokens, start + 1)
            rules[text.lstrip("!?")] = tokens[start + 1 : end]
        place = end
    return rules, ignored


def _statement_end(tokens: Sequence[_Token], place: int) -> int:
    while place < len(tokens) and tokens[place][0] != "directive":
        texts = [text for _, text in tokens[place : place + 4]]
        if tokens[place][0] == "name" and (texts[1:2] == [":"] or texts[1::2] == [".", ":"]):
            break
        place += 1
    return place


def _imported(statement: _Body) -> dict[str, _Body]:
    """The rules for ``%import common.A``, ``common.A -> B`` or ``common (A, B)``."""
    words = [text for _, text in statement if text not in {",", "(", ")", "."}]
    if not words or words[0] != "common":
        raise _refused("%import " + " ".join(words)[:30])
    pairs = [(each, each) for each in words[1:]]
    if "->" in words:
        pairs = [(words[1], words[-1])]
    unknown = [name for name, _ in pairs if name not in _COMMON]
    if unknown:
        raise _refused(f"%import common.{unknown[0]}")
    return {new: [("regex", _COMMON[name])] for name, new in pairs}


def _refers_to_itself(rules: Mapping[str, _Body]) -> bool:
    below: dict[str, int] = {}  # 1 while it is looked into, 2 afterwards

    def visit(name: str) -> bool:
        if name in below or name not in rules:
            return below.get(name) == 1
        below[name] = 1
        found = any(visit(text.lstrip("!?")) for kind, text in rules[name] if kind == "name")
        below[name] = 2
        return found

    return any(visit(name) for name in rules)


# --- writing


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes the bodies of rules.

    Args:
        names: The new names.
        skip: What may stand after each text of the body; empty for nothing.
        in_json: Whether texts stand in a JSON string.
        is_flat: Whether the body is that of a terminal; else, of a rule of single characters.
    """

    names: Mapping[str, str]
    skip: str
    in_json: bool
    is_flat: bool

    def write(self, body: _Body) -> str:
        """A body, in what is left of Lark."""
        out: list[str] = []
        place = 0
        while place < len(body):
            text = body[place][1]
            following = body[place + 1 : place + 3]
            if following and following[0][1] == "..":
                out.append(self._text(self._range(text, following[1:])))
                place += 3
                continue
            if text == "~" and (not following or following[0][0] != "number"):
                raise _refused(text)
            out.append(self._token(body[place]))
            place += 1
        return " ".join(out)

    def _token(self, token: _Token) -> str:
        kind, text = token
        if kind == "string":
            if not self.in_json:
                return self._text(text)
            is_insensitive = text.endswith("i")
            unescaped = _unescaped(text.removesuffix("i")[1:-1])
            if self.is_flat and not is_insensitive:
                return self._text(json.dumps(inside_string(unescaped), ensure_ascii=False))
            parts = [_literal(c, insensitive=is_insensitive) for c in unescaped]
            return self._text(self._pattern(parts))
        if kind == "regex":
            pattern, flags = text[1:].rsplit("/", 1)
            if self.in_json and set(flags) - {"i", "s", "u"}:
                raise _refused(text[-20:])
            in_json = self.in_json
            return self._text(self._pattern(_Quoter(pattern, flags).run()) if in_json else text)
        if kind == "name":
            name = text.lstrip("!?")
            if name not in self.names:
                raise GrammarError("the Lark grammar names a rule it has not.", found=name[:50])
            is_terminal = name.lstrip("_")[:1].isupper()
            return self._text(self.names[name]) if is_terminal else self.names[name]
        return {"[": "(", "]": ")?"}.get(text, text)

    def _text(self, written: str) -> str:
        return f"({written} {self.skip})" if self.skip else written

    def _range(self, first: str, last: _Body) -> str:
        if not last or last[0][0] != "string":
            raise _refused("..")
        if not self.in_json:
            return f"{first}..{last[0][1]}"
        low, high = (_unescaped(each[1:-1]) for each in (first, last[0][1]))
        if len(low) != 1 or len(high) != 1:
            raise _refused(first)
        return self._pattern([_atom(f"[{_hex(low)}-{_hex(high)}]", lambda c: low <= c <= high)])

    def _pattern(self, parts: Sequence[str | _Mark]) -> str:
        """A regular expression: one, or the same as a rule of its characters."""
        if self.is_flat:
            return f"/{''.join(map(str, parts))}/" if parts else '""'
        spelled = [str(each) if isinstance(each, _Mark) else f"/{each}/" for each in parts]
        return f"({' '.join(spelled)})"


class _Mark(str):
    """What a regular expression has between its characters, and a rule too."""

    __slots__ = ()


class _Quoter:
    """A regular expression of texts as one of these texts in a JSON string.

    Args:
        pattern: In the syntax of Rust's ``regex``.
        flags: ``i`` takes capitals for small letters, with ``s`` a dot is also the end of a line.
    """

    def __init__(self, pattern: str, flags: str) -> None:
        self._pattern = pattern
        self._place = 0
        self._flags = [frozenset(flags)]  # of the groups that are open

    def run(self) -> list[str | _Mark]:
        """The other expression: its characters, and what stands between them."""
        out: list[str | _Mark] = []
        while self._place < len(self._pattern):
            out.append(self._next())
        return out

    def _take(self, text: str) -> str:
        self._place += len(text)
        return text

    def _next(self) -> str | _Mark:
        unread = self._pattern[self._place :]
        c = unread[0]
        special = {"(": self._open, "[": self._class, "\\": self._escape}.get(c)
        if special is not None:
            return special(unread)
        if c == ")":
            if len(self._flags) == 1:
                raise _refused(unread[:10])
            self._flags.pop()
            return _Mark(self._take(c))
        if c == ".":
            self._take(c)
            dot_all = "s" in self._flags[-1]
            return _atom("(?s:.)" if dot_all else ".", lambda each: dot_all or each != "\n")
        repeat = re.match(r"([*+?]|\{\d*,?\d*\})\??|\|", unread)
        if repeat:  # as few as possible is still any number
            self._take(repeat[0])
            return _Mark(repeat[1] or "|")
        if c in "^$":
            raise _refused(f"{c} in a regular expression")
        return self._one(_literal(self._take(c)))

    def _one(self, atom: str) -> str:
        return f"(?i:{atom})" if "i" in self._flags[-1] else atom

    def _open(self, unread: str) -> _Mark:
        head = re.match(r"\((?:\?(?:P?<\w+>|([a-zA-Z]*)(?:-([a-zA-Z]*))?(:|\))))?", unread)
        assert head is not None
        self._take(head[0])
        on, off = set(head[1] or ""), set(head[2] or "")
        if (head[0] == "(" and unread.startswith("(?")) or (on | off) - {"i", "s", "u", "U"}:
            raise _refused(unread[:10])
        flags = (self._flags[-1] | on) - off
        if head[3] == ")":  # it holds to the end of the group
            self._flags[-1] = flags
            return _Mark("")
        self._flags.append(flags)
        return _Mark("(")

    def _escape(self, unread: str) -> str:
        named = re.match(r"\\(?:[pP](?:\{[^}]*\}|\w)|[dDwWsS])", unread)
        if named:
            self._take(named[0])
            return self._one(_atom(f"[{named[0]}]", _members(named[0])))
        c, text = _character(unread)
        self._take(text)
        if c is None:
            raise _refused(text)
        return self._one(_literal(c))

    def _class(self, unread: str) -> str:
        end = re.match(r"\[\^?\]?(?:\\.|[^\]\\[])*\]", unread, re.DOTALL)
        if end is None or "&&" in end[0] or "--" in end[0] or "~~" in end[0]:
            raise _refused(unread[:20])
        self._take(end[0])
        body = end[0][1:-1]
        is_negated = body.startswith("^")
        has = _members(body[is_negated:])
        return self._one(_atom(end[0], lambda c: has(c) != is_negated))


def _members(body: str) -> Callable[[str], bool]:
    """Which characters the inside of a class has. Only those that JSON escapes are asked for."""
    tests: list[Callable[[str], bool]] = []
    while body:
        named = re.match(r"\\([pP])(?:\{(\^?)([^}]*)\}|(\w))|\\([dDwWsS])", body)
        if named:
            body = body[named.end() :]
            tests.append(_named_members(named))
            continue
        low, text = _character(body)
        body = body[len(text) :]
        high = low
        if re.match(r"-[^]]", body):
            high, text = _character(body[1:])
            body = body[1 + len(text) :]
        if low is None or high is None:
            raise _refused(text)
        tests.append(lambda c, low=low, high=high: low <= c <= high)  # type: ignore[misc]
    return lambda c: any(test(c) for test in tests)


def _named_members(named: re.Match[str]) -> Callable[[str], bool]:
    letter = named[5]
    if letter:
        kinds = {"d": str.isdigit, "w": lambda c: c.isalnum() or c == "_", "s": str.isspace}
        # Python takes four separators for white space that Unicode does not
        has = kinds[letter.lower()]
        return lambda c: (has(c) and c not in "\x1c\x1d\x1e\x1f") != letter.isupper()
    category = named[3] or named[4]
    if not re.fullmatch(r"[CLMNPSZ][a-z]?", category):
        raise _refused(named[0])
    is_negated = (named[1] == "P") != bool(named[2])
    return lambda c: unicodedata.category(c).startswith(category) != is_negated


_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}


def _character(text: str) -> tuple[str | None, str]:
    """The character that a regular expression goes on with, and how it is spelled; None is none."""
    if text[0] != "\\":
        return text[0], text[0]
    code = re.match(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|[xuU]\{([0-9a-fA-F]{1,6})\})", text)
    if code:
        return chr(int(code[1] or code[2] or code[3], 16)), code[0]
    c = text[1:2]
    if c in _CONTROLS:
        return _CONTROLS[c], text[:2]
    return (None if c.isalnum() or not c else c), text[:2]


def _literal(c: str, *, insensitive: bool = False) -> str:
    """One character."""
    if c in _ESCAPED:
        return f"(?-i:{_spelled(inside_string(c))})"
    return f"(?i:{_spelled(c)})" if insensitive else _spelled(c)


def _spelled(text: str) -> str:
    """A text as a regular expression between slashes."""
    return "".join(c if c.isalnum() or ord(c) > 127 else _hex(c) for c in text)


def _hex(c: str) -> str:
    return f"\\x{{{ord(c):x}}}"


def _atom(pattern: str, has: Callable[[str], bool]) -> str:
    """One character of a class: as it is, or as JSON escapes it."""
    escapes = [_spelled(inside_string(c)) for c in _ESCAPED if has(c)]
    if not escapes:
        return pattern
    plain = f"[{pattern}&&{_PLAIN}]" if pattern.startswith("[") else _PLAIN
    return f"(?:{plain}|(?-i:{'|'.join(escapes)}))"


def _unescaped(text: str) -> str:
    """What stands between the quotes of a string in Lark."""
    codes = re.sub(r"\\x([0-9a-fA-F]{2})", r"\\u00\1", text)
    try:
        return str(json.loads(f'"{codes}"'))
    except ValueError:
        raise _refused(text[:20]) from None


def _refused(found: str) -> GrammarError:
    return GrammarError(
        "the Lark grammar of a tool's input uses what cannot be kept to here.",
        found=found,
        expected="rules of texts, regular expressions and ranges, and %import common",
    )
