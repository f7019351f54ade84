"""/v1/completions: shapes, streams, echo and log-probabilities."""

from __future__ import annotations

import json
from itertools import accumulate

import pytest

from blazr.server.openai.completions import _places
from blazr.text.events import TokenText
from blazr.text.tokenizer import Tokenizer
from tests.support.loopback import Loopback
from tests.support.scripted import SCRIPT

pytestmark = pytest.mark.smoke

NULL = {"type": "null"}
BAD_SCHEMA = {"type": "riddle"}


def post(loopback: Loopback, **body: object):
    return loopback.client.post("/v1/completions", json=body)


def chunks(loopback: Loopback, path: str = "/v1/completions", **body: object) -> list[dict]:
    """The payloads of a stream, which must end with [DONE]."""
    with loopback.client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        lines = [line for line in response.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


def test_whole_reply_has_the_documented_shape(loopback: Loopback) -> None:
    reply = post(loopback, model="default", prompt="hello").json()
    assert reply["object"] == "text_completion"
    assert reply["id"].startswith("cmpl-")
    assert reply["model"] == "scripted"
    (choice,) = reply["choices"]
    assert choice["text"] == SCRIPT
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"] is None
    assert reply["usage"] == {
        "prompt_tokens": 1,
        "completion_tokens": 10,
        "total_tokens": 11,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def test_documented_defaults_reach_the_engine(loopback: Loopback) -> None:
    post(loopback, prompt="hello", temperature=None, max_tokens=None)
    params = loopback.engine.submitted[-1].params
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k) == (
        100,
        0.7,
        0.9,
        40,
    )


@pytest.mark.parametrize(
    ("body", "field", "expected"),
    [
        ({"top_k": -1}, "top_k", 0),
        ({"stop": "x"}, "stop", ("x",)),
        ({"stop": ["x", "y"]}, "stop", ("x", "y")),
        ({"logit_bias": {"5": -3}}, "logit_bias", {5: -3.0}),
        ({"seed": 7}, "seed", 7),
        ({"ignore_eos": True, "max_tokens": 3}, "ignore_eos", True),
        ({"include_stop_str_in_output": True}, "include_stop", True),
        ({"logprobs": 2}, "logprobs", 2),
        ({"response_format": {"type": "text"}}, "grammar", None),
        ({"response_format": {"type": "json_object"}}, "grammar", {"json_object": True}),
        *(
            (
                {"response_format": {"type": "json_object", name: NULL}},
                "grammar",
                {"json_schema": NULL},
            )
            for name in ("schema", "value")  # llama.cpp's and TGI's
        ),
        # as huggingface_hub's own examples have them
        ({"response_format": {"type": "json", "value": NULL}}, "grammar", {"json_schema": NULL}),
        ({"response_format": {"type": "regex", "value": "[ab]"}}, "grammar", {"regex": "[ab]"}),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "grammar", {"choice": ["a", "b"]}),
        ({"structured_outputs": {"json": {"type": "null"}}}, "grammar", {"json_schema": NULL}),
        ({"structured_outputs": {"json": {}, "regex": None}}, "grammar", {"json_schema": {}}),
        ({"structured_outputs": {"grammar": "start: /a/"}}, "grammar", {"lark": "start: /a/"}),
        ({"json_schema": {"type": "null"}}, "grammar", {"json_schema": NULL}),
        ({"grammar": 'root ::= "a"'}, "grammar", {"gbnf": 'root ::= "a"'}),
        ({"grammar": ""}, "grammar", None),
        ({"regex": "[ab]"}, "grammar", {"regex": "[ab]"}),
        ({"ebnf": 'root ::= "a"'}, "grammar", {"gbnf": 'root ::= "a"'}),
        ({"guided_json": '{"type": "null"}'}, "grammar", {"json_schema": '{"type": "null"}'}),
        ({"guided_regex": "[ab]"}, "grammar", {"regex": "[ab]"}),
        ({"guided_choice": ["a", "b"]}, "grammar", {"choice": ["a", "b"]}),
        ({"guided_grammar": "start: /a/"}, "grammar", {"lark": "start: /a/"}),
        # guidance says it under the older name, too
        (
            {"structured_outputs": {"grammar": "start: /a/"}, "guided_grammar": "start: /a/"},
            "grammar",
            {"lark": "start: /a/"},
        ),
        (
            {"guided_json": NULL, "response_format": {"type": "json_schema", "schema": NULL}},
            "grammar",
            {"json_schema": NULL},
        ),
    ],
)
def test_fields_reach_the_engine(
    loopback: Loopback, body: dict, field: str, expected: object
) -> None:
    assert post(loopback, prompt="hello", **body).status_code == 200
    assert getattr(loopback.engine.submitted[-1].params, field) == expected


