"""What is packed comes back to the last bit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from blazr.engine.outputs import TokenLogprobs
from blazr.engine.scores import is_enough, pack, unpack

VALUES = st.floats(max_value=0, allow_nan=False, width=32)
IDS = st.integers(0, 2**24 - 1)


@st.composite
def blocks(draw: st.DrawFn) -> tuple[list[TokenLogprobs | None], int]:
    num_top = draw(st.integers(0, 4))
    pair = st.tuples(IDS, VALUES)
    top = st.lists(pair, min_size=num_top, max_size=num_top).map(tuple)
    entries = draw(st.lists(st.builds(TokenLogprobs, IDS, VALUES, top), max_size=5))
    is_first = draw(st.booleans())
    return ([None, *entries] if is_first else entries), num_top


@given(blocks(), st.integers(0, 5))
def test_packing_loses_nothing(block: tuple, wanted: int) -> None:
    entries, num_top = block
    rows = pack(entries)
    token_ids = [5 if each is None else each.token_id for each in entries]
    found = unpack(rows, token_ids, wanted)
    assert found == [
        each and TokenLogprobs(each.token_id, each.logprob, each.top[:wanted]) for each in entries
    ]
    if any(entries):
        assert is_enough(rows, wanted) is (wanted <= num_top)


def test_nothing_is_never_enough() -> None:
    assert not is_enough(None, 0)
