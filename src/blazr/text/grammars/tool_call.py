"""Calls of tools: fixed text around arguments, in whatever format the model was trained on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blazr.core.errors import GrammarError
from blazr.text.grammars.embedded import embed
from blazr.text.grammars.json_schema import schema_source
from blazr.text.grammars.plain import literal
from blazr.text.tokenizer import longest_of


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

    parts: tuple[CallPart, ...]


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of several things.

    Args:
        options: The parts of each.
    """

    options: tuple[tuple[CallPart, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputText:
    """A text that follows a grammar of its own, such as the input of a custom tool.

    Args:
        lark: The grammar.
        before: Text before it.
        end: Text after it.
        in_json: Whether the text stands in a JSON string.
    """

    lark: str
    before: str = ""
    end: str
    in_json: bool


# Text stands for itself, a mapping for the JSON it is a schema of.
CallPart = str | Mapping[str, object] | TextUntil | Maybe | OneOf | InputText


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolGrammar:
    """One call of a tool or more.

    Special tokens are written by name, as in the chat template.

    Args:
        calls: What a call of each tool looks like.
        begin: Text before the first call.
        separator: Text between two calls; None allows only one.
        end: Text after the last call.
        triggers: Where calls may be made, and any text be written: what shows that one begins. It
            stands at the beginning of ``begin`` or of a call. Where there are none, there must be a
            call and nothing else.
    """

    calls: Sequence[Sequence[CallPart]]
    begin: str = ""
    separator: str | None = None
    end: str = ""
    triggers: Sequence[str] = ()


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
    end = rules.text(value.end)
    if not value.triggers:
        lines = [f"start: {rules.text(value.begin)} call{more} {end}", f"call: {calls}"]
    else:
        # among any text: each trigger ends the text before it, and a call goes on from there
        begun: list[str] = []
        for number, trigger in enumerate(value.triggers):
            bodies = [
                f"{rules.text(head.removeprefix(trigger))} {rules.sequence(parts[1:])}"
                for parts in value.calls
                if isinstance(parts[0], str)
                and (head := value.begin + parts[0]).startswith(trigger)
            ]
            rules.lines.append(rules.ended(f"before_{number}", "TEXT", trigger))
            begun.append(f"before_{number} ({' | '.join(bodies)})")
        lines = ["start: among* TEXT", f"among: ({' | '.join(begun)}){more} {end}"]
        if more:
            lines.append(f"call: {calls}")
        rules.lines.append("TEXT: /(?s:.*)/")
    source = "\n".join([*lines, *rules.lines])
    if not rules.grammars:
        return source
    return json.dumps({"grammars": [{"lark_grammar": source}, *rules.grammars]})


def text_with_specials(text: str, special_ids: Mapping[str, int]) -> str:
    """A text as Lark spells it, special tokens in it as their ids."""
    pieces = longest_of(name for name in special_ids if name in text).split(text)
    spelled = (
        f"<[{special_ids[each]}]>" if each in special_ids else literal(each)
        for each in pieces
        if each
    )
    return " ".join(spelled) or literal(text)


class _Rules:
    """Spells parts, and gathers the rules they need beside them."""

    def __init__(self, special_ids: Mapping[str, int]) -> None:
        self.lines: list[str] = []
        self.grammars: list[Mapping[str, str]] = []  # that cannot be rules beside the others
        self.special_ids = special_ids

    def text(self, text: str) -> str:
        return text_with_specials(text, self.special_ids)

    def ended(self, name: str, terminal: str, end: str) -> str:
        """A rule for a terminal up to an end, the first one where there are several."""
        special = longest_of(each for each in self.special_ids if each in end).search(end)
        if special is None:
            return f"{name}[lazy]: {terminal} {literal(end)}"
        # no terminal holds a special token, so what comes before one may be read to there
        head, tail = end[: special.start()], end[special.start() :]
        if not head:
            return f"{name}: {terminal} {self.text(tail)}"
        whole = f"{name.upper()}_END"
        return f"{name}: {whole} {self.text(tail)}\n{whole}: {terminal} {literal(head)}"

    def sequence(self, parts: Sequence[CallPart]) -> str:
        return " ".join(map(self.part, parts))

    def part(self, part: CallPart) -> str:
        if isinstance(part, str):
            return self.text(part)
        if isinstance(part, Maybe):
            return f"({self.sequence(part.parts)})?"
        if isinstance(part, OneOf):
            return f"({' | '.join(map(self.sequence, part.options))})"
        name = f"part_{len(self.lines)}"
        if isinstance(part, TextUntil):
            self.lines.append(self.ended(name, "/(?s:.*)/", part.end))
        elif isinstance(part, InputText):
            self.add_input(part, name)
            return f"{self.text(part.before)} {name}"
        else:
            self.lines.append(f"{name}: %json {schema_source(part)}")
        return name

    def add_input(self, part: InputText, name: str) -> None:
        """Add the rule of a custom tool's input, and what that is made of."""
        found = embed(part.lark, name, in_json=part.in_json)
        end = self.text(part.end)
        if found.start is None:
            self.grammars.append({"name": name, "lark_grammar": found.source})
            self.lines.append(f"{name}: @{name} {end}")
            return
        self.lines.append(found.source)
        if found.is_terminal and not part.in_json:
            self.lines.append(self.ended(name, found.start, part.end))
        else:
            self.lines.append(f"{name}: {found.start} {end}")
