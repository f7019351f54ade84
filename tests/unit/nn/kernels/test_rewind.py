"""A mixer goes back to any token since its checkpoint, and on from there: the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from blazr.nn.kernels.cpu import compiled
from blazr.nn.layers.base import Mixer
from blazr.nn.layers.batch import LayerCache
from blazr.nn.layers.parallel import ParallelMixerConfig, ParallelPart
from blazr.nn.layers.shared_block import SharedBlockConfig
from blazr.nn.operands.state_dtype import STATE_DTYPES
from blazr.nn.operands.step import GRID, Span
from tests.support.examples import HIDDEN, MIXER_EXAMPLES
from tests.support.mixers import copy_of, memory_of, mixer_of, step_of, tensors_of
from tests.support.seeds import examples, some_of
from tests.support.tolerances import assert_as_right, error
from tests.support.without_kernels import without_kernels

pytestmark = pytest.mark.sample

RECURRENT = {
    name: each for name, each in MIXER_EXAMPLES.items() if each.cache_spec(torch.float32).checkpoint
}
_PARTS = ("mamba1", "gqa", "mamba2", "gated_delta")
RECURRENT["side_by_side"] = ParallelMixerConfig(
    tuple(ParallelPart(name=name, mixer=MIXER_EXAMPLES[name]) for name in _PARTS)
)
RECURRENT["behind_a_block"] = replace(RECURRENT["shared_block"], mixer=RECURRENT["mamba3"])
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
PAGES = [[5, 2, 9, 7], [11, 3, 1, 8]]
OTHER = 4  # rows from one copy of the working states to the other


class Track:
    """One sequence of a layer, whose checkpoints take turns in two slots."""

    def __init__(self, mixer: Mixer, cache: LayerCache, number: int = 0) -> None:
        self.mixer, self.cache = mixer, cache
        self.run, self.pages = 4 + number, PAGES[number]
        self.slots = (2 * number + 1, 2 * number + 2)
        self.at = 0
        self.copy = 0  # of the working states: where they stand behind the run's row

    @property
    def slot(self) -> int:
        """Of its checkpoint."""
        edges = self.at // GRID
        return self.slots[edges % 2] if edges else 0

    def go(self, x: Tensor, *, to: int | None = None) -> Tensor:
        """Compute the next tokens; ``to`` is where the working states behind them are put."""
        start, length = self.at, len(x)
        span = Span(
            0,
            length,
            start,
            start % GRID,
            tuple(self._edges(length)),
            working_from=self.copy,
            working_to=self.copy if to is None else to,
        )
        slot = self.slot
        self.at += length
        batch = step_of([span], pages=[self.pages], states=[slot], runs=[self.run])
        return self.mixer(x, batch, self.cache)

    def _edges(self, length: int) -> Iterator[tuple[int, int]]:
        for edge in range(self.at // GRID + 1, (self.at + length) // GRID + 1):
            yield edge * GRID - self.at, self.slots[edge % 2]

    def memory(self) -> dict[str, Tensor]:
        """All that what follows is computed from."""
        logged = self.at % GRID
        found = {}
        for name, each in tensors_of(self.cache).items():
            if name in self.cache.paged:
                found[name] = each[self.pages].flatten(0, 1)[: self.at]
            elif name in self.cache.checkpoint:
                found[name] = each[self.slot]
            elif name.endswith("in the log"):
                found[name] = each[self.run, :logged]
            elif logged:  # right after an edge what was kept there counts
                found[name] = each[self.run + self.copy]
        return found


def go_back(tracks: list[Track], lengths: list[int], starts: list[int] | None = None) -> None:
    """Truncate sequences of one layer together.

    Args:
        tracks: The sequences.
        lengths: Tokens of each that stay.
        starts: Where the working states of each stand; left out, these are of no use.
    """
    spans, slots, runs = [], [], []
    for number, (track, length) in enumerate(zip(tracks, lengths, strict=True)):
        edge = length // GRID * GRID
        assert edge == track.at // GRID * GRID
        if length > edge:
            first = sum(span.length for span in spans)
            start = edge if starts is None else starts[number]
            copies = {"working_from": track.copy, "working_to": track.copy}
            spans.append(Span(first, length - start, start, start - edge, **copies))
            slots.append(track.slot)
            runs.append(track.run)
        track.at = length
    if spans:
        table = step_of(spans, states=slots, runs=runs).table
        tracks[0].mixer.rewind(table, tracks[0].cache)


@dataclass(frozen=True, slots=True)
class History:
    """Of one sequence: so many tokens, cut somewhere, of which the last are rejected.

    Where the last step writes other working states, it computes the last ``num_last`` of the kept.
    """

    kept: Tensor
    rejected: Tensor
    following: Tensor
    cuts: list[int]
    num_last: int

    def read(self, track: Track, x: Tensor) -> None:
        """Compute tokens as they are cut."""
        ends = [0, *(cut for cut in self.cuts if cut < len(x)), len(x)]
        for low, high in pairwise(ends):
            if low < high:
                track.go(x[low:high])


@st.composite
def histories(draw: st.DrawFn, width: int, dtype: torch.dtype) -> History:
    kept = draw(st.integers(1, 2 * GRID + 6))
    room = GRID - 1 - kept % GRID
    rejected = draw(st.integers(0, room))
    return History(
        *(torch.randn(count, width).to(dtype) for count in (kept, rejected, room - rejected + 3)),
        cuts=sorted(draw(st.sets(st.integers(1, kept + rejected), max_size=3))),
        num_last=draw(st.integers(1, max(kept % GRID, 1))),
    )


@pytest.mark.skipif(bool(compiled.missing()), reason="kernels are not compiled")
@pytest.mark.parametrize("name", RECURRENT)
@settings(max_examples=examples(24))
@given(data=st.data())
def test_rejected_tokens_leave_no_trace(name: str, data: st.DataObject) -> None:
    """What is remembered of those before, and all that follows, are the same bits."""
    config, dtype = RECURRENT[name], data.draw(st.sampled_from(DTYPES))
    state_dtype = data.draw(st.sampled_from([*STATE_DTYPES]))
    width = HIDDEN * (1 + isinstance(config, SharedBlockConfig))
    texts = data.draw(st.lists(histories(width, dtype), min_size=1, max_size=2))
    mixer, memory = mixer_of(config, dtype), memory_of(config, dtype, state_dtype=state_dtype)
    for isa in some_of(compiled.isas(), data):
        compiled.use(isa)
        with torch.inference_mode():
            compare(texts, mixer, memory, isa)


def compare(texts: list[History], mixer: Mixer, memory: LayerCache, isa: str) -> None:
    plain, tried, aside = (
        [Track(mixer, cache, number) for number in range(len(texts))]
        for cache in (copy_of(memory) for _ in range(3))
    )
    lengths = [len(text.kept) for text in texts]
    for text, one, other in zip(texts, plain, tried, strict=True):
        text.read(one, text.kept)
        text.read(other, torch.cat((text.kept, text.rejected)))
    go_back(tried, lengths)
    starts = []
    for text, length, track in zip(texts, lengths, aside, strict=True):
        starts.append(length - text.num_last)
        text.read(track, text.kept[: starts[-1]])
        last = torch.cat((text.kept[starts[-1] :], text.rejected))
        track.go(last, to=OTHER)
        if not len(text.rejected) or length % GRID == 0:
            track.copy = OTHER  # nothing is made again
    wrong = [number for number, track in enumerate(aside) if not track.copy]
    go_back(
        [aside[number] for number in wrong],
        [lengths[number] for number in wrong],
        [starts[number] for number in wrong],
    )
    for number, (text, one) in enumerate(zip(texts, plain, strict=True)):
        others = tried[number], aside[number]
        others[1].at = lengths[number]
        expected = one.memory()
        for other in others:
            found = other.memory()
            for name, tensor in expected.items():
                assert torch.equal(found[name], tensor), (name, isa)
        for x in text.following.split(1):
            y = one.go(x)
            for other in others:
                assert torch.equal(other.go(x), y), isa


@torch.inference_mode()
@pytest.mark.parametrize(
    "length",
    [
        1,
        pytest.param(30, marks=pytest.mark.slow),
        pytest.param(GRID - 2, marks=pytest.mark.slow),
        pytest.param(GRID + 40, marks=pytest.mark.slow),
        GRID + 6,
    ],
)
@pytest.mark.parametrize("name", RECURRENT)
def test_definitions_lose_no_more_than_by_another_cut(name: str, length: int) -> None:
    """They compute chunks, whose rounding depends on where a text is cut."""
    config = RECURRENT[name]
    width = HIDDEN * (1 + isinstance(config, SharedBlockConfig))
    x = torch.randn(2 * GRID, width)
    mixer, memory = mixer_of(config), memory_of(config, torch.float32)
    with without_kernels():
        each, whole, tried, aside = (Track(mixer, copy_of(memory)) for _ in range(4))
        for row in x[:length].split(1):
            each.go(row)
            tried.go(row)
        whole.go(x[:length])
        rejected = torch.randn(GRID - 1 - length % GRID, width)
        tried.go(rejected)
        go_back([tried], [length])
        for row in x[: length - 1].split(1) if length > 1 else ():
            aside.go(row)
        aside.go(torch.cat((x[length - 1 : length], rejected)), to=OTHER)
        go_back([aside], [length], [length - 1])
        tracks = (each, whole, tried, aside)
        memories = [track.memory() for track in tracks]
        for tensors, track in zip(memories, tracks, strict=True):
            tensors["following"] = track.go(x[length : length + 3])
    expected, cut, *others = memories
    for name, tensor in expected.items():
        for found in others if tensor.numel() else ():
            assert_as_right(found[name], tensor, error(cut[name], tensor), name)
