"""/generate, tokens, models and status."""

from __future__ import annotations

import json

import pytest

import blazr
from tests.support.loopback import Loopback, serving
from tests.support.scripted import SCRIPT, scripted_core, wait_until


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


def test_pieces_stand_beside_their_ids(loopback: Loopback) -> None:
    found = loopback.client.post("/tokenize", json={"content": "a b", "with_pieces": True}).json()
    assert [each["piece"] for each in found["tokens"]] == ["a", " b"]


def test_a_piece_of_a_character_is_its_bytes(loopback: Loopback) -> None:
    text = "a👩🏽"
    body = {"content": text, "with_pieces": True}
    found = loopback.client.post("/tokenize", json=body).json()["tokens"]
    assert any(isinstance(each["piece"], list) for each in found)
    pieces = [each["piece"] for each in found]
    data = [each.encode() if isinstance(each, str) else bytes(each) for each in pieces]
    assert b"".join(data).decode() == text


def test_a_chat_as_text_and_as_a_number(loopback: Loopback) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    shown = loopback.client.post("/apply-template", json=chat).json()
    assert shown == {"prompt": "<|user|>\nhi\n<|assistant|>\n"}
    counted = loopback.client.post("/v1/chat/completions/input_tokens", json=chat).json()
    ids = loopback.client.post("/tokenize", json=chat).json()["tokens"]
    assert counted["input_tokens"] == len(ids)


def test_a_chat_is_shown_as_it_was_written(loopback: Loopback) -> None:
    """Its special tokens' names included."""
    (name, *_) = loopback.core.tokenizer.special_ids
    chat = {"messages": [{"role": "user", "content": f" {name} {chr(0xFFFD)} "}]}
    shown = loopback.client.post("/apply-template", json=chat).json()["prompt"]
    assert shown == f"<|user|>\n {name} {chr(0xFFFD)} \n<|assistant|>\n"


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_tools_that_may_not_be_called_are_not_counted(loopback: Loopback, choice: str) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    chat = {
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [tool],
        "tool_choice": choice,
    }
    ids = loopback.client.post("/tokenize", json=chat).json()["tokens"]
    assert loopback.client.post("/v1/chat/completions", json=chat).is_success
    assert ids == list(loopback.engine.submitted[-1].prompt_ids)


@pytest.mark.parametrize(
    "path", ["/tokenize", "/apply-template", "/v1/chat/completions/input_tokens"]
)
@pytest.mark.parametrize("tool", [{}, {"type": "function", "function": {}}, {"type": "web_search"}])
def test_a_chat_is_counted_with_tools_that_it_could_be_answered_with(
    loopback: Loopback, path: str, tool: dict
) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}], "tools": [tool]}
    refused = loopback.client.post(path, json=chat)
    answered = loopback.client.post("/v1/chat/completions", json=chat)
    assert refused.status_code == answered.status_code == 400
    assert refused.json() == answered.json()


@pytest.mark.parametrize("path", ["/infill", "/v1/infill"])
def test_the_middle_is_filled_in(loopback: Loopback, path: str) -> None:
    body = {
        "input_prefix": "a = ",
        "input_suffix": " + 1",
        "prompt": "2",
        "input_extra": [{"filename": "b.py", "text": "b = 3"}],
        "stop": [" four"],
        "n_predict": -1,
    }
    whole = loopback.client.post(path, json=body).json()
    assert whole["content"] == " one two three"
    assert (whole["stop_type"], whole["stopping_word"]) == ("word", " four")
    tokenizer = loopback.core.tokenizer
    asked = tokenizer.decode(loopback.engine.submitted[-1].prompt_ids, skip_special=False)
    expected = "<|fim_prefix|>b.py\nb = 3\na = 2<|fim_suffix|> + 1<|fim_middle|>"
    assert asked == expected
    text = loopback.client.post(path, json={**body, "stream": True}).text
    parts = [json.loads(frame.removeprefix("data: ")) for frame in text.strip().split("\n\n")]
    assert "".join(part["content"] for part in parts) == whole["content"]
    for end in (parts[-1], whole):
        assert end.pop("timings")["prompt_n"] + end["tokens_cached"] == end["tokens_evaluated"]
    assert parts[-1] == {**whole, "content": ""}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/infill", {"input_prefix": "a", "input_suffix": "b"}, "input_suffix"),
        ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix"),
    ],
)
def test_where_no_middle_can_be_filled_in_the_suffix_is_named(
    loopback: Loopback, path: str, body: dict, param: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blazr.llm.infill.INFILL_FORMATS", {})
    refused = loopback.client.post(path, json=body)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, param)
    assert "/v1/completions without suffix" in error["message"]


