"""Thinking and calls of tools, from token ids to events."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blazr.text.events import Event, Finished, ReasoningDelta, TextDelta, ToolCallDelta
from blazr.text.reasoning import REASONING, thinking_variables
from blazr.text.stream import ReplyFormat, TextStream
from blazr.text.tokenizer import Tokenizer
from blazr.text.tool_calls.rows import TOOL_FORMATS

AGENT = ReplyFormat(reasoning=REASONING["agent"], tool_format=TOOL_FORMATS["agent"])
REPLY = (
    "<|think|>Hm, é 😀?<|/think|>\nI call.\n"
    '<|function|>{"name": "f", "arguments": {"x": "Grüße"}}<|/function|>\n'
    '<|function|>{"name": "g", "arguments": {}}<|/function|>'
)


def stream_of(tokenizer: Tokenizer, **more: object) -> TextStream:
    return TextStream(tokenizer, index=3, reply_format=AGENT, **more)  # type: ignore[arg-type]


def fold(events: list[Event]) -> tuple[str, str, list[list[str]], list[int]]:
    text = "".join(each.text for each in events if isinstance(each, TextDelta))
    thinking = "".join(each.text for each in events if isinstance(each, ReasoningDelta))
    ids = [i for each in events if isinstance(each, TextDelta) for i in each.token_ids]
    calls: list[list[str]] = []
    for each in events:
        if isinstance(each, ToolCallDelta):
            if each.name is not None:
                assert each.id
                assert each.call_index == len(calls)
                calls.append([each.name, ""])
            assert each.call_index == len(calls) - 1
            calls[-1][1] += each.arguments
    return thinking, text, calls, ids


@settings(deadline=None, max_examples=30)
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=20))
def test_steps_of_any_size_give_the_same_reply(cl100k: Tokenizer, sizes: list[int]) -> None:
    ids = cl100k.encode(REPLY, allow_special=True)
    stream, events, rest = stream_of(cl100k), [], list(ids)
    while rest:
        for size in sizes:
            events += stream.push(rest[:size])
            rest = rest[size:]
    events += stream.finish("stop")
    thinking, text, calls, found = fold(events)
    assert thinking == "Hm, é 😀?"
    assert text == "I call."
    assert calls == [["f", '{"x": "Grüße"}'], ["g", "{}"]]
    assert found == ids
    assert all(event.index == 3 for event in events)
    end = events[-1]
    assert isinstance(end, Finished)
    assert (end.reason, end.num_tokens, end.num_tool_calls) == ("stop", len(ids), 2)
    before = cl100k.encode(REPLY.partition("\nI call")[0], allow_special=True)  # with its end
    assert end.num_reasoning_tokens == len(before)


def test_ids_of_calls_differ(cl100k: Tokenizer) -> None:
    events = stream_of(cl100k).push(cl100k.encode(REPLY, allow_special=True))
    found = [each.id for each in events if isinstance(each, ToolCallDelta) and each.id]
    assert len(set(found)) == 2
    assert all(len(each) == 9 and each.isalnum() for each in found)


def test_the_markers_are_tokens_or_text(cl100k: Tokenizer) -> None:
    """Other special tokens stay out, and what only spells a marker is read alike."""
    ids = cl100k.encode("<|step|><|think|>a<|/think|>b<|/step|>", allow_special=True)
    stream = stream_of(cl100k)
    assert fold(stream.push(ids) + stream.finish("stop"))[:2] == ("a", "b")
    stream = stream_of(cl100k)
    spelled = cl100k.encode("<|think|>a<|/think|>b")
    assert fold(stream.push(spelled) + stream.finish("stop"))[:2] == ("a", "b")


def test_a_prompt_may_end_in_thinking(cl100k: Tokenizer) -> None:
    prompt = cl100k.encode("<|user|>Hi<|assistant|><|think|>\n", allow_special=True)
    stream = stream_of(cl100k, prompt_ids=prompt)
    assert stream.is_thinking
    events = stream.push(cl100k.encode("Hm<|/think|>Yes", allow_special=True))
    assert fold(events + stream.finish("stop"))[:2] == ("Hm", "Yes")
    assert not stream.is_thinking
    assert stream.num_reasoning_tokens == len(cl100k.encode("Hm")) + 1


def test_without_formats_all_is_text(cl100k: Tokenizer) -> None:
    stream = TextStream(cl100k, index=0)
    events = stream.push(cl100k.encode(REPLY)) + stream.finish("stop")
    assert fold(events)[:3] == ("", REPLY, [])


def test_a_stop_string_ends_a_call_or_a_thought_too(cl100k: Tokenizer) -> None:
    ids = cl100k.encode(REPLY, allow_special=True)
    stream = stream_of(cl100k, stop=("Grü",))
    thinking, text, calls, _ = fold(stream.push(ids) + stream.finish("length"))
    assert (thinking, text, calls) == ("Hm, é 😀?", "I call.", [["f", '{"x": "']])
    assert stream.stopped == "Grü"
    stream = stream_of(cl100k, stop=("é",))
    assert fold(stream.push(ids) + stream.finish("length"))[:3] == ("Hm,", "", [])


def test_harmony_takes_all_its_parts_in_one_reply(cl100k: Tokenizer) -> None:
    both = ReplyFormat(reasoning=REASONING["harmony"], tool_format=TOOL_FORMATS["harmony"])
    reply = (
        "<|channel|>analysis<|message|>Weather, then.<|end|><|start|>assistant<|channel|>"
        "commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.f <|constrain|>json<|message|>{"a": 1}'
    )
    for size in (1, 7, 1000):
        stream = TextStream(cl100k, index=0, reply_format=both)
        ids, events = cl100k.encode(reply), []
        for start in range(0, len(ids), size):
            events += stream.push(ids[start : start + size])
        events += stream.finish("stop")
        assert fold(events)[:3] == ("Weather, then.", "I look.", [["f", '{"a": 1}']])


def test_a_budget_is_ended_by_tokens(cl100k: Tokenizer) -> None:
    row = REASONING["agent"]
    assert row.end_ids(cl100k) == (cl100k.special_ids["<|/think|>"],)
    assert REASONING["think"].end_ids(cl100k) == tuple(cl100k.encode("\n</think>\n\n"))


@pytest.mark.parametrize(
    ("enabled", "effort", "expected"),
    [
        (None, None, {}),
        (True, None, {"enable_thinking": True, "thinking": True}),
        (False, "low", {"enable_thinking": False, "thinking": False, "reasoning_effort": "low"}),
        (None, "high", {"reasoning_effort": "high"}),
        (None, "none", {"enable_thinking": False, "thinking": False, "reasoning_effort": "none"}),
    ],
)
def test_templates_are_told_whether_to_think(
    enabled: bool | None, effort: str | None, expected: dict[str, object]
) -> None:
    assert thinking_variables(enabled=enabled, effort=effort) == expected
    assert json.dumps(expected)


@pytest.mark.parametrize(
    "header",
    [
        " to=functions.f<|channel|>commentary json",
        "<|channel|>commentary to=functions.f <|constrain|>json",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=f<|channel|>commentary json",
    ],
)
def test_a_call_in_harmony_is_found_wherever_the_tool_is_named(
    cl100k: Tokenizer, header: str
) -> None:
    both = ReplyFormat(reasoning=REASONING["harmony"], tool_format=TOOL_FORMATS["harmony"])
    stream = TextStream(cl100k, index=0, reply_format=both)
    events = stream.push(cl100k.encode(header + '<|message|>{"a": 1}<|call|>'))
    _, text, calls, _ = fold(events + stream.finish("stop"))
    assert (text, calls) == ("", [["f", '{"a": 1}']])
