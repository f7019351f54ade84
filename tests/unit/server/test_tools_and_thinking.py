"""Calls of tools and thinking, from the model's text to every dialect's words."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.loopback import Loopback, serving
from tests.support.scripted import thinking_core

THOUGHT = "The user wants Rome."
ARGUMENTS = {"city": "Rome", "days": 2}
CALL = json.dumps({"name": "weather", "arguments": ARGUMENTS})
TEXT = f"<think>\n{THOUGHT}\n</think>\n\nLet me look.\n<tool_call>\n{CALL}\n</tool_call>"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "weather", "description": "", "parameters": PARAMETERS}
OPENAI_TOOL = {"type": "function", "function": FUNCTION}
FLAT_TOOL = {"type": "function", **FUNCTION}
ANTHROPIC_TOOL = {"name": "weather", "input_schema": PARAMETERS}
HELLO = [{"role": "user", "content": "weather in Rome?"}]
CHAT = {"messages": HELLO, "tools": [OPENAI_TOOL], "max_tokens": 200}
MESSAGES = {"messages": HELLO, "tools": [ANTHROPIC_TOOL], "max_tokens": 200}
RESPONSE = {"input": "weather in Rome?", "tools": [FLAT_TOOL]}
OLLAMA = {"messages": HELLO, "tools": [OPENAI_TOOL], "stream": False}


@pytest.fixture(scope="module")
def running() -> Iterator[Loopback]:
    with serving(thinking_core(TEXT)) as server:
        yield server


def post(running: Loopback, path: str, body: dict) -> dict:
    reply = running.client.post(path, json=body)
    assert reply.is_success, reply.text
    return reply.json()


def payloads(running: Loopback, path: str, body: dict) -> list[dict]:
    text = running.client.post(path, json={**body, "stream": True}).text
    lines = [line for line in text.splitlines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_chats(running: Loopback) -> None:
    reply = post(running, "/v1/chat/completions", CHAT)
    (choice,) = reply["choices"]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert message["content"].strip() == "Let me look."
    assert message["reasoning"] == message["reasoning_content"] == THOUGHT
    (call,) = message["tool_calls"]
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"]) == ARGUMENTS
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


def test_streamed_chats(running: Loopback) -> None:
    deltas = [
        choice["delta"]
        for chunk in payloads(running, "/v1/chat/completions", CHAT)
        for choice in chunk["choices"]
    ]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert {call["index"] for call in calls} == {0}
    assert [("id" in call, call["function"].get("name")) for call in calls[:2]] == [
        (True, "weather"),
        (False, None),
    ]
    arguments = "".join(call["function"]["arguments"] for call in calls)
    assert json.loads(arguments) == ARGUMENTS
    assert len(calls) > 4, "the arguments come as they are written"
    assert "".join(delta.get("reasoning", "") for delta in deltas) == THOUGHT


def test_messages(running: Loopback) -> None:
    reply = post(running, "/v1/messages", MESSAGES)
    thought, text, call = reply["content"]
    assert thought == {"type": "thinking", "thinking": THOUGHT, "signature": ""}
    assert text["text"].strip() == "Let me look."
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "weather", ARGUMENTS)
    assert reply["stop_reason"] == "tool_use"
    events = payloads(running, "/v1/messages", MESSAGES)
    typed = "".join(
        each["delta"]["partial_json"]
        for each in events
        if each["type"] == "content_block_delta" and each["delta"]["type"] == "input_json_delta"
    )
    assert json.loads(typed) == ARGUMENTS


def test_responses(running: Loopback) -> None:
    reply = post(running, "/v1/responses", RESPONSE)
    assert [item["type"] for item in reply["output"]] == ["reasoning", "message", "function_call"]
    call = reply["output"][2]
    assert json.loads(call["arguments"]) == ARGUMENTS
    assert reply["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    named = {"type": "function", "name": "weather"}
    assert (
        post(running, "/v1/responses", {**RESPONSE, "tool_choice": named})["tool_choice"] == named
    )
    # the result goes back by the call's id
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    again = {**RESPONSE, "input": [output], "previous_response_id": reply["id"]}
    assert post(running, "/v1/responses", again)["status"] == "completed"


def test_ollama(running: Loopback) -> None:
    message = post(running, "/api/chat", OLLAMA)["message"]
    assert message["thinking"] == THOUGHT
    (call,) = message["tool_calls"]
    assert call == {"function": {"name": "weather", "arguments": ARGUMENTS}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 200}),
        ("/v1/chat/completions", {**CHAT, "tool_choice": "none"}),
    ],
)
def test_without_tools_a_call_is_text(running: Loopback, path: str, body: dict) -> None:
    (choice,) = post(running, path, body)["choices"]
    assert "<tool_call>" in choice["message"]["content"]
    assert choice["finish_reason"] == "stop"


FORCED = [
    ("/v1/chat/completions", {**CHAT, "tool_choice": "required"}),
    (
        "/v1/chat/completions",
        {**CHAT, "tool_choice": {"type": "function", "function": {"name": "weather"}}},
    ),
    (
        "/v1/chat/completions",
        {
            **CHAT,
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [OPENAI_TOOL]},
            },
        },
    ),
    ("/v1/messages", {**MESSAGES, "tool_choice": {"type": "any"}}),
    ("/v1/messages", {**MESSAGES, "tool_choice": {"type": "tool", "name": "weather"}}),
    ("/v1/responses", {**RESPONSE, "tool_choice": "required"}),
    ("/v1/responses", {**RESPONSE, "tool_choice": {"type": "function", "name": "weather"}}),
]


@pytest.mark.parametrize(("path", "body"), FORCED, ids=lambda value: str(value)[-60:])
def test_a_forced_call_is_a_grammar(running: Loopback, path: str, body: dict) -> None:
    post(running, path, body)
    assert running.engine.submitted[-1].constraint is not None
    post(running, path, {**body, "tool_choice": None})
    assert running.engine.submitted[-1].constraint is None


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {**CHAT, "tool_choice": "sometimes"}),
        ("/v1/chat/completions", {**CHAT, "tools": [], "tool_choice": "required"}),
        (
            "/v1/chat/completions",
            {**CHAT, "tool_choice": {"type": "function", "function": {"name": "other"}}},
        ),
        (
            "/v1/chat/completions",
            {**CHAT, "tool_choice": "required", "response_format": {"type": "json_object"}},
        ),
        ("/v1/messages", {**MESSAGES, "tool_choice": {"type": "tool", "name": "other"}}),
        ("/v1/messages", {**MESSAGES, "tool_choice": {"type": "sometimes"}}),
        ("/v1/responses", {**RESPONSE, "tool_choice": {"type": "function", "name": "other"}}),
    ],
)
def test_what_cannot_be_forced_is_refused(running: Loopback, path: str, body: dict) -> None:
    assert running.client.post(path, json=body).status_code == 400
