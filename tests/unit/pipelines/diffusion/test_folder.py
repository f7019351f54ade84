"""Folders of pipelines are read, or refused, before diffusers opens them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blazr.core.errors import CheckpointError
from blazr.pipelines.diffusion.folder import read_index


def save(path: Path, kind: str, unet: dict[str, object]) -> Path:
    """What is read of a pipeline before its weights."""
    (path / "unet").mkdir()
    index = {"_class_name": kind, "unet": ["diffusers", "UNet2DConditionModel"]}
    (path / "model_index.json").write_text(json.dumps(index))
    (path / "unet" / "config.json").write_text(json.dumps(unet))
    return path


@pytest.mark.parametrize("kind", ["LatentConsistencyModelPipeline", "StableDiffusionPipeline"])
def test_names_are_the_class_and_the_parts(kind: str, tmp_path: Path) -> None:
    sizes = {"time_cond_proj_dim": 256} if kind.startswith("Latent") else {}
    assert read_index(save(tmp_path, kind, sizes)) == (kind, ["unet"])


@pytest.mark.parametrize(
    "unet",
    [{}, {"time_cond_proj_dim": None}, {"time_cond_proj_dim": 0}, {"time_cond_proj_dim": "8"}],
)
@pytest.mark.parametrize("task", ["", "Img2Img"])
def test_a_unet_without_an_embedding_of_the_guidance(
    unet: dict[str, object], task: str, tmp_path: Path
) -> None:
    """The library's pipelines of latent consistency models would fail with the first image."""
    where = save(tmp_path, f"LatentConsistencyModel{task}Pipeline", unet)
    with pytest.raises(CheckpointError, match="no latent consistency model") as caught:
        read_index(where)
    assert "time_cond_proj_dim" in caught.value.found


def test_a_unet_without_a_configuration(tmp_path: Path) -> None:
    where = save(tmp_path, "LatentConsistencyModelPipeline", {})
    (where / "unet" / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_index(where)
