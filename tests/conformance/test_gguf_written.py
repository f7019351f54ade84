"""GGUF files that blazr writes: the same model, in the file that llama.cpp's converter makes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from test_gguf_converted import EXPECTED, unpacked
from torch import nn

from blazr.core.errors import ConfigError
from blazr.models.checkpoint.gguf import read_header
from blazr.models.families.gguf.architectures import ARCHITECTURES
from blazr.models.loading.convert import convert
from blazr.models.loading.load import load
from blazr.nn.device import resolve_device
from tests.support.converted import MODELS, Changes
from tests.support.references import CASES, rewrite_config, save_reference
from tests.support.tolerances import assert_same_network

pytestmark = pytest.mark.sample

pytest.importorskip("transformers", reason="the models are the transformers library's")

CPU = resolve_device("cpu")
IDS = torch.tensor([EXPECTED["tokens"]])
# What no architecture of GGUF can say, by what it would become.
REFUSED = {
    "llama tied": "'gelu' becomes 'silu'",
    "llama dynamic": "dynamic",
    "smollm3": "rope: None becomes",
    "smollm3 window": "rope: None becomes",
    "glm4": "dimension_count",
    "deepseek_v3 dense": "interleaved: False becomes True",
    "mamba2 limits": "dt_limits",
    "falcon_h1 norm first": "'norm_first' becomes 'gate_first'",
    "bamba": "dimension_count",
    "bamba biases": "dimension_count",
    "zamba2": "family zamba2",
    "zamba2 adapters": "family zamba2",
    "lfm2 biases": "shortconv.in_proj.bias",
    **{name: f"family {name}" for name in ("lfm3", "olmo_hybrid", "recurrent_gemma", "zamba")},
    **dict.fromkeys(
        ("qwen3_next", "qwen3_next dense layer", "qwen3_5_text", "qwen3_5_moe_text"),
        "dimension_count",
    ),
}
# What llama.cpp would not load or would take for something else, by what is said of it.
_SPLIT: Changes = {"tie_word_embeddings": False}
_JOINED: Changes = {"tie_word_embeddings": True}
_BIASED: Changes = {"attention_bias": True}
UNREAD: dict[str, tuple[str, Changes, str]] = {
    "qwen3moe norm": ("qwen3_moe", {"norm_topk_prob": False}, "norm_topk_prob"),
    "qwen2moe norm": ("qwen2_moe", {"norm_topk_prob": True}, "norm_topk_prob"),
    "qwen2moe bare": ("qwen2_moe", {"qkv_bias": False}, "no biases of qkv"),
    "falcon-h1 attention": ("falcon_h1", {"head_dim": 6, **_BIASED}, "biases of qkv"),
    "falcon-h1 mlp": ("falcon_h1", {"head_dim": 6, "mlp_bias": True}, "biases of mlp"),
    "falcon-h1 mixer": (
        "falcon_h1",
        {"head_dim": 6, "projectors_bias": True, "mamba_proj_bias": True},
        "biases of ssm",
    ),
    "gemma untied": ("gemma", _SPLIT, "output matrix"),
    "gemma2 untied": ("gemma2", {**_SPLIT, "query_pre_attn_scalar": 10}, "output matrix"),
    "olmo2 tied": ("olmo2", _JOINED, "output matrix"),
    "olmoe clipped": ("olmoe clipped", {"norm_topk_prob": False, "num_experts": 4}, "clip_qkv"),
    "starcoder2 bare": ("starcoder2 bare", {}, "no biases of qkv"),
    "qwen3 biases": ("qwen3", _BIASED, "biases of qkv"),
    "nemotron_h least step": (
        "nemotron_h",
        {"mamba_num_heads": 4, "mamba_head_dim": 16, "mlp_bias": False, "use_bias": False},
        "dt_limits",
    ),
}
# Files hold products for two factors, two matrices for one, and heads in another order.
REGROUPED = ("granitemoe", "granitehybrid", "falcon-h1", "qwen35", "qwen35moe")
# What the converter writes that changes nothing, or takes from keys that the network does not see.
NOT_SAID = (
    *("context_length", "feed_forward_length", "full_attention_interval", "attention.q_lora_rank"),
    *(
        "rope.freq_base",
        "rope.dimension_count",
        "rope.scaling.finetuned",
        "expert_group_used_count",
    ),
    *("attention.sliding_window", "attention.value_length", "expert_group_count"),
    "tensor_data_layout",
    *("alpha_p", "alpha_n", "beta", "eps"),  # of xIELU: they are weights
)


def network(path: Path) -> nn.Module:
    return load(str(path), device=CPU, dtype="float32").module


def saved(case: str, directory: Path, changes: dict[str, object]) -> Path:
    kind, settings = CASES[case]
    directory.mkdir()
    save_reference(kind, directory, seed=5, changes=settings | changes)
    return directory


def plain(metadata: Mapping[str, object]) -> dict[str, object]:
    """What is said of the network, without the architecture before the keys."""
    return {
        key.partition(".")[2]: list(each) if isinstance(each, memoryview) else each
        for key, each in metadata.items()
        if not key.startswith(("general.", "tokenizer."))
    }


@pytest.mark.parametrize("name", MODELS)
def test_the_same_model_in_the_same_file(name: str, tmp_path: Path) -> None:
    case, changes = MODELS[name]
    source, path = saved(case, tmp_path / "hf", changes), tmp_path / "written.gguf"
    if name.startswith("nemotron_h"):  # the code of releases has no least step, and files say none
        rewrite_config(source, transformers_version="4.55.4")
    convert(str(source), path)
    expected, found = network(source), network(path)
    has_rates = any(name.endswith("ssm_a") for name in read_header(path).tensors)
    if name in REGROUPED or has_rates:
        assert_same_network(found, expected, IDS)
    else:
        with torch.inference_mode():
            assert torch.equal(found.forward_sequences(IDS), expected.forward_sequences(IDS))
    theirs, ours = read_header(unpacked(name, tmp_path)), read_header(path)
    tensors = [
        {name: (info.shape, info.dtype) for name, info in header.tensors.items()}
        for header in (ours, theirs)
    ]
    assert tensors[0] == tensors[1]
    said = plain(ours.metadata)
    wanted = {
        key: each
        for key, each in plain(theirs.metadata).items()
        if key not in NOT_SAID and each != "none"
    }
    if "expert_count" not in said:  # the converter takes every Nemotron-H of today for one
        wanted = {key: each for key, each in wanted.items() if "expert" not in key}
    assert {key: said.get(key) for key in wanted} == wanted


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_said_is_refused(case: str, tmp_path: Path) -> None:
    source = saved(case, tmp_path / "hf", {})
    with pytest.raises(ConfigError) as caught:
        convert(str(source), tmp_path / "model.gguf")
    assert REFUSED[case] in str(caught.value)
    assert [each.name for each in tmp_path.iterdir()] == ["hf"]


@pytest.mark.parametrize("name", UNREAD)
def test_what_llama_cpp_would_read_otherwise_is_refused(name: str, tmp_path: Path) -> None:
    case, changes, what = UNREAD[name]
    source = saved(case, tmp_path / "hf", changes)
    with pytest.raises(ConfigError, match="GGUF cannot say") as caught:
        convert(str(source), tmp_path / "model.gguf")
    assert what in str(caught.value)


def test_a_directory_keeps_the_least_step(tmp_path: Path) -> None:
    source = saved("nemotron_h", tmp_path / "hf", {"time_step_min": 0.3})
    convert(str(source), tmp_path / "written")
    written, same = network(tmp_path / "written"), network(source)
    with torch.inference_mode():
        assert torch.equal(written.forward_sequences(IDS), same.forward_sequences(IDS))


def test_the_eps_of_inner_norms_has_a_key_of_its_own(tmp_path: Path) -> None:
    source = saved("falcon_mamba", tmp_path / "hf", {})
    convert(str(source), tmp_path / "model.gguf")
    assert_same_network(network(tmp_path / "model.gguf"), network(source), IDS)


def test_every_architecture_with_a_family_of_its_own_can_be_written() -> None:
    written = {name.split("-")[0] for name in MODELS}
    assert {name.split("-")[0] for name, row in ARCHITECTURES.items() if row.families} == written
