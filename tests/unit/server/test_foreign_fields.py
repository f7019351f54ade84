"""Fields of other servers: either they do what they say, or the answer says that they do not."""

from __future__ import annotations

from dataclasses import fields

import pytest

from blazr.engine.sampling_params import SamplingParams
from blazr.server.foreign_fields import _REFUSED, ALIASES
from blazr.server.routes import ROUTES
from tests.support.loopback import Loopback

HELLO = [{"role": "user", "content": "hello"}]
# By endpoint that generates: the least that it takes.
SOUND = {
    "/v1/completions": {"prompt": "a"},
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/responses": {"input": "a"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 5},
    "/completion": {"prompt": "a"},
    "/generate": {"prompt": "a"},
    "/api/chat": {"messages": HELLO, "stream": False},
    "/api/generate": {"prompt": "a", "stream": False},
}
# What clients send along without meaning anything by it.
IDLE = {
    "mirostat": 0,
    "typical_p": 1.0,
    "typ_p": 1,
    "top_n_sigma": -1,
    "xtc_probability": 0.0,
    "dry_multiplier": 0,
    "lora": [],
    "n_cmpl": 1,
    "use_beam_search": False,
    "modalities": ["text"],
    "audio": None,
    "include_reasoning": True,
    "skip_special_tokens": True,
    "truncate_prompt_tokens": None,
    "function_call": "none",
    "cache_prompt": True,
    "metadata": {"user": "a"},
    "never heard of": 5,
}


@pytest.mark.parametrize("path", SOUND)
def test_what_is_missing_is_refused_by_name(loopback: Loopback, path: str) -> None:
    (row,) = (each for each in ROUTES.values() if each.path == path and each.body)
    for name in sorted(set(_REFUSED) - set(row.body.__struct_fields__)):
        reply = loopback.client.post(path, json={**SOUND[path], name: 2})
        assert reply.status_code == 400, name
        assert f"has no {name}. Try: " in str(reply.json()["error"])


@pytest.mark.parametrize(
    ("path", "field", "advice"),
    [
        ("/v1/messages", "stop", "send stop_sequences"),
        ("/v1/chat/completions", "stop_sequences", "send stop"),
        ("/v1/responses", "max_tokens", "send max_output_tokens"),
        ("/v1/completions", "top_logprobs", "send logprobs"),
        ("/api/chat", "stop", "send options.stop"),
        ("/api/generate", "max_tokens", "send options.num_predict"),
    ],
)
def test_the_endpoint_s_own_field_is_told(
    loopback: Loopback, path: str, field: str, advice: str
) -> None:
    reply = loopback.client.post(path, json={**SOUND[path], field: 2})
    assert f"has no {field}. Try: {advice}." in str(reply.json()["error"])


# What changes no reply unless another field asks for it, and what no body has.
HARMLESS = {
    *("mirostat_tau", "mirostat_eta", "xtc_threshold", "speculate", "include_stop"),
    *("dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
    "logits_processors",  # functions, in Python alone
}


@pytest.mark.parametrize("path", SOUND)
def test_no_sampling_parameter_is_ignored(path: str) -> None:
    """Whatever one dialect takes, each other one takes or refuses."""
    (row,) = (each for each in ROUTES.values() if each.path == path and each.body)
    parameters = {each.name for each in fields(SamplingParams)} - HARMLESS
    parameters |= {alias for name in parameters for alias in ALIASES.get(name, ())}
    ours = {*row.body.__struct_fields__, *_REFUSED}
    # Ollama has these two in its options
    ours |= {"temperature", "top_p"} if "options" in ours else set()
    assert parameters - ours == set()


def test_what_is_false_may_ask_for_something(loopback: Loopback) -> None:
    for value, status in ((False, 400), (True, 200), (None, 200)):
        body = {**SOUND["/generate"], "skip_special_tokens": value}
        assert loopback.client.post("/generate", json=body).status_code == status


@pytest.mark.parametrize("path", SOUND)
def test_what_asks_for_nothing_is_ignored(loopback: Loopback, path: str) -> None:
    reply = loopback.client.post(path, json={**IDLE, **SOUND[path]})
    assert reply.status_code == 200, reply.text


def test_options_are_looked_at_too(loopback: Loopback) -> None:
    for options, expected in (
        ({"mirostat_mode": 2}, "mirostat_mode"),
        ({"mirostat": 0, "num_ctx": 512, "typical_p": 1, "num_thread": 4}, ""),
    ):
        reply = loopback.client.post("/api/chat", json={**SOUND["/api/chat"], "options": options})
        assert expected in reply.json().get("error", ""), reply.text
        assert reply.status_code == (400 if expected else 200)


def test_what_only_counts_takes_everything(loopback: Loopback) -> None:
    body = {"messages": HELLO, "mirostat_mode": 2, "response_format": {"type": "json_object"}}
    assert loopback.client.post("/v1/chat/completions/input_tokens", json=body).is_success
