"""``/``, ``/generate`` and ``/generate_stream`` as text-generation-inference has them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from blazr.engine.outputs import FinishReason
from tests.support.loopback import Loopback, serving
from tests.support.scripted import SCRIPT, scripted_core

# Characters of several tokens, so that text lags behind tokens.
TEXT = " one naïve 👩‍👩‍👧 three\n four five 東京 six"
PATHS = ("/", "/generate")


@pytest.fixture(scope="module")
def lagging() -> Iterator[Loopback]:
    with serving(scripted_core(text=TEXT)) as running:
        yield running


def ask(running: Loopback, path: str = "/", **parameters: object) -> dict:
    reply = running.client.post(path, json={"inputs": "hello", "parameters": parameters})
    assert reply.status_code == 200, reply.text
    return reply.json() if path == "/generate" else reply.json()[0]


def stream(running: Loopback, path: str = "/", **parameters: object) -> list[dict]:
    body = {"inputs": "hello", "parameters": parameters, "stream": True}
    with running.client.stream("POST", path, json=body) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in reply.iter_lines() if line]
    return [json.loads(line.removeprefix("data: ")) for line in lines if line != "data: [DONE]"]


def refused(running: Loopback, **parameters: object) -> str:
    reply = running.client.post("/", json={"inputs": "hello", "parameters": parameters})
    assert reply.status_code == 400, reply.text
    assert reply.json()["error_type"] == "validation"
    found: str = reply.json()["error"]
    return found


def test_an_answer_is_a_list_of_one_where_the_hubs_clients_ask(loopback: Loopback) -> None:
    body = {"inputs": "hello"}
    assert loopback.client.post("/", json=body).json() == [{"generated_text": SCRIPT}]
    assert loopback.client.post("/generate", json=body).json() == {"generated_text": SCRIPT}


def test_the_likeliest_tokens_unless_a_sampler_asks_for_others(loopback: Loopback) -> None:
    assert ask(loopback, details=True)["details"]["seed"] is None
    assert loopback.engine.submitted[-1].params.is_greedy
    assert loopback.engine.submitted[-1].params.max_tokens == 100
    for wish in ({"do_sample": True}, {"temperature": 0.5}, {"top_p": 0.5}, {"typical_p": 0.5}):
        drawn = ask(loopback, details=True, **wish)["details"]["seed"]
        params = loopback.engine.submitted[-1].params
        assert not params.is_greedy
        assert params.seed == drawn
    assert ask(loopback, details=True, do_sample=True, seed=7)["details"]["seed"] == 7


def test_details_tell_of_the_tokens(loopback: Loopback) -> None:
    found = ask(
        loopback, details=True, decoder_input_details=True, top_n_tokens=2, max_new_tokens=2
    )
    assert found["generated_text"] == " one two"
    details = found["details"]
    assert (details["finish_reason"], details["generated_tokens"]) == ("length", 2)
    assert [each["text"] for each in details["tokens"]] == [" one", " two"]
    assert all(each["logprob"] <= 0 and not each["special"] for each in details["tokens"])
    assert [len(each) for each in details["top_tokens"]] == [2, 2]
    assert "".join(each["text"] for each in details["prefill"]).endswith("hello")
    assert details["prefill"][0]["logprob"] is None


def test_the_token_that_ends_the_text_is_the_last(loopback: Loopback) -> None:
    found = ask(loopback, details=True, top_n_tokens=1)
    details = found["details"]
    assert details["finish_reason"] == "eos_token"
    *before, last = details["tokens"]
    assert "".join(each["text"] for each in before) == found["generated_text"] == SCRIPT
    (end,) = loopback.engine.submitted[-1].stop_ids
    assert (last["id"], last["text"], last["special"]) == (end, "", True)
    assert last["logprob"] in {-0.25, -2.5}  # as the scripted engine has it
    assert len(details["top_tokens"][-1]) == 1
    assert details["generated_tokens"] == len(details["tokens"])


def test_a_token_is_sent_before_the_next_is_there() -> None:
    with serving(scripted_core()) as running:
        running.engine.halts_after = running.engine.num_steps + 1
        body = {"inputs": "hello", "stream": True}
        with running.client.stream("POST", "/generate_stream", json=body) as reply:
            lines = (line for line in reply.iter_lines() if line)
            first = json.loads(next(lines).removeprefix("data: "))
            assert running.engine.num_steps == running.engine.halts_after
            running.engine.go.set()
            assert (first["token"]["text"], first["generated_text"]) == (" one", None)
            assert json.loads([*lines][-1].removeprefix("data: "))["generated_text"] == SCRIPT


def test_a_reply_without_text_has_an_end() -> None:
    with serving(scripted_core(text="")) as running:
        (only,) = stream(running, details=True)
        assert only["generated_text"] == only["token"]["text"] == ""
        assert only["details"]["finish_reason"] == "eos_token"
        assert ask(running, details=True)["details"]["tokens"] == [only["token"]]


def test_special_tokens_add_nothing_to_the_text() -> None:
    with serving(scripted_core()) as running:
        tokenizer = running.core.tokenizer
        mark = tokenizer.special_ids["<|user|>"]
        running.engine.script[1:1] = [mark]
        found = ask(running, details=True, max_new_tokens=3)
        assert found["generated_text"] == " one two"
        tokens = found["details"]["tokens"]
        assert [(each["text"], each["special"]) for each in tokens] == [
            (" one", False),
            ("", True),
            (" two", False),
        ]


@pytest.mark.parametrize("path", [*PATHS, "/generate_stream"])
@pytest.mark.parametrize(
    "wish",
    [
        {},
        {"max_new_tokens": 1},
        {"max_new_tokens": 9},
        {"stop": [" four"]},
        {"stop": ["ve 👩", "never"]},
        {"stop": [" six and"]},
        {"stop": "ee\n f", "top_n_tokens": 2},
        {"return_full_text": True},
    ],
    ids=json.dumps,
)
def test_the_whole_reply_is_the_fold_of_the_stream(
    lagging: Loopback, path: str, wish: dict
) -> None:
    whole = ask(lagging, details=True, **wish)
    *before, last = stream(lagging, path, details=True, **wish)
    tokens = [each["token"] for each in (*before, last)]
    details = whole["details"]
    assert tokens == details["tokens"]
    assert [each["index"] for each in (*before, last)] == list(range(1, len(tokens) + 1))
    assert all(each["generated_text"] is each["details"] is None for each in before)
    assert last["generated_text"] == whole["generated_text"]
    written = "".join(each["text"] for each in tokens)
    assert whole["generated_text"] == ("hello" if "return_full_text" in wish else "") + written
    for name in ("finish_reason", "generated_tokens", "seed"):
        assert last["details"][name] == details[name]
    assert last["details"]["input_length"] > 0
    assert [each.get("top_tokens") for each in (*before, last)] == (
        details.get("top_tokens") or [None] * len(tokens)
    )


def test_a_stop_string_is_part_of_the_text(loopback: Loopback) -> None:
    found = ask(loopback, stop=["three"], details=True)
    assert found["generated_text"] == " one two three"
    assert found["details"]["finish_reason"] == "stop_sequence"
    assert stream(loopback, stop=["three"])[-1]["details"] is None  # nobody asked


def test_a_prompt_loses_its_beginning_where_that_is_asked_for(loopback: Loopback) -> None:
    body = {"inputs": "a b c d e f g", "parameters": {"truncate": 3}}
    assert loopback.client.post("/", json=body).status_code == 200
    ids = loopback.engine.submitted[-1].prompt_ids
    assert len(ids) == 3
    assert loopback.core.tokenizer.decode(ids).endswith("g")


@pytest.mark.parametrize(
    "grammar",
    [
        {"type": "json", "value": {"type": "object"}},
        {"type": "json_schema", "value": {"name": "any", "schema": {"type": "object"}}},
        {"type": "regex", "value": "[0-9]+"},
    ],
    ids=lambda value: value["type"],
)
def test_grammars(loopback: Loopback, grammar: dict) -> None:
    ask(loopback, grammar=grammar)
    params = loopback.engine.submitted[-1].params
    if grammar["type"] == "regex":
        assert params.grammar == {"regex": "[0-9]+"}
    else:
        assert params.grammar == {"json_schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("wish", "name"),
    [
        ({"best_of": 2, "do_sample": True}, "/v1/completions"),
        ({"watermark": True}, "watermark"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"truncate": 0}, "truncate"),
        ({"top_n_tokens": 2}, '"details": true'),
        ({"decoder_input_details": True}, '"details": true'),
        ({"top_n_tokens": 99, "details": True}, "top_n_tokens"),
        ({"grammar": {"type": "lark", "value": "x"}}, "grammar"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"max_new_tokens": "many"}, "max_new_tokens"),
    ],
    ids=json.dumps,
)
def test_what_there_is_not_is_refused(loopback: Loopback, wish: dict, name: str) -> None:
    assert name in refused(loopback, **wish)


def test_how_a_prompt_that_is_too_long_can_be_cut_is_told(loopback: Loopback) -> None:
    for inputs in ("a " * 600, "a " * 6000):  # counted in tokens, and in characters
        reply = loopback.client.post("/", json={"inputs": inputs})
        assert reply.status_code == 400
        assert "Try: send truncate" in reply.json()["error"]


def test_a_stream_does_not_tell_of_the_prompt(loopback: Loopback) -> None:
    body = {"inputs": "a", "stream": True}
    body["parameters"] = {"details": True, "decoder_input_details": True}
    reply = loopback.client.post("/", json=body)
    assert reply.status_code == 400
    assert "decoder_input_details" in reply.json()["error"]


@pytest.mark.parametrize("more", [{"prompt": "a"}, {"text": "a"}, {"input_ids": [1]}])
def test_there_is_one_prompt(loopback: Loopback, more: dict) -> None:
    reply = loopback.client.post("/generate", json={"inputs": "b", **more})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "inputs"


def test_parameters_need_inputs(loopback: Loopback) -> None:
    reply = loopback.client.post("/generate", json={"prompt": "b", "parameters": {"top_k": 1}})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "parameters"


@pytest.mark.parametrize("reason", [FinishReason.ERROR, FinishReason.TIMEOUT])
def test_failures_are_told_as_clients_know_them(reason: FinishReason) -> None:
    with serving(scripted_core()) as running:
        running.engine.fails_with, running.engine.fails_as = "it has failed", reason
        body = {"inputs": "hello"}
        assert running.client.post("/", json=body).json()["error_type"] == "generation"
        streamed = running.client.post("/", json={**body, "stream": True}).text
        last = streamed.strip().splitlines()[-1].removeprefix("data: ")
        assert json.loads(last)["error_type"] == "generation"
