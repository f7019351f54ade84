"""What the first rank has the others do, one order after the other.

An order is a function of this module, or of another that all ranks know, and its arguments behind
the member. The first rank does the same by itself.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blazr.engine.cache.manager import CacheShape
from blazr.engine.cache.storage import CacheLayout, Storage
from blazr.models.causal_lm import CausalLM
from blazr.models.loading.load import load
from blazr.nn.layers.batch import ForwardBatch
from blazr.nn.operands.step import StepTable

if TYPE_CHECKING:
    from blazr.engine.ranks.collectives import ProcessRanks
    from blazr.nn.device import Device

Order = tuple[Callable[..., None], tuple[object, ...]]


class PartOptions(TypedDict, total=False):
    """Arguments of `load` that all ranks share."""

    dtype: str
    revision: str | None
    quantize: str | None
    free_bytes: int
    in_stages: bool
    exact: bool


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


def load_part(member: Member, model: str, options: PartOptions) -> None:
    """Load the rank's part of a model."""
    found = load(model, device=member.device, ranks=member.ranks, **options)
    member.model = found.module


def wait(member: Member) -> None:
    """Come to the same point as all others."""
    member.ranks.wait(member.device.torch_device)


def open_storage(member: Member, number: int, layout: CacheLayout, shape: CacheShape) -> None:
    """Take memory for what layers remember.

    Args:
        member: Who does it.
        number: What the memory is called by.
        layout: How items lie in it.
        shape: How many there are.
    """
    own = layout.of_layers(member.network.config.held_layers)
    member.storages[number] = Storage(own, shape, member.device.torch_device)


def close_storage(member: Member, number: int) -> None:
    """Give memory back."""
    del member.storages[number]


def change_storage(member: Member, number: int, method: str, *arguments: object) -> None:
    """Call the method of `Storage` that has this name."""
    getattr(member.storages[number], method)(*arguments)


def rewind(member: Member, number: int, table: StepTable) -> None:
    """Go back to earlier tokens; see `CausalLM.rewind`."""
    member.network.rewind(table, member.storages[number].layers)


def forward(member: Member, number: int, batch: ForwardBatch) -> None:
    """Compute hidden states of a step."""
    member.hidden = member.network(batch, member.storages[number].layers)


def compute_scores(member: Member, wanted: Tensor) -> None:
    """Compute logits of some of these: of which tokens, (J,), int64."""
    hidden, member.hidden = member.hidden, None
    if member.network.config.stage.number > 0:
        return  # the first stage has the head
    assert hidden is not None
    member.network.logits(hidden[wanted])


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
