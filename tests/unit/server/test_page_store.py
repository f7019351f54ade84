"""What the chat page keeps in the browser, with a storage that holds so many characters."""

from __future__ import annotations

import json

from tests.support.page_modules import needs_node, said_by

pytestmark = needs_node

_STORAGE = """
class Storage {
  setItem(name, text) {
    const others = Object.keys(this).filter((other) => other !== name);
    const sizes = others.map((other) => other.length + this[other].length);
    const size = sizes.reduce((sum, each) => sum + each, name.length + text.length);
    if (size > %d) throw new Error("QuotaExceededError");
    this[name] = text;
  }
  getItem(name) { return this[name] ?? null; }
  removeItem(name) { delete this[name]; }
}
globalThis.localStorage = new Storage();
const { loadChats, saveChat } = await import(process.argv[1]);
const chat = (id, created, length) =>
  ({ id, created, messages: [{ role: "user", content: "x".repeat(length) }] });
const saved = %s.map((each) => saveChat(chat(...each)));
console.log(JSON.stringify({ saved, left: loadChats().map(({ id }) => id) }));
"""


def saved_chats(room: int, *chats: tuple[str, int, int]) -> dict[str, list[object]]:
    """Which chats (id, when they were begun, length) are kept when saved, and which in the end."""
    said = said_by(_STORAGE % (room, json.dumps(chats)), "store.js")
    found: dict[str, list[object]] = json.loads(said)
    return found


def test_the_oldest_chats_make_room() -> None:
    found = saved_chats(3000, ("a", 1, 1000), ("b", 2, 1000), ("c", 3, 1500))
    assert found == {"saved": [True, True, True], "left": ["c", "b"]}


def test_a_chat_that_has_no_room_even_alone_takes_none_away() -> None:
    found = saved_chats(3000, ("a", 1, 1000), ("b", 2, 1000), ("c", 3, 4000))
    assert found == {"saved": [True, True, False], "left": ["b", "a"]}


def test_of_a_chat_that_outgrows_the_room_the_beginning_stays() -> None:
    found = saved_chats(3000, ("a", 1, 1000), ("b", 2, 1000), ("b", 2, 4000))
    assert found == {"saved": [True, True, False], "left": ["b", "a"]}


def test_more_than_a_hundred_chats_are_not_kept() -> None:
    found = saved_chats(100_000, *((f"n{number}", number, 10) for number in range(102)))
    assert all(found["saved"])
    assert found["left"] == [f"n{number}" for number in range(101, 1, -1)]
