"""Constraints on scores: the tokens that may not follow get none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blazr.core.errors import EXITS
from blazr.engine.sequence import Sequence as RunningSequence

_NEVER = float("-inf")


def constrain(
    scores: Tensor, sequences: Sequence[RunningSequence]
) -> tuple[Tensor, dict[int, BaseException]]:
    """Rule out what the constraints of some rows do not allow.

    The masks are computed before anything is asked of the scores, so that a device may still be
    busy with them.

    Args:
        scores: (B, V), float32; not changed.
        sequences: B, in the same order.

    Returns:
        Scores of the same shape, and by row what went wrong with its constraint.
    """
    rows = [i for i, sequence in enumerate(sequences) if sequence.constraint is not None]
    if not rows:
        return scores, {}
    vocab_size = scores.shape[1]
    masks = np.zeros((len(rows), vocab_size // 32 + 1), np.int32)
    errors: dict[int, BaseException] = {}
    for mask, row in zip(masks, rows, strict=True):
        try:
            fill_mask(mask, sequences[row], vocab_size)
        except EXITS:
            raise
        except BaseException as error:  # noqa: BLE001  (see EXITS)
            errors[row] = error
    allowed = _unpack_bits(masks, scores.device)[:, :vocab_size]
    if len(rows) == len(scores):
        return torch.where(allowed, scores, _NEVER), errors
    scores = scores.clone()
    scores[rows] = torch.where(allowed, scores[rows], _NEVER)
    return scores, errors


def fill_mask(mask: NDArray[np.int32], sequence: RunningSequence, vocab_size: int) -> None:
    """Set the bits of the tokens that may follow in one row.

    The ids that end a reply may come where the constraint says that it may end; elsewhere only
    where the constraint names them, as a grammar may special tokens.
    """
    assert sequence.constraint is not None
    sequence.constraint.fill_mask(mask)
    words = mask.view(np.uint32)
    if not words[vocab_size // 32] >> vocab_size % 32 & 1:
        return
    for end in sequence.ends:
        words[end // 32] |= np.uint32(1 << end % 32)


def _unpack_bits(masks: NDArray[np.int32], device: torch.device) -> Tensor:
    """Bits as truth values, (rows, 32 words), on the device."""
    if device.type == "cpu":
        bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")
        return torch.from_numpy(bits).view(torch.bool)
    shifts = torch.arange(32, device=device, dtype=torch.int32)
    packed = torch.from_numpy(masks).to(device)
    return ((packed[:, :, None] >> shifts) & 1).flatten(1).bool()
