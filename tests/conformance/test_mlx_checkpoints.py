"""Checkpoints of mlx-lm: names, stacks of experts and settings of single matrices."""

from __future__ import annotations

import json
import math
import re
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from blazr.bench.reference.open import open_reference
from blazr.core.errors import CheckpointError
from blazr.models.checkpoint.open import open_checkpoint
from blazr.models.loading.convert import convert
from blazr.models.loading.load import load
from blazr.nn.device import resolve_device
from tests.support.quantized import mlx
from tests.support.references import CASES, save_reference

pytest.importorskip("transformers", reason="it makes the models")

CPU = resolve_device("cpu")
IDS = [3, 1, 4, 15, 9, 2, 6, 5]
EXPERT = re.compile(r"(.*\.)experts\.(\d+)\.(\w+)\.weight")
# What mlx-lm calls matrices of MLPs and of experts, by their names in some releases.
MATRICES = {
    "mixtral": {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"},
    "lfm2_moe": {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"},
    "kimi_linear": {
        "w1": "gate_proj",
        "w2": "down_proj",
        "w3": "up_proj",
        **{f"{name}_conv1d": f"{name}_conv.conv" for name in "qkv"},
    },
    "nemotron_h": {"up_proj": "fc1", "down_proj": "fc2"},
}
# Rows of gate before those of up.
JOINED = {
    "input_linear": ("gate_proj", "up_proj"),
    "output_linear": ("down_proj",),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "down_proj": ("down_proj",),
}
FILTERS = ("conv1d.weight", "conv.conv.weight")
# Of Qwen3-Next and Qwen3.5, where one is added to these, but not to the norms of delta networks.
WHOLE_NORMS = ("layernorm.weight", "model.norm.weight", "q_norm.weight", "k_norm.weight")
SIZES = {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32}
KV_HEADS = 4
OTHER_BITS = "down_proj"  # these matrices have settings of their own


def matrices(kind: str, name: str, tensor: Tensor) -> Iterator[tuple[str, int | None, Tensor]]:
    """What mlx-lm calls the parts of a tensor: modules, experts and views of it."""
    at, dot, end = name.removesuffix(".weight").rpartition(".")
    expert = EXPERT.fullmatch(name)
    if expert:
        matrix = MATRICES.get(kind, {}).get(expert[3], expert[3])
        yield f"{expert[1]}switch_mlp.{matrix}", int(expert[2]), tensor
    elif end in JOINED and (end.endswith("linear") or at.endswith(".experts")):
        parts = tensor.chunk(len(JOINED[end]), -2)
        for matrix, rows in zip(JOINED[end], parts, strict=True):
            yield from apart(at, matrix, rows)
    elif end == "kv_b_proj":  # rows of keys before those of values, head by head
        for head, (keys, values) in enumerate(tensor.view(KV_HEADS, 2, -1, tensor.shape[1])):
            yield f"{at}.embed_q", head, keys.T
            yield f"{at}.unembed_out", head, values
    elif kind == "nemotron_h":
        yield name.removesuffix(".weight"), None, tensor
    else:
        yield at + dot + MATRICES.get(kind, {}).get(end, end), None, tensor


def apart(at: str, matrix: str, tensor: Tensor) -> Iterator[tuple[str, int | None, Tensor]]:
    """The matrices of what Granite and Gemma have in one tensor."""
    if tensor.dim() == 2:
        yield f"{at.removesuffix('shared_mlp')}mlp.{matrix}", None, tensor
        return
    stack = "switch_glu" if at.endswith(".experts") else "switch_mlp"
    for expert, own in enumerate(tensor):
        yield f"{at}.{stack}.{matrix}", expert, own


def as_stored(kind: str, name: str, matrix: Tensor, bits: int | None) -> dict[str, Tensor]:
    """The parts of a tensor; where it is quantized, its own numbers are rounded."""
    if name.endswith(FILTERS):
        return {"weight": matrix.transpose(1, 2).contiguous()}
    if kind.startswith(("qwen3_next", "qwen3_5")) and name.endswith(WHOLE_NORMS):
        return {"weight": matrix + 1}
    if bits is None or matrix.dim() != 2 or matrix.shape[1] % 32:
        return {"weight": matrix.clone()}
    parts, whole = mlx(matrix, bits=bits)
    matrix.copy_(whole)
    return parts


def as_mlx(directory: Path, out: Path, *, quantized: bool = True) -> None:
    """Write a checkpoint as mlx-lm does, and round the numbers of the first as it does."""
    plain = load_file(directory / "model.safetensors")
    stacks = defaultdict[str, dict[int, dict[str, Tensor]]](dict)
    ends = (".weight", ".experts.gate_up_proj", ".experts.down_proj")
    saved = {name: each for name, each in plain.items() if not name.endswith(ends)}
    config = json.loads((directory / "config.json").read_text())
    kind = config["model_type"]
    # beside experts, Granite's MLP stays as it is
    kept = "shared_mlp" if any("block_sparse_moe" in name for name in plain) else "\0"
    settings: dict[str, object] = {"bits": 4, "group_size": 32}
    for name in plain.keys() - saved.keys():
        whole = [(name.removesuffix(".weight"), None, plain[name])]
        for module, expert, matrix in whole if kept in name else matrices(kind, name, plain[name]):
            is_other = module.endswith(OTHER_BITS)
            parts = as_stored(kind, name, matrix, (6 if is_other else 4) if quantized else None)
            if is_other and len(parts) > 1:
                settings[module] = {"bits": 6, "group_size": 32, "mode": "affine"}
            if expert is None:
                saved |= {f"{module}.{end}": part for end, part in parts.items()}
            else:
                stacks[module][expert] = parts
    for module, experts in stacks.items():
        for end in experts[0]:
            stack = torch.stack([experts[index][end] for index in sorted(experts)])
            saved[f"{module}.{end}"] = stack
    if kind == "kimi_linear":
        bias = ".e_score_correction_bias"
        saved = {
            name.replace("block_sparse_moe", "mlp").replace(f".gate{bias}", bias): each
            for name, each in saved.items()
        }
        settings = {key.replace("block_sparse_moe", "mlp"): each for key, each in settings.items()}
    if kind.startswith("qwen3_5"):  # only as parts of models that see
        at = "language_model."
        saved = {at + name: each for name, each in saved.items()}
        settings = {at + key if "." in key else key: each for key, each in settings.items()}
        config["rope_parameters"] |= {"mrope_section": [1, 1, 0], "mrope_interleaved": True}
        config = {"model_type": kind.removesuffix("_text"), "text_config": config}
    out.mkdir()
    save_file(saved, out / "model.safetensors", {"format": "mlx"})
    save_file(plain, directory / "model.safetensors")
    if quantized:  # the second is for other programs
        config |= {"quantization": settings, "quantization_config": settings}
    (out / "config.json").write_text(json.dumps(config))


def logits(directory: Path) -> Tensor:
    model = load(str(directory), device=CPU, dtype="float32").module
    with torch.inference_mode():
        found: Tensor = model.forward_sequences(torch.tensor([IDS]))[0]
    return found


def judged(directory: Path) -> Tensor:
    """What `blazr verify` judges by."""
    model = open_reference([directory / "model.safetensors"], directory / "config.json")
    x = embedded = model.embed(torch.tensor(IDS))
    for layer in model.layers:
        x = layer(x, embedded)
    return model.logits(x).float()


DELTA = {"linear_key_head_dim": 32, "linear_value_head_dim": 32, "head_dim": 16}
GRANITE = {"mamba_n_heads": 4, "mamba_d_head": 32}
LATENT = {"qk_nope_head_dim": 32, "v_head_dim": 32, "kv_lora_rank": 64}
MODELS: dict[str, dict[str, object]] = {
    "llama": {},
    "mixtral": {"num_local_experts": 3},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},
    "mamba": {},
    "mamba2": {"num_heads": 4, "head_dim": 32},
    "falcon_mamba": {},
    "granitemoehybrid": GRANITE,
    "granitemoehybrid dense": GRANITE,
    "jamba": {},
    "nemotron_h experts": {},
    "lfm2": {},
    "lfm2_moe": {},
    "qwen3_next": DELTA,
    "qwen3_5_text": DELTA,
    "qwen3_5_moe_text": DELTA,
    "deepseek_v3": LATENT,
    "glm4_moe_lite": LATENT,
    "gemma4_text experts": {"head_dim": 16, "global_head_dim": 32},
    "kimi_linear": {**LATENT, "linear_head_dim": 32},
}


@pytest.mark.usefixtures("reference_ops")
@pytest.mark.parametrize("case", MODELS)
def test_it_computes_what_its_numbers_stand_for(case: str, tmp_path: Path) -> None:
    kind, changes = CASES[case]
    save_reference(kind, tmp_path / "plain", changes={**changes, **SIZES, **MODELS[case]})
    before = logits(tmp_path / "plain")
    as_mlx(tmp_path / "plain", tmp_path / "mlx")
    expected = logits(tmp_path / "plain")
    torch.testing.assert_close(logits(tmp_path / "mlx"), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(judged(tmp_path / "mlx"), expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(expected, before, rtol=1e-3, atol=1e-3)


@pytest.mark.usefixtures("reference_ops")
@pytest.mark.parametrize("case", ["lfm2_moe", "qwen3_next", "deepseek_v3 dense"])
def test_it_is_read_without_quantization(case: str, tmp_path: Path) -> None:
    kind, changes = CASES[case]
    more = MODELS.get(case, LATENT)
    save_reference(kind, tmp_path / "plain", changes={**changes, **SIZES, **more})
    as_mlx(tmp_path / "plain", tmp_path / "mlx", quantized=False)
    expected = logits(tmp_path / "plain")
    torch.testing.assert_close(logits(tmp_path / "mlx"), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(judged(tmp_path / "mlx"), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("reference_ops")
def test_converted_it_is_as_released(tmp_path: Path) -> None:
    """What `blazr convert` writes has the releases' convolutions and norms."""
    kind, changes = CASES["qwen3_next"]
    save_reference(kind, tmp_path / "plain", changes={**changes, **SIZES, **DELTA})
    as_mlx(tmp_path / "plain", tmp_path / "mlx")
    convert(str(tmp_path / "mlx"), tmp_path / "again", dtype="float32")
    expected = load_file(tmp_path / "plain" / "model.safetensors")
    found = load_file(tmp_path / "again" / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6)


def transpose_filters(path: Path) -> None:
    """Write a file of tensors as mlx-lm has depthwise convolutions."""
    tensors = load_file(path)
    transposed = {
        name: each.transpose(1, 2).contiguous() if name.endswith("conv1d.weight") else each
        for name, each in tensors.items()
    }
    save_file(transposed, path, {"format": "mlx"})


def test_what_nobody_can_tell_is_refused(tmp_path: Path) -> None:
    """Some versions of mlx-lm have multiplied Falcon-H1's weights, and others have not."""
    kind, changes = CASES["falcon_h1"]
    save_reference(kind, tmp_path / "model", changes=changes)
    transpose_filters(tmp_path / "model" / "model.safetensors")
    with pytest.raises(CheckpointError, match="falcon_h1 as mlx-lm has them"):
        load(str(tmp_path / "model"), device=CPU)


def test_a_transposed_convolution_of_other_types_is_refused(tmp_path: Path) -> None:
    """mlx-lm changes other weights of some models, too; so only known types are read."""
    kind, changes = CASES["bamba"]
    save_reference(kind, tmp_path / "model", changes=changes)
    transpose_filters(tmp_path / "model" / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"conv1d\.weight"):
        load(str(tmp_path / "model"), device=CPU)


@pytest.mark.parametrize("shape", [(1 << 40, 0, 1), (5000, 1, 1)])
def test_a_stack_of_any_size_is_read_or_told(shape: tuple[int, ...], tmp_path: Path) -> None:
    """A header of some bytes may claim more experts than there is time or memory for."""
    end = 4 * math.prod(shape)
    info = {"dtype": "U32", "shape": shape, "data_offsets": (0, end)}
    header = json.dumps({"mlp.switch_mlp.up_proj.weight": info}).encode()
    content = struct.pack("<Q", len(header)) + header + bytes(end)
    (tmp_path / "model.safetensors").write_bytes(content)
    (tmp_path / "config.json").write_text("{}")
    if end:
        with pytest.raises(CheckpointError, match="no stack of experts"):
            open_checkpoint(tmp_path)
    else:
        assert len(open_checkpoint(tmp_path).tensors) == 1
