"""The laws of TOOL_FORMATS: however a reply is cut, its calls are the same; nothing gets lost."""

import json
import re
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blazr.text.grammars.tool_call import Maybe, OneOf, TextUntil, tool_call
from blazr.text.splitter import CallArguments, CallBegin, Piece, Splitter, merge
from blazr.text.tool_calls.bare_key_call import BareKeyCalls
from blazr.text.tool_calls.choose import choose_tool_format
from blazr.text.tool_calls.format import ToolFormat, ToolSpec
from blazr.text.tool_calls.rows import TOOL_FORMATS
from tests.support.following import Following
from tests.support.recorded_calls import RECORDED as DOCUMENTED
from tests.support.recorded_calls import TOOLS, Recorded
from tests.support.recorded_outputs import OUTPUTS
from tests.support.seeds import examples, run_seed

pytestmark = pytest.mark.sample

NAMES = list(TOOL_FORMATS)
RECORDED = (*DOCUMENTED, *OUTPUTS)
LOST = "ẞ"  # a letter that is in no marker
ids = [f"{each.format}-{number}" for number, each in enumerate(RECORDED)]


def parser(name: str) -> Splitter:
    return TOOL_FORMATS[name].parser(TOOLS)


def parse(name: str, *texts: str) -> list[Piece]:
    stream = parser(name)
    return merge([piece for text in texts for piece in stream.push(text)] + stream.flush())


def calls_of(pieces: list[Piece]) -> list[list[str]]:
    calls: list[list[str]] = []
    for piece in pieces:
        if isinstance(piece, CallBegin):
            calls.append([piece.name, ""])
        elif isinstance(piece, CallArguments):
            calls[-1][1] += piece.text
    return calls


def text_of(pieces: list[Piece]) -> str:
    return "".join(piece for piece in pieces if isinstance(piece, str))


@pytest.mark.parametrize("recorded", RECORDED, ids=ids)
def test_a_recorded_reply_gives_its_calls(recorded: Recorded) -> None:
    pieces = parse(recorded.format, recorded.reply)
    assert [tuple(each) for each in calls_of(pieces)] == list(recorded.calls)
    assert text_of(pieces) == recorded.text
    assert all(isinstance(json.loads(arguments), dict) for _, arguments in recorded.calls)


def places_in(reply: str) -> range:
    """Where it is tried: all places of a short one, and every second or third of a long one."""
    every = min(1 + len(reply) // 200, 3)
    return range(run_seed() % every, len(reply) + 1, every)


@pytest.mark.parametrize("recorded", RECORDED, ids=ids)
def test_cut_anywhere_it_gives_the_same(recorded: Recorded) -> None:
    reply, name = recorded.reply, recorded.format
    whole = parse(name, reply)
    for cut in places_in(reply):
        assert parse(name, reply[:cut], reply[cut:]) == whole, reply[:cut]
    assert parse(name, *reply) == whole


def test_every_format_is_recorded() -> None:
    assert {each.format for each in RECORDED} == set(NAMES)


def test_every_format_has_a_reply_that_a_model_wrote() -> None:
    assert {each.format for each in OUTPUTS} == set(TOOL_FORMATS)


@pytest.mark.parametrize("recorded", RECORDED, ids=ids)
def test_arguments_come_as_they_are_written(recorded: Recorded) -> None:
    """The name is known before the arguments end, and a cut-off reply keeps what there was."""
    stream = parser(recorded.format)
    seen: list[list[Piece]] = [*map(stream.push, recorded.reply), stream.flush()]
    begins = [n for n, each in enumerate(seen) if any(isinstance(p, CallBegin) for p in each)]
    assert begins
    assert all(len(each) <= 4 for each in seen)
    for size in places_in(recorded.reply):
        pieces = parse(recorded.format, recorded.reply[:size])
        calls = calls_of(pieces)
        names = [name for name, _ in recorded.calls]
        assert [name for name, _ in calls] == names[: len(calls)]
        finished = calls[:-1]
        assert finished == [list(each) for each in recorded.calls[: len(finished)]]


@pytest.mark.parametrize("name", NAMES)
def test_text_without_calls_passes_unchanged(name: str) -> None:
    for text in ("", "Hello!", " \n two\n", "a < b [1] {x} <", "[TOOL", "{not json", "[1, 2]"):
        assert parse(name, text) == ([text] if text else [])
        assert parse(name, *text) == ([text] if text else [])


@pytest.mark.parametrize("name", NAMES)
def test_a_marker_alone_is_text(name: str) -> None:
    row = TOOL_FORMATS[name]
    for marker in (*row.markers, *row.starters):
        for text in (marker, marker + LOST, f"a {marker} b", marker + "\n", marker * 3):
            assert text_of(parse(name, text)).split() == text.split()


PARTS = sorted(
    {*"{}[](),:\"'\\ \nn1<>=|/", LOST, '{"name": "get_weather", "arguments": ', "get_weather"}
)


@settings(deadline=None, max_examples=examples(40))
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_nothing_is_lost_and_nothing_fails_whatever_comes(name: str, data: st.DataObject) -> None:
    row = TOOL_FORMATS[name]
    marks = sorted({*row.markers, *row.starters, *row.tokens, row.begin, row.end} - {""})
    written = row.write([("get_weather", {"city": "a", "days": 3})])
    pieces = st.lists(st.sampled_from([*PARTS, *marks, written]), max_size=8)
    text = "".join(data.draw(pieces))
    whole = parse(name, text)
    cut = data.draw(st.integers(0, len(text)))
    assert parse(name, text[:cut], text[cut:]) == whole
    assert parse(name, *text) == whole
    found = text_of(whole) + "".join(map("".join, calls_of(whole)))
    assert found.count(LOST) >= text.count(LOST)
    if not calls_of(whole):
        assert text_of(whole) == text


@pytest.mark.parametrize("recorded", RECORDED, ids=ids)
def test_a_damaged_reply_loses_nothing(recorded: Recorded) -> None:
    for place in places_in(recorded.reply):
        text = recorded.reply[:place] + LOST + recorded.reply[place:]
        pieces = parse(recorded.format, text)
        found = text_of(pieces) + "".join(map("".join, calls_of(pieces)))
        found += "".join(piece.id or "" for piece in pieces if isinstance(piece, CallBegin))
        unwanted = rf'"(tool_call_)?id": "[^"]*{LOST}|"return":[ "]*[^"]*{LOST}'
        assert LOST in found or re.search(unwanted, text), text


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-999, 999) | st.text("aé\"'\\\n <{", max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", min_size=1), inner),
    max_leaves=4,
)
ANY = ToolSpec("get_weather", {"properties": {"s": {"type": "string"}, "v": {"type": "array"}}})


