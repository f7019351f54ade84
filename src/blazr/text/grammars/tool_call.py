"""Calls of tools: fixed text around arguments, in whatever format the model was trained on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blazr.core.errors import GrammarError
from blazr.text.grammars.json_schema import schema_source
from blazr.text.grammars.plain import literal


@dataclass(frozen=True, slots=True)
class TextUntil:
    """Any text up to and with an end, such as an XML parameter's value.

    Args:
        end: What ends it.
    """

    end: str


@dataclass(frozen=True, slots=True)
class Maybe:
    """Something that may be left out.

    Args:
        parts: What.
    """

    parts: tuple[Part, ...]


# Text stands for itself, a mapping for the JSON it is a schema of.
Part = str | Mapping[str, object] | TextUntil | Maybe


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolGrammar:
    """One call of a tool or more.

    Special tokens are written by name, as in the chat template.

    Args:
        calls: What a call of each tool looks like.
        begin: Text before the first call.
        separator: Text between two calls; None allows only one.
        end: Text after the last call.
    """

    calls: Sequence[Sequence[Part]]
    begin: str = ""
    separator: str | None = None
    end: str = ""


def tool_call(value: object, special_ids: Mapping[str, int]) -> str:
    """Calls of tools; the value is a `ToolGrammar`.

    Raises:
        GrammarError: It is none, or the arguments' schema is wrong.
    """
    if not isinstance(value, ToolGrammar) or not value.calls:
        raise GrammarError("tool_call needs a tool to call.")
    rules = _Rules(special_ids)
    calls = " | ".join(rules.sequence(parts) for parts in value.calls)
    more = "" if value.separator is None else f" ({rules.text(value.separator)} call)*"
    start = f"start: {rules.text(value.begin)} call{more} {rules.text(value.end)}"
    return "\n".join([start, f"call: {calls}", *rules.lines])


def text_with_specials(text: str, special_ids: Mapping[str, int]) -> str:
    """A text as Lark spells it, special tokens in it as their ids."""
    names = sorted((name for name in special_ids if name and name in text), key=len, reverse=True)
    if not names:
        return literal(text)
    pieces = re.split("(" + "|".join(map(re.escape, names)) + ")", text)
    spelled = (
        f"<[{special_ids[each]}]>" if each in special_ids else literal(each)
        for each in pieces
        if each
    )
    return " ".join(spelled)


class _Rules:
    """Spells parts, and gathers the rules they need beside them."""

    def __init__(self, special_ids: Mapping[str, int]) -> None:
        self.lines: list[str] = []
        self._special_ids = special_ids

    def text(self, text: str) -> str:
        return text_with_specials(text, self._special_ids)

    def sequence(self, parts: Sequence[Part]) -> str:
        return " ".join(self._part(each) for each in parts)

    def _part(self, part: Part) -> str:
        if isinstance(part, str):
            return self.text(part)
        if isinstance(part, Maybe):
            return f"({self.sequence(part.parts)})?"
        name = f"part_{len(self.lines)}"
        if isinstance(part, TextUntil) and part.end in self._special_ids:
            self.lines.append(f"{name}: /(?s:.*)/ {self.text(part.end)}")
        elif isinstance(part, TextUntil):
            self.lines.append(f"{name}[suffix={literal(part.end)}]: /(?s:.*)/")
        else:
            self.lines.append(f"{name}: %json {schema_source(part)}")
        return name