def test_completion_in_the_words_of_llama_cpp(loopback: Loopback) -> None:
    """Texts, objects, and ids with texts among them are prompts; several make a list."""
    encode = loopback.core.tokenizer.encode
    single = loopback.client.post(
        "/completion", json={"prompt": "a b", "n_predict": 3, "seed": -1, "return_tokens": True}
    ).json()
    assert (single["content"], single["stop_type"]) == (" one two three", "limit")
    assert (single["tokens_predicted"], single["tokens"]) == (3, encode(" one two three"))
    assert not single["truncated"]
    assert single["generation_settings"]["n_predict"] == single["timings"]["predicted_n"] == 3
    prompt = ["a b", encode("a b"), ["a", *encode(" b")], {"prompt_string": "a b"}]
    several = loopback.client.post("/completion", json={"prompt": prompt, "n_predict": 1}).json()
    assert [each["index"] for each in several] == [0, 1, 2, 3]
    assert {each["content"] for each in several} == {" one"}
    asked = [each.prompt_ids for each in loopback.engine.submitted[-4:]]
    assert asked == [tuple(encode("a b"))] * 4
    mixed = loopback.client.post("/completion", json={"prompt": [*encode("a"), " b"]}).json()
    assert mixed["content"] == SCRIPT


def test_completion_takes_biases_of_texts_and_reports_probabilities(loopback: Loopback) -> None:
    encode = loopback.core.tokenizer.encode
    (five,), (six,) = encode(" five"), encode(" six")
    body = {"prompt": "a", "n_predict": 2, "n_probs": 2, "repeat_penalty": 1.5, "top_k": 7}
    for given in ([[five, 1.5], [" six", False]], {str(five): 1.5, " six": -100}):
        reply = loopback.client.post("/completion", json={**body, "logit_bias": given}).json()
        params = loopback.engine.submitted[-1].params
        assert params.logit_bias == {five: 1.5, six: -100.0}
        assert (params.repetition_penalty, params.top_k, params.logprobs) == (1.5, 7, 2)
        rows = reply["completion_probabilities"]
        assert [row["token"] for row in rows] == [" one", " two"]
        assert [row["id"] for row in rows] == encode(" one two")


def test_completion_takes_the_sampling_fields_of_vllm(loopback: Loopback) -> None:
    (four,) = loopback.core.tokenizer.encode(" four")
    given = {
        "stop_token_ids": [four],
        "allowed_token_ids": [four, 5],
        "bad_words": ["x"],
        "min_tokens": 2,
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
        "repetition_penalty": 1.5,
        "speculate": False,
    }
    for path, body in (("/completion", {"prompt": "a"}), ("/infill", {"input_suffix": "b"})):
        loopback.client.post(path, json={**body, **given}).raise_for_status()
        params = loopback.engine.submitted[-1].params
        assert (params.stop_token_ids, params.allowed_token_ids) == ((four,), (four, 5))
        assert (params.bad_words, params.min_tokens) == (("x",), 2)
        assert (params.skip_special_tokens, params.include_stop) == (False, True)
        assert (params.repetition_penalty, params.speculate) == (1.5, False)


@pytest.mark.parametrize("stop", [None, [" four"]])
def test_a_streamed_completion_is_the_whole_one(loopback: Loopback, stop: list | None) -> None:
    body = {"prompt": ["a", "b"], "n_predict": 9, "stop": stop, "n_probs": 1}
    wholes = loopback.client.post("/completion", json=body).json()
    text = loopback.client.post("/completion", json={**body, "stream": True}).text
    parts = [json.loads(frame.removeprefix("data: ")) for frame in text.strip().split("\n\n")]
    for whole in wholes:
        *pieces, end = (part for part in parts if part["index"] == whole["index"])
        assert "".join(piece["content"] for piece in pieces) == whole["content"]
        assert not any(piece["stop"] for piece in pieces)
        for name in ("stop_type", "stopping_word", "has_new_line", "tokens_predicted"):
            assert end[name] == whole[name], name
        rows = [row for piece in pieces for row in piece["completion_probabilities"]]
        assert rows == whole["completion_probabilities"]


