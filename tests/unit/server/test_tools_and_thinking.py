"""Calls of tools and thinking, from the model's text to every dialect's words."""

from __future__ import annotations

import json
from collections.abc import Iterator

import msgspec
import pytest
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from openai.types.responses.response_stream_event import ResponseStreamEvent
from pydantic import TypeAdapter

from blazr.server.openai.responses.items import Item, to_messages
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


def test_reasoning_is_left_out_where_it_is_not_wanted(running: Loopback) -> None:
    body = {**CHAT, "include_reasoning": False}
    reply = post(running, "/v1/chat/completions", body)
    assert not {"reasoning", "reasoning_content"} & set(reply["choices"][0]["message"])
    assert reply["choices"][0]["message"]["content"].strip() == "Let me look."
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    chunks = payloads(running, "/v1/chat/completions", body)
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas).strip() == "Let me look."
    assert not any({"reasoning", "reasoning_content"} & set(delta) for delta in deltas)


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


@pytest.mark.parametrize("name", ["get weather", "a\nb", 'say "hi"', "<|end|>", "☂"])
def test_a_tool_that_no_reply_can_call_is_refused(running: Loopback, name: str) -> None:
    named = {
        "/v1/chat/completions": CHAT
        | {"tools": [{"type": "function", "function": {"name": name}}]},
        "/v1/messages": MESSAGES | {"tools": [ANTHROPIC_TOOL | {"name": name}]},
        "/v1/responses": RESPONSE | {"tools": [FLAT_TOOL | {"name": name}]},
        "/api/chat": OLLAMA | {"tools": [{"type": "function", "function": {"name": name}}]},
    }
    for path, body in named.items():
        refused = running.client.post(path, json=body)
        assert refused.status_code == 400
        assert "letters, digits" in refused.text


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


PATCH = '*** Begin\n+say "hi"\n*** End'
GRAMMAR = {
    "type": "grammar",
    "syntax": "lark",
    "definition": 'start: "*** Begin" LF ("+" /(.*)/ LF)+ "*** End"\n%import common.LF',
}
CUSTOM = {"name": "apply", "description": "Edits files."}
FLAT_CUSTOM = {"type": "custom", **CUSTOM, "format": GRAMMAR}
NESTED = {"type": "grammar", "grammar": {k: v for k, v in GRAMMAR.items() if k != "type"}}
CHAT_CUSTOM = {"type": "custom", "custom": {**CUSTOM, "format": NESTED}}
PATCH_CALL = json.dumps({"name": "apply", "arguments": {"input": PATCH}})


@pytest.fixture(scope="module")
def patching() -> Iterator[Loopback]:
    with serving(thinking_core(f"Now.\n<tool_call>\n{PATCH_CALL}\n</tool_call>")) as server:
        yield server


def test_custom_tools_in_responses(patching: Loopback) -> None:
    body = {"input": "edit", "tools": [FLAT_CUSTOM]}
    reply = post(patching, "/v1/responses", body)
    _, call = reply["output"]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "apply", PATCH)
    assert Response.model_validate(reply).output[1].type == "custom_tool_call"
    events = payloads(patching, "/v1/responses", body)
    adapter = TypeAdapter(ResponseStreamEvent)
    kinds = [adapter.validate_python(each).type for each in events]
    assert kinds.count("response.custom_tool_call_input.done") == 1
    deltas = [each for each in events if each["type"] == "response.custom_tool_call_input.delta"]
    assert len(deltas) > 4, "the input comes as it is written"
    assert "".join(each["delta"] for each in deltas) == PATCH
    output = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "done"}
    history = [{"role": "user", "content": "edit"}, *reply["output"], output]
    assert post(patching, "/v1/responses", {**body, "input": history})["status"] == "completed"
    prompt = prompt_of(patching)
    assert PATCH_CALL in prompt, "the call stands there as the model wrote it"
    assert "follows this Lark grammar" in prompt


