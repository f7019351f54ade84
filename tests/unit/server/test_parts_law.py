"""What a client joins from any dialect's stream is the whole reply, whatever it is made of."""

from __future__ import annotations

import json

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from blazr.llm.results import fold, total_usage
from blazr.server.anthropic import messages
from blazr.server.anthropic.rendering import MessageRenderer
from blazr.server.endpoint import Call
from blazr.server.openai import chat
from blazr.server.openai.responses.rendering import (
    ResponseObject,
    ResponseReasoning,
    ResponseRenderer,
    ResponseText,
)
from blazr.text.events import (
    Event,
    Finished,
    PromptDone,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)
from tests.support.seeds import examples

TEXTS = st.text(min_size=1, max_size=4)
EMPTY = ResponseObject(
    id="resp_1",
    created_at=0,
    model="m",
    instructions=None,
    metadata={},
    previous_response_id=None,
    max_output_tokens=None,
    temperature=None,
    top_p=None,
    top_logprobs=0,
    tools=[],
    tool_choice="auto",
    parallel_tool_calls=True,
    reasoning=ResponseReasoning(None, None),
    text=ResponseText({"type": "text"}),
    truncation="disabled",
    store=True,
    background=False,
    safety_identifier=None,
    prompt_cache_key=None,
    user=None,
)


@st.composite
def replies(draw: st.DrawFn, *, with_custom: bool = False) -> list[Event]:
    """A reply: thoughts, text and calls of tools in any order, cut anywhere."""
    events: list[Event] = [PromptDone(0, 7, 2)]
    num_calls = 0
    for kind in draw(st.lists(st.sampled_from(["text", "thought", "call"]), max_size=6)):
        if kind == "call":
            is_custom = with_custom and draw(st.booleans())
            arguments = draw(TEXTS) if is_custom else json.dumps({"x": draw(TEXTS)})
            name = draw(st.sampled_from(["f", "ns__f"]))
            cut = draw(st.integers(0, len(arguments)))
            events += [
                ToolCallDelta(
                    0, num_calls, f"call_{num_calls}", name, arguments[:cut], is_custom=is_custom
                ),
                TextDelta(0, "", (1, 2)),
                ToolCallDelta(0, num_calls, arguments=arguments[cut:], is_custom=is_custom),
            ]
            num_calls += 1
        else:
            pieces = draw(st.lists(TEXTS, min_size=1, max_size=3))
            delta = TextDelta if kind == "text" else ReasoningDelta
            events += [delta(0, piece) for piece in pieces]
    reason = draw(st.sampled_from(["stop", "length"]))
    return [*events, Finished(0, reason, 9, num_reasoning_tokens=1, num_tool_calls=num_calls)]


def run(renderer, events: list[Event]) -> list[dict]:
    payloads = [msgspec.to_builtins(each) for event in events for each in renderer.event(event)]
    return [*payloads, *map(msgspec.to_builtins, renderer.last(usage_of(events)))]


def usage_of(events: list[Event]):
    return total_usage(fold(events))


def whole_of(renderer, events: list[Event]) -> dict:
    for event in events:
        renderer.gather(event)
    whole: dict = msgspec.to_builtins(renderer.whole(fold(events), usage_of(events)))
    return whole


@given(replies())
@settings(max_examples=examples(60), deadline=None)
def test_messages(events: list[Event]) -> None:
    call = _call(messages.MessagesBody(messages=[], max_tokens=9))
    streaming, gathering = MessageRenderer(call, 9), MessageRenderer(call, 9)
    message: dict = {}
    typed: dict[int, str] = {}
    for each in run(streaming, events):
        kind, index = each["type"], each.get("index")
        if kind == "message_start":
            message = {**each["message"], "content": []}
        elif kind == "content_block_start":
            assert index == len(message["content"])
            message["content"].append(dict(each["content_block"]))
        elif kind == "content_block_delta" and each["delta"]["type"] == "input_json_delta":
            typed[index] = typed.get(index, "") + each["delta"]["partial_json"]
        elif kind == "content_block_delta":
            ((field, value),) = {k: v for k, v in each["delta"].items() if k != "type"}.items()
            message["content"][index][field] += value
        elif kind == "content_block_stop" and index in typed:
            message["content"][index]["input"] = json.loads(typed[index])
        elif kind == "message_delta":
            message |= each["delta"] | {"usage": each["usage"]}
    assert message == whole_of(gathering, events)
    assert message["id"] == f"msg_{call.id}"  # by which it can be ended


@given(replies(with_custom=True))
@settings(max_examples=examples(60), deadline=None)
def test_responses(events: list[Event]) -> None:
    ended: list[ResponseObject] = []
    streaming, gathering = (
        ResponseRenderer(
            EMPTY,
            ended.append,
            namespaces={"ns__f": ("ns", "f")},
            wants_logprobs=False,
            packs_thoughts=True,
        )
        for _ in range(2)
    )
    payloads = run(streaming, events)
    assert [each["sequence_number"] for each in payloads] == list(range(len(payloads)))
    items: list[dict] = []
    for each in payloads:
        kind = each["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert each["output_index"] == len(items)
            items.append({**each["item"], "text": ""})
        elif kind.endswith(".delta"):
            assert items[-1]["id"] == each["item_id"]
            items[-1]["text"] += each["delta"]
        elif kind == "output_item.done":
            item = each["item"]
            called = item.get("arguments", item.get("input"))
            content = item.get("content", [{"text": called}])
            assert items[-1]["text"] == content[0]["text"]
            items[-1] = each["item"]
    whole = whole_of(gathering, events)
    final = payloads[-1]["response"]
    assert items == final["output"] == whole["output"]
    assert {**final, "completed_at": 0} == {**whole, "completed_at": 0}
    assert payloads[-1]["type"] == f"response.{whole['status']}"
    assert [each.id for each in ended] == ["resp_1", "resp_1"]


class _Model:
    name = "m"


def _call(body: object) -> Call[object]:
    return Call(body=body, models=None, served=_Model(), path={})


@given(replies())
@settings(max_examples=examples(60), deadline=None)
def test_chats(events: list[Event]) -> None:
    body = chat.ChatBody(messages=[])
    chunks = run(chat.ChatRenderer(_call(body), n=1), events)
    message: dict = {"content": "", "calls": {}}
    reason = None
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        delta = choice["delta"]
        for name in ("content", "reasoning", "reasoning_content"):
            message[name] = message.get(name, "") + delta.get(name, "")
        for call in delta.get("tool_calls", ()):
            mine = message["calls"].setdefault(call["index"], {"arguments": ""})
            mine["arguments"] += call["function"]["arguments"]
            if "id" in call:
                assert not mine["arguments"].removeprefix(call["function"]["arguments"])
                mine |= {"id": call["id"], "name": call["function"]["name"]}
        reason = choice["finish_reason"] or reason
    (choice,) = whole_of(chat.ChatRenderer(_call(body), n=1), events)["choices"]
    whole = choice["message"]
    assert message["content"] == (whole["content"] or "")
    assert message["reasoning"] == message["reasoning_content"] == whole.get("reasoning", "")
    assert list(message["calls"].values()) == [
        {"arguments": c["function"]["arguments"], "id": c["id"], "name": c["function"]["name"]}
        for c in whole.get("tool_calls", ())
    ]
    assert reason == choice["finish_reason"]
    if whole.get("tool_calls") and events[-1].reason == "stop":
        assert reason == "tool_calls"
