"""Single mixers: their weights, a layer's memory, and steps of some sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from blazr.nn.layers.base import Mixer, MixerConfig
from blazr.nn.layers.batch import ForwardBatch, LayerCache
from blazr.nn.layers.cache_spec import TensorSpec
from blazr.nn.operands.step import GRID, Span, StepTable

PAGES, SLOTS = 24, 12


def mixer_of(config: MixerConfig, dtype: torch.dtype = torch.float32) -> Mixer:
    """Random, and numbers stay about as large as they are."""
    mixer = config.build()
    for parameter in mixer.parameters():
        spread = 0.3 if parameter.dim() < 2 else parameter.shape[-1] ** -0.5
        torch.nn.init.normal_(parameter, 0.0, spread)
    return mixer.to(dtype).requires_grad_(requires_grad=False)


def memory_of(config: MixerConfig, dtype: torch.dtype, *, pages: int = PAGES) -> LayerCache:
    """Anything, in every page, checkpoint and run."""
    spec = config.cache_spec(dtype)

    def numbers(kinds: Mapping[str, TensorSpec], *sizes: int) -> dict[str, Tensor]:
        return {
            name: (0.3 * torch.randn(*sizes, *each.shape)).abs().to(each.dtype)
            for name, each in kinds.items()
        }

    paged, kept = numbers(spec.paged, pages, GRID), numbers(spec.checkpoint, SLOTS)
    return LayerCache(
        paged, kept, numbers(spec.log_tensors, SLOTS), numbers(spec.working_tensors, SLOTS)
    )


def copy_of(cache: LayerCache, dtypes: LayerCache | None = None) -> LayerCache:
    """Its own tensors, in another one's dtypes."""
    like = dtypes or cache
    pairs = (
        (cache.paged, like.paged),
        (cache.checkpoint, like.checkpoint),
        (cache.log, like.log),
        (cache.working, like.working),
    )
    return LayerCache(
        *(
            {name: own[name].to(other[name].dtype, copy=True) for name in own}
            for own, other in pairs
        )
    )


def tensors_of(cache: LayerCache) -> dict[str, Tensor]:
    """All of them, by name."""
    log = {f"{name} in the log": tensor for name, tensor in cache.log.items()}
    working = {f"{name} at work": tensor for name, tensor in cache.working.items()}
    return {**cache.paged, **cache.checkpoint, **log, **working}


def step_of(
    spans: Sequence[Span],
    *,
    pages: Sequence[Sequence[int]] = (),
    states: Sequence[int] | None = None,
    runs: Sequence[int] | None = None,
) -> ForwardBatch:
    """A step of sequences, each with its pages, and the slots of its state and its run.

    Left out, there are no pages, and the slots are numbered as the sequences are.
    """
    count = len(spans)
    width = max(map(len, pages), default=1)
    mapping = [
        own[at // GRID] * GRID + at % GRID
        for span, own in zip(spans, pages, strict=False)
        for at in range(span.start, span.total)
    ]
    nothing = torch.zeros(count, dtype=torch.int64)
    numbered = range(count)
    own_slots = zip(states or numbered, runs or numbered, strict=True)
    placed = tuple(
        span._replace(state_slot=state, run_slot=run)
        for span, (state, run) in zip(spans, own_slots, strict=True)
    )
    tables = [[*own, *[0] * (width - len(own))] for own in pages or [[0]] * count]
    return ForwardBatch(
        token_ids=nothing,
        positions=torch.tensor([at for span in spans for at in range(span.start, span.total)]),
        slot_mapping=torch.tensor(mapping, dtype=torch.int64),
        logits_indices=nothing,
        table=StepTable(
            placed, torch.tensor(tables), num_decodes=sum(span.length == 1 for span in spans)
        ),
    )


def for_kernels(batch: ForwardBatch) -> ForwardBatch:
    """The same step, whose sequences kernels alone know."""
    table = replace(batch.table, spans=_Unseen(), recorded=batch.table.numbers)
    unseen = replace(batch, table=table)
    unseen.__dict__["rotary"] = batch.rotary
    return unseen


class _Unseen(tuple[Span, ...]):
    """Sequences of a step that may not be looked at."""

    __slots__ = ()

    def _refuse(self, *_: object) -> None:
        raise AssertionError

    __iter__ = __len__ = __getitem__ = _refuse  # type: ignore[assignment]
