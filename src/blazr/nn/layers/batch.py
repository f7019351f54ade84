"""One step's inputs, and one layer's view of the engine's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from blazr.nn.layers.cache_spec import GRID


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


@dataclass(frozen=True, slots=True)
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
        decode_groups: These, as attention takes them.
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
    decode_groups: tuple[DecodeGroup, ...] = ()


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

    def write(self, name: str, values: Tensor, slot_mapping: Tensor) -> None:
        """Put one entry per token, (T, ...), at its place in the pages."""
        pages = self.paged[name]
        pages[slot_mapping // pages.shape[1], slot_mapping % pages.shape[1]] = values

    def read(self, name: str, pages: Tensor, length: int) -> Tensor:
        """The first ``length`` entries, (length, ...), of the sequence that holds these pages."""
        stored = self.paged[name]
        count = -(-length // stored.shape[1])
        return stored[pages[:count]].flatten(0, 1)[:length]

    def read_together(self, name: str, pages: Tensor) -> Tensor:
        """All entries of the pages (b, m), (b, m * GRID, ...)."""
        return self.paged[name][pages].flatten(1, 2)

    def state(self, name: str, batch: ForwardBatch, index: int) -> Tensor:
        """Where sequence ``index`` stands, for a layer that keeps a working state.

        Right after a checkpoint that is the checkpoint (or zero); later the working copy.
        """
        if batch.spans[index].log_length:
            return self.live[name][batch.run_slots[index]]
        return self.checkpoint[name][batch.state_slots[index]]


def group_decodes(block_tables: Tensor, spans: Sequence[Span]) -> tuple[DecodeGroup, ...]:
    """Put decoding sequences together whose memory takes equally many pages, rounded up.

    The room a sequence gets depends on its own length alone, so that its company changes nothing.

    Args:
        block_tables: (B, M), int64.
        spans: Of the first sequences, those that decode.
    """
    members: dict[int, list[int]] = {}
    for row, span in enumerate(spans):
        members.setdefault(_page_bucket(-(-span.total // GRID)), []).append(row)
    groups = []
    for bucket, chosen in sorted(members.items()):
        rows = torch.tensor(chosen, device=block_tables.device)
        totals = torch.tensor([spans[row].total for row in chosen], device=block_tables.device)
        places = torch.arange(bucket * GRID, device=block_tables.device)
        visible = places < totals[:, None]
        tables = block_tables[rows, :bucket]
        tables = F.pad(tables, (0, bucket - tables.shape[1]))
        pages = torch.where(visible[:, ::GRID], tables, tables[:, :1])
        groups.append(DecodeGroup(rows, pages, visible))
    return tuple(groups)


def _page_bucket(pages: int) -> int:
    """The next number of the form 1, 2, 3, 4, 6, 8, 12, 16, ...: at most a third too large."""
    power = 1 << (pages - 1).bit_length()
    return power * 3 // 4 if pages <= power * 3 // 4 else power


def concat_rows(parts: list[Tensor]) -> Tensor:
    """Lay the sequences' outputs end to end again."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)
