"""The laws of custom tools, for every format: their input comes back, and follows its grammar."""

from __future__ import annotations

import json

import pytest

from blazr.text.events import ToolCallDelta
from blazr.text.stream import ReplyFormat, TextStream
from blazr.text.tokenizers.choose import find_tokenizer, load_tokenizer
from blazr.text.tool_calls.custom import INPUT
from blazr.text.tool_calls.format import ToolFormat, ToolSpec, tool_specs
from blazr.text.tool_calls.rows import TOOL_FORMATS
from tests.support.following import Following

pytestmark = pytest.mark.sample

NAMES = list(TOOL_FORMATS)
# In the manner of the patches that coding agents apply.
PATCH = r"""
start: "*** Begin" LF hunk+ "*** End" LF?
hunk: "*** Add: " /(.+)/ LF line+   // a new file
line: ("+" | "-" | " ") /(.*)/ LF -> line
%import common.LF
"""
# It refers to itself.
SUM = """
start: sum
sum: value ("+" value)*
value: NUMBER | "(" sum ")" | /"[^"]*"/
%import common (NUMBER, WS)
%ignore WS
"""
GRAMMARS = {
    "lark": (("lark", PATCH), '*** Begin\n*** Add: a "b"\\é.py\n+x = "\\n"\n+\n*** End\n'),
    "recursive lark": (("lark", SUM), '(1 +\n2) + "a"'),
    "regex": (("regex", r'[a-z]+\s"[^"]+"\\'), 'say "h/i"\\'),
    "choice": (("lark", 'start: "a".."f" | "NO"i'), "no"),
}
WRONG = "\x7f"  # that none of them begins with


def custom(syntax: str, definition: str) -> dict:
    form = {"type": "grammar", "syntax": syntax, "definition": definition}
    return {"type": "custom", "name": "edit", "format": form}


OTHER = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}},
            "required": ["path"],
            "not": {},  # which no grammar can hold a model to, nor need it
        },
    },
}


def specs(kind: str) -> list[ToolSpec]:
    return tool_specs([custom(*GRAMMARS[kind][0]), OTHER])


@pytest.mark.parametrize("kind", GRAMMARS)
@pytest.mark.parametrize("name", NAMES)
def test_a_forced_call_follows_the_grammar(name: str, kind: str) -> None:
    row, text = TOOL_FORMATS[name], GRAMMARS[kind][1]
    tool, _ = specs(kind)
    following = Following(row, row.grammar([tool]))
    call = as_grammar_writes(row, tool, text)
    assert following.takes(call)
    assert not following.takes(as_grammar_writes(row, tool, WRONG), is_whole=False)


@pytest.mark.parametrize("kind", GRAMMARS)
@pytest.mark.parametrize("name", [name for name in NAMES if not TOOL_FORMATS[name].text_markers])
def test_a_call_among_text_follows_the_grammar(name: str, kind: str) -> None:
    row, text = TOOL_FORMATS[name], GRAMMARS[kind][1]
    tool, other = specs(kind)
    grammar = row.input_grammar([tool, other])
    assert grammar is not None
    following = Following(row, grammar)
    call, wrong = (as_grammar_writes(row, tool, each) for each in (text, WRONG))
    assert following.takes("I am < sure [1] {that} {")
    assert following.takes(call)
    assert following.takes(f"Let me see.\n{call}")
    assert not following.takes(f"Let me see.\n{wrong}", is_whole=False)
    assert not following.takes(f"{call}\n{wrong}", is_whole=False)
    assert following.takes(as_grammar_writes(row, other, "a"))


@pytest.mark.parametrize("name", NAMES)
def test_the_input_is_read_again_as_it_comes(name: str) -> None:
    row, text = TOOL_FORMATS[name], GRAMMARS["lark"][1].rstrip("\n")
    tool, _ = specs("lark")
    tokenizer = load_tokenizer(find_tokenizer(vocab="cl100k_base"))
    assert tokenizer is not None
    stream = TextStream(tokenizer, index=0, reply_format=ReplyFormat(tool_format=row, tools=[tool]))
    reply = row.write([("edit", {INPUT: text})])
    events = [each for token in tokenizer.encode(reply) for each in stream.push([token])]
    events += stream.finish("stop")
    deltas = [each for each in events if isinstance(each, ToolCallDelta)]
    assert deltas[0].name == "edit"
    assert all(each.is_custom for each in deltas)
    assert "".join(each.arguments for each in deltas) == text
    assert len(deltas) > 1


def as_grammar_writes(row: ToolFormat, tool: ToolSpec, text: str) -> str:
    """A call in the spelling that the parts of the grammar have."""
    name = INPUT if tool.is_custom else "path"
    written = row.write([(tool.name, {name: text})])
    if row.name in {"pythonic", "lfm2"}:  # in the grammar Python's quotes are JSON's
        return written.replace(repr(text), json.dumps(text, ensure_ascii=False))
    return written