def test_custom_tools_in_chats(patching: Loopback) -> None:
    body = {**CHAT, "tools": [CHAT_CUSTOM]}
    reply = post(patching, "/v1/chat/completions", body)
    message = reply["choices"][0]["message"]
    (call,) = message["tool_calls"]
    assert call == {"id": call["id"], "type": "custom", "custom": {"name": "apply", "input": PATCH}}
    ChatCompletion.model_validate(reply)
    deltas = [
        call
        for chunk in payloads(patching, "/v1/chat/completions", body)
        for choice in chunk["choices"]
        for call in choice["delta"].get("tool_calls", ())
    ]
    assert (deltas[0]["type"], deltas[0]["custom"]["name"]) == ("custom", "apply")
    assert "".join(each["custom"]["input"] for each in deltas) == PATCH
    answer = {"role": "tool", "tool_call_id": call["id"], "content": "done"}
    again = {**body, "messages": [*HELLO, message, answer]}
    assert post(patching, "/v1/chat/completions", again)["choices"]
    assert PATCH_CALL in prompt_of(patching)


@pytest.mark.parametrize(
    ("path", "body", "choice"),
    [
        ("/v1/responses", {"input": "x", "tools": [FLAT_CUSTOM]}, {"name": "apply"}),
        (
            "/v1/chat/completions",
            {**CHAT, "tools": [CHAT_CUSTOM]},
            {"custom": {"name": "apply"}},
        ),
    ],
)
def test_custom_tools_get_a_grammar(
    patching: Loopback, path: str, body: dict, choice: dict
) -> None:
    post(patching, path, body)
    among_text = patching.engine.submitted[-1].constraint
    post(patching, path, {**body, "tool_choice": {"type": "custom", **choice}})
    forced = patching.engine.submitted[-1].constraint
    assert among_text is not None
    assert forced is not None
    assert forced is not among_text


@pytest.mark.parametrize(
    "form",
    [
        {"type": "grammar", "syntax": "lark", "definition": "start: missing"},
        {"type": "grammar", "syntax": "lark", "definition": 'start: %json {"type": "object"}'},
        {"type": "grammar", "syntax": "regex", "definition": "(?=a)"},
        {"type": "grammar", "syntax": "gbnf", "definition": 'root ::= "a"'},
        {"type": "xml"},
    ],
)
def test_what_is_no_grammar_is_refused(patching: Loopback, form: dict) -> None:
    body = {"input": "x", "tools": [{"type": "custom", "name": "f", "format": form}]}
    reply = patching.client.post("/v1/responses", json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tools"), reply.text


def prompt_of(running: Loopback) -> str:
    ids = running.engine.submitted[-1].prompt_ids
    return running.core.tokenizer.decode(ids, skip_special=False)


def test_thoughts_come_back_packed(running: Loopback) -> None:
    """Clients that store nothing send back what they were given unread, and no content."""
    body = {**RESPONSE, "store": False, "include": ["reasoning.encrypted_content"]}
    reply = post(running, "/v1/responses", body)
    thought = reply["output"][0]
    assert THOUGHT not in thought["encrypted_content"]
    unread = {"type": "reasoning", "summary": [], "encrypted_content": thought["encrypted_content"]}
    foreign = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}
    history = [{"role": "user", "content": "x"}, foreign, unread, *reply["output"][1:]]
    turn = to_messages(msgspec.convert(history, list[Item]))[1]
    assert turn.extra is not None
    assert turn.extra["reasoning_content"] == THOUGHT
    assert "encrypted_content" not in post(running, "/v1/responses", RESPONSE)["output"][0]


def test_tools_in_namespaces(running: Loopback) -> None:
    other = {"type": "namespace", "name": "files", "tools": [{"type": "function", "name": "read"}]}
    with serving(thinking_core(TEXT.replace('"weather"', '"mcp__sky__weather"'))) as server:
        tools = [{"type": "namespace", "name": "mcp__sky__", "tools": [FLAT_TOOL]}, other]
        reply = post(server, "/v1/responses", {"input": "x", "tools": tools})
        call = reply["output"][2]
        assert (call["namespace"], call["name"]) == ("mcp__sky__", "weather")
        assert "files__read" in prompt_of(server)
        history = [{"role": "user", "content": "x"}, *reply["output"]]
        history.append({"type": "function_call_output", "call_id": call["call_id"], "output": "1"})
        post(server, "/v1/responses", {"input": history, "tools": tools})
        assert '"name": "mcp__sky__weather"' in prompt_of(server)


