"""``response_template``: how a model's own files say that it writes thinking and calls of tools.

Its fields become rows of the same kinds as those of REASONING and TOOL_FORMATS, so that whatever is
known about a kind (streams, mistakes, grammars) holds for them, too. Patterns are not run: those
that say more than fixed text, white space and names are not read.

Source: the documentation of transformers, "Response parsing", version 1 of the form.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Container, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from blazr.text import sidecars
from blazr.text.reasoning import ReasoningFormat, choose_reasoning
from blazr.text.splitter import CallArguments, CallBegin
from blazr.text.stream import ReplyFormat
from blazr.text.tool_calls.bare_key_call import BareKeyCalls
from blazr.text.tool_calls.choose import choose_tool_format
from blazr.text.tool_calls.format import ToolFormat, ToolSpec
from blazr.text.tool_calls.json_call import JsonCalls
from blazr.text.tool_calls.named_call import NamedCalls
from blazr.text.tool_calls.tagged_call import TaggedCalls

NAME = "response_template"
_THINKING = ("reasoning_content", "reasoning", "thinking")
# What of a pattern can be read: white space, names, escaped characters, plain ones.
_ATOM = re.compile(
    r"(?P<space>\\s[*+]\??)|\\(?P<code>[ntr])|\\(?P<escaped>[^\w\s])"
    r"|\(\?P<(?P<group>\w+)>(?:[^()\\]|\\.)*\)|(?P<plain>[^\\()\[\]{}.*+?|^$])"
)
_CODES = {"n": "\n", "t": "\t", "r": "\r"}
_PLACEHOLDER = re.compile(r"\{(?:content\.)?(\w+)\}")
# A call that a format must read as it writes it, to be taken for what a model's files declare.
_PROBE = ("get_weather", {"city": "Genf", "days": 3})
_PROBE_TOOL = ToolSpec(
    "get_weather",
    {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
)

_Field = Mapping[str, object]
_log = logging.getLogger(__name__)


class _UnreadError(ValueError):
    """Something that is not read; the message says what."""


def choose_reply_format(
    template_source: str,
    family: str,
    vocab: Container[str],
    *,
    directory: Path | None,
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
) -> ReplyFormat:
    """Find how a model writes its thinking and its calls of tools.

    What somebody named comes first, then what the model's own files declare, then what its chat
    template, family and vocabulary tell.

    Args:
        template_source: Its chat template.
        family: What kind of checkpoint it is.
        vocab: The names of its special tokens.
        directory: Where its files are.
        tool_parser: A row of TOOL_FORMATS; ``"none"`` leaves calls in the text.
        reasoning_parser: A row of REASONING; the same.

    Raises:
        UnknownNameError: A parser is no row.
        CheckpointError: A file cannot be read.
    """
    about = (template_source, family, vocab)
    known = ReplyFormat(
        reasoning=choose_reasoning(*about, name=reasoning_parser),
        tool_format=choose_tool_format(*about, name=tool_parser),
    )
    config = {} if directory is None else sidecars.read_json(directory / "tokenizer_config.json")
    declared = with_template(known, config.get(NAME))
    return ReplyFormat(
        reasoning=(known if reasoning_parser else declared).reasoning,
        tool_format=(known if tool_parser else declared).tool_format,
    )


def with_template(known: ReplyFormat, template: object) -> ReplyFormat:
    """The format of replies that a ``response_template`` declares.

    A format that is known already stays where it reads what is declared: it also knows which
    mistakes such models make. Nothing changes where nothing is declared, or, with a warning,
    something that is not read.

    Args:
        known: What the model's chat template, family and vocabulary tell.
        template: What the model's tokenizer_config.json holds under this name.
    """
    if template is None:
        return known
    try:
        fields = _declared_fields(template)
        thinking = next((fields[name] for name in _THINKING if name in fields), None)
        if thinking is not None:
            begin, end = (_only_text(_anchor(thinking, side)) for side in ("open", "close"))
            form = known.reasoning
            if form is None or (form.begin.strip(), form.end.strip()) != (begin, end):
                form = ReasoningFormat(name=NAME, begin=begin, end=end, is_anywhere=True)
                known = replace(known, reasoning=form)
        if "tool_calls" in fields:
            own = _declared_calls(fields["tool_calls"])
            row = known.tool_format
            if row is None or not _reads(own, row.write([_PROBE])):
                known = replace(known, tool_format=own)
    except _UnreadError as error:
        _log.warning("the model's %s is not read, as it has %s", NAME, error)
    return known


def _declared_fields(template: object) -> Mapping[str, _Field]:
    if not isinstance(template, Mapping) or template.get("version", 1) != 1:
        raise _UnreadError("another version than 1")
    fields = template.get("fields")
    if not isinstance(fields, Mapping) or not all(isinstance(x, Mapping) for x in fields.values()):
        raise _UnreadError("no fields")
    return fields


def _reads(own: ToolFormat, text: str) -> bool:
    """Whether a format finds the probe in a text, and nothing else."""
    parser = own.parser([_PROBE_TOOL])
    pieces = parser.push(text) + parser.flush()
    names = [each.name for each in pieces if isinstance(each, CallBegin)]
    arguments = "".join(each.text for each in pieces if isinstance(each, CallArguments))
    has_text = any(isinstance(each, str) for each in pieces)
    return names == [_PROBE[0]] and not has_text and json.loads(arguments or "0") == _PROBE[1]


def _declared_calls(field: _Field) -> ToolFormat:
    """The row for a field: a kind of calls, and what stands around them."""
    opening, closing = _anchor(field, "open"), _anchor(field, "close")
    content = field.get("content", "text")
    arguments = field.get("content_args") or {}
    if not isinstance(arguments, Mapping):
        raise _UnreadError("content_args that are no object")
    has_name = ("group", "name") in opening
    if content == "xml-inline" and has_name:
        return _of_tags(opening, closing, arguments)
    if content == "json" and has_name:
        return _of_names(opening, _only_text(closing), arguments)
    if content == "json" and not arguments.keys() - {"allow_non_json"}:
        begin, end = _only_text(opening), _only_text(closing)
        name, keys, ids = _keys(field.get("transform"))
        calls = JsonCalls(name=name, arguments=keys, ids=ids, ends={begin: end})
        row = ToolFormat(name=NAME, markers=(begin,), tokens=(end,), calls=calls)
        if field.get("transform_each") is True:
            return replace(row, begin=begin + "[", separator=", ", end="]" + end)
        return replace(row, begin=begin, separator=end + begin, end=end)
    raise _UnreadError(f"calls as {content!r} of a kind that is not known"[:100])


def _of_names(opening: list[tuple[str, str]], end: str, arguments: _Field) -> ToolFormat:
    """A name, and its arguments in JSON, perhaps with bare keys."""
    (marker, *others), between = _around_name(opening)
    before = "".join(others)
    quotes = arguments.get("string_delims")
    row = ToolFormat(
        name=NAME,
        markers=(marker,),
        tokens=(end,),
        calls=NamedCalls(before, between, end),
        begin=marker,
        separator=marker,
    )
    if not arguments.get("unquoted_keys") and not quotes:
        return row
    try:
        [[quote, other]] = cast("list[list[object]]", quotes)
    except (TypeError, ValueError):
        quote = other = None
    if between or not isinstance(quote, str) or quote != other:
        raise _UnreadError(f"strings between {quotes!r}"[:100])
    calls = BareKeyCalls(before=before, quote=quote, end=end)
    return replace(row, tokens=(end, quote), calls=calls, separator=end + marker, end=end)


def _of_tags(
    opening: list[tuple[str, str]], closing: list[tuple[str, str]], arguments: _Field
) -> ToolFormat:
    """A name, and each argument between tags."""
    before, name_end = _around_name(opening)
    ends = [text for kind, text in closing if kind == "text"]
    tags = _atoms(arguments.get("tag_pattern"))
    groups = [text for kind, text in tags if kind == "group"]
    if groups != ["key", "value"] or len(before) > 2 or not 1 <= len(ends) <= 2:
        raise _UnreadError("tags of a kind that is not known")
    key, value = (tags.index(("group", name)) for name in groups)
    texts = [_text(tags[:key]), _text(tags[key + 1 : value]), _text(tags[value + 1 :])]
    if not all(texts):
        raise _UnreadError("tags without text around a value")
    calls = TaggedCalls(
        call=before[-1],
        name_end=name_end,
        key=texts[0],
        key_end=texts[1],
        value_end=texts[2],
        call_end=ends[0],
        calls_end=ends[1] if len(ends) > 1 else "",
        trim="\n" if ("space", "") in tags else "",
    )
    marker = before[0] if len(before) > 1 else ""
    return ToolFormat(
        name=NAME,
        markers=tuple(before),
        tokens=tuple(ends),
        calls=calls,
        begin=f"{marker}\n" if marker else "",
        separator=f"\n{ends[-1]}\n{marker}\n" if marker else "\n",
        end=f"\n{ends[-1]}" if len(ends) > 1 else "",
    )


def _keys(transform: object) -> tuple[tuple[str, ...], ...]:
    """Under which keys the objects have their names, arguments and ids."""
    outer = transform if isinstance(transform, Mapping) else {}
    inner = outer.get("function", transform)
    if inner is None or inner == "{content}":
        return ("name",), ("arguments", "parameters"), ("id",)
    places = {**outer, **inner} if isinstance(inner, Mapping) else {}
    found = [_PLACEHOLDER.fullmatch(str(places.get(key))) for key in ("name", "arguments", "id")]
    if found[0] is None or found[1] is None:
        raise _UnreadError("a transform that makes no call")
    return tuple(() if each is None else (each[1],) for each in found)


def _around_name(opening: list[tuple[str, str]]) -> tuple[list[str], str]:
    """The texts before a call's name, of which there is one at least, and the one after it."""
    at = opening.index(("group", "name"))
    before = [text for kind, text in opening[:at] if kind == "text"]
    if not before or any(kind == "group" for kind, _ in opening[at + 1 :]):
        raise _UnreadError("an opening that does not begin with text")
    return before, _text(opening[at + 1 :])


