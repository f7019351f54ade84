"""Prompts that are too long: refused, or cut where the client wants them cut."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.loopback import Loopback, serving
from tests.support.scripted import scripted_core

CONTEXT = 128


@pytest.fixture(scope="module")
def loopback() -> Iterator[Loopback]:
    with serving(scripted_core(max_seq_len=CONTEXT)) as running:
        yield running


def read(loopback: Loopback, path: str, **body: object) -> tuple[int, ...]:
    """The token ids that the engine was given."""
    reply = loopback.client.post(path, json=body)
    assert reply.is_success, reply.text
    return loopback.engine.submitted[-1].prompt_ids


@pytest.mark.parametrize("side", ["left", "right", None])
def test_token_ids_are_cut(loopback: Loopback, side: str | None) -> None:
    ids = list(range(300))
    body = {"prompt": ids, "max_tokens": 20, "truncation_side": side}
    for most, kept in ((5, 5), (100, 100), (-1, CONTEXT - 20), (127, 127)):
        found = read(loopback, "/v1/completions", truncate_prompt_tokens=most, **body)
        assert list(found) == (ids[:kept] if side == "right" else ids[-kept:])
    short = read(loopback, "/v1/completions", prompt=[1, 2], truncate_prompt_tokens=5)
    assert short == (1, 2)


@pytest.mark.parametrize("most", [0, -2, 128, 10**6])
def test_cuts_that_are_refused(loopback: Loopback, most: int) -> None:
    body = {"prompt": list(range(300)), "truncate_prompt_tokens": most}
    reply = loopback.client.post("/v1/completions", json=body)
    assert reply.status_code == 400
    reply = loopback.client.post("/v1/completions", json={**body, "truncation_side": "top"})
    assert reply.status_code == 400


def test_texts_of_any_length_are_cut(loopback: Loopback) -> None:
    text = "".join(f" {i}" for i in range(50_000))
    whole = loopback.core.tokenizer.encode(text)
    found = read(loopback, "/v1/completions", prompt=text, truncate_prompt_tokens=40)
    assert list(found) == whole[-40:]
    found = read(
        loopback,
        "/v1/completions",
        prompt=text,
        truncate_prompt_tokens=40,
        truncation_side="right",
    )
    assert list(found) == whole[:40]
    for path, body in (
        ("/v1/completions", {"prompt": text}),
        ("/v1/embeddings", {"input": text}),
        ("/api/embed", {"input": text, "truncate": False}),
    ):
        reply = loopback.client.post(path, json=body)
        assert reply.status_code == 400
        assert "context" in reply.text


def test_vectors_of_long_texts(loopback: Loopback) -> None:
    text = "".join(f" {i}" for i in range(5_000))
    whole = loopback.core.tokenizer.encode(text)
    assert list(read(loopback, "/api/embed", input=text)) == whole[:CONTEXT]
    whole_context = list(range(CONTEXT))
    assert list(read(loopback, "/v1/embeddings", input=whole_context)) == whole_context
    cut = {"truncate_prompt_tokens": 30}
    assert list(read(loopback, "/v1/embeddings", input=text, **cut)) == whole[-30:]
    pair = {"text_1": text, "text_2": "b"}
    reply = loopback.client.post("/v1/score", json={**pair, **cut})
    assert reply.json()["usage"]["prompt_tokens"] == 31
    reply = loopback.client.post("/v1/rerank", json={"query": "a", "documents": ["b"], **cut})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "truncate_prompt_tokens")


def test_a_chat_is_cut_as_it_was_rendered(loopback: Loopback) -> None:
    messages = [{"role": "user", "content": " one" * 500}]
    found = read(loopback, "/v1/chat/completions", messages=messages, truncate_prompt_tokens=20)
    tail = loopback.core.tokenizer.decode(found, skip_special=False)
    assert len(found) == 20
    assert tail.startswith(" one one")
    assert "assistant" in tail


def talk(turns: int) -> list[dict]:
    roles = ("user", "assistant")
    said = [{"role": roles[i % 2], "content": f"turn {i}" + " x" * 10} for i in range(turns)]
    return [{"role": "developer", "content": "be kind"}, *said]


def test_the_oldest_messages_of_a_response_go(loopback: Loopback) -> None:
    decode = loopback.core.tokenizer.decode
    body = {"input": talk(41), "max_output_tokens": 10, "instructions": "be brief"}
    reply = loopback.client.post("/v1/responses", json={**body, "truncation": "disabled"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context_length_exceeded")
    found = read(loopback, "/v1/responses", **body, truncation="auto")
    text = decode(found, skip_special=False)
    assert "be brief" in text
    assert "be kind" in text
    first = min(i for i in range(41) if f"turn {i} " in text)
    assert first % 2 == 0  # a user's
    assert all(f"turn {i} " in text for i in range(first, 41))
    two_more = read(loopback, "/v1/responses", input=talk(41)[first - 1 :], max_output_tokens=1)
    assert len(found) <= CONTEXT - 10 < len(two_more) + 20
    short = {**body, "input": "hello"}
    assert read(loopback, "/v1/responses", **short, truncation="auto") == read(
        loopback, "/v1/responses", **short
    )


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/responses", {"truncation": "auto", "max_output_tokens": 10}),
        ("/v1/chat/completions", {"truncation": "auto", "max_tokens": 10}),
        ("/api/chat", {"stream": False, "options": {"num_predict": 10}}),
    ],
)
def test_a_header_says_how_many_messages_were_left_out(
    loopback: Loopback, path: str, fields: dict
) -> None:
    name = "input" if path == "/v1/responses" else "messages"
    dropped = []
    for turns in (3, 41):
        reply = loopback.client.post(path, json={name: talk(turns), **fields})
        assert reply.status_code == 200
        dropped.append(reply.headers.get("X-Blazr-Dropped-Messages"))
        text = loopback.core.tokenizer.decode(loopback.core.engine.submitted[-1].prompt_ids)
        first = min(i for i in range(turns) if f"turn {i} " in text)
        assert first == int(dropped[-1] or 0)
    assert dropped[0] is None


def test_a_chat_that_asks_for_no_truncation_is_refused(loopback: Loopback) -> None:
    for path, fields in (("/v1/chat/completions", {}), ("/api/chat", {"truncate": False})):
        reply = loopback.client.post(path, json={"messages": talk(41), **fields})
        assert reply.status_code == 400


def test_a_long_chat_begins_at_the_same_turn_for_a_while(loopback: Loopback) -> None:
    fields = {"truncation": "auto", "max_tokens": 10}
    starts = []
    for turns in range(41, 81, 2):
        path, body = "/v1/chat/completions", {"messages": talk(turns), **fields}
        reply = loopback.client.post(path, json=body)
        starts.append(int(reply.headers["X-Blazr-Dropped-Messages"]))
    assert starts == sorted(starts)
    assert len(set(starts)) <= len(starts) * 2 // 3


def test_one_message_that_is_too_long_is_refused_all_the_same(loopback: Loopback) -> None:
    body = {"input": "x " * 500, "truncation": "auto"}
    reply = loopback.client.post("/v1/responses", json=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context_length_exceeded")
    reply = loopback.client.post("/v1/responses", json={**body, "truncation": "some"})
    assert reply.status_code == 400


def test_usage_in_every_chunk(loopback: Loopback) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    for path, body in (
        ("/v1/completions", {"prompt": ["a", "a b"], "n": 2}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ):
        asked = {**body, "max_tokens": 4, "stream": True, "stream_options": options}
        text = loopback.client.post(path, json=asked).text
        chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        usages = [chunk["usage"] for chunk in chunks]
        counts = [each["completion_tokens"] for each in usages]
        assert counts == sorted(counts)
        assert usages[-1] == usages[-2]
        assert counts[-1] == 4 * (4 if "prompt" in body else 1)
        assert usages[0]["prompt_tokens"] > 0
        assert all(each["total_tokens"] >= each["prompt_tokens"] for each in usages)
        asked["stream_options"] = {"continuous_usage_stats": True}
        assert '"usage"' not in loopback.client.post(path, json=asked).text