def test_tools_that_run_elsewhere(running: Loopback, caplog: pytest.LogCaptureFixture) -> None:
    """What every agent offers is left out and not shown; what an answer depends on is refused."""
    reply = post(
        running, "/v1/responses", {**RESPONSE, "tools": [FLAT_TOOL, {"type": "web_search"}]}
    )
    assert [tool["type"] for tool in reply["tools"]] == ["function"]
    for _ in range(2):
        tools = [FLAT_TOOL, {"type": "image_generation"}]
        post(running, "/v1/responses", {**RESPONSE, "tools": tools})
    assert len([each for each in caplog.messages if "image_generation" in each]) == 1
    search = {"type": "web_search"}
    choices = (search, {"type": "allowed_tools", "mode": "required", "tools": [search]})
    for choice in choices:
        body = {**RESPONSE, "tools": [FLAT_TOOL, search], "tool_choice": choice}
        refused = running.client.post("/v1/responses", json=body)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "tool_choice"
    body = {**RESPONSE, "tools": [search], "tool_choice": "required"}
    assert running.client.post("/v1/responses", json=body).status_code == 400
    for kind in ("mcp", "file_search", "code_interpreter", "unheard_of"):
        body = {**RESPONSE, "tools": [FLAT_TOOL, {"type": kind}]}
        refused = running.client.post("/v1/responses", json=body)
        assert refused.status_code == 400
        assert kind in refused.json()["error"]["message"]


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
        ("/v1/chat/completions", {**CHAT, "tool_choice": "required", "regex": "a+"}),
        ("/v1/messages", {**MESSAGES, "tool_choice": {"type": "tool", "name": "other"}}),
        ("/v1/messages", {**MESSAGES, "tool_choice": {"type": "sometimes"}}),
        ("/v1/responses", {**RESPONSE, "tool_choice": {"type": "function", "name": "other"}}),
    ],
)
def test_what_cannot_be_forced_is_refused(running: Loopback, path: str, body: dict) -> None:
    assert running.client.post(path, json=body).status_code == 400


JSON = {"type": "json_schema", "name": "answer", "schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {**CHAT, "response_format": {"type": "json_object"}}),
        ("/v1/responses", {**RESPONSE, "text": {"format": JSON}}),
    ],
)
def test_a_format_is_that_of_text_and_a_forced_call_has_none(
    running: Loopback, path: str, body: dict
) -> None:
    post(running, path, {**body, "tool_choice": "required"})
    forced = running.engine.submitted[-1].constraint
    assert forced is not None
    post(
        running, path, {**CHAT, "tool_choice": "required"} if "messages" in body else FORCED[-1][1]
    )
    assert type(forced) is type(running.engine.submitted[-1].constraint)


TWICE = f"<tool_call>\n{CALL}\n</tool_call>"


@pytest.fixture(scope="module")
def calling() -> Iterator[Loopback]:
    with serving(thinking_core(f"Well. {TWICE}\n{TWICE}\nWhat now?")) as server:
        yield server