@settings(deadline=None, max_examples=examples(40))
@pytest.mark.parametrize("name", NAMES)
@given(
    text=st.text("aé\"'\\\t <{/>&", max_size=12).map(lambda text: f"x{text}x"),
    values=st.lists(VALUES, max_size=3),
)
def test_what_is_written_is_read_again(name: str, text: str, values: list[object]) -> None:
    row = TOOL_FORMATS[name]
    given_calls = [("get_weather", {"s": text, "v": values}), ("now", {})]
    if row.separator is None and not row.end:
        given_calls = given_calls[:1]
    reply = row.write(given_calls)
    stream = row.parser([ANY, ToolSpec("now", {})])
    pieces = stream.push(reply) + stream.flush()
    found = [(name, json.loads(arguments)) for name, arguments in calls_of(pieces)]
    assert found == given_calls
    assert not text_of(pieces)


@pytest.mark.parametrize("name", NAMES)
def test_the_grammar_of_a_forced_call_fits_what_is_read(name: str) -> None:
    """Spelled out with the values a model would choose, the grammar's parts are a call."""
    row = TOOL_FORMATS[name]
    tool = ToolSpec(
        "get_weather",
        {
            "properties": {"city": {"type": "string"}, "n": {"type": "integer"}},
            "required": ["city", "n"],
        },
    )
    grammar = row.grammar([tool])
    values = {"string": '"Ulm"', "integer": "3", "object": '{"city": "Ulm", "n": 3}'}
    call = ""
    for part in grammar.calls[0]:
        if isinstance(part, TextUntil):
            call += "Ulm" + part.end
        else:
            assert isinstance(part, str | dict)
            call += part if isinstance(part, str) else values[str(part["type"])]
    calls = [call]
    if grammar.separator is not None:
        calls.append(call)
    reply = grammar.begin + (grammar.separator or "").join(calls)
    pieces = parse(name, reply + grammar.end)
    found = [(name, json.loads(arguments)) for name, arguments in calls_of(pieces)]
    assert found == [("get_weather", {"city": "Ulm", "n": 3})] * len(calls)
    assert not text_of(pieces)
    assert "call:" in tool_call(grammar, {})
    assert row.grammar([tool], parallel=False).separator is None


MIXED = ToolSpec(
    "get_weather",
    {
        "type": "object",
        "$defs": {"Unit": {"type": "string", "enum": ["c", "1"]}},
        "properties": {
            "city": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "unit": {"$ref": "#/$defs/Unit"},
            "n": {"type": ["integer", "string"]},
            "mode": {"enum": ["auto", 3, None]},
            "more": {},
        },
        "required": ["city", "unit", "n", "mode", "more"],
        "additionalProperties": False,
    },
)