def test_slots_tell_how_far_replies_are_and_not_what_they_say() -> None:
    with serving(scripted_core(text=" word" * 500)) as running:
        idle = running.client.get("/slots").json()
        expected = {"n_ctx": 512, "speculative": False, "is_processing": False}
        assert idle == [{"id": place, **expected} for place in range(4)]
        assert running.client.get("/props").json()["total_slots"] == 4
        body = {"prompt": "a secret", "max_tokens": 10**6, "n": 3, "stream": True}
        body["ignore_eos"] = True
        with running.client.stream("POST", "/v1/completions", json=body) as stream:
            lines = stream.iter_lines()
            while " word" not in next(lines):
                pass
            running.engine.go.clear()
            busy = running.client.get("/slots?fail_on_no_slot=1").json()
            assert [slot["is_processing"] for slot in busy] == [True, True, True, False]
            assert "secret" not in str(busy)
            (token,) = busy[0]["next_token"]
            assert token["n_decoded"] > 0
            assert token["n_decoded"] + token["n_remain"] == 10**6
            assert busy[0]["n_prompt_tokens"] == busy[0]["n_prompt_tokens_processed"] == 2
            wait_until(lambda: running.client.get("/load").json() == {"server_load": 1})
            running.engine.go.set()


def test_no_free_slot_is_a_503_where_that_is_asked() -> None:
    with serving(scripted_core()) as running:
        running.engine.go.clear()
        for _ in range(4):
            body = {"input": "a", "background": True}
            assert running.client.post("/v1/responses", json=body).is_success
        assert running.client.get("/slots").is_success
        refused = running.client.get("/slots?fail_on_no_slot=1")
        assert refused.status_code == 503
        assert refused.json()["error"]["type"] == "unavailable_error"
        assert running.client.get("/slots?fail_on_no_slot=maybe").status_code == 400
        running.engine.go.set()


def test_server_info_knows_the_models(loopback: Loopback) -> None:
    info = loopback.client.get("/server_info").json()
    (model,) = info["models"]
    assert (model["name"], model["status"], model["max_model_len"]) == ("scripted", "loaded", 512)
    assert info["version"] == loopback.client.get("/version").json()["version"]
    assert info["limits"]["max_body_bytes"] == 10_000_000


def test_props_and_models_where_llama_cpp_has_them(loopback: Loopback) -> None:
    props = loopback.client.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 512
    assert "{% for message in messages %}" in props["chat_template"]
    assert props["eos_token"] == "<|endoftext|>"
    listed = loopback.client.get("/models").json()
    assert listed["first_id"] == listed["data"][0]["id"] == "scripted"


FORM_PATHS = ("/v1/audio/transcriptions", "/v1/audio/translations")


def test_a_schema_may_come_with_json_object(loopback: Loopback) -> None:
    form = {"type": "json_object", "schema": {"type": "hiccup"}}
    body = {"messages": [{"role": "user", "content": "a"}], "response_format": form}
    for path in ("/v1/chat/completions", "/chat/completions"):
        assert loopback.client.post(path, json=body).status_code == 400


def test_without_a_model_for_images_none_are_made(loopback: Loopback) -> None:
    reply = loopback.client.post("/v1/images/generations", json={"prompt": "a"})
    assert reply.status_code == 501
    assert "images" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "what"),
    [
        *((path, "transcribe speech") for path in FORM_PATHS),
        ("/v1/images/variations", "images"),
        ("/v1/responses/compact", "conversation"),
    ],
)
def test_what_is_not_there_says_so(loopback: Loopback, path: str, what: str) -> None:
    reply = loopback.client.post(path, files={"file": b"x"})
    assert reply.status_code == 501
    error = reply.json()["error"]
    assert error["type"] == "not_supported_error"
    known = ("transcribe speech", "images", "conversation")
    assert [each for each in known if each in error["message"]] == [what]


def events_of(text: str) -> list[dict]:
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    return [json.loads(each) for each in events[:-1]]


def test_generate_streams(loopback: Loopback) -> None:
    body = {"prompt": "hello", "max_tokens": 3}
    whole = loopback.client.post("/generate", json=body).json()
    events = events_of(loopback.client.post("/generate", json={**body, "stream": True}).text)
    assert len(events) == 3
    assert "".join(each["response"] for each in events) == whole["response"]


