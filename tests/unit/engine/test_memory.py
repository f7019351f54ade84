"""Dividing the memory: sizes as people write them, pools that fit, views that do not overlap."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blazr.core.errors import CapacityError, ConfigError
from blazr.engine.build import dry_run
from blazr.engine.cache.arena import Arena, ItemClass, OutOfMemoryError
from blazr.engine.cache.budget import plan_caches
from blazr.engine.cache.manager import CacheShape
from blazr.engine.cache.storage import CacheLayout, Storage, plan_layout
from blazr.engine.config import EngineConfig, parse_memory
from blazr.nn.device import Device
from blazr.nn.layers.cache_spec import CacheSpec, TensorSpec
from blazr.nn.operands.step import GRID
from tests.support.examples import MIXES
from tests.support.networks import build_network
from tests.support.seeds import examples


@dataclass(frozen=True, slots=True)
class Machine(Device):
    free: int = 0

    def free_bytes(self) -> int:
        return self.free

    def total_bytes(self) -> int:
        return 2 * self.free


def plan_cache(layout: CacheLayout, config: EngineConfig, **given) -> CacheShape:
    (shape,) = plan_caches([layout], config, **given)
    return shape


def machine(free: int) -> Machine:
    return Machine("cpu", "a test's machine", free=free)


def spec(*, keys: int = 0, state: int = 0) -> CacheSpec:
    return CacheSpec(
        paged={"k": TensorSpec((keys,), torch.bfloat16)} if keys else {},
        checkpoint={"h": TensorSpec((state,), torch.float32)} if state else {},
        working=("h",) if state else (),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8GiB", 8 * 2**30), ("500MB", 500 * 2**20), ("1073741824", 2**30), ("0.5", 500),
        ("1", 1000), ("64k", 65536), (" 2g ", 2 * 2**30), ("1.5GiB", 3 * 2**29),
    ],
)  # fmt: skip
def test_sizes_and_shares(text, expected):
    assert parse_memory(text, free_bytes=1000) == expected


@pytest.mark.parametrize("text", ["", "lots", "-1GiB", "0", "nan", "inf", "1e300", "GiB"])
@pytest.mark.parametrize("name", ["memory", "cache_disk"])
def test_what_is_no_size_is_refused(name, text):
    with pytest.raises(ConfigError, match=rf"^{name} is not a size\.\n.*\n.* of what is free"):
        EngineConfig(**{name: text})


def test_small_memory_runs_fewer_at_once_and_none_is_refused():
    layout = plan_layout([spec(keys=64), spec(state=4096)])
    plenty = plan_cache(
        layout, EngineConfig(memory="64MiB"), device=machine(2**30), max_seq_len=1024
    )
    assert plenty.max_running == 32
    little = plan_cache(
        layout, EngineConfig(memory="400KiB"), device=machine(2**30), max_seq_len=1024
    )
    assert 1 <= little.max_running < 32
    assert little.max_tokens >= GRID
    with pytest.raises(CapacityError, match="not even one"):
        plan_cache(layout, EngineConfig(memory="10KiB"), device=machine(2**30), max_seq_len=1024)


def test_what_a_step_takes_is_not_there_for_caches():
    layout = plan_layout([spec(keys=64)])
    room = [
        plan_cache(
            layout,
            EngineConfig(memory="auto", max_running=4),
            device=machine(2**20),
            max_seq_len=2**16,
            step_bytes=step_bytes,
        ).num_bytes
        for step_bytes in (0, 2**19)
    ]
    assert abs(room[0] - 2 * room[1]) <= layout.superpage_bytes
    with pytest.raises(CapacityError):
        plan_cache(layout, EngineConfig(), device=machine(2**20), max_seq_len=64, step_bytes=2**21)


@pytest.mark.parametrize("mix", ["hybrid", "hybrid of all"])
def test_the_largest_step_is_tried_on_memory_of_its_own(mix):
    dry_run(build_network(MIXES[mix]), 70, 3)


@pytest.mark.parametrize("text", ["10TiB", "3GiB", "1000000t"])
def test_more_than_the_machine_has_is_refused(text):
    config = EngineConfig(memory=text)
    with pytest.raises(CapacityError, match=r"at most 2\.0 GiB"):
        plan_cache(plan_layout([spec(keys=64)]), config, device=machine(2**30), max_seq_len=1024)


def test_models_pay_only_for_what_they_use():
    attention = plan_layout([spec(keys=64)])
    assert attention.states_per_superpage == 0
    recurrent = plan_layout([spec(state=64)])
    assert recurrent.pages_per_superpage == 0
    config = EngineConfig(memory="1MiB")
    for layout in (attention, recurrent):
        shape = plan_cache(layout, config, device=machine(2**30), max_seq_len=512)
        assert shape.has_pages != shape.has_states


@settings(max_examples=examples(40), deadline=None)
@given(
    keys=st.lists(st.integers(1, 40), max_size=3),
    states=st.lists(st.integers(1, 900), max_size=3),
)
def test_no_two_items_overlap(keys, states):
    specs = [spec(keys=k) for k in keys] + [spec(state=s) for s in states]
    layout = plan_layout(specs)
    if not specs:
        return
    shape = CacheShape(
        grid=GRID, num_superpages=4, pages_per_superpage=layout.pages_per_superpage,
        states_per_superpage=layout.states_per_superpage, max_running=1, max_blocks=4,
    )  # fmt: skip
    storage = Storage(layout, shape, torch.device("cpu"))
    # superpages 0 and 1 hold states, 2 and 3 pages
    written = []
    for cache in storage.layers:
        for name, tensor in cache.paged.items():
            first = 2 * layout.pages_per_superpage
            written += [(tensor, item) for item in range(first, len(tensor))]
            assert name == "k"
        for tensor in cache.checkpoint.values():
            written += [(tensor, item) for item in range(2 * layout.states_per_superpage)]
    for value, (tensor, item) in enumerate(written):
        tensor[item] = float(value % 251)
    for value, (tensor, item) in enumerate(written):
        assert (tensor[item] == float(value % 251)).all()
    if keys:
        storage.clear_pages([len(storage.layers[0].paged["k"]) - 1])
        assert not storage.layers[0].paged["k"][-1].any()


def test_working_states_may_be_had_twice():
    """Of each running sequence; a fork takes those that count, and nobody sees what was left."""
    once, twice = (plan_layout([spec(state=8)], working_copies=copies) for copies in (1, 2))
    assert twice.run_bytes == once.run_bytes + once.state_bytes
    shape = plan_cache(
        twice, EngineConfig(memory="1MiB", max_running=3), device=machine(2**30), max_seq_len=512
    )
    assert (shape.max_running, shape.working_copies) == (3, 2)
    storage = Storage(twice, shape, torch.device("cpu"))
    working = storage.layers[0].working["h"]
    working.copy_(torch.arange(1.0, 7.0)[:, None].expand(6, 8))
    storage.copy_run_slot(1, 0, working_copy=1)
    storage.clear_run_slots([2])
    assert working[:, 0].tolist() == [5, 2, 0, 4, 5, 0]


@given(moves=st.lists(st.tuples(st.booleans(), st.integers(0, 50)), max_size=80))
def test_an_arena_never_hands_an_item_out_twice(moves):
    arena = Arena(4, items_per_superpage=(3, 2), floor=(1, 1))
    held: list[tuple[ItemClass, int]] = []
    for is_allocation, choice in moves:
        cls = ItemClass(choice % 2)
        if is_allocation:
            try:
                held.append((cls, arena.allocate(cls)))
            except OutOfMemoryError:
                assert arena.room(cls) == 0
        elif held:
            arena.release(*held.pop(choice % len(held)))
        assert len(set(held)) == len(held)
        owners = {(item // arena.items_per_superpage[c], c) for c, item in held}
        assert len({superpage for superpage, _ in owners}) == len(owners)
        assert arena.used(ItemClass.PAGE) + arena.used(ItemClass.STATE) == len(held)
