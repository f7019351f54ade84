"""How often the chat page draws a reply that grows."""

from __future__ import annotations

import json

import pytest

from tests.support.page_modules import needs_node, said_by

pytestmark = needs_node

# A reply of 10,000 pieces, one each millisecond. To draw it takes a millisecond for ten pieces, as
# a single paragraph does, of which nothing can be kept. Time passes only in drawing and waiting.
_STREAM = """
const { paced } = await import(process.argv[1]);
let [clock, pieces, drawn, spent, draws, late] = [0, 0, 0, 0, 0, null];
const drawing = paced(() => {
  spent += pieces / 10;
  clock += pieces / 10;
  drawn = pieces;
  draws += 1;
}, { now: () => clock, after: (wait, then) => { late = [clock + Math.max(wait, 16), then]; } });
const pass = () => {
  if (late === null || clock < late[0]) return;
  const [, then] = late;
  late = null;
  then();
};
for (let i = 0; i < 10000; i += 1) {
  clock = Math.max(clock, i);
  pieces += 1;
  drawing.ask();
  pass();
}
// the last drawing has no rest behind it yet
const [whole, paidFor] = [clock, spent - drawn / 10];
clock += 100000;
pass();
const atEnd = drawn;
drawing.ask();
drawing.stop();
clock += 100000;
const before = draws;
pass();
console.log(JSON.stringify({ paidFor, draws, whole, atEnd, hasDrawnLate: draws > before }));
"""


@pytest.fixture(scope="module")
def told() -> dict[str, float]:
    found: dict[str, float] = json.loads(said_by(_STREAM, "pace.js"))
    return found


def test_most_of_the_time_the_page_is_free(told: dict[str, float]) -> None:
    assert told["draws"] > 10
    assert told["paidFor"] <= told["whole"] / 5


def test_the_last_piece_is_drawn(told: dict[str, float]) -> None:
    assert told["atEnd"] == 10_000


def test_nothing_is_drawn_after_the_end(told: dict[str, float]) -> None:
    assert not told["hasDrawnLate"]
