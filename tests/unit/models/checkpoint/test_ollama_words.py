"""Headers of Ollama's converter are put into the words of llama.cpp's, and no others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from blazr.core.gguf_header import Value
from blazr.models.checkpoint.base import Header, RelaidInfo, TensorInfo
from blazr.models.checkpoint.gguf import OLLAMA_DIALECTS, as_llama_cpp, type_numbers
from blazr.models.checkpoint.open import open_checkpoint
from blazr.nn.quant import QUANTIZERS
from blazr.nn.quant.gguf import GGML_TYPES
from tests.support import ggufs

FILE = Path("m.gguf")
PRE = "tokenizer.ggml.pre"


def header(arch: str, keys: Mapping[str, Value] | None = None, *names: str) -> Header:
    tensors = {
        name: TensorInfo(name, "F32", (4, 6), FILE, 96 * n, 96 * (n + 1))
        for n, name in enumerate(names)
    }
    own = {f"{arch}.{key}": value for key, value in (keys or {}).items()}
    return Header(tensors, {"general.architecture": arch, "general.name": "x"} | own)


def said(found: Header) -> dict[str, Value]:
    """What is said of the architecture."""
    begin = f"{found.metadata['general.architecture']}."
    return {k.removeprefix(begin): v for k, v in found.metadata.items() if k.startswith(begin)}


@pytest.mark.parametrize("arch", ["llama", "qwen3", "gpt-oss", "deepseek2"])
def test_words_of_llama_cpp_stay(arch: str) -> None:
    keys = {"block_count": 2, "rope.freq_base": 1e4, "attention.key_length": 0}
    names = ("blk.0.attn_output.weight", "token_embd.weight", "blk.0.ffn_norm.weight")
    mine = header(arch, keys, *names)
    found = as_llama_cpp(mine)
    assert found == mine
    assert found.metadata is not mine.metadata


def test_a_file_of_no_architecture_stays() -> None:
    for metadata in ({}, {"general.architecture": 5, "llama.block_count": 2}):
        mine = Header({}, metadata)
        assert as_llama_cpp(mine) == mine


@pytest.mark.parametrize("name", OLLAMA_DIALECTS)
def test_each_dialect_says_it_in_its_architecture(name: str) -> None:
    row = OLLAMA_DIALECTS[name]
    mine = header(name, {"block_count": 2, "other": "a"}, "blk.0.ssm_dt")
    mine = replace(mine, metadata=mine.metadata | {f"{name}x.y": 1})  # of another architecture
    found = as_llama_cpp(mine)
    assert found.metadata["general.architecture"] == row.architecture
    assert found.metadata["general.name"] == "x"
    assert found.metadata[f"{name}x.y"] == 1
    assert said(found) == {"block_count": 2, "other": "a", **row.defaults}
    assert found.metadata.get(PRE, "") == row.pre_tokenizer
    assert list(found.tensors) == ["blk.0.ssm_dt.bias"]
    assert all(info.name == key for key, info in found.tensors.items())
    assert as_llama_cpp(found) == found


@pytest.mark.parametrize("name", OLLAMA_DIALECTS)
@pytest.mark.parametrize("written", ["", "default", "llama-bpe", "qwen2"])
def test_what_a_file_says_of_splitting_counts(name: str, written: str) -> None:
    mine = header(name)
    found = as_llama_cpp(replace(mine, metadata=mine.metadata | {PRE: written}))
    known = written == "qwen2" or not OLLAMA_DIALECTS[name].pre_tokenizer
    assert found.metadata[PRE] == (written if known else OLLAMA_DIALECTS[name].pre_tokenizer)


def test_what_a_file_says_goes_before_what_is_left_out() -> None:
    keys = {"rope.scaling.type": "linear", "block_count": 2}
    assert said(as_llama_cpp(header("gptoss", keys))) == keys


@pytest.mark.parametrize("truth", [True, False])
def test_keys_of_ollama_are_those_of_llama_cpp(truth: bool) -> None:
    keys = {"norm_top_k_prob": truth, "rope.local.freq_base": 5.0, "rope.global.freq_base": 0}
    found = said(as_llama_cpp(header("llama", keys)))
    assert found == keys | {"expert_weights_norm": truth, "rope.freq_base_swa": 5.0}


def test_a_key_of_llama_cpp_goes_before_one_of_ollama() -> None:
    keys = {"norm_top_k_prob": True, "expert_weights_norm": False}
    assert said(as_llama_cpp(header("llama", keys))) == keys


def test_sizes_of_a_head_are_not_those_of_the_latent_vector() -> None:
    keys = {"attention.key_length": 192, "attention.value_length": 0}
    found = said(as_llama_cpp(header("glm4moelite", keys)))
    assert found == keys | {"attention.key_length_mla": 192}
    assert said(as_llama_cpp(header("deepseek2", keys))) == keys


@pytest.mark.parametrize(
    ("arch", "theirs", "ours"),
    [
        ("llama", "blk.12.attn_out.weight", "blk.12.attn_output.weight"),
        ("llama", "blk.0.attn_sinks", "blk.0.attn_sinks.weight"),
        ("llama", "blk.0.ffn_norm.weight", "blk.0.ffn_norm.weight"),
        ("gptoss", "blk.0.ffn_norm.weight", "blk.0.post_attention_norm.weight"),
        ("llama", "blk.x.attn_out.weight", "blk.x.attn_out.weight"),
        ("llama", "v.blk.0.attn_out.weight", "v.blk.0.attn_out.weight"),
        ("llama", "blk.0.attn_sinks.weight", "blk.0.attn_sinks.weight"),
    ],
)
def test_names_of_tensors(arch: str, theirs: str, ours: str) -> None:
    mine = header(arch, {}, theirs)
    assert as_llama_cpp(mine).tensors == {ours: replace(mine.tensors[theirs], name=ours)}


def test_a_name_that_is_there_in_both_words_stays() -> None:
    """So that the plan complains of a tensor too many, and none goes unnoticed."""
    names = ("blk.0.attn_out.weight", "blk.0.attn_output.weight")
    assert list(as_llama_cpp(header("llama", {}, *names)).tensors) == list(names)
    names = ("blk.0.ffn_gate_up_exps.bias", "blk.0.ffn_up_exps.bias")
    assert list(as_llama_cpp(header("gptoss", {}, *names)).tensors) == list(names)


def test_rows_of_gate_and_up_in_turns_become_two_tensors(tmp_path: Path) -> None:
    whole = torch.randn(3, 8, 64)
    kind = QUANTIZERS["q8_0"]
    packed = (kind.kind.number, (3, 8, 64), kind(whole))
    tensors = {
        "blk.0.ffn_gate_up_exps.bias": whole[..., 0].contiguous(),
        "blk.0.ffn_gate_up_exps.weight": packed,
    }
    keys = {"general.architecture": "gptoss"}
    checkpoint = open_checkpoint(ggufs.write(tmp_path / "m.gguf", tensors, keys))
    assert list(checkpoint.tensors) == [
        f"blk.0.ffn_{each}_exps.{part}" for part in ("bias", "weight") for each in ("gate", "up")
    ]
    stands_for = kind.kind.decode(kind(whole))
    for first, each in enumerate(("gate", "up")):
        bias = checkpoint.tensors[f"blk.0.ffn_{each}_exps.bias"]
        assert (bias.dtype, bias.shape, bias.nbytes) == ("F32", (3, 4), 48)
        assert torch.equal(checkpoint.view(bias), whole[:, first::2, 0])
        weight = checkpoint.tensors[f"blk.0.ffn_{each}_exps.weight"]
        assert (weight.dtype, weight.nbytes) == ("Q8_0", 3 * 4 * 2 * 34)
        assert weight.shape == (3, 4, 64)
        assert torch.equal(kind.kind.decode(checkpoint.view(weight)), stands_for[:, first::2])
    infos = sorted(checkpoint.tensors.values(), key=lambda info: info.start)
    for part in ("bias", "weight"):  # they share the bytes of what they were, and take no more
        gate, up = (info for info in infos if info.name.endswith(part))
        assert isinstance(gate, RelaidInfo)
        assert (gate.start, gate.end, up.end) == (gate.stored.start, up.start, gate.stored.end)


@pytest.mark.parametrize("arch", ["gptoss", "llama"])
@pytest.mark.parametrize("shape", [(3,), (3, 7), (3, 8)])
def test_only_what_has_pairs_of_rows_is_divided(arch: str, shape: tuple[int, ...]) -> None:
    name = "blk.0.ffn_gate_up_exps.bias"
    mine = header(arch, {}, name)
    mine.tensors[name] = replace(mine.tensors[name], shape=shape)
    divided = arch == "gptoss" and shape == (3, 8)
    assert len(as_llama_cpp(mine).tensors) == 1 + divided
    assert (name in as_llama_cpp(mine).tensors) != divided


def test_blocks_of_a_matrix_are_not_rows() -> None:
    """Of a packed matrix only a stack is divided: a row of blocks is no row of gate or up."""
    name = "blk.0.ffn_gate_up_exps.weight"
    mine = header("gptoss", {}, name)
    mine.tensors[name] = replace(mine.tensors[name], dtype="MXFP4", shape=(8, 64))
    assert list(as_llama_cpp(mine).tensors) == [name]


def test_types_have_the_numbers_that_files_give_them() -> None:
    numbers = type_numbers()
    assert all(numbers[row.name] == row.number for row in GGML_TYPES.values())
    assert {name: numbers[name] for name in ("I8", "I16", "I32", "I64", "F64")} == {
        "I8": 24, "I16": 25, "I32": 26, "I64": 27, "F64": 28,
    }  # fmt: skip