def as_grammar_writes(row: ToolFormat, arguments: Mapping[str, object]) -> str:
    """A call in the spelling that the grammar has."""
    pairs = {key: json.dumps(value) for key, value in arguments.items()}
    if row.name in {"pythonic", "lfm2"}:  # whose values are JSON's
        inner = ", ".join(f"{key}={value}" for key, value in pairs.items())
        return f"{row.begin}get_weather({inner}){row.end}"
    if isinstance(row.calls, BareKeyCalls):  # and where a value is not simply a text
        inner = ",".join(f"{key}:{value}" for key, value in pairs.items())
        return f"{row.begin}{row.calls.before}get_weather{{{inner}}}{row.end}"
    return row.write([("get_weather", arguments)])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "values",
    [("Genf", "c", 7, "auto", {"a": [1]}), (None, "1", "seven", 3, "b"), ("", "c", 0, None, [])],
    ids=str,
)
def test_arguments_of_several_types_may_be_written_and_are_read(
    name: str, values: tuple[object, ...]
) -> None:
    row = TOOL_FORMATS[name]
    arguments = dict(zip(MIXED.properties, values, strict=True))
    following = Following(row, row.grammar([MIXED]))
    reply = as_grammar_writes(row, arguments)
    assert following.takes(reply)
    stream = row.parser([MIXED])
    [[_, found]] = calls_of(stream.push(reply) + stream.flush())
    assert json.loads(found) == arguments


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrong", [{"unit": "2"}, {"mode": "never"}, {"mode": 4}], ids=str)
def test_a_forced_call_has_one_of_the_values_that_are_listed(
    name: str, wrong: Mapping[str, object]
) -> None:
    row = TOOL_FORMATS[name]
    following = Following(row, row.grammar([MIXED]))
    right = {"city": "Genf", "unit": "1", "n": 7, "mode": "auto", "more": True}
    assert following.takes(as_grammar_writes(row, right))
    assert not following.takes(as_grammar_writes(row, {**right, **wrong}), is_whole=False)


@pytest.mark.parametrize("name", NAMES)
def test_a_grammar_writes_out_a_bounded_number_of_values(name: str) -> None:
    listed = {"enum": [f"v{number}" for number in range(900)]}
    tool = ToolSpec("f", {"properties": {f"p{number}": listed for number in range(50)}})
    (parts,) = TOOL_FORMATS[name].grammar([tool]).calls
    inner = [each for part in parts for each in (part.parts if isinstance(part, Maybe) else [part])]
    assert sum(len(each.options) for each in inner if isinstance(each, OneOf)) <= 4096


@pytest.mark.parametrize("name", ["deepseek_v32", "deepseek_v4", "gigachat35"])
def test_a_string_that_is_said_to_be_json_has_no_quotes(name: str) -> None:
    row = TOOL_FORMATS[name]
    reply = row.write([("get_weather", {"city": "Genf"})])
    reply = reply.replace('string="true">Genf', 'string="false">"Genf"')
    stream = row.parser([MIXED])
    [[_, found]] = calls_of(stream.push(reply) + stream.flush())
    assert json.loads(found) == {"city": "Genf"}


@pytest.mark.parametrize("name", NAMES)
def test_no_marker_holds_another(name: str) -> None:
    row = TOOL_FORMATS[name]
    assert row.markers or row.starters
    assert not any(a in b for a in row.markers for b in row.markers if a != b)


@pytest.mark.parametrize("name", NAMES)
def test_its_name_chooses_it(name: str) -> None:
    assert choose_tool_format("", "llama", name=name) is TOOL_FORMATS[name]


@pytest.mark.parametrize("name", NAMES)
def test_long_hostile_text_takes_linear_time(name: str) -> None:
    """Counted in characters sent to scans, not in seconds."""
    row = TOOL_FORMATS[name]
    units = [*row.markers, *row.starters, "[", '"', " ", "{", "<", row.begin]
    for unit in filter(None, units):
        counts = []
        for size in (2_000, 4_000):
            text = unit * (size // len(unit))
            sent = 0

            stream = parser(name)
            advance = stream._advance

            def counted(text: str, advance: Callable[[str], str] = advance) -> str:
                nonlocal sent
                rest = advance(text)
                sent += len(text) - len(rest) + 1
                return rest

            stream._advance = counted  # type: ignore[method-assign]
            stream.push(text)
            stream.flush()
            counts.append(sent)
        assert counts[1] <= 2.6 * counts[0] + 100, (unit, counts)
