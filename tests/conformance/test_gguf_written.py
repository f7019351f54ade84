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
from blazr.models.families.gguf_architectures import ARCHITECTURES
from blazr.models.loading.convert import convert
from blazr.models.loading.load import load
from blazr.nn.device import resolve_device
from tests.support.closeness import assert_same_network
from tests.support.converted import MODELS
from tests.support.references import CASES, save_reference

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
    **dict.fromkeys(
        ("qwen3_next", "qwen3_next dense layer", "qwen3_5_text", "qwen3_5_moe_text"),
        "dimension_count",
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
    wanted = {key: each for key, each in plain(theirs.metadata).items() if key not in NOT_SAID}
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


def test_the_eps_of_inner_norms_has_a_key_of_its_own(tmp_path: Path) -> None:
    source = saved("falcon_mamba", tmp_path / "hf", {})
    convert(str(source), tmp_path / "model.gguf")
    assert_same_network(network(tmp_path / "model.gguf"), network(source), IDS)


def test_every_architecture_can_be_written() -> None:
    assert all(row.families for row in ARCHITECTURES.values())
