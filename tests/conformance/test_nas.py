"""Llama-Nemotron: what lacks a half of a layer, as a Llama in which that half adds nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from blazr.core.errors import ConfigError
from blazr.models.loading.load import load, plan_model
from blazr.nn.device import resolve_device
from tests.support import ggufs
from tests.support.networks import Lab
from tests.support.references import reference_logits, save_reference
from tests.support.tolerances import assert_same_network

pytest.importorskip("transformers", reason="the models are the transformers library's")

CPU = resolve_device("cpu")
IDS = list(range(3, 30))
HEADS, KV_HEADS, SIZE, INNER = 4, 4, 96, 256
# By the layer: how many queries share keys, and what an MLP's size is counted in; None where a
# layer has no such half.
BLOCKS = [(2, 4.0), (None, 4.0), (1, None), (None, None), (4, 4.0)]
LLAMA = {
    "hidden_size": SIZE,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": SIZE // HEADS,
    "intermediate_size": INNER,
    "num_hidden_layers": len(BLOCKS),
}


def listed() -> list[dict[str, object]]:
    """The blocks as a config.json has them."""
    plain = {"replace_with_linear": False, "sparsify": None}
    return [
        {
            "attention": {"n_heads_in_group": group, "no_op": group is None, **plain},
            "ffn": {"ffn_mult": size, "no_op": size is None, **plain},
        }
        for group, size in BLOCKS
    ]


def save(directory: Path) -> nn.Module:
    """A Llama of which some halves add nothing, and in the folder those without them."""
    model = save_reference("llama", directory, seed=5, changes=LLAMA)
    config = json.loads((directory / "config.json").read_text())
    stored = load_file(directory / "model.safetensors")
    state = model.state_dict()
    for index, (group, size) in enumerate(BLOCKS):
        at = f"model.layers.{index}."
        if group is None:
            state[f"{at}self_attn.o_proj.weight"].zero_()
        if size is None:
            state[f"{at}mlp.down_proj.weight"].zero_()
        absent = ["self_attn.", "input_layernorm."] * (group is None)
        absent += ["mlp.", "post_attention_layernorm."] * (size is None)
        for name in [n for n in stored if n.startswith(tuple(at + each for each in absent))]:
            del stored[name]
        for part in "kv" if group else "":
            name = f"{at}self_attn.{part}_proj.weight"
            own = stored[name].unflatten(0, (KV_HEADS, -1))[::group]
            state[name].copy_(own.repeat_interleave(group or 1, 0).flatten(0, 1))
            stored[name] = own.flatten(0, 1).contiguous()
    config |= {"model_type": "nemotron-nas", "block_configs": listed()}
    config |= {"num_key_value_heads": None, "intermediate_size": None}
    (directory / "config.json").write_text(json.dumps(config))
    save_file(stored, directory / "model.safetensors")
    return model


def write_gguf(directory: Path, path: Path) -> Path:
    """The same as llama.cpp's converter lays it out."""
    gguf = pytest.importorskip("gguf", reason="names and keys are llama.cpp's")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.DECI, len(BLOCKS))
    tensors: dict[str, Tensor] = {}
    for name, tensor in load_file(directory / "model.safetensors").items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = len(tensor) * HEADS // SIZE
            tensor = tensor.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)  # noqa: PLW2901
        tensors[names.get_name(name, try_suffixes=(".weight",))] = tensor.contiguous()
    config = json.loads((directory / "config.json").read_text())
    said: dict[str, object] = {
        "block_count": len(BLOCKS),
        "context_length": 1024,
        "embedding_length": SIZE,
        "attention.head_count": [HEADS if group else 0 for group, _ in BLOCKS],
        "attention.head_count_kv": [HEADS // group if group else 0 for group, _ in BLOCKS],
        "feed_forward_length": [INNER if size else 0 for _, size in BLOCKS],
        "attention.key_length": SIZE // HEADS,
        "attention.value_length": SIZE // HEADS,
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.dimension_count": SIZE // HEADS,
        "rope.freq_base": config["rope_parameters"]["rope_theta"],
    }
    metadata = {f"deci.{key}": each for key, each in said.items()}
    return ggufs.write(path, tensors, {"general.architecture": "deci", **metadata})


def test_layers_may_lack_a_half_and_differ_in_size(tmp_path: Path) -> None:
    expected = reference_logits(save(tmp_path), IDS)
    found = load(str(tmp_path), device=CPU, dtype="float32").module
    assert_same_network(found, expected, torch.tensor([IDS]))
    lab = Lab(found)
    for cuts in ((3, 17), range(len(IDS))):
        torch.testing.assert_close(lab.runner.logits(IDS, cuts), expected, rtol=1e-3, atol=1e-3)


def test_so_they_may_in_gguf(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    expected = reference_logits(save(tmp_path / "hf"), IDS)
    path = write_gguf(tmp_path / "hf", tmp_path / "m.gguf")
    found = load(str(path), device=CPU, dtype="float32").module
    assert_same_network(found, expected, torch.tensor([IDS]))


def changed(directory: Path, change: Callable[[list[dict[str, dict[str, object]]]], object]) -> str:
    save(directory)
    config = json.loads((directory / "config.json").read_text())
    change(config["block_configs"])
    (directory / "config.json").write_text(json.dumps(config))
    return str(directory)


@pytest.mark.parametrize(
    ("half", "values", "told"),
    [
        ("attention", {"replace_with_linear": True}, "replace_with_linear"),
        ("ffn", {"replace_with_linear": True}, "replace_with_linear"),
        ("attention", {"window_length": 8}, "window_length"),
        ("attention", {"n_heads_in_group": 3}, "groups of 3"),
        ("ffn", {"ffn_mult": None}, "intermediate_size"),
    ],
)
def test_layers_that_are_made_otherwise_are_refused(
    half: str, values: dict[str, object], told: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=told):
        plan_model(changed(tmp_path, lambda blocks: blocks[0][half].update(values)))


def test_a_layer_that_is_not_listed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="attention of layer 4"):
        plan_model(changed(tmp_path, lambda blocks: blocks.pop()))


def test_attention_of_one_matrix_is_refused_in_gguf(tmp_path: Path) -> None:
    """As that of some layers of the 51B model is."""
    (tmp_path / "hf").mkdir()
    save(tmp_path / "hf")
    stored = load_file(tmp_path / "hf" / "model.safetensors")
    layer = "model.layers.1."
    stored[f"{layer}self_attn.o_proj.weight"] = torch.zeros(SIZE, SIZE)
    stored[f"{layer}input_layernorm.weight"] = torch.ones(SIZE)
    save_file(stored, tmp_path / "hf" / "model.safetensors")
    with pytest.raises(ConfigError, match="replace_with_linear"):
        plan_model(str(write_gguf(tmp_path / "hf", tmp_path / "m.gguf")))
