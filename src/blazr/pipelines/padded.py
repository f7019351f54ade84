"""Caches of the transformers library, several as one: what is shorter begins with padding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from transformers.cache_utils import DynamicCache


@dataclass(slots=True)
class PaddedBatch:
    """The caches of several sequences, joined.

    Args:
        slots: Whose they are.
        cache: A cache of the library, one row for each.
        pads: How many positions at the beginning of each row mean nothing.
    """

    slots: tuple[int, ...]
    cache: DynamicCache
    pads: tuple[int, ...]

    def inputs(self, token_ids: Sequence[int], device: torch.device) -> dict[str, Tensor]:
        """What the network takes to compute one token of each: ids, mask and positions."""
        pads = torch.tensor(self.pads, device=device)[:, None]
        length = self.cache.get_seq_length()  # padding and all
        return {
            "input_ids": torch.tensor(token_ids, device=device)[:, None],
            "attention_mask": (torch.arange(length + 1, device=device) >= pads).long(),
            "position_ids": length - pads,
        }

    def split(self) -> dict[int, DynamicCache]:
        """Every sequence's own cache again, by its slot."""
        return {
            slot: _cache_of(
                (keys[row : row + 1, :, pad:], values[row : row + 1, :, pad:])
                for keys, values in _parts(self.cache)
            )
            for row, (slot, pad) in enumerate(zip(self.slots, self.pads, strict=True))
        }


def cache_name(network: torch.nn.Module) -> str:
    """What a network's forward, and what it returns, call the cache; version 5.24 renamed it."""
    takes = signature(network.forward).parameters
    return "cache" if "cache" in takes else "past_key_values"


def can_join(cache: object) -> bool:
    """Whether a cache holds nothing but keys and values of every token."""
    from transformers.cache_utils import DynamicCache, DynamicLayer

    return type(cache) is DynamicCache and all(type(each) is DynamicLayer for each in cache.layers)


def join(pasts: Mapping[int, DynamicCache]) -> PaddedBatch:
    """Join the caches of several sequences, which `can_join`.

    Args:
        pasts: The caches by slot.
    """
    lengths = [past.get_seq_length() for past in pasts.values()]
    pads = tuple(max(lengths) - length for length in lengths)

    def joined(parts: Iterable[Tensor]) -> Tensor:
        return torch.cat(
            [F.pad(each, (0, 0, pad, 0)) for each, pad in zip(parts, pads, strict=True)]
        )

    cache = _cache_of(
        (joined(keys for keys, _ in layer), joined(values for _, values in layer))
        for layer in zip(*map(_parts, pasts.values()), strict=True)
    )
    return PaddedBatch(tuple(pasts), cache, pads)


def _parts(cache: DynamicCache) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of each layer, (B, H, S, D)."""
    layers: Sequence[Any] = cache.layers
    return [(each.keys, each.values) for each in layers]


def _cache_of(layers: Iterable[tuple[Tensor, Tensor]]) -> DynamicCache:
    from transformers.cache_utils import DynamicCache

    cache = DynamicCache()
    for index, (keys, values) in enumerate(layers):
        cache.update(keys.contiguous(), values.contiguous(), index)
    return cache
