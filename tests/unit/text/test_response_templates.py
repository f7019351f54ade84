"""How a model's own files say that it writes thinking and calls, read as transformers reads it."""

import json
import logging
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blazr.text.response_template import NAME, choose_reply_format, with_template
from blazr.text.splitter import CallArguments, CallBegin, Piece, Reasoning, merge
from blazr.text.stream import PLAIN, ReplyFormat
from blazr.text.tool_calls.format import tool_specs
from blazr.text.tool_calls.rows import TOOL_FORMATS
from tests.support.seeds import examples

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"note": {"type": "string"}, "n": {"type": "integer"}},
            "required": ["note"],
        },
    },
}
CALLS = [("add", {"note": "a b", "n": 3}), ("add", {"note": "{}", "n": -1})]
BY_NAME = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
# What a model's files say of its calls, and a call as such a model writes it.
FORMS = {
    "objects": (
        {"open": "<call>", "close": "</call>", "content": "json", "repeats": True}
        | {"transform": {"type": "function", "function": "{content}"}},
        '<call>{{"name": "{name}", "arguments": {json}}}</call>',
    ),
    "objects with keys of their own": (
        {"open_pattern": r"\s*\[do\]", "close": "[done]", "content": "json", "repeats": True}
        | {"transform": {"function": {"name": "{content.tool}", "arguments": "{content.args}"}}},
        '[do]{{"tool": "{name}", "args": {json}}}[done]',
    ),
    "a name before the arguments": (
        {"open_pattern": r"<\|call\|>(?P<name>[^<]+)<\|with\|>", "close": "<|ends|>"}
        | {"content": "json", "repeats": True, "transform": BY_NAME},
        "<|call|>{name}<|with|>{json}<|ends|>",
    ),
    "bare keys": (
        {"open_pattern": r"<call>do:(?P<name>\w+)", "close": "</call>", "content": "json"}
        | {"content_args": {"unquoted_keys": True, "string_delims": [["<q>", "<q>"]]}}
        | {"repeats": True, "transform": BY_NAME},
        "<call>do:{name}{{note:<q>{note}<q>,n:{n}}}</call>",
    ),
    "tags": (
        {"open_pattern": r"<calls>\s*<to=(?P<name>[^>\n]+)>", "close_pattern": r"</to>\s*</calls>"}
        | {"content": "xml-inline", "repeats": True, "transform": BY_NAME}
        | {"content_args": {"tag_pattern": r"<arg=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</arg>"}},
        "<calls>\n<to={name}>\n<arg=note>\n{note}\n</arg>\n<arg=n>\n{n}\n</arg>\n</to>\n</calls>",
    ),
}


def template(calls: object) -> dict[str, object]:
    return {
        "start_anchor": "<|assistant|>",
        "fields": {
            "reasoning_content": {"open": "<mull>", "close": "</mull>", "content": "text"},
            "tool_calls": calls,
            "content": {"content": "text"},
        },
    }


def reply(form: str) -> str:
    calls = [
        form.format(name=name, json=json.dumps(given), note=given["note"], n=given["n"])
        for name, given in CALLS
    ]
    return "<mull>Why not?</mull>I add." + "".join(calls)


def read(found: ReplyFormat, *texts: str) -> list[Piece]:
    assert found.reasoning is not None
    assert found.tool_format is not None
    thinking, tools = found.reasoning.splitter(), found.tool_format.parser(tool_specs([TOOL]))
    pieces: list[Piece] = []
    for piece in [*(x for text in texts for x in thinking.push(text)), *thinking.flush()]:
        pieces += tools.push(piece) if isinstance(piece, str) else [piece]
    return merge(pieces + tools.flush())


def calls_of(pieces: list[Piece]) -> list[tuple[str, object]]:
    names = [each.name for each in pieces if isinstance(each, CallBegin)]
    given = [json.loads(each.text) for each in pieces if isinstance(each, CallArguments)]
    return list(zip(names, given, strict=True))


@pytest.mark.parametrize("name", FORMS)
def test_a_reply_is_read_as_declared_and_as_transformers_reads_it(name: str) -> None:
    field, form = FORMS[name]
    text, found = reply(form), with_template(PLAIN, template(field))
    assert found.tool_format is not None
    assert found.tool_format.name == NAME
    pieces = read(found, text)
    assert pieces[:2] == [Reasoning("Why not?"), "I add."]
    assert calls_of(pieces) == CALLS
    assert merge(read(found, *text)) == pieces
    parser = pytest.importorskip("transformers.utils.chat_parsing.response_parser")
    theirs = parser.parse_response(text, template(field), prefix="", tools=[TOOL])
    assert theirs["reasoning_content"] == "Why not?"
    assert theirs["content"] == "I add."
    functions = [each["function"] for each in theirs["tool_calls"]]
    assert [(each["name"], each["arguments"]) for each in functions] == CALLS