def test_generate_speaks_sglang(loopback: Loopback) -> None:
    params = {"max_new_tokens": 3, "temperature": 0.5, "top_k": -1, "sampling_seed": 7}
    body = {"text": "hello", "sampling_params": params}
    whole = loopback.client.post("/generate", json=body).json()
    sent = loopback.engine.submitted[-1].params
    assert (sent.max_tokens, sent.temperature, sent.top_k, sent.seed) == (3, 0.5, 0, 7)
    assert whole["text"] == " one two three"
    assert whole["meta_info"]["finish_reason"] == {"type": "length", "length": 3}
    assert len(whole["output_ids"]) == whole["meta_info"]["completion_tokens"] == 3
    events = events_of(loopback.client.post("/generate", json={**body, "stream": True}).text)
    texts = [each["text"] for each in events]
    assert texts[:-1] == [" one", " one two", " one two three"]
    assert all(each["meta_info"]["finish_reason"] is None for each in events[:-1])
    assert {**events[-1], "meta_info": 0} == {**whole, "meta_info": 0}
    ids = loopback.client.post("/generate", json={"input_ids": [10], **body | {"text": None}})
    assert ids.json()["text"] == whole["text"]


@pytest.mark.parametrize("prompts", [{"text": ["a", "b c"]}, {"input_ids": [[10], [11, 12]]}])
def test_generate_answers_a_list_of_prompts_with_a_list(loopback: Loopback, prompts: dict) -> None:
    body = {**prompts, "sampling_params": {"max_new_tokens": 2}}
    whole = loopback.client.post("/generate", json=body).json()
    assert [each["text"] for each in whole] == [" one two"] * 2
    assert [each["meta_info"]["prompt_tokens"] for each in whole] == [1, 2]
    assert len({each["meta_info"]["id"] for each in whole}) == 2
    events = events_of(loopback.client.post("/generate", json={**body, "stream": True}).text)
    for place in (0, 1):
        mine = [each for each in events if each["index"] == place]
        assert [each["text"] for each in mine] == [" one", " one two", " one two"]
        assert [bool(each["meta_info"]["finish_reason"]) for each in mine] == [False, False, True]


def test_generate_tells_log_probabilities_as_sglang_does(loopback: Loopback) -> None:
    """Triples of log-probability, id and text; the prompt's first one has none."""
    body = {
        "text": ["a b c", "a b"],
        "sampling_params": {"max_new_tokens": 2},
        "return_logprob": True,
        "logprob_start_len": 1,
        "top_logprobs_num": 2,
        "return_text_in_logprobs": True,
    }
    whole = loopback.client.post("/generate", json=body).json()
    for found, num_asked in zip(whole, (2, 1), strict=True):
        meta = found["meta_info"]
        assert [each[1] for each in meta["output_token_logprobs"]] == found["output_ids"]
        assert [each[2] for each in meta["output_token_logprobs"]] == [" one", " two"]
        assert all(each[0] <= 0 for each in meta["output_token_logprobs"])
        assert [len(each) for each in meta["output_top_logprobs"]] == [2, 2]
        asked = meta["input_token_logprobs"]
        assert len(asked) == len(meta["input_top_logprobs"]) == num_asked
        assert asked[0][0] is None
        assert meta["input_top_logprobs"][0] is None
        assert all(each[0] <= 0 for each in asked[1:])
    events = events_of(loopback.client.post("/generate", json={**body, "stream": True}).text)
    ends = {each["index"]: each["meta_info"] for each in events}
    for place, found in enumerate(whole):
        assert {**ends[place], "id": 0} == {**found["meta_info"], "id": 0}


def test_log_probabilities_of_sglang_are_those_of_the_reply_unless_asked(
    loopback: Loopback,
) -> None:
    body = {"text": "a b", "sampling_params": {"max_new_tokens": 1}}
    meta = loopback.client.post("/generate", json=body).json()["meta_info"]
    assert not [name for name in meta if name.endswith("logprobs")]
    reply = loopback.client.post("/generate", json={**body, "return_logprob": True})
    meta = reply.json()["meta_info"]
    assert meta["input_token_logprobs"] == []
    ((_, _, text),) = meta["output_token_logprobs"]
    assert text is None
    assert "output_top_logprobs" not in meta


@pytest.mark.parametrize("path", ["/get_model_info", "/model_info"])
def test_sglang_clients_learn_what_the_model_is(loopback: Loopback, path: str) -> None:
    found = loopback.client.get(path).json()
    names = {each["id"] for each in loopback.client.get("/v1/models").json()["data"]}
    assert {found["model_path"], found["tokenizer_path"]} <= names
    assert found["is_generation"] is True


