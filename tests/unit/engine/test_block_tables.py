"""Rows of page ids, and how readers know that theirs are out of date."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blazr.engine.cache.block_tables import BlockTables

pytestmark = pytest.mark.smoke

WRITES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.lists(st.integers(0, 9))))


@given(WRITES)
def test_a_row_with_the_same_stamp_is_the_same(writes):
    """Whoever copies rows of which the stamp is new has all of them as they are."""
    tables = BlockTables(3, 16)
    copies = BlockTables(3, 16)
    known = [None] * 3
    for slot, first, pages in writes:
        tables.write(slot, first, pages[: 16 - first])
        for index, stamp in enumerate(tables.stamps):
            if known[index] != stamp:
                known[index] = stamp
                copies.rows[index] = tables.rows[index]
        assert (copies.rows == tables.rows).all()
        assert tables.rows[slot, first : first + len(pages)].tolist() == pages[: 16 - first]


def test_no_stamp_is_used_twice():
    first, second = BlockTables(4, 2), BlockTables(4, 2)
    first.write(1, 0, [7])
    assert not set(first.stamps) & set(second.stamps)
    assert len({*first.stamps, *second.stamps}) == 8
