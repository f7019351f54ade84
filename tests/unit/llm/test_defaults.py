"""A model's own sampling defaults, and where they give way."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from blazr.engine.sampling_params import SamplingParams
from blazr.llm.defaults import own_pooling, sampling_defaults, sampling_defaults_at
from blazr.llm.generation import GenerationRequest
from blazr.text.messages import Message
from tests.support.scripted import scripted_core

OWN = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.1}


def test_generation_config_is_read(tmp_path: Path) -> None:
    assert sampling_defaults_at(tmp_path) == {}
    config = {**OWN, "eos_token_id": 2, "do_sample": True, "max_length": 9}
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    assert sampling_defaults_at(tmp_path) == OWN
    assert sampling_defaults_at(tmp_path / "model.safetensors") == OWN


def test_the_metadata_of_a_gguf_file_is_read() -> None:
    metadata = {
        "general.sampling.temp": 0.6,
        "general.sampling.top_k": 20,
        "general.sampling.top_p": 0.95,
        "general.sampling.penalty_repeat": 1.1,
        "general.name": "x",
    }
    assert sampling_defaults(None, metadata) == OWN


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 3.5), ("temperature", "hot"), ("temperature", True), ("top_k", 2.5),
        ("top_p", float("nan")), ("repetition_penalty", 0), ("min_p", [0.1]),
        ("temperature", 10**4000), ("top_k", 10**4000), ("top_k", float("inf")),
    ],
)  # fmt: skip
def test_values_that_no_request_could_have_are_left_out(
    tmp_path: Path, name: str, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({**OWN, name: value}))
    assert sampling_defaults_at(tmp_path) == {k: v for k, v in OWN.items() if k != name}
    assert name in caplog.text


def test_all_is_spelled_minus_one_or_zero(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"top_k": -1}')
    assert sampling_defaults_at(tmp_path) == {"top_k": 0}
    assert SamplingParams(top_k=-1) == SamplingParams(top_k=0)


def test_what_is_asked_for_goes_before_the_models_and_that_before_ours() -> None:
    params = SamplingParams(temperature=0.7, top_k=-1).with_defaults(OWN)
    assert (params.temperature, params.top_k) == (0.7, 0)
    assert (params.top_p, params.repetition_penalty, params.min_p) == (0.95, 1.1, 0.0)
    assert SamplingParams(temperature=None).with_defaults(OWN).temperature == 0.6
    assert type(params.top_p) is float


def test_what_was_left_out_stays_left_out_in_a_copy() -> None:
    params = replace(SamplingParams(top_p=0.9), seed=1)
    assert params.with_defaults(OWN).temperature == 0.6
    assert params.with_defaults(OWN).top_p == 0.9


def test_an_engine_gets_the_models_defaults() -> None:
    core = scripted_core()
    core.info = replace(core.info, sampling=OWN)
    try:
        prepared = core.prepare(GenerationRequest(prompt="a", params=SamplingParams(top_p=0.5)))
    finally:
        core.close()
    params = prepared.request.params
    assert (params.temperature, params.top_k, params.top_p) == (0.6, 20, 0.5)


@pytest.mark.parametrize(
    ("params", "most"),
    [
        (SamplingParams(), None),
        (SamplingParams(max_tokens=-1), None),
        (SamplingParams(max_tokens=100), 100),
    ],
)
def test_a_chat_goes_on_to_the_end_of_the_context(params: SamplingParams, most: int | None) -> None:
    messages = [Message(role="user", content="a")]
    assert GenerationRequest(messages=messages, params=params).params.max_tokens == most
    assert GenerationRequest(prompt="a").params.max_tokens == 100


@pytest.mark.parametrize(
    ("number", "pooling"),
    [
        *[(0, "mean"), (1, "mean"), (3, "last"), (4, "last"), (2, "mean"), (99, "mean")],
        *[("x", "mean"), ([1], "mean"), (memoryview(b"ab").cast("H"), "mean"), (True, "mean")],
    ],
)
def test_a_gguf_file_says_how_it_pools(number: object, pooling: str) -> None:
    metadata = {
        "general.architecture": "qwen3",
        "qwen3.pooling_type": number,
        "tokenizer.ggml.add_eos_token": True,
    }
    assert own_pooling(metadata) == (pooling, number != 0)
    assert own_pooling({}) == ("mean", False)