ONE = [
    ("/v1/chat/completions", {**CHAT, "parallel_tool_calls": False}),
    (
        "/v1/messages",
        {**MESSAGES, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    ),
    ("/v1/responses", {**RESPONSE, "parallel_tool_calls": False}),
]


@pytest.mark.parametrize(("path", "body"), ONE)
def test_where_one_call_is_allowed_the_first_ends_the_reply(
    calling: Loopback, path: str, body: dict
) -> None:
    one = post(calling, path, body)
    assert json.dumps(one).count("Rome") == 1
    assert "What now" not in json.dumps(one)
    both = {**body, "parallel_tool_calls": True, "tool_choice": None}
    assert json.dumps(post(calling, path, both)).count("Rome") == 2
    told = [each for each in payloads(calling, path, body) if "tool" in str(each)]
    assert told


def test_the_first_call_ends_with_its_reason(calling: Loopback) -> None:
    (choice,) = post(calling, *ONE[0])["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert len(choice["message"]["tool_calls"]) == 1


def test_a_call_that_is_cut_off_leaves_no_marks(calling: Loopback) -> None:
    seen = set()
    for most in range(1, 24):
        (choice,) = post(calling, "/v1/chat/completions", {**CHAT, "max_tokens": most})["choices"]
        message = choice["message"]
        assert (message["content"] or "").strip() in {"", "Well", "Well."}, most
        seen.add(bool(message.get("tool_calls")))
    assert seen == {False, True}


def test_a_call_that_is_cut_off_has_the_arguments_that_came_whole(running: Loopback) -> None:
    """As Anthropic's clients read the stream: nobody can tell more of what was to come."""
    seen = []
    for most in range(1, 200):
        body = {**MESSAGES, "max_tokens": most}
        reply = post(running, "/v1/messages", body)
        if reply["stop_reason"] == "tool_use":
            break
        assert reply["stop_reason"] == "max_tokens"
        calls = [each for each in reply["content"] if each["type"] == "tool_use"]
        seen += [each["input"] for each in calls if each["input"] not in seen]
    assert seen[:2] == [{}, {"city": "Rome"}]
    assert all(each.items() <= ARGUMENTS.items() for each in seen)


CUT = [
    ("/v1/chat/completions", CHAT),
    ("/v1/responses", RESPONSE),
    ("/v1/messages", MESSAGES),
    ("/api/chat", OLLAMA),
]


def with_reply(path: str, body: dict, reply: dict) -> dict | None:
    """The next turn: what the server has said, and what came of its call; None without one."""
    if path == "/v1/responses":
        calls = [each for each in reply["output"] if each["type"] == "function_call"]
        results = [
            {"type": "function_call_output", "call_id": each["call_id"], "output": "no JSON"}
            for each in calls
        ]
        asked = [{"role": "user", "content": body["input"]}]
        return {**body, "input": [*asked, *reply["output"], *results]} if calls else None
    if path == "/v1/messages":
        calls = [each for each in reply["content"] if each["type"] == "tool_use"]
        said = {"role": "assistant", "content": reply["content"]}
        results = [{"type": "tool_result", "tool_use_id": each["id"]} for each in calls]
        told = [{"role": "user", "content": results}]
    else:
        said = reply["message"] if path == "/api/chat" else reply["choices"][0]["message"]
        calls = said.get("tool_calls") or []
        told = [
            {"role": "tool", "tool_call_id": each.get("id", ""), "content": "no JSON"}
            for each in calls
        ]
    return {**body, "messages": [*body["messages"], said, *told]} if calls else None


@pytest.mark.parametrize(("path", "body"), CUT)
def test_a_call_that_is_cut_off_may_be_sent_again(running: Loopback, path: str, body: dict) -> None:
    """Agents keep it in the conversation, so that to refuse it would be to end that."""
    num_calls = 0
    for most in range(40, 140, 3):
        bound = {"max_output_tokens": most} if path == "/v1/responses" else {"max_tokens": most}
        bound = {"options": {"num_predict": most}} if path == "/api/chat" else bound
        following = with_reply(path, body, post(running, path, {**body, **bound}))
        if following is not None:
            num_calls += 1
            post(running, path, following)
    assert num_calls > 5


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "mcp", "server_label": "a", "server_url": "https://a.example"},
        {"type": "code_interpreter", "container": {"type": "auto"}},
    ],
)
def test_tools_that_run_elsewhere_are_refused_by_name(running: Loopback, tool: dict) -> None:
    for path, body in (("/v1/responses", RESPONSE), ("/v1/chat/completions", CHAT)):
        reply = running.client.post(path, json={**body, "tools": [*body["tools"], tool]})
        error = reply.json()["error"]
        assert (reply.status_code, error["param"]) == (400, "tools")
        assert repr(tool["type"]) in error["message"]
