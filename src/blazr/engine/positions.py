"""Where tokens stand for rotary embeddings: those of an image in rows and columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from blazr.engine.request import PromptEmbeddings


def position_shift_after(embeddings: Sequence[PromptEmbeddings]) -> int:
    """How far the positions of tokens after all of these are from their places in the sequence."""
    return sum(
        max(*each.grid, each.times[-1] + 1) - len(each.times) * each.grid[0] * each.grid[1]
        for each in embeddings
        if each.grid is not None
    )


def grid_positions(
    embeddings: Sequence[PromptEmbeddings], start: int, end: int
) -> NDArray[np.int64]:
    """The positions of some tokens of a prompt, in time, height and width.

    Text has the same on all axes. A token in row r and column c of an image that begins at position
    p has (p, p + r, p + c), one of a video's image at time t has (p + t, p + r, p + c), and what
    follows goes on behind the largest of these.

    Args:
        embeddings: What stands for tokens of the prompt; those with a grid are images.
        start: The first of the tokens.
        end: The one behind them.

    Returns:
        (3, end - start).

    Source: Wang et al. 2024, "Qwen2-VL", arXiv:2409.12191, section 2.1.
    """
    places = np.arange(start, end)
    found = np.tile(places, (3, 1))
    shift = 0
    for each in embeddings:
        if each.grid is None:
            continue
        position = each.start + shift
        shift += position_shift_after([each])
        first, last = max(each.start, start), min(each.end, end)
        if first < last:
            numbers = np.arange(first, last) - each.start
            images, numbers = np.divmod(numbers, each.grid[0] * each.grid[1])
            rows, columns = np.divmod(numbers, each.grid[1])
            found[:, first - start : last - start] = position
            found[0, first - start : last - start] += np.array(each.times)[images]
            found[1, first - start : last - start] += rows
            found[2, first - start : last - start] += columns
        behind = max(each.end - start, 0)
        found[:, behind:] = places[behind:] + shift
    return found
