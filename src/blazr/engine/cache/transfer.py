"""Moving what is known of a prompt to another process: files of the disk cache, one after another.

The process that has read the prompt sends them, the one that is to go on takes them in. Both name
the blocks themselves, from their own model and the prompt, so that nothing else is ever found. Each
file comes in a frame (its class, which of the blocks it belongs to, its length): the pages of the
blocks in order, then the state behind the last of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct

from blazr.engine.cache.arena import ItemClass
from blazr.engine.cache.disk import DiskCache

_FRAME = Struct("<B3xIQ")  # class, number of the block, bytes of the file


class TransferError(Exception):
    """What was sent is not what may come now, or not what was once written."""


def num_resumable(files: DiskCache, names: Sequence[bytes]) -> int:
    """After how many of a prompt's blocks it could be resumed from these files.

    Args:
        files: A process's own.
        names: Of the blocks, the first one first.
    """
    depth = len(names)
    if files.sizes[ItemClass.PAGE]:
        absent = (n for n, name in enumerate(names) if not files.has(ItemClass.PAGE, name))
        depth = next(absent, depth)
    if files.sizes[ItemClass.STATE]:
        while depth and not files.has(ItemClass.STATE, names[depth - 1]):
            depth -= 1
    return depth


def export(files: DiskCache, names: Sequence[bytes], num_known: int) -> Iterator[bytes]:
    """What another process needs to resume a prompt as late as possible, frame by frame.

    Args:
        files: The sender's.
        names: Of the prompt's blocks.
        num_known: After how many of them the other can resume anyway.
    """
    depth = num_resumable(files, names)
    if depth <= num_known:
        return
    items = [(ItemClass.PAGE, block) for block in range(num_known, depth)]
    items.append((ItemClass.STATE, depth - 1))
    for item_class, block in items:
        if not files.sizes[item_class]:
            continue
        data = files.read_raw(item_class, names[block])
        if data is None:  # deleted since
            return
        yield _FRAME.pack(item_class, block, len(data)) + data


class Incoming:
    """Takes in what `export` gives, in pieces of any length; each file is checked, then kept.

    What came before an error is whole, and stays. Never more is taken than the prompt needs.

    Args:
        files: The receiver's.
        names: Of the prompt's blocks.
        num_known: After how many of them it can resume anyway.
    """

    def __init__(self, files: DiskCache, names: Sequence[bytes], num_known: int) -> None:
        self._files = files
        self._names = names
        self._next_block = num_known
        self._has_ended = False
        self._rest = bytearray()

    def feed(self, data: bytes) -> None:
        """Take in the next bytes.

        Raises:
            TransferError: They are none that may come now.
            OSError: They cannot be written.
        """
        self._rest += data
        while len(self._rest) >= _FRAME.size:
            number, block, length = _FRAME.unpack_from(self._rest)
            self._check(number, block, length)
            end = _FRAME.size + length
            if len(self._rest) < end:
                return
            item_class = ItemClass(number)
            content = bytes(memoryview(self._rest)[_FRAME.size : end])
            del self._rest[:end]
            if not self._files.write_raw(item_class, self._names[block], content):
                raise TransferError(f"the {item_class.name.lower()} of block {block} is spoiled")
            self._next_block = block + (item_class is ItemClass.PAGE)
            self._has_ended = item_class is ItemClass.STATE

    def end(self) -> None:
        """All has come.

        Raises:
            TransferError: The last frame is not whole.
        """
        if self._rest:
            raise TransferError("it ends in the middle of a file")

    def _check(self, number: int, block: int, length: int) -> None:
        """Refuse a frame by its head, before its file has come."""
        sizes = self._files.file_sizes
        if number not in [item_class for item_class in ItemClass if self._files.sizes[item_class]]:
            raise TransferError(f"this model has no items of class {number}")
        item_class = ItemClass(number)
        what = f"the {item_class.name.lower()} of block {block}"
        first = last = self._next_block
        if item_class is ItemClass.STATE:
            has_pages = self._files.sizes[ItemClass.PAGE] > 0
            # the last page tells of which block it is; without pages it may be of any
            first = first - 1 if has_pages else first
            last = first if has_pages else len(self._names)
        if self._has_ended or not first <= block <= min(last, len(self._names) - 1):
            raise TransferError(f"{what} may not come now")
        if length != sizes[item_class]:
            raise TransferError(f"{what} has {length} bytes instead of {sizes[item_class]}")
