"""Calls of tools in a stream: when what is known, and what becomes of a malformed one."""

import json

import pytest

from blazr.core.errors import RequestError
from blazr.text.splitter import CallArguments, CallBegin, Piece, merge
from blazr.text.tool_calls.format import ToolSpec, tool_specs
from blazr.text.tool_calls.rows import TOOL_FORMATS

WEATHER = ToolSpec("get_weather", {"properties": {"city": {"type": "string"}}})


def parse(name: str, text: str, *tools: ToolSpec) -> list[Piece]:
    stream = TOOL_FORMATS[name].parser(tools)
    return merge(stream.push(text) + stream.flush())


def test_arguments_stream_as_they_are_written() -> None:
    stream = TOOL_FORMATS["hermes"].parser()
    assert stream.push("Well.\n<tool_") == ["Well."]
    assert stream.push('call>\n{"name": "f", "argu') == []
    assert stream.push('ments": {"a": "x') == [CallBegin("f"), CallArguments('{"a": "x')]
    assert stream.push('yz"') == [CallArguments('yz"')]
    assert stream.push("}}\n</tool_call") == [CallArguments("}")]
    assert stream.push(">\n\n Bye") == ["Bye"]
    assert stream.flush() == []


def test_a_long_string_between_tags_streams_too() -> None:
    stream = TOOL_FORMATS["qwen3_coder"].parser([WEATHER])
    begin = stream.push("<tool_call>\n<function=get_weather>\n<parameter=city>\nGe")
    assert begin == [CallBegin("get_weather"), CallArguments('{"city": "Ge')]
    assert stream.push('n"f\n') == [CallArguments('n\\"f')]
    assert stream.push("\n</par") == [CallArguments("\\n")]
    assert stream.push("ameter>\n</function>") == [CallArguments('"')]
    assert stream.push("\n") == [CallArguments("}")]


def test_text_that_could_be_a_marker_waits_no_longer_than_it_could() -> None:
    stream = TOOL_FORMATS["hermes"].parser()
    assert stream.push("a <") == ["a"]
    assert stream.push("b") == [" <b"]
    assert stream.push(" " * 100) == [" " * 36]
    assert "".join(map(str, stream.flush())) == " " * 64


@pytest.mark.parametrize(
    "body",
    [
        "not json",
        '{"name": "f"',
        '{"name": 1, "arguments": {}}',
        '{"name": "two words", "arguments": {}}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": 1}',
        '{"nom": "f"}',
        '{"arguments": {}}',
        "{}",
        "",
        '["f"]',
    ],
)
def test_what_is_no_call_is_text(body: str) -> None:
    text = f"<tool_call>{body}</tool_call>"
    assert parse("hermes", text) == [text]


def test_after_a_malformed_call_another_is_found() -> None:
    good = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    pieces = parse("hermes", "<tool_call>\n" + good + "<tool_call>{]</tool_call>" + good)
    assert [each.name for each in pieces if isinstance(each, CallBegin)] == ["f", "f"]
    assert "".join(each for each in pieces if isinstance(each, str)) == (
        "<tool_call>\n<tool_call>{]</tool_call>"
    )


def test_a_call_without_its_end_does_not_swallow_the_next() -> None:
    one = '<tool_call>{"name": "f", "arguments": {}}\n'
    pieces = parse("hermes", one + one)
    assert pieces == [CallBegin("f"), CallArguments("{}")] * 2


def test_a_reply_cut_off_in_a_call_keeps_what_there_was() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": [1, "b'
    assert parse("hermes", text) == [CallBegin("f"), CallArguments('{"a": [1, "b')]
    text = "<tool_call><function=get_weather><parameter=city>Ge"
    assert parse("qwen3_coder", text, WEATHER)[1] == CallArguments('{"city": "Ge"')


def test_a_marker_in_an_argument_is_an_argument() -> None:
    arguments = json.dumps({"text": "</tool_call> <tool_call> {\n"})
    text = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
    assert parse("hermes", text) == [CallBegin("f"), CallArguments(arguments)]


def test_line_breaks_in_json_strings_are_escaped() -> None:
    pieces = parse("hermes", '<tool_call>{"name": "f", "arguments": {"a": "x\ny\t"}}</tool_call>')
    assert pieces[1] == CallArguments('{"a": "x\\ny\\t"}')


def test_a_wrapped_call_is_a_call() -> None:
    text = '{"id": "a1", "type": "function", "function": {"name": "f", "arguments": {}}}'
    assert parse("granite", f"<|tool_call|>[{text}]") == [CallBegin("f"), CallArguments("{}")]


@pytest.mark.parametrize("name", ["llama3_json", "pythonic"])
def test_without_a_marker_only_known_tools_are_called(name: str) -> None:
    row = TOOL_FORMATS[name]
    call = row.write([("get_weather", {"city": "Genf"})])
    assert isinstance(parse(name, call, WEATHER)[0], CallBegin)
    assert isinstance(parse(name, " \n" + call, WEATHER)[0], CallBegin)
    assert parse(name, call, ToolSpec("other", {})) == [call]
    assert parse(name, "So: " + call, WEATHER) == ["So: " + call]


def test_json_that_is_an_answer_stays_one() -> None:
    for text in ('{"name": "Bob", "age": 3}', '{"a": 1}', "[1, 2]", "[x](y)", "{"):
        assert parse("llama3_json", text, WEATHER) == [text]
        assert parse("pythonic", text, WEATHER) == [text]


def test_ids_of_the_model_are_kept() -> None:
    text = '[TOOL_CALLS][{"id": "abc123def", "name": "f", "arguments": {}}]'
    assert parse("mistral", text)[0] == CallBegin("f", "abc123def")
    assert parse("mistral_args", "[TOOL_CALLS]f[CALL_ID]a[ARGS]{}")[0] == CallBegin("f", "a")


def test_tools_are_read_as_the_api_describes_them() -> None:
    specs = tool_specs(
        [
            {"type": "function", "function": {"name": "f", "parameters": {"required": ["a"]}}},
            {"name": "g"},
            {"type": "web_search"},
            {"function": 1},
        ]
    )
    assert [spec.name for spec in specs] == ["f", "g"]
    assert specs[0].required == {"a"}
    assert not specs[1].properties


@pytest.mark.parametrize("parameters", ["x", [], {"type": "array"}, {"type": ["null"]}], ids=str)
def test_what_a_tool_takes_is_an_object(parameters: object) -> None:
    with pytest.raises(RequestError, match=r"(?s)no schema of an object.*properties"):
        tool_specs([{"type": "function", "function": {"name": "f", "parameters": parameters}}])


@pytest.mark.parametrize("parameters", [None, {}, {"type": ["object", "null"]}], ids=str)
def test_what_a_tool_takes_may_be_left_open(parameters: object) -> None:
    (spec,) = tool_specs([{"name": "f", "parameters": parameters}])
    assert spec.parameters == (parameters or {})
