"""Files on their way to another process: what is not whole, or was not asked for, is not kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random

import pytest

from blazr.engine.cache.arena import ItemClass
from blazr.engine.cache.disk import DiskCache, DiskItem, next_name
from blazr.engine.cache.transfer import Incoming, TransferError, export, num_resumable
from tests.support.seeds import run_seed

PAGE, STATE = ItemClass.PAGE, ItemClass.STATE
SIZES = {"hybrid": {PAGE: 700, STATE: 900}, "pages": {PAGE: 700, STATE: 0}}
SIZES["states"] = {PAGE: 0, STATE: 900}
BLOCKS = 5


class Shelves:
    """Directories of processes with the same model, or with another."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack

    def open(self, name: str, kind: str = "hybrid", model: bytes = b"model") -> DiskCache:
        files = DiskCache(
            self._folder / name,
            limit=2**30,
            fingerprint=model,
            sizes=SIZES[kind],
            read=lambda cls, item: bytes([item]) * SIZES[kind][cls],
            write=lambda _cls, _item, _content: None,
        )
        return self._stack.enter_context(closing(files))


@pytest.fixture
def shelves(tmp_path: Path) -> Iterator[Shelves]:
    with ExitStack() as stack:
        yield Shelves(tmp_path, stack)


def names_of(model: bytes = b"model") -> list[bytes]:
    names = [next_name(next_name(model, b"salt"), b"block")]
    while len(names) < BLOCKS:
        names.append(next_name(names[-1], b"block"))
    return names


def fill(files: DiskCache, names: list[bytes], states: tuple[int, ...]) -> None:
    for block, name in enumerate(names):
        if files.sizes[PAGE]:
            files.save(DiskItem(PAGE, name, "end", block + 1, 64), block)
        if files.sizes[STATE] and block in states:
            files.save(DiskItem(STATE, name, "anchor", block + 1, 64), 100 + block)
    files.flush()


def feed(incoming: Incoming, data: bytes, *, seed: int = 0) -> None:
    """In pieces of random lengths."""
    draw = Random(run_seed(seed))
    while data:
        length = draw.choice((1, 7, 300, 5000))
        incoming.feed(data[:length])
        data = data[length:]
    incoming.end()


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("num_known", [0, 2])
def test_what_is_sent_can_be_resumed(shelves: Shelves, kind: str, num_known: int) -> None:
    sender, receiver, names = shelves.open("a", kind), shelves.open("b", kind), names_of()
    fill(sender, names, states=(1, 3))
    fill(receiver, names[:num_known], states=(1,))
    assert num_resumable(receiver, names) == num_known
    sent = b"".join(export(sender, names, num_known))
    feed(Incoming(receiver, names, num_known), sent)
    depth = BLOCKS if kind == "pages" else 4
    assert num_resumable(receiver, names) == depth
    for cls, name in [(PAGE, names[depth - 1]), (STATE, names[depth - 1])]:
        if receiver.sizes[cls]:
            assert receiver.load(cls, name, 0) == ("anchor" if cls is STATE else "end")
    receiver.flush()
    sender.flush()
    assert receiver.counts.received_bytes == sender.counts.sent_bytes
    assert len(sent) - sender.counts.sent_bytes < 20 * (depth + 1)
    assert not b"".join(export(sender, names, depth)), "the other has as much"


def test_nothing_is_sent_that_could_not_be_resumed(shelves: Shelves) -> None:
    sender, names = shelves.open("a"), names_of()
    fill(sender, names, states=())
    assert not b"".join(export(sender, names, 0))
    assert not b"".join(export(shelves.open("b", model=b"other"), names, 0))


def changed(sent: bytes, how: str) -> bytes:
    frame = 16 + 64 + SIZES["hybrid"][PAGE]
    return {
        "cut in a file": sent[: frame + 200],
        "cut in a head": sent[: frame + 5],
        "flipped in a head": sent[:20] + bytes([sent[20] ^ 1]) + sent[21:],
        "flipped in a page": sent[:500] + bytes([sent[500] ^ 1]) + sent[501:],
        "flipped in the state": sent[:-1] + bytes([sent[-1] ^ 1]),
        "longer": sent + sent[:frame],
        "twice": sent + sent,
        "in another order": sent[frame : 2 * frame] + sent[:frame] + sent[2 * frame :],
        "of a block too far": sent[:4] + b"\xff\xff\xff\x7f" + sent[8:],
        "too long a file": sent[:8] + (2**60).to_bytes(8, "little") + sent[16:],
        "of no class": b"\x07" + sent[1:],
        "no frames": b"<html>503 Service Unavailable</html>",
    }[how]


@pytest.mark.parametrize(
    "how",
    [
        *("cut in a file", "cut in a head", "flipped in a head", "flipped in a page"),
        *("flipped in the state", "longer", "twice", "in another order", "of a block too far"),
        *("too long a file", "of no class", "no frames"),
    ],
)
def test_what_was_changed_on_the_way_is_refused(shelves: Shelves, how: str) -> None:
    sender, receiver, names = shelves.open("a"), shelves.open("b"), names_of()
    fill(sender, names, states=(4,))
    sent = changed(b"".join(export(sender, names, 0)), how)
    with pytest.raises(TransferError):
        feed(Incoming(receiver, names, 0), sent)
    kept = num_resumable(receiver, names)
    assert kept == (BLOCKS if how in {"longer", "twice"} else 0), "of what was whole, no less"
    for block, name in enumerate(names):
        if receiver.has(PAGE, name):
            assert receiver.load(PAGE, name, 0) == "end", f"block {block} is not whole"


def test_another_models_files_are_refused(shelves: Shelves) -> None:
    """Even where the sender says that they are those asked for."""
    sender, receiver = shelves.open("a", model=b"other"), shelves.open("b")
    fill(sender, names_of(b"other"), states=(4,))
    sent = b"".join(export(sender, names_of(b"other"), 0))
    with pytest.raises(TransferError, match="spoiled"):
        Incoming(receiver, names_of(), 0).feed(sent)


def test_another_shape_is_refused_before_it_has_come(shelves: Shelves) -> None:
    sender, receiver, names = shelves.open("a", "pages"), shelves.open("b", "states"), names_of()
    fill(sender, names, states=())
    head = next(export(sender, names, 0))[:16]
    with pytest.raises(TransferError, match="no items of class 0"):
        Incoming(receiver, names, 0).feed(head)
