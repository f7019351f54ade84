"""UTF-8 whose lines have a longest length, for what a server of tools writes to its stdout.

The SDK keeps what it reads until a line ends, however much that is, and takes the name of an
encoding to read with. The one here refuses a line that does not end, and tells whoever reads.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

from typing_extensions import override

ENCODING: Final = "blazr_utf_8_lines"
MAX_LINE_BYTES = 16 * 2**20

# Whom to tell of a line that is too long, before reading fails; for the tasks of one connection.
on_long_line: ContextVar[Callable[[], None]] = ContextVar("on_long_line")


class LongLineError(UnicodeError):
    """A line is longer than it may be."""


class _Decoder(codecs.IncrementalDecoder):
    def __init__(self, errors: str = "strict") -> None:
        super().__init__(errors)
        self._inner = codecs.getincrementaldecoder("utf-8")(errors)
        self._num_bytes = 0  # of the line that has not ended

    @override
    def decode(self, data: bytes, final: bool = False) -> str:  # type: ignore[override]
        first = data.find(b"\n")
        longest = self._num_bytes + (len(data) if first < 0 else first)
        self._num_bytes = longest if first < 0 else len(data) - data.rfind(b"\n") - 1
        if max(longest, self._num_bytes) > MAX_LINE_BYTES:
            on_long_line.get()()
            raise LongLineError(f"a line of more than {MAX_LINE_BYTES:,} bytes")
        return self._inner.decode(data, final)


def _search(name: str) -> codecs.CodecInfo | None:
    if name != ENCODING:
        return None
    plain = codecs.lookup("utf-8")
    return codecs.CodecInfo(plain.encode, plain.decode, incrementaldecoder=_Decoder, name=ENCODING)


codecs.register(_search)
