"""The store holds what fits, the newest, and keeps keys apart."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from blazr.server.store import Store

PUTS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5), st.integers(0, 40)))


@given(PUTS, st.integers(1, 4), st.integers(1, 100))
def test_it_keeps_the_newest_that_fit(puts: list, max_entries: int, max_bytes: int) -> None:
    store: Store[int] = Store(max_entries, max_bytes)
    kept: dict[tuple[str, str], int] = {}
    for number, (tenant, name, size) in enumerate(puts):
        store.put(tenant, str(name), number, num_bytes=size)
        kept.pop((tenant, str(name)), None)
        kept[tenant, str(name)] = number
        while len(kept) > max_entries or sum(puts[n][2] for n in kept.values()) > max_bytes:
            kept.pop(next(iter(kept)))
    for tenant in "ab":
        for name in map(str, range(6)):
            assert store.get(tenant, name) == kept.get((tenant, name))


def test_what_is_taken_out_is_gone_for_its_key_alone() -> None:
    store: Store[int] = Store()
    store.put("a", "x", 1, num_bytes=5)
    store.put("b", "x", 2, num_bytes=5)
    assert store.pop("a", "x") == 1
    assert store.pop("a", "x") is None
    assert store.get("b", "x") == 2
