"""Networks of transformers get all tensors of a checkpoint, or an error names what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from blazr.core.errors import CheckpointError
from blazr.models.checkpoint.open import open_checkpoint
from blazr.pipelines.network import network_from

transformers = pytest.importorskip("transformers")
NAME = "encoder.layer.0.output.dense.weight"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    config = transformers.BertConfig(
        vocab_size=9,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=16,
    )
    transformers.BertModel(config).save_pretrained(tmp_path)
    return tmp_path


def change(place: Path, tensor: torch.Tensor | None) -> None:
    """Put another tensor in one's place, or leave it out."""
    tensors = load_file(place / "model.safetensors") | {NAME: tensor}
    if tensor is None:
        del tensors[NAME]
    save_file(tensors, place / "model.safetensors", {"format": "pt"})


def test_what_is_missing_or_has_another_shape_is_named(place: Path) -> None:
    assert network_from(open_checkpoint(place), "AutoModel", dtype="float32")
    change(place, torch.zeros(3, 3))
    with pytest.raises(CheckpointError, match=r"1 tensors of .* have another shape") as caught:
        network_from(open_checkpoint(place), "AutoModel", dtype="float32")
    assert caught.value.found == f"{NAME} [3, 3]"
    assert caught.value.expected == "[8, 12]"
    change(place, None)
    with pytest.raises(CheckpointError, match=r"1 tensors of .* are missing") as caught:
        network_from(open_checkpoint(place), "AutoModel", dtype="float32")
    assert caught.value.found == NAME
