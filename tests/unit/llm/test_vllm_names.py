"""Scripts written for vLLM: the same names mean the same, others are refused with what to write."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator

import pytest
import torch

from blazr import LLM, AsyncLLM, SamplingParams, StructuredOutputsParams
from blazr.core.errors import ConfigError, RequestError, UnknownNameError
from blazr.llm.generation import prompt_requests
from blazr.llm.options import LoadOptions
from blazr.llm.vllm_names import dtype_name, translate
from tests.support.scripted import SCRIPT, ScriptedEngine, scripted_core

KNOWN = frozenset(
    {"max_seq_len", "max_running", "token_budget", "prefix_cache", "memory", "kv_dtype", "vocab"}
)


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM.of(scripted_core(max_unfinished=8)) as opened:
        yield opened


def submitted(llm: LLM) -> list[tuple[int, ...]]:
    engine = llm.core.engine
    assert isinstance(engine, ScriptedEngine)
    return [request.prompt_ids for request in engine.submitted]


def test_both_faces_of_a_result(llm: LLM) -> None:
    params = SamplingParams(temperature=0.8, top_p=0.95)
    outputs = llm.generate(["Hello", "The capital is"], sampling_params=params, use_tqdm=True)
    assert [output.prompt for output in outputs] == ["Hello", "The capital is"]
    for output in outputs:
        assert output.outputs[0].text == output.text == SCRIPT
        assert output.outputs[0].token_ids == output.token_ids


def test_every_prompt_may_have_parameters_of_its_own(llm: LLM) -> None:
    several = [SamplingParams(max_tokens=2), SamplingParams(max_tokens=1, n=3)]
    first, second = llm.generate(["a", "b"], several)
    assert (first.text, len(first.outputs)) == (" one two", 1)
    assert [each.text for each in second.outputs] == [" one"] * 3
    with pytest.raises(RequestError, match="sampling parameters"):
        llm.generate(["a", "b", "c"], several)


def test_prompts_as_dictionaries(llm: LLM) -> None:
    (one,) = llm.generate({"prompt_token_ids": [1, 2]})
    assert one.prompt_token_ids == (1, 2)
    llm.generate([{"prompt": "hello"}, {"prompt_token_ids": [3]}])
    hello = tuple(llm.get_tokenizer().encode("hello"))
    assert submitted(llm) == [(1, 2), hello, (3,)]
    for wrong in ({}, {"prompt": "a", "prompt_token_ids": [1]}, {"text": "a"}):
        with pytest.raises(RequestError, match="dictionary"):
            llm.generate(wrong)


def test_one_chat_and_a_batch_of_chats(llm: LLM) -> None:
    chats = [[{"role": "user", "content": text}] for text in ("one", "two", "three")]
    single = llm.chat(chats[0], SamplingParams(max_tokens=2), use_tqdm=False)
    assert single.text == " one two"
    assert [output.outputs[0].text for output in single] == [" one two"]
    assert single[0] is single
    batch = llm.chat(chats, sampling_params=SamplingParams(max_tokens=1))
    assert [each.text for each in batch] == [" one"] * 3
    assert len(set(submitted(llm)[1:])) == 3


def test_settings_of_the_engine_under_both_names() -> None:
    given = {"max_model_len": 64, "max_num_seqs": 2, "memory": "1MiB", "tokenizer": "llama3"}
    assert translate(given, KNOWN) == {
        "max_seq_len": 64,
        "max_running": 2,
        "memory": "1MiB",
        "vocab": "llama3",
    }
    assert translate({"kv_cache_dtype": "fp8"}, KNOWN) == {"kv_dtype": "fp8"}
    accepted = {"trust_remote_code": True, "enforce_eager": True, "runner": "pooling"}
    assert translate(accepted, KNOWN) == {}
    ranks = {"tensor_parallel_size": 2, "pipeline_parallel_size": 1}
    assert translate(ranks, KNOWN | {"tp", "pp"}) == {"tp": 2, "pp": 1}


@pytest.mark.parametrize(
    ("argument", "hint"),
    [
        ({"data_parallel_size": 2}, "--replicas"),
        ({"gpu_memory_utilization": 0.9}, "memory="),
        ({"quantization": "fp8"}, "quantize="),
        ({"seed": 7}, "SamplingParams"),
        ({"enable_lora": True}, "adapter="),
        ({"speculative_config": {"model": "org/small"}}, "spec=.*draft:MODEL"),
        ({"limit_mm_per_prompt": {"image": 2}}, "32 images"),
        ({"cpu_offload_gb": 4}, "cpu_moe=True"),
        ({"swap_space": 4}, "leave it out"),
        ({"max_sequence_length": 5}, "max_seq_len"),
    ],
)
def test_a_refused_argument_is_named_with_what_to_write(argument: dict, hint: str) -> None:
    (name,) = argument
    with pytest.raises(TypeError, match=rf"{name}=.*write instead: .*{hint}"):
        LLM("no/such/model", **argument)


@pytest.mark.parametrize(
    "argument",
    [{"max_seq_len": "4096"}, {"max_seq_len": -5}, {"max_running": True}, {"prefix_cache": 1}],
    ids=str,
)
def test_a_value_that_cannot_be_is_refused_before_a_model_is_looked_for(argument: dict) -> None:
    ((name, value),) = argument.items()
    with pytest.raises(ConfigError, match=rf"(?s){name}.*found +{value!r}.*expected"):
        LLM("no/such/model", **argument)


def test_a_limit_of_files_without_their_folder_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"(?s)there is no cache_dir.*cache_disk 1GiB"):
        LLM("no/such/model", cache_disk="1GiB")


def test_a_device_may_be_torch_s() -> None:
    with pytest.raises(ConfigError, match=r"(?s)unknown device.*'meta'"):
        LLM(device=torch.device("meta"))


def test_a_share_of_the_memory_may_be_a_number() -> None:
    assert LoadOptions(memory=0.5).memory == "0.5"
    with pytest.raises(ConfigError, match="memory is not a size"):
        LoadOptions(memory=-1)


@pytest.mark.parametrize("params", [{"max_tokens": 3}, "greedy", [{"max_tokens": 3}], 5], ids=str)
def test_what_are_no_sampling_parameters(params: object) -> None:
    with pytest.raises(RequestError, match=r"(?s)sampling parameters.*SamplingParams"):
        prompt_requests("Once", params)


@pytest.mark.parametrize("value", ["5", [5], math.nan], ids=str)
def test_a_parameter_that_is_no_number(value: object) -> None:
    with pytest.raises(RequestError, match=r"(?s)top_p.*found.*a number from 0 to 1"):
        SamplingParams(top_p=value)


def test_an_unknown_dtype_of_keys_is_refused_before_a_model_is_looked_for() -> None:
    pytest.importorskip("torch")  # it names the dtypes
    with pytest.raises(UnknownNameError, match=r"(?s)auto, q8_0, fp8_e4m3.*did you mean 'q8_0'"):
        LLM("no/such/model", kv_dtype="q8")


def test_so_is_one_of_states() -> None:
    pytest.importorskip("torch")  # it names the dtypes
    with pytest.raises(UnknownNameError, match=r"(?s)auto, bfloat16.*did you mean 'bfloat16'"):
        LLM("no/such/model", state_dtype="bfloat")


def test_the_signature_is_that_of_the_load_options() -> None:
    assert inspect.signature(LLM) == inspect.signature(AsyncLLM) == inspect.signature(LoadOptions)


def test_unknown_sampling_parameters_say_what_to_write() -> None:
    with pytest.raises(TypeError, match="'best_of'; write instead: n"):
        SamplingParams(best_of=2)
    with pytest.raises(TypeError, match="'heat'"):
        SamplingParams(heat=2)


def test_off_is_spelled_in_several_ways() -> None:
    params = SamplingParams(top_k=-1, max_tokens=None, include_stop_str_in_output=True)
    assert (params.top_k, params.max_tokens, params.include_stop) == (0, None, True)


@pytest.mark.parametrize(
    ("structure", "grammar"),
    [
        ({"json": {"type": "object"}}, {"json_schema": {"type": "object"}}),
        ({"json": '{"type": "object"}'}, {"json_schema": {"type": "object"}}),
        ({"regex": "a+"}, {"regex": "a+"}),
        ({"choice": ["yes", "no"]}, {"choice": ["yes", "no"]}),
        ({"grammar": 'start: "a"'}, {"lark": 'start: "a"'}),
        ({"grammar": 'root ::= "a"'}, {"gbnf": 'root ::= "a"'}),
        ({"json_object": True}, {"json_object": True}),
    ],
)
def test_structured_outputs_are_grammars(structure: dict, grammar: dict) -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(**structure))
    assert params.grammar == grammar


@pytest.mark.parametrize("structure", [{}, {"json": "{"}, {"regex": "a", "choice": ["b"]}])
def test_what_is_no_structure_is_refused(structure: dict) -> None:
    with pytest.raises(RequestError):
        SamplingParams(structured_outputs=StructuredOutputsParams(**structure))


def test_names_of_dtypes() -> None:
    names = ("half", "float", "auto", "torch.bfloat16")
    assert [dtype_name(name) for name in names] == ["float16", "float32", "auto", "bfloat16"]
