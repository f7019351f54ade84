"""Where tokens stand for rotary embeddings beside images."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from blazr.engine.positions import grid_positions, position_shift_after
from blazr.engine.request import PromptEmbeddings
from blazr.nn.layers.rope import RopeConfig


def _image(start: int, rows: int, columns: int) -> PromptEmbeddings:
    vectors = torch.zeros(rows * columns, 1)
    return PromptEmbeddings(start=start, vectors=vectors, digest=b"", grid=(rows, columns))


# Two of text, an image of 2 by 3, one of text, one of 4 by 1, vectors without a grid, and text.
PROMPT = [
    _image(2, 2, 3),
    _image(9, 4, 1),
    PromptEmbeddings(start=14, vectors=torch.zeros(2, 1), digest=b""),
]
TIME = [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 6, 6, 6, 10, 11, 12, 13]
HEIGHT = [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13]
WIDTH = [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 6, 6, 6, 10, 11, 12, 13]


def test_an_image_has_rows_and_columns() -> None:
    assert grid_positions(PROMPT, 0, 17).tolist() == [TIME, HEIGHT, WIDTH]
    assert position_shift_after(PROMPT) == 13 - 16


def test_a_video_has_times() -> None:
    """Two images of 1 by 2, three positions from each other in time, and text behind both."""
    vectors = torch.zeros(4, 1)
    video = PromptEmbeddings(start=1, vectors=vectors, digest=b"", grid=(1, 2), times=(0, 3))
    wanted = [[0, 1, 1, 4, 4, 5, 6], [0, 1, 1, 1, 1, 5, 6], [0, 1, 2, 1, 2, 5, 6]]
    assert grid_positions([video], 0, 7).tolist() == wanted
    assert grid_positions([video], 3, 7).tolist() == [axis[3:] for axis in wanted]
    assert position_shift_after([video]) == 0


@pytest.mark.parametrize("cut", range(1, 17))
def test_a_cut_changes_nothing(cut: int) -> None:
    parts = [grid_positions(PROMPT, 0, cut), grid_positions(PROMPT, cut, 17)]
    assert np.concatenate(parts, 1).tolist() == [TIME, HEIGHT, WIDTH]


def test_text_turns_the_same_on_one_axis_and_on_three() -> None:
    rope = RopeConfig(16, axes=(0, 0, 1, 1, 1, 2, 2, 2))
    positions = torch.arange(40) * 7
    for one, three in zip(
        rope.tables(positions), rope.tables(positions.expand(3, -1)), strict=True
    ):
        assert torch.equal(one, three)


def test_each_pair_turns_by_its_own_axis() -> None:
    axes = (0, 2, 1, 0, 2, 1, 0, 0)
    positions = torch.randint(0, 500, (3, 20), generator=torch.Generator().manual_seed(1))
    found = RopeConfig(16, axes=axes).tables(positions)
    for axis in range(3):
        wanted = RopeConfig(16).tables(positions[axis])
        pairs = [pair for pair, each in enumerate(axes) if each == axis]
        for mine, theirs in zip(found, wanted, strict=True):
            assert torch.equal(mine[:, pairs], theirs[:, pairs])