def _anchor(field: _Field, side: str) -> list[tuple[str, str]]:
    """What begins or ends a field: texts, white space between them, names."""
    literal = field.get(side)
    if isinstance(literal, list) and len(literal) == 1:
        literal = literal[0]
    if isinstance(literal, str) and literal:
        return [("text", literal)]
    if literal is not None:
        raise _UnreadError(f"{literal!r} for {side!r}"[:100])
    return _atoms(field.get(f"{side}_pattern"))


def _atoms(pattern: object) -> list[tuple[str, str]]:
    """A pattern as texts, white space between them, and names of groups.

    Raises:
        _UnreadError: It says more than that.
    """
    atoms: list[tuple[str, str]] = []
    left = pattern if isinstance(pattern, str) else ""
    while left:
        match = _ATOM.match(left)
        if match is None:
            break
        left = left[match.end() :]
        if match["space"]:
            atoms.append(("space", ""))
        elif match["group"]:
            atoms.append(("group", match["group"]))
        else:
            text = _CODES.get(match["code"] or "", "") or match["escaped"] or match["plain"]
            last = atoms.pop()[1] if atoms and atoms[-1][0] == "text" else ""
            atoms.append(("text", last + text))
    if left or not any(kind == "text" for kind, _ in atoms):
        raise _UnreadError(f"the pattern {pattern!r}"[:100])
    return atoms


def _text(atoms: list[tuple[str, str]]) -> str:
    return "".join(text for kind, text in atoms if kind == "text")


def _only_text(atoms: list[tuple[str, str]]) -> str:
    """The text of what is nothing else, white space around it aside."""
    texts = [text for kind, text in atoms if kind == "text"]
    if len(texts) != 1 or any(kind == "group" for kind, _ in atoms):
        raise _UnreadError("texts in an opening or close that are not known")
    return texts[0].strip()