def test_stream_folds_to_the_whole_reply(loopback: Loopback) -> None:
    whole = post(loopback, prompt="hello", n=2, logprobs=1).json()
    parts = chunks(loopback, prompt="hello", n=2, logprobs=1)
    assert {part["id"] for part in parts} == {parts[0]["id"]}
    for choice in whole["choices"]:
        mine = [c for part in parts for c in part["choices"] if c["index"] == choice["index"]]
        assert "".join(c["text"] for c in mine) == choice["text"]
        assert mine[-1]["finish_reason"] == choice["finish_reason"]
        for key, values in choice["logprobs"].items():
            streamed = [v for c in mine if c["logprobs"] for v in c["logprobs"][key]]
            assert streamed == values


def test_usage_comes_last_when_asked_for(loopback: Loopback) -> None:
    parts = chunks(loopback, prompt="hello", stream_options={"include_usage": True})
    assert parts[-1]["choices"] == []
    assert parts[-1]["usage"]["completion_tokens"] == 10
    assert all(part["usage"] is None for part in parts[:-1])
    assert "usage" not in chunks(loopback, prompt="hello")[0]


def test_many_prompts_times_n_are_numbered_in_order(loopback: Loopback) -> None:
    reply = post(loopback, prompt=["a", "b c", "d"], n=2, echo=True).json()
    assert [c["index"] for c in reply["choices"]] == [0, 1, 2, 3, 4, 5]
    assert [c["text"].removesuffix(SCRIPT) for c in reply["choices"]] == [
        "a", "a", "b c", "b c", "d", "d",
    ]  # fmt: skip
    assert reply["usage"]["prompt_tokens"] == 4
    assert reply["usage"]["completion_tokens"] == 60


def test_token_ids_are_a_prompt_and_lists_of_them_are_many(loopback: Loopback) -> None:
    assert len(post(loopback, prompt=[1, 2, 3]).json()["choices"]) == 1
    assert loopback.engine.submitted[-1].prompt_ids == (1, 2, 3)
    assert len(post(loopback, prompt=[[1, 2], [3]]).json()["choices"]) == 2


def test_special_tokens_spelled_by_a_user_are_text(loopback: Loopback) -> None:
    post(loopback, prompt="<|user|><|endoftext|>")
    specials = set(loopback.core.tokenizer.special_ids.values())
    assert not specials & set(loopback.engine.submitted[-1].prompt_ids)


def test_prompts_are_scored_as_evaluation_harnesses_expect(loopback: Loopback) -> None:
    """Entries: one per prompt token, the first null, and one for the token generated."""
    prompts = [[10, 20, 31], [7, 8]]
    body = {"temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    reply = post(loopback, prompt=prompts, **body).json()
    for prompt, choice in zip(prompts, reply["choices"], strict=True):
        logprobs = choice["logprobs"]
        assert len(logprobs["token_logprobs"]) == len(prompt) + 1
        assert len(logprobs["tokens"]) == len(logprobs["text_offset"]) == len(prompt) + 1
        assert logprobs["token_logprobs"][0] is None
        assert logprobs["top_logprobs"][0] is None
        # even ids are the likeliest of the script's engine, odd ones are not
        for token_id, value, top in zip(
            prompt[1:], logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:], strict=False
        ):
            assert (max(top.values()) == value) is (token_id % 2 == 0)
            assert value in top.values()
    assert loopback.engine.submitted[-1].params.ignore_eos


