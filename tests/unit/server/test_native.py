"""/generate, tokens, models and status."""

from __future__ import annotations

import pytest
from tests.loopback import Loopback, serving
from tests.scripted import SCRIPT, scripted_core

import blazr


def test_generate_is_greedy_and_gives_the_continuation(loopback: Loopback) -> None:
    reply = loopback.client.post("/generate", json={"prompt": "hello"})
    assert reply.json() == {"response": SCRIPT}
    params = loopback.engine.submitted[-1].params
    assert params.is_greedy
    assert params.max_tokens == 50


def test_generate_takes_other_wishes(loopback: Loopback) -> None:
    reply = loopback.client.post("/generate", json={"prompt": "hello", "max_tokens": 2})
    assert reply.json() == {"response": " one two"}


def test_tokenize_and_back(loopback: Loopback) -> None:
    text = "hello <|user|> 👩‍👩‍👧"
    reply = loopback.client.post("/tokenize", json={"prompt": text, "return_token_strs": True})
    found = reply.json()
    assert found["tokens"] == loopback.core.tokenizer.encode(text)
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert found["max_model_len"] == 512
    back = loopback.client.post("/detokenize", json={"tokens": found["tokens"]}).json()
    assert back == {"prompt": text, "content": text}


def test_tokenize_takes_chats_and_other_spellings(loopback: Loopback) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    ids = loopback.client.post("/tokenize", json=chat).json()["tokens"]
    assert ids[0] == loopback.core.tokenizer.special_ids["<|user|>"]
    other = loopback.client.post("/tokenize", json={"content": "hi"}).json()["tokens"]
    assert other == loopback.core.tokenizer.encode("hi")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "a", "messages": []}),
        ("/detokenize", {"tokens": [10**9]}),
        ("/detokenize", {"tokens": [-1]}),
        ("/generate", {"prompt": 5}),
    ],
)
def test_refusals(loopback: Loopback, path: str, body: dict) -> None:
    assert loopback.client.post(path, json=body).status_code == 400


def test_tokenizer_info(loopback: Loopback) -> None:
    assert loopback.client.get("/tokenizer_info").json()["eos_token"] == "<|endoftext|>"


def test_models(loopback: Loopback) -> None:
    (card,) = loopback.client.get("/v1/models").json()["data"]
    assert card["id"] == "scripted"
    assert card["object"] == "model"
    assert card["max_model_len"] == 512
    for name in ("scripted", "default", "org/name"):
        assert loopback.client.get(f"/v1/models/{name}").json()["id"] == "scripted"


@pytest.mark.parametrize("name", ["gpt-4", "../../etc/passwd", "a" * 5000])
def test_unknown_models_are_404_and_name_the_loaded_one(loopback: Loopback, name: str) -> None:
    body = {"model": name, "prompt": "a"}
    for reply in (
        loopback.client.post("/v1/completions", json=body),
        loopback.client.post("/tokenize", json=body),
        loopback.client.get(f"/v1/models/{name}"),
    ):
        assert reply.status_code == 404
        if "etc" in name and reply.request.method == "GET":
            continue  # the client resolves the dots
        assert reply.json()["error"]["code"] == "model_not_found"
        assert "'scripted'" in reply.json()["error"]["message"]


def test_health_and_version(loopback: Loopback) -> None:
    health = loopback.client.get("/health").json()
    assert health["status"] == "ok"
    assert health["version"] == blazr.__version__
    assert health["model"] == "scripted"
    assert loopback.client.get("/version").json() == {"version": blazr.__version__}
    assert loopback.client.get("/ready").is_success


def test_metrics_count_what_happened(loopback: Loopback) -> None:
    def value(name: str) -> float:
        lines = loopback.client.get("/metrics").text.splitlines()
        return float(next((x.split()[1] for x in lines if x.startswith(f"{name} ")), 0))

    names = ("blazr_generated_tokens_total", 'blazr_requests_total{outcome="ok"}')
    before = [value(name) for name in names]
    loopback.client.post("/v1/completions", json={"prompt": "a"})
    assert [value(name) for name in names] == [before[0] + 10, before[1] + 1]
    assert value("blazr_time_to_first_token_seconds_count") > 0
    assert value("blazr_engine_steps_total") > 0


def test_served_name_replaces_the_model_s() -> None:
    with serving(scripted_core(), served_name="mine") as running:
        assert running.client.get("/v1/models").json()["data"][0]["id"] == "mine"
        body = {"model": "mine", "prompt": "a"}
        assert running.client.post("/v1/completions", json=body).json()["model"] == "mine"
