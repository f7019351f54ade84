"""/v1/messages: translation, blocks and events in their order, errors in Anthropic's shape."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.loopback import Loopback, serving
from tests.support.scripted import SCRIPT, scripted_core

PATH = "/v1/messages"
HELLO = [{"role": "user", "content": "hello"}]


def post(loopback: Loopback, **body: object):
    return loopback.client.post(PATH, json={"messages": HELLO, "max_tokens": 50, **body})


def events(loopback: Loopback, **body: object) -> list[dict]:
    """The payloads of a stream; each event is named by its type."""
    raw = {"messages": HELLO, "max_tokens": 50, **body, "stream": True}
    with loopback.client.stream("POST", PATH, json=raw) as reply:
        assert reply.status_code == 200
        assert reply.headers["content-type"].startswith("text/event-stream")
        text = reply.read().decode()
    found = []
    for frame in text.strip().split("\n\n"):
        name, data = frame.split("\n")
        payload = json.loads(data.removeprefix("data: "))
        assert name == f"event: {payload['type']}"
        found.append(payload)
    return found


def fold(payloads: list[dict]) -> dict:
    """What a client that joins the pieces has at the end."""
    message: dict = {}
    for each in payloads:
        kind = each["type"]
        if kind == "message_start":
            message = each["message"]
        elif kind == "content_block_start":
            assert each["index"] == len(message["content"])
            message["content"].append(each["content_block"])
        elif kind == "content_block_delta":
            (field,) = set(each["delta"]) - {"type"}
            message["content"][each["index"]][field] += each["delta"][field]
        elif kind == "message_delta":
            message |= each["delta"] | {"usage": each["usage"]}
    return message


def prompt_of(loopback: Loopback) -> str:
    ids = loopback.engine.submitted[-1].prompt_ids
    return loopback.core.tokenizer.decode(ids, skip_special=False)


def test_whole_reply(loopback: Loopback) -> None:
    reply = post(loopback, model="default").json()
    assert reply.pop("id").startswith("msg_")
    assert reply == {
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": [{"type": "text", "text": SCRIPT}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 4,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 2,
            "output_tokens": 10,
            "output_tokens_details": {"thinking_tokens": 0},
        },
    }


@pytest.mark.parametrize(
    "body", [{}, {"max_tokens": 3}, {"stop_sequences": [" four"]}, {"stop_sequences": [" one"]}]
)
def test_the_whole_reply_is_the_fold_of_the_stream(loopback: Loopback, body: dict) -> None:
    whole = post(loopback, **body).json()
    folded = fold(events(loopback, **body))
    assert folded | {"id": ""} == whole | {"id": ""}


def test_events_come_in_their_order(loopback: Loopback) -> None:
    kinds = [each["type"] for each in events(loopback)]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert set(kinds[3:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


@pytest.mark.parametrize(
    ("body", "reason", "stop"),
    [
        ({}, "end_turn", None),
        ({"max_tokens": 3}, "max_tokens", None),
        ({"max_tokens": 0}, "max_tokens", None),
        ({"stop_sequences": [" four"]}, "stop_sequence", " four"),
    ],
)
def test_why_it_ended(loopback: Loopback, body: dict, reason: str, stop: str | None) -> None:
    reply = post(loopback, **body).json()
    assert (reply["stop_reason"], reply["stop_sequence"]) == (reason, stop)


def test_the_prompt_is_the_rendered_chat(loopback: Loopback) -> None:
    text = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    post(loopback, system="be kind", messages=[{"role": "user", "content": text}])
    assert prompt_of(loopback) == "<|system|>\nbe kind\n<|user|>\nhello\n<|assistant|>\n"
    system = [{"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}}]
    post(loopback, system=system)
    assert prompt_of(loopback) == "<|system|>\nbe kind\n<|user|>\nhello\n<|assistant|>\n"


def test_what_the_assistant_began_is_gone_on_with(loopback: Loopback) -> None:
    post(loopback, messages=[*HELLO, {"role": "assistant", "content": "Well,"}])
    assert prompt_of(loopback) == "<|user|>\nhello\n<|assistant|>\nWell,"


def test_tools_and_their_results_do_not_disturb(loopback: Loopback) -> None:
    used = {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}}
    result = {
        "type": "tool_result",
        "tool_use_id": "t1",
        "content": [{"type": "text", "text": "5"}],
    }
    thought = {"type": "thinking", "thinking": "hm", "signature": ""}
    messages = [
        *HELLO,
        {"role": "assistant", "content": [thought, {"type": "text", "text": "ok"}, used]},
        {"role": "user", "content": [{"type": "text", "text": "there"}, result]},
    ]
    tools = [{"name": "f", "input_schema": {"type": "object"}}, {"type": "web", "name": "search"}]
    assert post(loopback, messages=messages, tools=tools, tool_choice={"type": "auto"}).is_success
    prompt = prompt_of(loopback)
    assert prompt.index("5") < prompt.index("there")  # results come before what was said


FOUND = {
    "type": "search_result",
    "source": "https://a.example",
    "title": "A",
    "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
    "citations": {"enabled": True},
}


def test_what_a_search_has_found_is_read_as_text(loopback: Loopback) -> None:
    other = {**FOUND, "source": "b", "title": "", "content": [{"type": "text", "text": "three"}]}
    text = "A\nhttps://a.example\none\ntwo\n\nb\nthree\n\n"
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [FOUND, other]}
    used = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}
    messages = [
        {"role": "user", "content": [FOUND, other, {"type": "text", "text": "hello"}]},
        {"role": "assistant", "content": [used]},
        {"role": "user", "content": [result]},
    ]
    assert post(loopback, messages=messages).is_success
    assert prompt_of(loopback).startswith(f"<|user|>\n{text}hello\n")
    assert prompt_of(loopback).count(text) == 2


@pytest.mark.parametrize(
    ("block", "kind"),
    [
        ({**FOUND, "content": [{"type": "image", "source": {"type": "url", "url": ""}}]}, "image"),
        ({**FOUND, "content": [FOUND]}, "search_result"),
        ({**FOUND, "source": None}, "search_result"),
        ({"type": "text_editor", "source": "a"}, "text_editor"),
        ({"type": "image", "source": "a"}, "image"),
    ],
)
def test_a_block_that_cannot_be_read_is_named(loopback: Loopback, block: dict, kind: str) -> None:
    refused = post(loopback, messages=[{"role": "user", "content": [block]}])
    assert refused.status_code == 400
    assert f"Found: {kind!r}." in refused.json()["error"]["message"]


def test_the_use_of_a_tool_has_a_name(loopback: Loopback) -> None:
    used = {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "input": {}}]}
    refused = post(loopback, messages=[*HELLO, used])
    assert refused.status_code == 400
    assert "has no name" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    "more",
    [
        {"system": "a b"},
        {"tools": [{"name": "f", "input_schema": {}}]},
        {"tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "none"}},
    ],
)
def test_tokens_are_counted_as_they_are_read(loopback: Loopback, more: dict) -> None:
    reply = loopback.client.post(f"{PATH}/count_tokens", json={"messages": HELLO, **more})
    post(loopback, **more)
    assert reply.json() == {"input_tokens": len(loopback.engine.submitted[-1].prompt_ids)}


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": None},
        {"max_tokens": -1},
        {"messages": []},
        {"messages": "hello"},
        {"messages": HELLO * 4097},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        {"temperature": 3},
        {"stop_sequences": ["x"] * 17},
        {"tool_choice": {"type": "sometimes"}},
    ],
)
def test_refusals_are_in_anthropic_s_shape(loopback: Loopback, body: dict) -> None:
    reply = post(loopback, **body)
    assert reply.status_code == 400
    found = reply.json()
    assert found["type"] == "error"
    assert found["error"]["type"] == "invalid_request_error"
    assert found["error"]["message"]


def test_other_refusals_are_too(loopback: Loopback) -> None:
    reply = post(loopback, model="claude-x")
    assert (reply.status_code, reply.json()["error"]["type"]) == (404, "not_found_error")
    reply = loopback.client.post(PATH, content=b"{", headers={"content-type": "application/json"})
    assert reply.json()["error"]["type"] == "invalid_request_error"
    theirs = {"anthropic-version": "2023-06-01"}
    path = "/v1/models/none"  # by who asks, where the path says nothing
    assert loopback.client.get(path).json()["error"]["code"]
    for reply in (
        loopback.client.get(path, headers=theirs),
        loopback.client.get(f"{PATH}/batches"),
    ):
        assert reply.status_code == 404
        assert reply.json()["type"] == "error"
        assert reply.json()["error"]["type"] == "not_found_error"
    with serving(scripted_core(), api_keys=("secret",)) as guarded:
        assert post(guarded).json()["error"]["type"] == "authentication_error"
        friend = {"x-api-key": "secret"}
        body = {"messages": HELLO, "max_tokens": 5}
        assert guarded.client.post(PATH, json=body, headers=friend).is_success


def test_a_prompt_too_long_is_told_in_the_words_agents_look_for(loopback: Loopback) -> None:
    reply = post(loopback, messages=[{"role": "user", "content": "hello " * 600}])
    assert reply.status_code == 400
    assert re.fullmatch(
        r"prompt is too long: 6\d\d tokens > 512 maximum", reply.json()["error"]["message"]
    )


def test_a_stream_that_fails_says_so() -> None:
    with serving(scripted_core()) as running:
        body = {"messages": HELLO, "max_tokens": 10**6, "stream": True}
        running.engine.script *= 5000
        with running.client.stream("POST", PATH, json=body) as reply:
            lines = reply.iter_lines()
            next(lines)
            running.engine.fails_with = "not a number"
            last = [line for line in lines if line][-1]
        error = {"type": "api_error", "message": "not a number"}
        assert json.loads(last.removeprefix("data: ")) == {"type": "error", "error": error}


def test_old_thoughts_may_be_cleared_and_nothing_else(loopback: Loopback) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
    clear = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    assert loopback.client.post(PATH, json={**body, "context_management": clear}).is_success
    other = {"edits": [{"type": "clear_tool_uses_20250919"}]}
    reply = loopback.client.post(PATH, json={**body, "context_management": other})
    assert reply.status_code == 400
    assert "clear_tool_uses_20250919" in reply.json()["error"]["message"]


def test_a_wrong_format_is_called_by_the_field_that_has_it(loopback: Loopback) -> None:
    for body in ({"output_format": {}}, {"output_config": {"format": {}}}):
        reply = post(loopback, **body)
        assert reply.status_code == 400
        assert reply.json()["error"]["message"].startswith(f"{next(iter(body))} is of no known")
