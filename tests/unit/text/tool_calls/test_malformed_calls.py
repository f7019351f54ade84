"""What models write that is not quite their format, and is read all the same."""

import json

import pytest

from blazr.text.reasoning import REASONING
from blazr.text.splitter import CallArguments, CallBegin, Piece, merge
from blazr.text.tool_calls.format import ToolSpec
from blazr.text.tool_calls.rows import TOOL_FORMATS

DSML = "\uff5cDSML\uff5c"


def parse(name: str, text: str) -> list[Piece]:
    stream = TOOL_FORMATS[name].parser()
    return merge(stream.push(text) + stream.flush())


def arguments_of(written: str) -> object:
    text = f'<tool_call>{{"name": "f", "arguments": {written}}}</tool_call>'
    begin, arguments = parse("hermes", text)
    assert begin == CallBegin("f")
    assert isinstance(arguments, CallArguments)
    return json.loads(arguments.text)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("{'a': 'b', 'c': ['d', {'e': 1.5}]}", {"a": "b", "c": ["d", {"e": 1.5}]}),
        ("{'on': True, 'off': False, 'gone': None}", {"on": True, "off": False, "gone": None}),
        (r"{'a': 'it\'s', 'b': 'say \"x\"'}", {"a": "it's", "b": 'say "x"'}),
        ("""{'a': 'say "x"', "b": "it's"}""", {"a": 'say "x"', "b": "it's"}),
        (r"{'a': '\x41\u00e9\n'}", {"a": "A\xe9\n"}),
        ("{'a': ''}", {"a": ""}),
        ('{"a": [true, null, -1e3], "b": "True"}', {"a": [True, None, -1e3], "b": "True"}),
    ],
)
def test_arguments_as_python_spells_them(written: str, meant: object) -> None:
    assert arguments_of(written) == meant


def test_an_apostrophe_where_no_text_can_begin_opens_none() -> None:
    written = '{"text": "He said "it\'s" so"}'
    text = f'<tool_call>{{"name": "f", "arguments": {written}}}</tool_call> Done.'
    pieces = parse("hermes", text)
    assert pieces[0] == CallBegin("f")
    assert pieces[-1] == "Done."


def test_what_a_tool_is_made_to_have_answered_is_no_argument() -> None:
    text = '<|tool_call|>[{"name": "f", "arguments": {"a": 1}, "return": {"b": ["}", {}]}}]'
    assert parse("granite", text) == [CallBegin("f"), CallArguments('{"a": 1}')]


def test_one_brace_too_many_ends_no_list() -> None:
    text = '<|tool_call|>[{"name": "f", "arguments": {}}}, {"name": "g", "arguments": {}}}]'
    pieces = parse("granite", text)
    assert [each.name for each in pieces if isinstance(each, CallBegin)] == ["f", "g"]


def test_one_brace_too_many_is_no_text() -> None:
    text = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}}\n</tool_call>\nDone.'
    assert parse("hermes", text) == [CallBegin("f"), CallArguments('{"a": 1}'), "Done."]


@pytest.mark.parametrize("between", ["\n", ", ", ",\n"])
def test_several_calls_between_two_tags(between: str) -> None:
    calls = between.join(f'{{"name": "{each}", "arguments": {{}}}}' for each in "fg")
    pieces = parse("hermes", f"<tool_call>\n{calls}\n</tool_call>\nDone.")
    assert [each.name for each in pieces if isinstance(each, CallBegin)] == ["f", "g"]
    assert [each for each in pieces if isinstance(each, str)] == ["Done."]


@pytest.mark.parametrize("call_id", ["functions.f:0", "f:12", "functions.f", "f"])
def test_an_id_that_lacks_a_part(call_id: str) -> None:
    text = f"<|tool_call_begin|>{call_id}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
    text = f"<|tool_calls_section_begin|>{text}<|tool_calls_section_end|>"
    assert parse("kimi_k2", text) == [CallBegin("f", call_id), CallArguments("{}")]


@pytest.mark.parametrize(
    "text",
    [
        '<function=f{"a": 1}</function>',
        '<function=f {"a": 1}>',
        '<function=f={"a": 1}></function>',
        '<function=f,{"a": 1}</function>',
        '<function=f>{"a": 1}</function>',
    ],
)
def test_a_function_whose_tag_is_not_closed(text: str) -> None:
    assert parse("functionary_v31", text) == [CallBegin("f"), CallArguments('{"a": 1}')]


@pytest.mark.parametrize("text", ["<function=f not found", "<function=f null", "<function=", "<f>"])
def test_talk_of_a_function_is_no_call(text: str) -> None:
    assert parse("functionary_v31", text) == [text]


@pytest.mark.parametrize("name", ["deepseek_v32", "deepseek_v4"])
def test_calls_without_the_tag_around_them(name: str) -> None:
    text = (
        f'Well.\n\n<{DSML}invoke name="f">\n<{DSML}parameter name="a" string="true">x'
        f"</{DSML}parameter>\n</{DSML}invoke>"
    )
    assert parse(name, text) == ["Well.", CallBegin("f"), CallArguments('{"a": "x"}')]


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.f <|constrain|>json",
        "<|channel|>commentary to=functions.f<|constrain|>json ",
        "<|channel|>commentary <|constrain|>json to=functions.f",
        "<|channel|>commentary to=functions.f <|constrain|>JSON",
        "<|start|>assistant to=functions.f<|channel|>analysis code",
        " to=f<|channel|>commentary json",
    ],
)
def test_a_header_of_harmony_in_any_order(header: str) -> None:
    """As OpenAI's own parser takes it apart at spaces."""
    text = header + '<|message|>{"a": 1}<|call|>'
    assert parse("harmony", text) == [CallBegin("f"), CallArguments('{"a": 1}')]
    shown = REASONING["harmony"].splitter()
    assert merge(shown.push(text) + shown.flush()) == [text.lstrip()]


def test_a_content_of_any_type_is_taken_out_of_its_channel() -> None:
    text = "<|channel|>final <|constrain|>WeatherReport<|message|>{}<|return|>"
    shown = REASONING["harmony"].splitter()
    assert merge(shown.push(text) + shown.flush()) == ["{}"]
    assert parse("harmony", "<|channel|>finally<|message|>{}") == [
        "<|channel|>finally<|message|>{}"
    ]


@pytest.mark.parametrize("name", ["pythonic", "lfm2"])
@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ('"""a\n"b" \'\\n"""', 'a\n"b" \'\n'),
        ("'''it's'''", "it's"),
        ('""""quoted" """', '"quoted" '),
        ('""""""', ""),
        ('""', ""),
        ("''", ""),
        ('"""\\ud83d\\ude00"""', "😀"),
    ],
)
def test_texts_between_three_quotes(name: str, written: str, meant: str) -> None:
    """As Python writes those of several lines."""
    call = f"[f(a={written}, b=1)]"
    text = call if name == "pythonic" else f"<|tool_call_start|>{call}<|tool_call_end|>"
    stream = TOOL_FORMATS[name].parser([ToolSpec("f", {})])
    one_by_one = merge([piece for each in text for piece in stream.push(each)] + stream.flush())
    begin, arguments = one_by_one
    assert begin == CallBegin("f")
    assert isinstance(arguments, CallArguments)
    assert json.loads(arguments.text) == {"a": meant, "b": 1}