def test_generate_answers_a_list_of_one_with_a_list(loopback: Loopback) -> None:
    body = {"text": ["a"], "sampling_params": {"max_new_tokens": 1}}
    (found,) = loopback.client.post("/generate", json=body).json()
    assert found["text"] == " one"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"text": []}, "text"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [1, [2]]}, "input_ids"),
        ({"prompt": "a", "text": "b"}, "prompt"),
        ({"text": "a", "sampling_params": {"max_new_tokens": -2}}, "max_new_tokens"),
        ({"text": "a", "sampling_params": {"min_new_tokens": -1}}, "min_new_tokens"),
        ({"text": "a", "sampling_params": {"sampling_seed": 2**64}}, "sampling_seed"),
        ({"text": "a", "sampling_params": {"regex": "("}}, "regex"),
        ({"text": "a", "sampling_params": {"no_stop_trim": True}}, "no_stop_trim"),
        ({"text": "a", "lora_path": "x"}, "lora_path"),
        ({"prompt": "a", "return_logprob": True}, "return_logprob"),
        ({"text": "a", "return_logprob": True, "top_logprobs_num": -1}, "top_logprobs_num"),
        ({"text": "a", "return_logprob": True, "top_logprobs_num": 999}, "top_logprobs_num"),
        ({"text": "a", "return_logprob": True, "logprob_start_len": -2}, "logprob_start_len"),
        ({"text": "a", "token_ids_logprob": [1]}, "token_ids_logprob"),
    ],
)
def test_generate_names_what_is_wrong(loopback: Loopback, body: dict, param: str) -> None:
    reply = loopback.client.post("/generate", json=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n_predict": 2**31}, "n_predict"),
        ({"max_tokens": 2**31}, "max_tokens"),
        ({"n_predict": -5, "max_tokens": 5}, "n_predict"),
        ({"n_probs": 21}, "n_probs"),
        ({"typ_p": -1}, "typ_p"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
    ],
)
def test_completion_names_what_was_sent(loopback: Loopback, body: dict, param: str) -> None:
    reply = loopback.client.post("/completion", json={"prompt": "a", **body})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


def test_any_model_name_will_do_where_that_is_wished() -> None:
    with serving(scripted_core(), accept_any_model=True) as running:
        for body in ({"model": "gpt-4", "prompt": "a"}, {"model": "", "prompt": "a"}):
            assert running.client.post("/v1/completions", json=body).json()["model"] == "scripted"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "a", "messages": []}),
        ("/detokenize", {"tokens": [10**9]}),
        ("/detokenize", {"tokens": [-1]}),
        ("/generate", {"prompt": 5}),
        ("/completion", {"prompt": []}),
        ("/completion", {"prompt": [1, {"prompt_string": "a"}]}),
        ("/completion", {"prompt": {"prompt_string": "a", "multimodal_data": "x"}}),
        ("/completion", {"prompt": "a", "logit_bias": {"a" * 257: 1}}),
        ("/completion", {"prompt": "a", "json_schema": {"type": "hiccup"}}),
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
    assert card["max_model_len"] == card["max_input_tokens"] == 512
    assert (card["type"], card["display_name"]) == ("model", "scripted")
    for name in ("scripted", "default", "org/name"):
        assert loopback.client.get(f"/v1/models/{name}").json()["id"] == "scripted"
    listed = loopback.client.get("/v1/models/", follow_redirects=True)
    assert [each["id"] for each in listed.json()["data"]] == ["scripted"]


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

    mine = 'model="scripted"'
    names = (
        f"blazr_generated_tokens_total{{{mine}}}",
        f'blazr_requests_total{{{mine},outcome="ok"}}',
    )
    before = [value(name) for name in names]
    loopback.client.post("/v1/completions", json={"prompt": "a"})
    assert [value(name) for name in names] == [before[0] + 10, before[1] + 1]
    assert value(f"blazr_time_to_first_token_seconds_count{{{mine}}}") > 0
    assert value(f"blazr_request_seconds_count{{{mine}}}") > 0
    assert value(f"blazr_engine_steps_total{{{mine}}}") > 0


def test_served_names_replace_the_model_s() -> None:
    with serving(scripted_core(), served_names=("mine", "ours")) as running:
        (card,) = running.client.get("/v1/models").json()["data"]
        assert card["id"] == "mine"

        def ask(name: str) -> dict:
            body = {"model": name, "prompt": "a"}
            return running.client.post("/v1/completions", json=body).json()

        assert ask("mine")["model"] == ask("ours")["model"] == ask("default")["model"] == "mine"
        assert ask("scripted")["error"]["code"] == "model_not_found"
