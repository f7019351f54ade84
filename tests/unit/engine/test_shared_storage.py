"""What is done to the first rank's memory is done to that of the others, by way of bytes."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor

from blazr.engine.cache.manager import CacheShape
from blazr.engine.cache.storage import CacheLayout, Storage, plan_layout
from blazr.engine.ranks.orders import Member, dump
from blazr.engine.ranks.shared import SharedStorage
from blazr.engine.runner import ModelRunner
from blazr.nn.device import resolve_device
from tests.support.examples import MIXER_EXAMPLES
from tests.support.ranks import config_of, network

MODEL = network(config_of([MIXER_EXAMPLES["gqa"], MIXER_EXAMPLES["mamba1"]], None), 0)


class Told:
    """In the place of `RankProcesses`: another rank in this process."""

    def __init__(self) -> None:
        self.member = Member(None, resolve_device("cpu"), MODEL)  # type: ignore[arg-type]
        self.orders: list[str] = []
        self._last = 6

    def new_number(self) -> int:
        self._last += 1
        return self._last

    def together(self) -> AbstractContextManager[None]:
        return nullcontext()

    def tell(self, order: Callable[..., None], *arguments: object) -> None:
        self.orders.append(order.__name__)
        again, its_arguments = pickle.loads(dump((order, arguments)))
        again(self.member, *its_arguments)


def layout_and_shape(copies: int) -> tuple[CacheLayout, CacheShape]:
    layout = plan_layout(MODEL.config.cache_specs(torch.float32), working_copies=copies)
    shape = CacheShape(
        grid=64,
        num_superpages=3,
        pages_per_superpage=layout.pages_per_superpage,
        states_per_superpage=layout.states_per_superpage,
        max_running=4,
        max_blocks=4,
        working_copies=copies,
    )
    return layout, shape


def tensors_of(storage: Storage) -> list[Tensor]:
    return [storage._arena, *storage._logs, *storage._working]


@pytest.mark.parametrize("copies", [1, 2])
def test_every_change_is_repeated(copies: int) -> None:
    told = Told()
    shared = SharedStorage(*layout_and_shape(copies), MODEL, told)  # type: ignore[arg-type]
    other = told.member.storages[7]
    for own, its in zip(tensors_of(shared), tensors_of(other), strict=True):
        bytes_of = own.view(-1).view(torch.uint8)
        bytes_of.copy_(torch.randint(1, 100, bytes_of.shape, dtype=torch.uint8))
        its.copy_(own)
    for method, arguments in (
        ("clear_pages", ([0, 2],)),
        ("clear_run_slots", ([1, 3],)),
        ("copy_page", (1, 0)),
        ("copy_run_slot", (0, 2, copies - 1)),
    ):
        before = [each.clone() for each in tensors_of(shared)]
        getattr(shared, method)(*arguments)
        after = tensors_of(shared)
        assert any(not torch.equal(*both) for both in zip(before, after, strict=True)), method
        for own, its in zip(after, tensors_of(other), strict=True):
            assert torch.equal(own, its), method
    told.orders.clear()
    shared.clear_pages([])
    shared.clear_run_slots([])
    assert not told.orders
    shared.close()
    assert not told.member.storages


def test_scores_leave_no_memory_behind_when_they_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    runner = ModelRunner(MODEL, *layout_and_shape(1), processes=told)  # type: ignore[arg-type]
    (own,) = told.member.storages

    def fail(*_: object) -> None:
        assert len(told.member.storages) == 2
        raise MemoryError

    monkeypatch.setattr("blazr.engine.runner.build_batch", fail)
    with pytest.raises(MemoryError):
        runner.logits([1, 2, 3])
    assert [*told.member.storages] == [own]


def test_others_hold_nothing_where_the_first_rank_has_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    told = Told()
    monkeypatch.setattr(Storage, "__init__", fail)
    with pytest.raises(MemoryError):
        SharedStorage(*layout_and_shape(1), MODEL, told)  # type: ignore[arg-type]
    assert not told.member.storages
    assert not told.orders


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).view(2, 3).t(),
        torch.randn(3, 2).bfloat16(),
        torch.zeros(0, dtype=torch.int64),
        torch.zeros(2, 0, 3),
        torch.tensor([1, 2])[:, None].expand(2, 4),
        torch.tensor(True),
    ],
)
def test_tensors_arrive_as_they_were(tensor: Tensor) -> None:
    found = pickle.loads(dump(tensor))  # type: ignore[arg-type]  # anything goes the same way
    assert torch.equal(found, tensor)
    assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
