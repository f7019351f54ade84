"""Values of mmproj files that fit nothing are told before any tensor is read."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from blazr.core.errors import CheckpointError
from blazr.pipelines.mmproj import PROJECTORS, MmprojEncoder, TowerSpec

HIDDEN, INNER, PATCH = 16, 20, 7
USUAL = {
    "projection_dim": 24,
    "attention.head_count": 2,
    "attention.layer_norm_epsilon": 1e-6,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "image_size": 8 * PATCH,
}


def tower_of(**changes: object) -> TowerSpec:
    """Of a file with these values in the place of usual ones; dots are double underscores."""
    values = USUAL | {key.replace("__", "."): value for key, value in changes.items()}
    shapes = {
        "v.patch_embd.weight": (HIDDEN, 3, PATCH, PATCH),
        "v.position_embd.weight": (64, HIDDEN),
        "v.blk.0.ffn_up.weight": (INNER, HIDDEN),
    }
    checkpoint = SimpleNamespace(
        path=Path("mmproj.gguf"),
        tensors={name: SimpleNamespace(shape=shape) for name, shape in shapes.items()},
        metadata={f"clip.vision.{key}": value for key, value in values.items()},
    )
    return TowerSpec(checkpoint)  # type: ignore[arg-type]


def read(kind: str, **changes: object) -> TowerSpec:
    """The tower of a file of a kind, of which everything has been asked."""
    tower = tower_of(**changes)
    assert PROJECTORS[kind].config(tower)
    assert PROJECTORS[kind].pixels(tower)
    assert tower.normalization
    return tower


@pytest.mark.parametrize("kind", [*PROJECTORS])
def test_usual_values_are_taken(kind: str) -> None:
    tower = read(kind, attention__layer_norm_epsilon=1)
    assert tower.normalization == {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    assert tower.epsilon == 1.0


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("gemma3", "projection_dim", 24.0),
        ("gemma3", "attention__head_count", 0.5),
        ("gemma3", "attention__head_count", True),
        ("gemma3", "attention__layer_norm_epsilon", float("nan")),
        ("gemma3", "projector__scale_factor", 9),  # of 8 patches on a side
        ("gemma3", "image_mean", "abc"),
        ("gemma3", "image_std", [0.0, 0.5, 0.5]),
        ("gemma3", "image_std", [-1.0, -1.0, -1.0]),
        ("idefics3", "preproc_image_size", 0.5),
        ("pixtral", "image_size", 2 * PATCH - 1),  # less than one token
        ("pixtral", "attention__head_count", 3),  # of 16 channels
        ("qwen2vl_merger", "attention__head_count", 3),
        ("qwen2vl_merger", "image_min_pixels", 0.5),
        ("qwen2.5vl_merger", "window_size", 2 * PATCH - 1),
        ("qwen2.5vl_merger", "n_wa_pattern", 0.5),
        ("qwen3vl_merger", "spatial_merge_size", 1.5),
    ],
)
def test_values_that_fit_nothing_are_named(kind: str, key: str, value: object) -> None:
    """They were divided by, or the image was said to have a size that the model cannot take."""
    name = key.replace("__", ".")
    with pytest.raises(CheckpointError, match=f"clip.vision.{name} of mmproj.gguf is not usable"):
        read(kind, **{key: value})


@pytest.mark.parametrize("is_swapped", [False, True])
def test_feed_forwards_that_are_as_wide_as_the_tower_keep_their_names(*, is_swapped: bool) -> None:
    """Older converters called the two matrices by each other's names, which their sizes tell."""
    inner = INNER if is_swapped else HIDDEN
    shapes = {"up": (HIDDEN, inner), "down": (inner, HIDDEN)}
    tensors = {f"v.blk.0.ffn_{name}.weight": torch.randn(shapes[name]) for name in shapes}
    checkpoint = SimpleNamespace(
        tensors={
            name: SimpleNamespace(name=name, shape=tuple(each.shape), is_packed=False)
            for name, each in tensors.items()
        },
        own=lambda info: tensors[info.name],
    )
    encoder = SimpleNamespace(_projector=SimpleNamespace(tensors=lambda _, found: found))
    tower = SimpleNamespace(hidden_size=HIDDEN)
    found = MmprojEncoder._tensors(encoder, checkpoint, tower)  # type: ignore[arg-type]
    stored = tensors[f"v.blk.0.ffn_{'up' if is_swapped else 'down'}.weight"]
    assert torch.equal(found["v.blk.0.ffn_down.weight"], stored)
