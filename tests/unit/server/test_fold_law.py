"""The law of every endpoint that generates: the whole reply is the fold of the stream."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.loopback import Loopback, serving
from tests.support.scripted import scripted_core

# Characters of several tokens, so that text lags behind tokens.
TEXT = " one naïve 👩‍👩‍👧 three\n four five 東京 six"
CHAT = {"messages": [{"role": "user", "content": "hello"}]}

COMMON = (
    {},
    {"n": 3},
    {"max_tokens": 1},
    {"max_tokens": 5, "n": 2},
    {"max_tokens": 9},
    {"max_tokens": 40, "ignore_eos": True},
    {"stop": " four"},
    {"stop": ["ve 👩", "never"]},
    {"stop": "ee\n f", "n": 2, "include_stop_str_in_output": True},
    {"stop": " one"},
)
COMPLETIONS = (
    {"prompt": ["a", "b c", "d"]},
    {"prompt": [[1, 2], [3]], "n": 2},
    {"prompt": ["a", "b"], "echo": True, "stop": "three"},
    {"echo": True},
    {"echo": True, "logprobs": 1},
    {"echo": True, "logprobs": 0, "max_tokens": 1},
    {"logprobs": 2},
    {"logprobs": 2, "stop": " four", "n": 2},
    {"prompt": ["wörld 👋", "b c"], "n": 2, "echo": True, "logprobs": 2, "stop": "naï"},
)
CHATS = (
    {"logprobs": True},
    {"logprobs": True, "top_logprobs": 2},
    {"logprobs": True, "top_logprobs": 2, "n": 2, "stop": "six"},
)
CASES = [
    *(("/v1/completions", {"prompt": "hello", **case}) for case in COMMON + COMPLETIONS),
    *(("/v1/chat/completions", {**CHAT, **case}) for case in COMMON + CHATS),
]


@pytest.fixture(scope="module")
def running() -> Iterator[Loopback]:
    with serving(scripted_core(text=TEXT)) as server:
        yield server


def stream(running: Loopback, path: str, body: dict) -> list[dict]:
    """The payloads of a stream that ends as it must."""
    wanted = {**body, "stream": True, "stream_options": {"include_usage": True}}
    with running.client.stream("POST", path, json=wanted) as reply:
        assert reply.status_code == 200
        lines = [line for line in reply.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def fold(chunks: list[dict]) -> dict:
    """What a client that joins the pieces has at the end."""
    *parts, last = chunks
    assert last["choices"] == []
    assert all(part["usage"] is None for part in parts)
    choices: dict[int, dict] = {}
    for piece in (choice for part in parts for choice in part["choices"]):
        mine = choices.setdefault(piece["index"], {"text": "", "logprobs": None, "ends": []})
        delta = piece.get("delta", {"content": piece.get("text")})
        mine["text"] += delta.get("content", "")
        for key, values in (piece["logprobs"] or {}).items():
            gathered = mine["logprobs"] or {}
            mine["logprobs"] = gathered | {key: gathered.get(key, []) + (values or [])}
        assert not mine["ends"], "a piece after the end"
        if piece["finish_reason"]:
            mine["ends"].append((piece["finish_reason"], piece.get("stop_reason")))
    return {"choices": choices, "usage": last["usage"]}


def same_shape(whole: dict) -> dict:
    """A whole reply, as `fold` gives it."""
    choices = {}
    for choice in whole["choices"]:
        logprobs = choice["logprobs"]
        choices[choice["index"]] = {
            "text": choice["text"] if "text" in choice else choice["message"]["content"],
            "logprobs": logprobs and {key: values or [] for key, values in logprobs.items()},
            "ends": [(choice["finish_reason"], choice.get("stop_reason"))],
        }
    return {"choices": choices, "usage": whole["usage"]}


@pytest.mark.parametrize(("path", "body"), CASES, ids=lambda value: json.dumps(value)[:60])
def test_the_whole_reply_is_the_fold_of_the_stream(
    running: Loopback, path: str, body: dict
) -> None:
    whole = running.client.post(path, json=body)
    chunks = stream(running, path, body)
    assert whole.status_code == 200, whole.text
    assert fold(chunks) == same_shape(whole.json())
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1


@pytest.mark.parametrize("case", [{}, {"max_tokens": 5}, {"stop": " four"}, {"stop": ["ve 👩"]}])
def test_generate_is_the_fold_of_the_same_stream(running: Loopback, case: dict) -> None:
    """/generate does not stream; what it answers is what the same request streams elsewhere."""
    body = {"prompt": "hello", "max_tokens": 50, "temperature": 0, **case}
    whole = running.client.post("/generate", json=body)
    streamed = fold(stream(running, "/v1/completions", body))
    assert whole.json() == {"response": streamed["choices"][0]["text"]}


def test_the_cases_reach_what_they_are_for(running: Loopback) -> None:
    """Stop strings cut characters' neighbours, echoes come first, every choice is there."""
    body = {"prompt": ["wörld", "b"], "n": 2, "echo": True, "logprobs": 1, "stop": " 👩"}
    found = same_shape(running.client.post("/v1/completions", json=body).json())
    assert sorted(found["choices"]) == [0, 1, 2, 3]
    assert found["choices"][0]["text"] == "wörld one naïve"
    assert found["choices"][3]["ends"] == [("stop", " 👩")]
    assert found["choices"][0]["logprobs"]["token_logprobs"][0] is None
    assert found["usage"]["completion_tokens"] > 0
