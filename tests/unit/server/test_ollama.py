"""Ollama's dialect: lines of JSON, figures at the end, models under its names."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.support.loopback import Loopback, serving
from tests.support.scripted import SCRIPT, scripted_core, thinking_core

HELLO = [{"role": "user", "content": "hello"}]
FIGURES = {
    "total_duration",
    "load_duration",
    "prompt_eval_count",
    "prompt_eval_duration",
    "eval_count",
    "eval_duration",
}
CASES = [
    ("/api/generate", {"prompt": "hello"}),
    ("/api/generate", {"prompt": "hello", "system": "be kind"}),
    ("/api/generate", {"prompt": "hello", "raw": True}),
    ("/api/generate", {"prompt": "a = ", "suffix": " + 1"}),
    ("/api/generate", {"prompt": "hello", "options": {"num_predict": 3}}),
    ("/api/generate", {"prompt": "hello", "options": {"stop": [" four"], "seed": 1}}),
    ("/api/chat", {"messages": HELLO}),
    ("/api/chat", {"messages": HELLO, "options": {"num_predict": -1, "num_ctx": 4096}}),
    ("/api/chat", {"messages": HELLO, "think": False, "keep_alive": "5m"}),
    ("/api/chat", {"messages": [*HELLO, {"role": "assistant", "content": "Well,"}]}),
]


def post(loopback: Loopback, path: str, **body: object):
    return loopback.client.post(path, json={"stream": False, **body})


def lines(loopback: Loopback, path: str, **body: object) -> list[dict]:
    """A stream, which is what is sent when nothing else is asked for."""
    reply = loopback.client.post(path, json=body)
    assert reply.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in reply.text.splitlines()]


def said(line: dict) -> str:
    return line["message"]["content"] if "message" in line else line["response"]


def prompt_of(loopback: Loopback) -> str:
    ids = loopback.engine.submitted[-1].prompt_ids
    return loopback.core.tokenizer.decode(ids, skip_special=False)


@pytest.mark.parametrize(("path", "body"), CASES, ids=lambda value: json.dumps(value)[:50])
def test_the_whole_reply_is_the_fold_of_the_stream(
    loopback: Loopback, path: str, body: dict
) -> None:
    whole = post(loopback, path, **body).json()
    parts = lines(loopback, path, **body)
    assert "".join(map(said, parts)) == said(whole)
    last = parts[-1]
    assert all(part["done"] is False for part in parts[:-1])
    for name in ("done", "done_reason", "model", "eval_count", "prompt_eval_count"):
        assert last[name] == whole[name]
    assert set(whole) >= FIGURES
    assert whole["total_duration"] >= whole["prompt_eval_duration"] >= 0


@pytest.mark.parametrize(
    ("path", "body"), [("/api/chat", {"messages": HELLO}), ("/api/generate", {"prompt": "hello"})]
)
def test_tokens_have_their_log_probabilities(loopback: Loopback, path: str, body: dict) -> None:
    assert "logprobs" not in post(loopback, path, **body).json()
    whole = post(loopback, path, **body, logprobs=True, top_logprobs=2).json()
    tokens = whole["logprobs"]
    assert "".join(each["token"] for each in tokens) == said(whole) == SCRIPT
    asked = {"messages": HELLO, "logprobs": True, "top_logprobs": 2}
    if path == "/api/chat":  # the same as OpenAI's clients get
        reply = loopback.client.post("/v1/chat/completions", json=asked).json()
        assert tokens == reply["choices"][0]["logprobs"]["content"]
    parts = lines(loopback, path, **body, logprobs=True, top_logprobs=2)
    assert [each for part in parts for each in part.get("logprobs", [])] == tokens
    alone = post(loopback, path, **body, logprobs=True).json()["logprobs"]
    assert all("top_logprobs" not in each for each in alone)
    assert [each["logprob"] for each in alone] == [each["logprob"] for each in tokens]
    for wrong in ({"logprobs": True, "top_logprobs": 21}, {"top_logprobs": 1}):
        refused = post(loopback, path, **body, **wrong)
        assert (refused.status_code, "top_logprobs" in refused.json()["error"]) == (400, True)


def test_an_empty_suffix_is_none(loopback: Loopback) -> None:
    post(loopback, "/api/generate", prompt="hello")
    expected = prompt_of(loopback)
    assert post(loopback, "/api/generate", prompt="hello", suffix="").is_success
    assert prompt_of(loopback) == expected


def test_what_is_said(loopback: Loopback) -> None:
    whole = post(loopback, "/api/chat", messages=HELLO, model="scripted:latest").json()
    assert whole["message"] == {"role": "assistant", "content": SCRIPT}
    assert (whole["done_reason"], whole["eval_count"]) == ("stop", 10)
    few = post(loopback, "/api/chat", messages=HELLO, options={"num_predict": 3}).json()
    assert few["done_reason"] == "length"


def test_prompts_are_chats_unless_they_are_raw(loopback: Loopback) -> None:
    post(loopback, "/api/generate", prompt="hi", system="be kind")
    assert prompt_of(loopback) == "<|system|>\nbe kind\n<|user|>\nhi\n<|assistant|>\n"
    post(loopback, "/api/generate", prompt="hi", raw=True)
    assert prompt_of(loopback) == "hi"


@pytest.mark.parametrize("path", ["/api/generate", "/api/chat"])
def test_nothing_asked_says_that_the_model_is_there(loopback: Loopback, path: str) -> None:
    reply = post(loopback, path, model="scripted").json()
    assert (reply["done"], reply["done_reason"]) == (True, "load")


def test_models_are_found_under_ollama_s_names(loopback: Loopback) -> None:
    version = loopback.client.get("/api/version").json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 6, 4)  # what clients ask for
    for path in ("/api/tags", "/api/ps"):
        (card,) = loopback.client.get(path).json()["models"]
        assert card["name"] == card["model"] == "scripted:latest"
        assert len(card["digest"]) == 64
    for spelled in ({"model": "scripted:latest"}, {"name": "scripted"}, {}):
        shown = post(loopback, "/api/show", **spelled).json()
        assert {"completion", "embedding"} <= set(shown["capabilities"])
        assert shown["model_info"]["oxidizr.context_length"] == 512
    (running,) = loopback.client.get("/api/ps").json()["models"]
    assert running["context_length"] == 512


def test_clients_learn_what_they_may_ask_of_a_model(loopback: Loopback) -> None:
    """Editors offer tools, thinking and completions within a text only where these are named."""
    shown = post(loopback, "/api/show").json()["capabilities"]
    assert shown == ["completion", "embedding", "tools", "insert"]
    with serving(thinking_core("Hm.")) as running:
        shown = post(running, "/api/show").json()["capabilities"]
        assert shown == ["completion", "embedding", "tools", "thinking", "insert"]
        running.core.tokenizer.special_ids = {}
        assert "insert" not in post(running, "/api/show").json()["capabilities"]


@pytest.mark.parametrize(
    ("method", "path", "hint"),
    [
        ("POST", "/api/copy", "blazr serve NAME=PATH"),
        ("POST", "/api/create", "blazr serve NAME=PATH"),
        ("POST", "/api/blobs/sha256:00", "blazr serve NAME=PATH"),
        ("DELETE", "/api/delete", "keep_alive"),
        ("POST", "/api/push", "hf upload"),
    ],
)
def test_models_are_not_managed_by_clients(
    loopback: Loopback, method: str, path: str, hint: str
) -> None:
    reply = loopback.client.request(method, path, json={"model": "scripted"})
    assert reply.status_code == 501
    assert set(reply.json()) == {"error"}
    assert hint in reply.json()["error"]


def test_a_model_is_called_in_the_answer_as_in_the_request(loopback: Loopback) -> None:
    for asked, told in ({"model": "scripted"}, "scripted"), ({}, "scripted:latest"):
        assert post(loopback, "/api/chat", messages=HELLO, **asked).json()["model"] == told


@pytest.mark.parametrize("name", ["scripted", "scripted:latest"])
def test_what_is_there_can_be_pulled(loopback: Loopback, name: str) -> None:
    told = lines(loopback, "/api/pull", model=name)
    assert [each["status"] for each in told] == ["pulling manifest", "success"]
    assert post(loopback, "/api/pull", name=name).json() == {"status": "success"}


def test_what_is_not_there_cannot_be_pulled(loopback: Loopback) -> None:
    reply = loopback.client.post("/api/pull", json={"model": "llama9"})
    assert reply.status_code == 404
    assert "blazr serve" in reply.json()["error"]


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/api/me"), ("GET", "/api/chat"), ("GET", "/api")]
)
def test_unknown_paths_answer_in_this_dialect(loopback: Loopback, method: str, path: str) -> None:
    reply = loopback.client.request(method, path)
    assert reply.status_code in {404, 405}
    assert isinstance(reply.json()["error"], str)


def test_a_model_s_own_parameters_are_shown_and_used() -> None:
    core = scripted_core()
    core.info = replace(core.info, sampling={"temperature": 0.6, "repetition_penalty": 1.1})
    with serving(core) as running:
        shown = post(running, "/api/show").json()["parameters"]
        assert [line.split() for line in shown.splitlines()] == [
            ["temperature", "0.6"],
            ["repeat_penalty", "1.1"],
        ]
        post(running, "/api/chat", messages=HELLO, options={"repeat_penalty": 1.5})
        used = running.engine.submitted[-1].params
        assert (used.temperature, used.repetition_penalty) == (0.6, 1.5)


def test_embeddings(loopback: Loopback) -> None:
    both = post(loopback, "/api/embed", input=["a", "b c"]).json()
    assert len(both["embeddings"]) == 2
    assert both["prompt_eval_count"] == 3
    one = post(loopback, "/api/embed", input="a").json()["embeddings"]
    assert one == [post(loopback, "/api/embeddings", prompt="a").json()["embedding"]]
    assert one[0] == pytest.approx(both["embeddings"][0])


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/api/generate", {"prompt": "a", "model": "llama3"}, 404),
        ("/api/generate", {"prompt": "a", "images": ["x"]}, 400),
        ("/api/generate", {"prompt": "a", "options": {"temperature": 3}}, 400),
        ("/api/chat", {"messages": "hello"}, 400),
        ("/api/show", {"model": "llama3"}, 404),
        ("/api/embed", {"input": []}, 400),
    ],
)
def test_errors_are_plain(loopback: Loopback, path: str, body: dict, status: int) -> None:
    reply = post(loopback, path, **body)
    assert reply.status_code == status
    assert set(reply.json()) == {"error"}
    assert isinstance(reply.json()["error"], str)


def test_a_stream_that_fails_says_so() -> None:
    with serving(scripted_core(text="one " * 30000)) as running:
        body = {"messages": HELLO, "options": {"num_predict": 10**6}}
        with running.client.stream("POST", "/api/chat", json=body) as reply:
            found = reply.iter_lines()
            next(found)
            running.engine.fails_with = "not a number"
            assert json.loads(list(found)[-1]) == {"error": "not a number"}


def test_a_model_that_could_not_come_back_stays(loopback: Loopback) -> None:
    for _ in range(2):
        body = {"prompt": "a", "stream": False, "keep_alive": 0}
        assert loopback.client.post("/api/generate", json=body).json()["response"] == SCRIPT
    assert len(loopback.client.get("/api/ps").json()["models"]) == 1
