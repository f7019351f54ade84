"""Keeps special tokens apart from what clients write, which may spell their names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from blazr.core.errors import RequestError
from blazr.text.tokenizer import longest_of

_PRIVATE_USE = range(0x10FFFD, 0xFFFFF, -1)  # characters that stand in for others


class EscapedChat:
    """A chat in which no special token's name occurs, so that nobody can forge another's turn.

    Before a template is rendered, the first character of each special token's name in what the
    client wrote is replaced by a stand-in, a character that occurs nowhere else. After it, the
    names still found are the template's own, and the stand-ins are turned back.

    Args:
        values: Strings, numbers, lists and mappings from the client. They are copied.
        names: The special tokens' names.

    Raises:
        RequestError: No characters are left that could stand in.
    """

    def __init__(self, values: object, names: Iterable[str]) -> None:
        self._names = [name for name in names if name]
        self._stand_ins: dict[str, str] = {}
        texts = list(_texts(values))
        self.num_characters = sum(map(len, texts))
        if any(name in text for name in self._names for text in texts):
            firsts = sorted({name[0] for name in self._names})
            used = set().union(*texts, *self._names)
            free = (chr(code) for code in _PRIVATE_USE if chr(code) not in used)
            self._stand_ins = dict(zip(firsts, free, strict=False))
            if len(self._stand_ins) < len(firsts):
                raise RequestError(
                    "the messages have every character that could stand in for a special token.",
                    param="messages",
                    found="all of Unicode's last private use area",
                )
        self.values = self._copy(values)

    def split(self, text: str, ids: Mapping[str, int]) -> Iterator[str | int]:
        """A rendered text's pieces: special tokens as ids, and the text between them."""
        for position, piece in enumerate(longest_of(ids).split(text)):
            if position % 2:
                yield ids[piece]
            elif piece:
                yield self.restore(piece)

    def restore(self, text: str) -> str:
        """A rendered text with the names that were replaced."""
        back = {ord(stand_in): first for first, stand_in in self._stand_ins.items()}
        return text.translate(back)

    @property
    def stand_ins(self) -> tuple[str, ...]:
        """The first characters of names, each followed by what stands for it."""
        return tuple(first + stand_in for first, stand_in in self._stand_ins.items())

    @property
    def has_names(self) -> bool:
        """Whether any name occurred."""
        return bool(self._stand_ins)

    def _copy(self, value: object) -> object:
        if isinstance(value, str):
            starts: set[int] = set()
            for name in self._names if self._stand_ins else ():
                start = value.find(name)
                while start >= 0:  # overlapping ones too, or breaking one could leave another whole
                    starts.add(start)
                    start = value.find(name, start + 1)
            characters = list(value)
            for start in starts:
                characters[start] = self._stand_ins[characters[start]]
            return "".join(characters) if starts else value
        if isinstance(value, Mapping):
            return {self._copy(key): self._copy(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._copy(each) for each in value]
        return value


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _texts(key)
            yield from _texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)