@pytest.mark.parametrize("prompt", ["Hé, one two", "one <|endoftext|> €uro"])
def test_offsets_of_an_echo_index_into_the_text(loopback: Loopback, prompt: str) -> None:
    """Special tokens that are not shown, such as the one a text begins with, take no place."""
    tokenizer = loopback.core.tokenizer
    hidden = next(iter(tokenizer.eos_ids))
    ids = tokenizer.encode(prompt)
    tokens = [_token(tokenizer, each) for each in (hidden, *ids)]
    found = list(_places(tokens, prompt))
    whole = [0, *accumulate(len(tokenizer.decode([each])) for each in ids)][: len(ids)]
    if "€" not in prompt:  # one character of several tokens
        assert found == [0, *whole]
    assert found[0] == found[1] == 0
    assert all(0 <= place < len(prompt) for place in found)
    stripped = [_token(tokenizer, each) for each in tokenizer.encode(" one two")]
    assert list(_places(stripped, "one two")) == [0, 3]
    body = {"echo": True, "logprobs": 0, "max_tokens": 2, "prompt": prompt}
    choice = post(loopback, **body).json()["choices"][0]
    text, logprobs = choice["text"], choice["logprobs"]
    for token, place in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert text[place:].startswith(token) or "\ufffd" in token


def _token(tokenizer: Tokenizer, token_id: int) -> TokenText:
    data = tokenizer.token_bytes(token_id)
    return TokenText(data.decode("utf-8", "replace"), token_id, data, None)


def test_echo_without_logprobs_gives_the_prompt_back(loopback: Loopback) -> None:
    assert post(loopback, prompt="hello there", echo=True).json()["choices"][0]["text"] == (
        "hello there" + SCRIPT
    )
    first = chunks(loopback, prompt="hello there", echo=True)[0]
    assert first["choices"][0]["text"] == "hello there"


