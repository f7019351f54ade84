"""Single mixers: their weights, a layer's memory, and steps of some sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from blazr.nn.layers.base import Mixer, MixerConfig
from blazr.nn.layers.batch import ForwardBatch, LayerCache
from blazr.nn.layers.cache_spec import TensorSpec
from blazr.nn.operands.kv_dtype import KV_DTYPES, kv_dtype_of
from blazr.nn.operands.step import GRID, Span, StepTable

PAGES, SLOTS = 24, 12


def mixer_of(config: MixerConfig, dtype: torch.dtype = torch.float32) -> Mixer:
    """Random, and numbers stay about as large as they are."""
    mixer = config.build()
    for parameter in mixer.parameters():
        spread = 0.3 if parameter.dim() < 2 else parameter.shape[-1] ** -0.5
        torch.nn.init.normal_(parameter, 0.0, spread)
    return mixer.to(dtype).requires_grad_(requires_grad=False)


def memory_of(
    config: MixerConfig,
    dtype: torch.dtype,
    *,
    pages: int = PAGES,
    kv_dtype: str = "auto",
    state_dtype: str = "auto",
) -> LayerCache:
    """Anything, in every page, checkpoint and run."""
    spec, kind = config.cache_spec(dtype).stored_as(state_dtype=state_dtype), KV_DTYPES[kv_dtype]

    def numbers(kinds: Mapping[str, TensorSpec], *sizes: int) -> dict[str, Tensor]:
        return {
            name: (0.3 * torch.randn(*sizes, *each.shape)).abs().to(each.dtype)
            for name, each in kinds.items()
        }

    paged, kept = numbers(spec.paged, pages, GRID), numbers(spec.checkpoint, SLOTS)
    paged = {name: kind.encode(each) for name, each in paged.items()}
    return LayerCache(
        paged, kept, numbers(spec.log_tensors, SLOTS), numbers(spec.working_tensors, SLOTS)
    )


def copy_of(cache: LayerCache, dtypes: LayerCache | None = None) -> LayerCache:
    """Its own tensors, in another one's dtypes; as such are pages of fewer bits stored."""
    like = dtypes or cache
    pairs = (
        (cache.paged, like.paged),
        (cache.checkpoint, like.checkpoint),
        (cache.log, like.log),
        (cache.working, like.working),
    )
    return LayerCache(
        *(
            {
                name: own[name].clone()
                if own[name].dtype == other[name].dtype
                else numbers_of(own[name]).to(other[name].dtype, copy=True)
                for name in own
            }
            for own, other in pairs
        )
    )


def numbers_of(stored: Tensor) -> Tensor:
    """What is stored, as plain numbers."""
    return kv_dtype_of(stored).decode(stored)


def tensors_of(cache: LayerCache) -> dict[str, Tensor]:
    """All numbers, by name."""
    paged = {name: numbers_of(stored) for name, stored in cache.paged.items()}
    log = {f"{name} in the log": tensor for name, tensor in cache.log.items()}
    working = {f"{name} at work": tensor for name, tensor in cache.working.items()}
    return {**paged, **cache.checkpoint, **log, **working}


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
    places = [at for span in spans for at in range(span.start, span.total)]
    positions = torch.tensor(places, dtype=torch.int64)
    return ForwardBatch(
        token_ids=torch.zeros_like(positions),
        positions=positions,
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
