"""A long recording in windows that a model hears one after the other.

Windows begin and end in pauses and do not overlap, so that no word is cut, lost or heard twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from blazr.pipelines.audio.voice_activity import FRAME, RATE, Span, widened

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MARGIN = RATE // 5  # of a pause, heard before and after the speech


def windows(
    marks: Sequence[Span],
    probabilities: NDArray[np.float32],
    num_samples: int,
    *,
    longest: int,
) -> list[Span]:
    """Windows around all speech, and around as little else as may be.

    A recording that is no longer than one window is heard whole.

    Args:
        marks: Where somebody speaks.
        probabilities: How likely each frame is speech.
        num_samples: Of the recording.
        longest: Most samples of a window.

    Returns:
        Windows in their order, which do not overlap and hold all marks; none without speech.
    """
    if marks and num_samples <= longest:
        return [Span(0, num_samples)]
    room = longest - 2 * _MARGIN
    pieces = [piece for mark in marks for piece in _pieces(mark, probabilities, room)]
    packed: list[Span] = []
    for piece in pieces:
        if packed and piece.end - packed[-1].start <= room:
            packed[-1] = Span(packed[-1].start, piece.end)
        else:
            packed.append(piece)
    return widened(packed, _MARGIN, num_samples)


def _pieces(mark: Span, probabilities: NDArray[np.float32], room: int) -> Iterator[Span]:
    """Speech without a pause in pieces that fit, cut where it is least likely to be speech."""
    start, end = mark
    while end - start > room:
        first = (start + room // 2) // FRAME
        last = (start + room) // FRAME
        cut = (first + int(np.argmin(probabilities[first:last]))) * FRAME + FRAME // 2
        yield Span(start, cut)
        start = cut
    yield Span(start, end)
