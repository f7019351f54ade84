"""What the first rank has the others do, one order after the other."""

from __future__ import annotations

import io
import pickle
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from blazr.engine.cache.manager import CacheShape
from blazr.engine.cache.storage import CacheLayout, Storage
from blazr.models.causal_lm import CausalLM
from blazr.models.loading.load import load
from blazr.nn.layers.batch import ForwardBatch
from blazr.nn.operands.step import StepTable

if TYPE_CHECKING:
    from blazr.engine.ranks.collectives import ProcessRanks
    from blazr.nn.device import Device


@dataclass(slots=True)
class Member:
    """A rank that does as it is told.

    Args:
        ranks: The others.
        device: Where it computes.
        model: Its part of the network, once that is loaded.
        storages: Memory of its part, by number.
        hidden: What the network has last put out.
    """

    ranks: ProcessRanks
    device: Device
    model: CausalLM | None = None
    storages: dict[int, Storage] = field(default_factory=dict)
    hidden: Tensor | None = None

    @property
    def network(self) -> CausalLM:
        """Its part of the network."""
        assert self.model is not None, "it was loaded"
        return self.model


class Order(ABC):
    """Something to be done by every rank but the first, which does the same by itself."""

    @abstractmethod
    def do(self, member: Member) -> None:
        """Do it."""


@dataclass(frozen=True, slots=True)
class Load(Order):
    """Load the rank's part of a model.

    Args:
        model: Which.
        options: Further arguments of `load`.
    """

    model: str
    options: Mapping[str, object]

    @override
    def do(self, member: Member) -> None:
        found = load(self.model, device=member.device, ranks=member.ranks, **self.options)  # type: ignore[arg-type]
        member.model = found.module


@dataclass(frozen=True, slots=True)
class Wait(Order):
    """Come to the same point as all others."""

    @override
    def do(self, member: Member) -> None:
        member.ranks.wait(member.device.torch_device)


@dataclass(frozen=True, slots=True)
class OpenStorage(Order):
    """Take memory for what layers remember.

    Args:
        number: What it is called by.
        layout: How items lie in it.
        shape: How many there are.
    """

    number: int
    layout: CacheLayout
    shape: CacheShape

    @override
    def do(self, member: Member) -> None:
        layout = self.layout.of_layers(member.network.config.held_layers)
        device = member.device.torch_device
        member.storages[self.number] = Storage(layout, self.shape, device)


@dataclass(frozen=True, slots=True)
class CloseStorage(Order):
    """Give memory back."""

    number: int

    @override
    def do(self, member: Member) -> None:
        del member.storages[self.number]


@dataclass(frozen=True, slots=True)
class ChangeStorage(Order):
    """Call a method of `Storage`.

    Args:
        number: Which memory.
        method: The name of the method.
        arguments: Of the call.
    """

    number: int
    method: str
    arguments: tuple[object, ...]

    @override
    def do(self, member: Member) -> None:
        getattr(member.storages[self.number], self.method)(*self.arguments)


@dataclass(frozen=True, slots=True)
class Rewind(Order):
    """Go back to earlier tokens; see `CausalLM.rewind`."""

    number: int
    table: StepTable

    @override
    def do(self, member: Member) -> None:
        member.network.rewind(self.table, member.storages[self.number].layers)


@dataclass(frozen=True, slots=True)
class Forward(Order):
    """Compute hidden states of a step."""

    number: int
    batch: ForwardBatch

    @override
    def do(self, member: Member) -> None:
        member.hidden = member.network(self.batch, member.storages[self.number].layers)


@dataclass(frozen=True, slots=True)
class Scores(Order):
    """Compute logits of some of these.

    Args:
        wanted: Which tokens', (J,), int64.
    """

    wanted: Tensor

    @override
    def do(self, member: Member) -> None:
        hidden, member.hidden = member.hidden, None
        if member.network.config.stage.number > 0:
            return  # the first stage has the head
        assert hidden is not None
        member.network.logits(hidden[self.wanted])


def dump(order: Order) -> bytes:
    """An order as bytes, for a process of our own."""
    out = io.BytesIO()
    _Pickler(out, pickle.HIGHEST_PROTOCOL).dump(order)
    return out.getvalue()


class _Pickler(pickle.Pickler):
    """Tensors go as arrays, which takes a tenth of the time."""

    def reducer_override(self, value: object) -> object:  # type: ignore[override]  # pickle's own
        if type(value) is not Tensor:
            return NotImplemented
        plain = value.detach().cpu().contiguous()
        # strides of an empty one may be anything
        content = plain.view(-1).view(torch.uint8).numpy() if plain.numel() else None
        return _tensor, (content, value.dtype, value.shape, value.device.type)


def _tensor(
    content: NDArray[np.uint8] | None, dtype: torch.dtype, shape: torch.Size, device: str
) -> Tensor:
    """What comes from one rank's GPU is put on this one's."""
    if content is None:
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.from_numpy(content.copy()).view(dtype).view(shape).to(device)
