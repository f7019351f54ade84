"""What dialects say of samplers is what the engine is told."""

from __future__ import annotations

import pytest

from blazr.engine.sampling_params import SAMPLERS, SamplingParams
from tests.support.loopback import Loopback

HELLO = {"messages": [{"role": "user", "content": "hi"}]}
LLAMA = ("/completion", {"prompt": "a"})
OPENAI = [("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", HELLO)]
OLLAMA = [("/api/generate", {"prompt": "a"}), ("/api/chat", HELLO)]


def told(loopback: Loopback, path: str, **body: object) -> SamplingParams:
    reply = loopback.client.post(path, json=body)
    assert reply.is_success, reply.text
    return loopback.engine.submitted[-1].params


@pytest.mark.parametrize(("path", "body"), [LLAMA, *OPENAI])
def test_samplers_are_those_named_in_their_order(loopback: Loopback, path: str, body: dict) -> None:
    values = {"temperature": 0.5, "top_k": 3, "top_p": 0.6, "min_p": 0.1, "presence_penalty": 1}
    names = ["penalties", "dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]
    params = told(loopback, path, **body, **values, samplers=names)
    assert params.samplers == ("penalties", "top_k", "top_p", "min_p", "temperature")
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.5, 3, 0.6, 0.1)
    assert params.presence_penalty == 1
    assert told(loopback, path, **body, **values, samplers="edkypmxt") == params
    few = told(loopback, path, **body, **values, samplers=["top_p", "temperature"])
    assert few.samplers == ("top_p", "temperature", "penalties", "top_k", "min_p")
    assert (few.temperature, few.top_k, few.top_p, few.min_p) == (0.5, 0, 0.6, 0.0)
    assert (few.presence_penalty, few.repetition_penalty) == (0, 1)
    none = told(loopback, path, **body, **values, samplers=[])
    assert (none.temperature, none.top_p) == (1, 1)
    assert set(none.samplers) == set(SAMPLERS)
    assert told(loopback, path, **body, **values).samplers == ()


@pytest.mark.parametrize("names", [["greedy"], ["top_k", "top_k"], "kk", "kz", ["infill"], 3])
def test_samplers_that_are_refused(loopback: Loopback, names: object) -> None:
    for path, body in (LLAMA, *OPENAI):
        reply = loopback.client.post(path, json={**body, "samplers": names})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "samplers")


def test_how_far_penalties_look_back(loopback: Loopback) -> None:
    penalty = {"repeat_penalty": 1.5}
    for path, body in (LLAMA, *OPENAI):
        assert told(loopback, path, **body, **penalty, repeat_last_n=7).repeat_last_n == 7
        assert told(loopback, path, **body, **penalty).repetition_penalty == 1.5
        usual = 64 if path == "/completion" else -1
        assert told(loopback, path, **body, **penalty).repeat_last_n == usual
        reply = loopback.client.post(path, json={**body, "repeat_last_n": -2})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "repeat_last_n")
    for path, body in OLLAMA:
        options = {"repeat_penalty": 1.5, "repeat_last_n": 9}
        params = told(loopback, path, **body, options=options)
        assert (params.repetition_penalty, params.repeat_last_n) == (1.5, 9)
        assert told(loopback, path, **body).repeat_last_n == 64


@pytest.mark.parametrize(
    ("name", "value", "nothing"),
    [
        ("repeat_last_n", 64, None),
        ("samplers", ["top_k"], []),
        ("min_keep", 2, 0),
        ("truncate_prompt_tokens", 5, None),
        ("adaptive_target", 0.5, -1),
    ],
)
def test_where_there_is_none_it_is_said(
    loopback: Loopback, name: str, value: object, nothing: object
) -> None:
    for path in ("/v1/messages", "/v1/responses"):
        body = {**HELLO, "max_tokens": 2} if path == "/v1/messages" else {"input": "a"}
        reply = loopback.client.post(path, json={**body, name: value})
        assert reply.status_code == 400
        assert name in reply.text
        assert loopback.client.post(path, json={**body, name: nothing}).is_success


def test_settings_are_told_as_they_are(loopback: Loopback) -> None:
    reply = loopback.client.post("/completion", json={"prompt": "a", "repeat_last_n": 5})
    assert reply.json()["generation_settings"]["repeat_last_n"] == 5
    props = loopback.client.get("/props").json()["default_generation_settings"]
    assert props["params"]["repeat_last_n"] == 64


@pytest.mark.parametrize(("path", "body"), [LLAMA, *OPENAI])
def test_the_rare_ones_are_told(loopback: Loopback, path: str, body: dict) -> None:
    values = {"typical_p": 0.5, "top_n_sigma": 2, "xtc_probability": 0.5, "xtc_threshold": 0.2}
    values |= {"mirostat": 2, "mirostat_tau": 3, "mirostat_eta": 0.2}
    dry = {"dry_multiplier": 0.8, "dry_base": 2, "dry_allowed_length": 3, "dry_penalty_last_n": 64}
    params = told(loopback, path, **body, **values, **dry, dry_sequence_breakers=[".", "a"])
    for name, value in (values | dry).items():
        assert getattr(params, name) == value
    assert params.dry_sequence_breakers == (".", "a")
    assert loopback.engine.submitted[-1].dry_breakers
    # a list of samplers that leaves them out switches them off
    off = told(loopback, path, **body, **values, **dry, samplers=["top_k"])
    assert (off.typical_p, off.top_n_sigma, off.xtc_probability) == (1, -1, 0)
    assert off.dry_multiplier == 0
    names = ["top_k", "xtc", "typ_p"]
    some = told(loopback, path, **body, **values, **dry, samplers=names)
    assert (some.typical_p, some.xtc_probability, some.dry_multiplier) == (0.5, 0.5, 0)


@pytest.mark.parametrize(("path", "body"), OPENAI)
def test_words_and_ids_that_may_come_are_told(loopback: Loopback, path: str, body: dict) -> None:
    params = told(loopback, path, **body, bad_words=["ball"], allowed_token_ids=[5, 6])
    assert params.allowed_token_ids == (5, 6)
    assert loopback.engine.submitted[-1].bad_words
    for name, value in (("bad_words", [""]), ("allowed_token_ids", []), ("typical_p", 3)):
        reply = loopback.client.post(path, json={**body, name: value})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, name)
