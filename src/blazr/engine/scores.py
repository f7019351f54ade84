"""Log-probabilities of prompt tokens, packed to be kept with the block they are of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isnan

import numpy as np
from numpy.typing import NDArray

from blazr.engine.block import Node
from blazr.engine.outputs import TokenLogprobs
from blazr.engine.sequence import Sequence as RunningSequence


def pack(entries: Sequence[TokenLogprobs | None]) -> NDArray[np.float32]:
    """Entries as one row of numbers each: the value, then ids and values of the likeliest.

    float32 holds the values exactly, because they come from it, and ids below 2^24. The first token
    of a prompt has no value; its row is NaN.
    """
    num_top = max((len(each.top) for each in entries if each is not None), default=0)
    rows = np.full((len(entries), 1 + 2 * num_top), np.nan, np.float32)
    for row, each in zip(rows, entries, strict=True):
        if each is not None:
            row[0] = each.logprob
            row[1 : 1 + num_top] = [token_id for token_id, _ in each.top]
            row[1 + num_top :] = [value for _, value in each.top]
    return rows


def unpack(
    rows: NDArray[np.float32], token_ids: Sequence[int], num_top: int
) -> list[TokenLogprobs | None]:
    """What was packed, with the ``num_top`` likeliest of those there are."""
    width = rows.shape[1] // 2
    entries: list[TokenLogprobs | None] = []
    for row, token_id in zip(rows.tolist(), token_ids, strict=False):
        if isnan(row[0]):
            entries.append(None)
            continue
        ids, values = row[1 : 1 + width], row[1 + width :]
        top = tuple((int(i), value) for i, value in zip(ids, values, strict=True))
        entries.append(TokenLogprobs(token_id, row[0], top[:num_top]))
    return entries


def continue_scores(
    known: Sequence[TokenLogprobs | None], entry: TokenLogprobs
) -> list[TokenLogprobs | None]:
    """Another prompt's entries, then the first of one's own: with as many of the likeliest."""
    width = len(entry.top)
    return [
        *(
            replace(each, top=each.top[:width]) if each and len(each.top) > width else each
            for each in known
        ),
        entry,
    ]


def is_enough(rows: NDArray[np.float32] | None, num_top: int) -> bool:
    """Whether the likeliest ``num_top`` were kept."""
    return rows is not None and rows.shape[1] >= 1 + 2 * num_top


def keep_scores(sequence: RunningSequence, grid: int) -> None:
    """Keep the scores of a running sequence's whole blocks of ``grid`` with the published ones."""
    node = sequence.node
    num_top = sequence.request.params.prompt_logprobs or 0
    known = sequence.scores or ()
    while node is not None and node.depth:
        end = node.depth * grid
        has_next = end < len(known)
        if is_enough(node.scores, num_top) and (node.next_id >= 0 or not has_next):
            break
        rows = pack(known[end - grid : end + 1])
        is_wider = node.scores is None or rows.shape[1] >= node.scores.shape[1]
        if end <= len(known) and is_wider:
            node.scores = rows
            node.next_id = sequence.tokens[end] if has_next else -1
        node = node.parent


def knows_next(sequence: RunningSequence, node: Node, grid: int) -> bool:
    """Whether the score of the prompt's token after a block is kept with the block."""
    end = node.depth * grid
    return end < sequence.num_prompt and node.next_id == sequence.tokens[end]


def known_scores(
    sequence: RunningSequence, path: Sequence[Node], grid: int
) -> list[TokenLogprobs | None]:
    """The scores of the tokens before `sequence.computed`, and of the one there.

    Args:
        sequence: It goes on there.
        path: Its blocks up to there, and the next if its scores are known.
        grid: Tokens in a block.
    """
    num_top = sequence.request.params.prompt_logprobs or 0
    known: list[TokenLogprobs | None] = []
    for node in path:
        if len(known) > sequence.computed:
            break
        assert node.scores is not None
        start, end = len(known), node.depth * grid + knows_next(sequence, node, grid)
        rows = node.scores[start - (node.depth - 1) * grid :]
        known += unpack(rows, sequence.tokens[start:end], num_top)
    return known[: sequence.computed + 1]
