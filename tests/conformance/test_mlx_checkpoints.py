"""Checkpoints of mlx-lm: names, stacks of experts and settings of single matrices."""

from __future__ import annotations

import json
import math
import re
import struct
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from blazr.core.errors import CheckpointError
from blazr.models.checkpoint.open import open_checkpoint
from blazr.models.loading.load import load
from blazr.nn.device import resolve_device
from tests.support.quantized import mlx
from tests.support.references import CASES, save_reference

pytest.importorskip("transformers", reason="it makes the models")

CPU = resolve_device("cpu")
EXPERT = re.compile(r"(.*)\.experts\.(\d+)\.(\w+)\.weight")
# What mlx-lm calls the matrices of Mixtral's experts.
OF_MIXTRAL = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
SIZES = {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32}
OTHER_BITS = "down_proj"  # these matrices have settings of their own


def as_mlx(directory: Path, out: Path) -> None:
    """Write a checkpoint as mlx-lm quantizes it, and round the numbers of the first as it does."""
    plain = load_file(directory / "model.safetensors")
    stacks = defaultdict[str, dict[int, dict[str, Tensor]]](dict)
    saved: dict[str, Tensor] = {}
    config = json.loads((directory / "config.json").read_text())
    settings: dict[str, object] = {"bits": 4, "group_size": 32}
    for name, tensor in plain.items():
        if tensor.dim() != 2 or tensor.shape[1] % 32:
            saved[name] = tensor
            continue
        module = name.removesuffix(".weight")
        expert = EXPERT.fullmatch(name)
        if expert:
            matrix = OF_MIXTRAL.get(expert[3], expert[3])
            module = f"{expert[1]}.switch_mlp.{matrix}"
        bits = 6 if module.endswith(OTHER_BITS) else 4
        if bits != settings["bits"]:
            settings[module] = {"bits": bits, "group_size": 32, "mode": "affine"}
        parts, plain[name] = mlx(tensor, bits=bits)
        if expert:
            stacks[module][int(expert[2])] = parts
        else:
            saved |= {f"{module}.{end}": part for end, part in parts.items()}
    for module, experts in stacks.items():
        for end in experts[0]:
            whole = torch.stack([experts[index][end] for index in sorted(experts)])
            saved[f"{module}.{end}"] = whole
    out.mkdir()
    save_file(saved, out / "model.safetensors", {"format": "mlx"})
    save_file(plain, directory / "model.safetensors")
    # the second is for other programs
    config |= {"quantization": settings, "quantization_config": settings}
    (out / "config.json").write_text(json.dumps(config))


def logits(directory: Path) -> Tensor:
    model = load(str(directory), device=CPU, dtype="float32").module
    with torch.inference_mode():
        found: Tensor = model.forward_sequences(torch.tensor([[3, 1, 4, 15, 9, 2, 6, 5]]))[0]
    return found


@pytest.mark.usefixtures("reference_ops")
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {}),
        ("mixtral", {"num_local_experts": 3, "num_experts_per_tok": 2}),
        ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}),
    ],
)
def test_it_computes_what_its_numbers_stand_for(
    kind: str, changes: dict[str, object], tmp_path: Path
) -> None:
    save_reference(kind, tmp_path / "plain", changes=SIZES | changes)
    before = logits(tmp_path / "plain")
    as_mlx(tmp_path / "plain", tmp_path / "mlx")
    expected = logits(tmp_path / "plain")
    torch.testing.assert_close(logits(tmp_path / "mlx"), expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(expected, before, rtol=1e-3, atol=1e-3)


def test_a_transposed_convolution_is_refused(tmp_path: Path) -> None:
    """Where mlx-lm transposes convolutions, it changes other weights of some models, too."""
    kind, changes = CASES["mamba2"]
    save_reference(kind, tmp_path / "model", changes=changes)
    path = tmp_path / "model" / "model.safetensors"
    tensors = load_file(path)
    transposed = {
        name: each.transpose(1, 2).contiguous() if name.endswith("conv1d.weight") else each
        for name, each in tensors.items()
    }
    save_file(transposed, path, {"format": "mlx"})
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