def test_stop_string_ends_the_reply_and_the_work(loopback: Loopback) -> None:
    before = len(loopback.engine.aborted)
    endless = {"max_tokens": 10**9, "ignore_eos": True}
    choice = post(loopback, prompt="hello", stop=" four", **endless).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (" one two three", "stop")
    assert choice["stop_reason"] == " four"
    assert len(loopback.engine.aborted) == before + 1
    assert loopback.engine.num_running == 0


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"best_of": 3, "stream": True}, "best_of"),
        ({"best_of": 2, "n": 3}, "best_of"),
        ({"best_of": 17}, "best_of"),
        ({"best_of": 10**30, "n": 2}, "best_of"),
        ({"best_of": 16, "prompt": ["a"] * 17}, "best_of"),
        ({"best_of": 17, "n": 17}, "n"),
        ({"best_of": 2, "n": -1}, "n"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"n": 17}, "n"),
        ({"n": 10**9}, "n"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": ["a"] * 100, "n": 3}, "n"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [100331]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [10**30]}, "prompt"),
        ({"temperature": 2.5}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"max_tokens": 2**40}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": "x" * 1025}, "stop"),
        ({"stop": ""}, "stop"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"response_format": {"type": "riddle"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json"}}, "response_format"),
        ({"response_format": {"type": "json", "value": 1}}, "response_format"),
        ({"response_format": {"type": "regex", "value": {}}}, "response_format"),
        ({"response_format": {"type": "regex", "value": "("}}, "response_format"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"riddle": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
        ({"response_format": {"type": "json_schema", "schema": BAD_SCHEMA}}, "response_format"),
        ({"response_format": {"type": "text"}, "guided_json": BAD_SCHEMA}, "guided_json"),
        ({"guided_choice": []}, "guided_choice"),
        ({"ebnf": "root ::= x"}, "ebnf"),
        ({"regex": "["}, "regex"),
        ({"grammar": "start"}, "grammar"),
        ({"structured_outputs": {"regex": "a"}, "regex": "b"}, "structured_outputs"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
        ({"seed": 2**70}, "seed"),
        ({"min_tokens": 101}, "min_tokens"),
    ],
)
def test_refusals_name_the_field(loopback: Loopback, body: dict, param: str) -> None:
    response = post(loopback, **{"prompt": "hello", **body})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("remote_port", each) for each in (0, -1, 65536, 2**70, True, "80", 80.5, 80.0, [80])),
        *(("remote_host", each) for each in (1, ["a"], True)),
        *(("remote_engine_id", each) for each in (1, {})),
        *(("remote_block_ids", each) for each in (1, "a", {})),
        *(("do_remote_decode", each) for each in (1, "true", 0.0)),
        *(("do_remote_prefill", each) for each in (0, "", [])),
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_wrong_values_of_kv_transfer_params_are_refused(
    loopback: Loopback, path: str, field: str, value: object
) -> None:
    asked = {"prompt": "hi", "messages": [{"role": "user", "content": "hi"}]}
    response = loopback.client.post(path, json={**asked, "kv_transfer_params": {field: value}})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_value")
    assert error["param"] == "kv_transfer_params"
    assert f"$.kv_transfer_params.{field}" in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


def test_too_long_a_prompt_names_both_numbers(loopback: Loopback) -> None:
    error = post(loopback, prompt=[1] * 600).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["type"] == "exceed_context_size_error"
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (600, 512)
    assert "600" in error["message"]
    assert "512" in error["message"]


def test_a_text_that_cannot_fit_is_refused_unread(loopback: Loopback) -> None:
    response = post(loopback, prompt="a" * 5000)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["n_prompt_tokens"] > error["n_ctx"] == 512


def test_best_of_gives_back_n_of_each(loopback: Loopback) -> None:
    reply = post(loopback, prompt=["a", "b"], n=2, best_of=4, max_tokens=3).json()
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    assert all(choice["logprobs"] is None for choice in reply["choices"])
    assert reply["usage"]["completion_tokens"] == 2 * 4 * 3


def test_a_suffix_asks_for_the_middle(loopback: Loopback) -> None:
    assert post(loopback, prompt="a = ", suffix=" + 1").is_success
    tokenizer = loopback.core.tokenizer
    asked = tokenizer.decode(loopback.engine.submitted[-1].prompt_ids, skip_special=False)
    assert asked == "<|fim_prefix|>a = <|fim_suffix|> + 1<|fim_middle|>"
    assert post(loopback, prompt="a = ", suffix="").is_success  # as to vLLM, it is none
    assert tokenizer.decode(loopback.engine.submitted[-1].prompt_ids, skip_special=False) == "a = "


def test_no_tokens_only_read_the_prompt(loopback: Loopback) -> None:
    body = {"prompt": [10, 21], "max_tokens": 0, "echo": True, "logprobs": 1}
    (choice,) = post(loopback, **body).json()["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"]["token_logprobs"] == [None, -2.5]
    assert choice["text"] == loopback.core.tokenizer.decode([10, 21])


def test_log_probabilities_of_the_prompt_without_echoing_it(loopback: Loopback) -> None:
    body = {"prompt": [10, 21], "prompt_logprobs": 1, "max_tokens": 2}
    (choice,) = post(loopback, **body).json()["choices"]
    first, second = choice["prompt_logprobs"]
    assert first is None
    assert {name: each["logprob"] for name, each in second.items()} == {"20": -0.125, "21": -2.5}
    assert (second["20"]["rank"], second["21"]["rank"]) == (1, None)
    assert choice["logprobs"] is None
    parts = chunks(loopback, **body)
    assert parts[0]["choices"][0]["prompt_logprobs"] == choice["prompt_logprobs"]


def test_best_of_equal_to_n_is_fine(loopback: Loopback) -> None:
    assert len(post(loopback, prompt="a", n=2, best_of=2).json()["choices"]) == 2
