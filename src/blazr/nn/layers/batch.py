"""One step's inputs, and one layer's view of the engine's memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blazr.nn.layers.cache_spec import GRID
from blazr.nn.layers.rope import Positions, RopeConfig
from blazr.nn.ops.sequence import Carried, Rotation, StepTable, store_kernel


class Span(NamedTuple):
    """One sequence's part of a step, in plain numbers.

    Args:
        first: Where its tokens begin in the packed batch.
        length: Tokens computed in this step.
        start: Tokens already in memory.
        log_length: Of these, tokens since the checkpoint (0 to GRID - 1).
        checkpoints: (tokens of this step until a grid edge, slot to write the state to), ascending.
    """

    first: int
    length: int
    start: int
    log_length: int
    checkpoints: tuple[tuple[int, int], ...] = ()

    @property
    def rows(self) -> slice:
        """Its tokens in the packed batch."""
        return slice(self.first, self.first + self.length)

    @property
    def total(self) -> int:
        """Tokens in memory after this step."""
        return self.start + self.length


class DecodeGroup(NamedTuple):
    """Decoding sequences that attend together: b of them, with room for the same S tokens.

    Args:
        rows: (b,), int64, their places in the packed batch.
        pages: (b, S // GRID), int64, page ids; behind its last page a row repeats its first.
        visible: (b, S), bool, which of the S places hold its tokens.
    """

    rows: Tensor
    pages: Tensor
    visible: Tensor


@dataclass(frozen=True)
class ForwardBatch:
    """One step: T tokens of B sequences laid end to end, decoding sequences first.

    Args:
        token_ids: (T,), int64.
        positions: (T,), int64, from 0 in each sequence.
        block_tables: (B, M), int64, page ids; unused places are 0.
        slot_mapping: (T,), int64, page id * GRID + offset: where each token's entry is written.
        state_slots: (B,), int64, checkpoint each sequence starts from; slot 0 is always zero.
        run_slots: (B,), int64, row of each sequence's log or working state.
        logits_indices: (J,), int64, tokens whose logits are wanted.
        spans: The B sequences in plain numbers.
        num_decodes: How many of the first sequences compute exactly one token.
        lengths: (T,), int64, how long the sequence of each token may become, for positions that
            turn otherwise in long sequences.
    """

    token_ids: Tensor
    positions: Tensor
    block_tables: Tensor
    slot_mapping: Tensor
    state_slots: Tensor
    run_slots: Tensor
    logits_indices: Tensor
    spans: tuple[Span, ...]
    num_decodes: int = 0
    lengths: Tensor | None = None

    @cached_property
    def rotary(self) -> Positions:
        """The positions, as rotary embeddings take them."""
        return Positions(self.positions, self.lengths)

    @cached_property
    def places(self) -> tuple[Tensor, Tensor]:
        """Page and place in it where each token's entry is written, (T,) each."""
        return self.slot_mapping // GRID, self.slot_mapping % GRID

    @cached_property
    def decode_groups(self) -> tuple[DecodeGroup, ...]:
        """The decoding sequences as attention takes them, made when the first layer asks."""
        count = self.num_decodes
        if not count:
            return ()
        totals = np.array([span.total for span in self.spans[:count]], np.int64)
        tables = self.block_tables[:count].cpu().numpy()
        return group_decodes(tables, totals, self.block_tables.device)

    @cached_property
    def table(self) -> StepTable:
        """The same for kernels, made when the first layer asks."""
        rows: list[tuple[int, ...]] = []
        edges: list[tuple[int, int]] = []
        places = zip(self.state_slots.tolist(), self.run_slots.tolist(), strict=True)
        for span, (state, run) in zip(self.spans, places, strict=True):
            count = len(span.checkpoints)
            rows.append((*span[:4], state, run, len(edges), count))
            edges += span.checkpoints
        return StepTable(
            spans=torch.from_numpy(np.array(rows, np.int64)),
            checkpoints=torch.from_numpy(np.array(edges, np.int64)),
            block_tables=self.block_tables.contiguous(),
            longest=max(span.length for span in self.spans),
        )


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's window onto the engine's memory, by the names its spec gave.

    Args:
        paged: (pages, GRID, ...) by name.
        checkpoint: (slots, ...) by name.
        live: (run slots, GRID, ...) log rows or (run slots, ...) working states, by name.
    """

    paged: Mapping[str, Tensor] = field(default_factory=dict)
    checkpoint: Mapping[str, Tensor] = field(default_factory=dict)
    live: Mapping[str, Tensor] = field(default_factory=dict)

    def read(self, name: str, pages: Tensor, length: int) -> Tensor:
        """The first ``length`` entries, (length, ...), of the sequence that holds these pages."""
        stored = self.paged[name]
        count = -(-length // stored.shape[1])
        return stored[pages[:count]].flatten(0, 1)[:length]

    def read_together(self, name: str, pages: Tensor) -> Tensor:
        """All entries of the pages (b, m), (b, m * GRID, ...)."""
        return self.paged[name][pages].flatten(1, 2)

    def part(self, name: str) -> LayerCache:
        """The window of one part of a layer that has several."""
        start = f"{name}."
        paged, checkpoint, live = (
            {key.removeprefix(start): each[key] for key in each if key.startswith(start)}
            for each in (self.paged, self.checkpoint, self.live)
        )
        return LayerCache(paged, checkpoint, live)

    def carried(self, name: str) -> Carried:
        """What a layer without a log carries along by that name."""
        return Carried(self.checkpoint[name], self.live[name])

    def state(self, name: str, batch: ForwardBatch, index: int) -> Tensor:
        """Where sequence ``index`` stands, for a layer that keeps a working state.

        Right after a checkpoint that is the checkpoint (or zero); later the working copy.
        """
        if batch.spans[index].log_length:
            return self.live[name][batch.run_slots[index]]
        return self.checkpoint[name][batch.state_slots[index]]


def group_decodes(
    tables: NDArray[np.int64], totals: NDArray[np.int64], device: torch.device
) -> tuple[DecodeGroup, ...]:
    """Put decoding sequences together whose memory takes equally many pages, rounded up.

    The room a sequence gets depends on its own length alone, so that its company changes nothing.

    Args:
        tables: (B, M), page ids of the sequences that decode.
        totals: (B,), tokens in memory after this step.
        device: Where the groups are used.
    """
    blocks = -(-totals // GRID)
    # powers of two and what lies halfway: at most half as much again as is needed
    powers = 1 << np.ceil(np.log2(blocks)).astype(np.int64)
    rooms = np.where(blocks * 4 <= powers * 3, powers * 3 // 4, powers)
    groups = []
    for room in np.unique(rooms).tolist():
        rows = np.flatnonzero(rooms == room)
        own, places = tables[rows], np.arange(room)
        pages = own[:, np.minimum(places, own.shape[1] - 1)]
        pages = np.where(places < blocks[rows, None], pages, own[:, :1])
        visible = np.arange(room * GRID) < totals[rows, None]
        parts = (torch.from_numpy(part) for part in (rows, pages, visible))
        groups.append(DecodeGroup(*(part.to(device, non_blocking=True) for part in parts)))
    return tuple(groups)


def rotate_and_write(
    heads: tuple[Tensor, Tensor, Tensor],
    rope: RopeConfig | None,
    batch: ForwardBatch,
    pages: tuple[Tensor, Tensor],
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Rotate queries and keys, and put keys and values at their places in the pages.

    Args:
        heads: Queries (T, H, D), keys (T, K, D) and values (T, K, E).
        rope: How; None leaves queries and keys as they are.
        batch: The step.
        pages: (pages, GRID, K, D) for keys and (pages, GRID, K, E) for values.
        out: Where the queries go, (T, H, D), perhaps a part of a wider tensor; None for anywhere.

    Returns:
        The queries, (T, H, D).
    """
    q, k, v = heads
    store = store_kernel(q.device.type, q.dtype)
    if store is not None:
        none = torch.empty(len(q), 0)
        cos, sin = (none, none) if rope is None else batch.rotary.tables(rope)
        interleaved = rope is not None and rope.interleaved
        turn = Rotation(cos=cos, sin=sin, interleaved=interleaved, slots=batch.slot_mapping)
        return store(q, k, v, turn, *pages, out)
    pages[0][batch.places] = batch.rotary.rotate(k, rope)
    pages[1][batch.places] = v
    turned = batch.rotary.rotate(q, rope)
    return turned if out is None else out.copy_(turned)


def concat_rows(parts: list[Tensor]) -> Tensor:
    """Lay the sequences' outputs end to end again."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)
