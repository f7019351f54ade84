"""One step's inputs, and one layer's view of the engine's memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from blazr.nn.layers.cache_spec import CacheSpec, zeros
from blazr.nn.layers.rope import Positions, RopeConfig
from blazr.nn.operands.attention import Rotation
from blazr.nn.operands.step import GRID, Carried, Span, StepTable, Window
from blazr.nn.ops.sequences import log_rows


@dataclass(frozen=True, slots=True)
class GivenEmbeddings:
    """Vectors that stand for E tokens of a step, such as those of images.

    Args:
        rows: (E,), int64, the tokens.
        vectors: (E, C), what the first layer takes.
        added: (L, E, C), what is added behind each of the first L layers (DeepStack,
            arXiv:2406.04334).
    """

    rows: Tensor
    vectors: Tensor
    added: Tensor


@dataclass(frozen=True)
class ForwardBatch:
    """One step: T tokens of B sequences laid end to end, decoding sequences first.

    Args:
        token_ids: (T,), int64.
        positions: (T,), int64, from 0 in each sequence, as rotary embeddings take them; (3, T)
            where tokens of an image have a position on each of three axes.
        slot_mapping: (T,), int64, page id * GRID + offset: where each token's entry is written.
        logits_indices: (J,), int64, tokens whose logits are wanted.
        table: The B sequences.
        lengths: (T,), int64, how long the sequence of each token may become, for positions that
            turn otherwise in long sequences.
        adapters: (T,), int64, the slot of each token's adapter; None where no token has one.
        given: Embeddings that are not those of ids; None where all are.
    """

    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    logits_indices: Tensor
    table: StepTable
    lengths: Tensor | None = None
    adapters: Tensor | None = None
    given: GivenEmbeddings | None = None

    @cached_property
    def rotary(self) -> Positions:
        """The positions, as rotary embeddings take them."""
        return Positions(self.positions, self.lengths)

    def rotation(self, rope: RopeConfig | None) -> Rotation:
        """How queries and keys are rotated, and where keys and values go.

        Args:
            rope: None leaves queries and keys as they are.
        """
        if rope is None:
            none = torch.empty(len(self.token_ids), 0, device=self.token_ids.device)
            return Rotation(cos=none, sin=none, interleaved=False, slots=self.slot_mapping)
        cos, sin = self.rotary.tables(rope)
        return Rotation(cos=cos, sin=sin, interleaved=rope.interleaved, slots=self.slot_mapping)


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's window onto the engine's memory, by the names its spec gave.

    Args:
        paged: (pages, GRID, ...) by name.
        checkpoint: (slots, ...) by name.
        log: (run slots, GRID, ...) by name.
        working: (run slots, ...) by name.
    """

    paged: Mapping[str, Tensor] = field(default_factory=dict)
    checkpoint: Mapping[str, Tensor] = field(default_factory=dict)
    log: Mapping[str, Tensor] = field(default_factory=dict)
    working: Mapping[str, Tensor] = field(default_factory=dict)

    def of(self, name: str) -> LayerCache:
        """The window of one mixer of a layer that has several."""
        start = f"{name}."
        return LayerCache(
            *(
                {key.removeprefix(start): each[key] for key in each if key.startswith(start)}
                for each in (self.paged, self.checkpoint, self.log, self.working)
            )
        )

    def carried(self, name: str) -> Carried:
        """A state of that name, kept and working."""
        return Carried(self.checkpoint[name], self.working[name])

    def window(self, name: str) -> Window:
        """The inputs of a convolution of that name."""
        return Window(self.checkpoint[name], self.log[name])

    def append(self, table: StepTable, **rows: Tensor) -> None:
        """Log a step's rows, (T, ...), by name."""
        for name, each in rows.items():
            log_rows(each, self.log[name], table)

    def logged(self, table: StepTable, *names: str) -> list[Tensor]:
        """Rows of the log, (T, ...), of a table's sequences."""
        places = [
            (span.run_slot, slice(span.log_length, span.log_length + span.length))
            for span in table.spans
        ]
        return [torch.cat([self.log[name][place] for place in places]) for name in names]


def whole_sequences(
    count: int, length: int, spec: CacheSpec, device: torch.device
) -> tuple[ForwardBatch, LayerCache]:
    """A step of so many sequences from nothing, and empty memory for one layer.

    Args:
        count: Sequences.
        length: Tokens of each.
        spec: What the layer remembers.
        device: Where it computes.
    """
    blocks = -(-length // GRID)
    tables = torch.arange(count * blocks, device=device).view(count, blocks)
    places = torch.arange(length, device=device)
    starts = GRID * tables[:, :1] if blocks else tables.new_zeros(count, 1)
    spans = tuple(Span(row * length, length, 0, 0, run_slot=row) for row in range(count))
    positions = places.repeat(count)
    batch = ForwardBatch(
        token_ids=positions,
        positions=positions,
        slot_mapping=(starts + places).flatten(),
        logits_indices=positions,
        table=StepTable(spans, tables, are_alike=True),
    )
    cache = LayerCache(
        paged=zeros(spec.paged, count * blocks, GRID, device=device),
        checkpoint=zeros(spec.checkpoint, 1, device=device),
        log=zeros(spec.log_tensors, count, device=device),
        working=zeros(spec.working_tensors, count, device=device),
    )
    return batch, cache