@pytest.mark.parametrize("name", FORMS)
def test_what_is_written_for_templates_and_grammars_is_read_again(name: str) -> None:
    row = with_template(PLAIN, template(FORMS[name][0])).tool_format
    assert row is not None
    assert calls_of(read(with_template(PLAIN, template(FORMS[name][0])), row.write(CALLS))) == CALLS
    grammar = row.grammar(tool_specs([TOOL]))
    head = grammar.begin + str(grammar.calls[0][0])
    assert row.write(CALLS).startswith(head)


def test_a_list_of_objects() -> None:
    inner = {"name": "{name}", "arguments": "{parameters}"}
    field = {"open": "[[", "close": "]]", "content": "json", "transform_each": True}
    found = with_template(PLAIN, template(field | {"transform": {"function": inner}}))
    assert found.tool_format is not None
    text = found.tool_format.write(CALLS)
    assert text.startswith('[[[{"name": "add", "parameters": {')
    assert calls_of(read(found, text)) == CALLS


def test_a_format_that_reads_the_same_stays() -> None:
    field = {"open_pattern": r"\s*<tool_call>", "close": "</tool_call>", "content": "json"}
    known = ReplyFormat(tool_format=TOOL_FORMATS["hermes"])
    assert with_template(known, template(field)).tool_format is known.tool_format
    other = ReplyFormat(tool_format=TOOL_FORMATS["qwen3_coder"])
    found = with_template(other, template(field)).tool_format
    assert found is not None
    assert found.name == NAME


@pytest.mark.parametrize(
    "wrong",
    [
        5,
        {"version": 2, "fields": {}},
        {"fields": {"tool_calls": "<call>"}},
        template({"open": ["<a>", "<b>"], "close": "</a>", "content": "json"}),
        template({"open": "<a>", "close": "</a>", "content": "kv-lines"}),
        template({"open_pattern": r"<(a|b)>", "close": "</a>", "content": "json"}),
        template({"open_pattern": r"(?P<name>\w+)<a>", "close": "</a>", "content": "json"}),
        template({"open": "<a>", "close": "</a>", "content": "json", "transform": "{name}"}),
        template({"open": "<a>", "content": "json"}),
        template({"open_pattern": "<a+>", "close": "</a>", "content": "json"}),
    ],
)
def test_what_is_not_read_changes_no_calls(wrong: object, caplog: pytest.LogCaptureFixture) -> None:
    known = ReplyFormat(tool_format=TOOL_FORMATS["hermes"])
    with caplog.at_level(logging.WARNING):
        assert with_template(known, wrong).tool_format is known.tool_format
    assert "response_template is not read" in caplog.text


JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.sampled_from(["", "<a>", "json", "{name}"])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(st.sampled_from(["name", "arguments", "tag_pattern"]), inner, max_size=2),
    ),
    max_leaves=4,
)
KEYS = ["open", "open_pattern", "close", "content", "content_args", "transform", "transform_each"]


@settings(deadline=None, max_examples=examples(200))
@given(
    name=st.sampled_from(list(FORMS)),
    field=st.sampled_from(["tool_calls", "reasoning_content"]),
    changes=st.dictionaries(st.sampled_from([*KEYS, "string_delims"]), JSON, max_size=3),
)
def test_whatever_is_declared_no_model_fails_to_load(
    name: str, field: str, changes: dict[str, object]
) -> None:
    declared = {**FORMS[name][0], **changes}
    if "string_delims" in changes:
        delims = {"unquoted_keys": True, "string_delims": changes["string_delims"]}
        declared["content_args"] = delims
    with_template(ReplyFormat(tool_format=TOOL_FORMATS["hermes"]), {"fields": {field: declared}})


def test_it_stands_in_tokenizer_config_and_a_named_parser_comes_first(tmp_path: Path) -> None:
    config = json.dumps({NAME: template(FORMS["objects"][0])})
    (tmp_path / "tokenizer_config.json").write_text(config, "utf-8")
    found = choose_reply_format("", "llama", (), directory=tmp_path)
    assert found.reasoning is not None
    assert found.tool_format is not None
    assert (found.reasoning.begin, found.tool_format.markers) == ("<mull>", ("<call>",))
    named = choose_reply_format(
        "", "llama", (), directory=tmp_path, tool_parser="hermes", reasoning_parser="none"
    )
    assert named == ReplyFormat(tool_format=TOOL_FORMATS["hermes"])
