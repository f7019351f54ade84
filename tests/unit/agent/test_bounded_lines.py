"""Text that is read line by line, whatever way the bytes are cut."""

from __future__ import annotations

import codecs

import pytest

from blazr.agent import bounded_lines

TEXT = "ä\nbc\n\nüüü"


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_it_reads_what_utf_8_reads(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_lines, "MAX_LINE_BYTES", 6)
    data = TEXT.encode(bounded_lines.ENCODING)
    assert data == TEXT.encode()
    decoder = codecs.getincrementaldecoder(bounded_lines.ENCODING)()
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert "".join(map(decoder.decode, pieces)) + decoder.decode(b"", final=True) == TEXT


@pytest.mark.parametrize("pieces", [[b"1234567"], [b"1234", b"567"], [b"a\n123", b"4567\n"]])
def test_a_longer_line_is_told_and_refused(
    pieces: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_lines, "MAX_LINE_BYTES", 6)
    told: list[str] = []
    bounded_lines.on_long_line.set(lambda: told.append("long"))
    decoder = codecs.getincrementaldecoder(bounded_lines.ENCODING)()
    *before, last = pieces
    for piece in before:
        decoder.decode(piece)
    with pytest.raises(bounded_lines.LongLineError, match="more than 6 bytes"):
        decoder.decode(last)
    assert told == ["long"]
