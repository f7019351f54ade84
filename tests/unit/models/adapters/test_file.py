"""Adapters whose configuration and numbers do not go together."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from blazr.core.errors import CheckpointError
from blazr.models.adapters.read import read_adapter


def save_peft(directory: Path, alpha: float = 2.0, *, r: int = 2, rank: int = 2) -> Path:
    """One change of one projection, with another rank in its configuration where r differs."""
    directory.mkdir()
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora"
    tensors = {f"{name}_A.weight": torch.ones(rank, 8), f"{name}_B.weight": torch.ones(8, rank)}
    save_file(tensors, directory / "adapter_model.safetensors")
    about = {"peft_type": "LORA", "r": r, "lora_alpha": alpha}
    (directory / "adapter_config.json").write_text(json.dumps(about))
    return directory


def write_gguf(path: Path, alpha: float) -> Path:
    """The same in a GGUF file."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    for end, shape in (("a", (2, 8)), ("b", (8, 2))):
        writer.add_tensor(f"blk.0.attn_q.weight.lora_{end}", np.ones(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("alpha", [1e39, -1e300])
def test_scales_that_are_too_large(alpha: float, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no finite numbers"):
        read_adapter(save_peft(tmp_path / "a", alpha))


@pytest.mark.parametrize("alpha", [math.nan, math.inf, -math.inf])
def test_scales_that_are_no_numbers(alpha: float, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no finite numbers"):
        read_adapter(write_gguf(tmp_path / "a.gguf", alpha))


def test_scales_of_either_kind_are_alpha_by_rank(tmp_path: Path) -> None:
    for path in (save_peft(tmp_path / "a", 3.0), write_gguf(tmp_path / "a.gguf", 3.0)):
        (change,) = read_adapter(path).low_rank
        assert change.scale == 1.5


@pytest.mark.parametrize(("r", "rank"), [(1, 2), (2, 4), (2, 3), (2, 0)])
def test_another_rank_than_the_configuration_s(r: int, rank: int, tmp_path: Path) -> None:
    """Also a multiple of it, which only experts in one tensor have, and none."""
    with pytest.raises(CheckpointError, match="do not fit each other"):
        read_adapter(save_peft(tmp_path / "a", r=r, rank=rank))


def test_lengths_of_rows_that_are_missing(tmp_path: Path) -> None:
    """Without them it would be taken for an adapter that leaves the lengths."""
    path = save_peft(tmp_path / "a") / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"use_dora": True}))
    with pytest.raises(CheckpointError, match="no lengths of rows"):
        read_adapter(path.parent)
