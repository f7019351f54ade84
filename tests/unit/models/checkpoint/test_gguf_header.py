"""The header of a GGUF file: what it says, and what a forged one costs."""

import struct
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blazr.core.errors import CheckpointError
from blazr.core.gguf_header import (
    MAX_NAME_BYTES,
    MAX_STRINGS,
    MAX_TENSORS,
    GgufHeader,
    TensorEntry,
    read_gguf_header,
)
from tests.support import ggufs
from tests.support.seeds import examples

HUGE = (2**61, 2**63, 2**64 - 1, 2**32)


def read(directory: Path, data: bytes) -> GgufHeader:
    path = directory / "x.gguf"
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    with path.open("rb") as file:
        return read_gguf_header(file)


def refused(directory: Path, data: bytes, expected: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(directory, data)
    assert expected in str(caught.value)
    assert len(caught.value.found) <= 200


def with_pairs(*pairs: bytes, count: int | None = None) -> bytes:
    return ggufs.header(0, len(pairs) if count is None else count) + b"".join(pairs)


def test_values_of_each_type(tmp_path: Path) -> None:
    layouts = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
    pairs = [
        ggufs.string(f"n{kind}") + struct.pack(f"<I{letter}", kind, 100)
        for kind, letter in layouts.items()
    ]
    pairs += [
        ggufs.pair("yes", True),
        ggufs.pair("word", "naïve"),
        ggufs.pair("words", ["a", "", "▁b"]),
        ggufs.pair("numbers", [1, -2, 3]),
        ggufs.pair("scores", [0.5, -1.5]),
        ggufs.string("none") + struct.pack("<IIQ", 9, 4, 0),
    ]
    found = read(tmp_path, with_pairs(*pairs)).metadata
    assert all(found[f"n{kind}"] == 100 for kind in layouts)
    assert found["yes"] is True
    assert found["word"] == "naïve"
    assert found["words"] == ["a", "", "▁b"]
    assert list(found["numbers"]) == [1, -2, 3]
    assert list(found["scores"]) == [0.5, -1.5]
    assert list(found["none"]) == []


@pytest.mark.parametrize("version", [2, 3])
def test_tensors_and_where_the_data_begins(tmp_path: Path, version: int) -> None:
    alignment = ggufs.pair("general.alignment", 64)
    tensors = ggufs.entry("a", (3, 4), 0, 0) + ggufs.entry("b", (), 1, 64)
    head = ggufs.header(2, 1, version=version) + alignment + tensors
    found = read(tmp_path, head)
    assert [(each.name, each.shape) for each in found.tensors] == [("a", (3, 4)), ("b", ())]
    assert found.data_start % 64 == 0
    assert 0 <= found.data_start - len(head) < 64


@pytest.mark.parametrize("value", [True, 7, 0.5, "word", ["a", "bc"], ["", ""], [1, 2, 3], [0.5]])
def test_a_header_may_end_with_the_file_and_not_before(tmp_path: Path, value: object) -> None:
    """Nothing is read past the end, and nothing is wanted that a header does not need."""
    head = with_pairs(ggufs.pair("first", 1), ggufs.pair("k", value))
    found = read(tmp_path, head).metadata["k"]
    assert (list(found) if isinstance(value, list) else found) == value
    for size in range(len(head)):
        with pytest.raises(CheckpointError):
            read(tmp_path, head[:size])


def test_a_table_may_end_with_the_file_and_not_before(tmp_path: Path) -> None:
    head = ggufs.header(2, 0) + ggufs.entry("a", (2, 3, 4, 5), 30, 0) + ggufs.entry("b", (), 8, 96)
    found = read(tmp_path, head)
    assert found.tensors == (TensorEntry("a", (2, 3, 4, 5), 30, 0), TensorEntry("b", (), 8, 96))
    assert (found.alignment, found.size) == (32, len(head))
    for size in range(len(head)):
        with pytest.raises(CheckpointError):
            read(tmp_path, head[:size])


@pytest.mark.parametrize("alignment", [8, 16, 32, 2**16])
def test_data_begin_at_the_next_multiple_of_the_alignment(tmp_path: Path, alignment: int) -> None:
    for length in range(70):  # headers of every length, and so of every remainder
        pairs = ggufs.pair("general.alignment", alignment), ggufs.pair("k", "x" * length)
        head = with_pairs(*pairs)
        found = read(tmp_path, head)
        assert found.alignment == alignment
        assert found.data_start == next(n for n in range(len(head), 2**18) if n % alignment == 0)


def test_limits_are_the_largest_that_is_allowed(tmp_path: Path) -> None:
    key = "k" * MAX_NAME_BYTES
    assert read(tmp_path, with_pairs(ggufs.pair(key, 5))).metadata == {key: 5}
    entry = ggufs.entry(key, (1,), 0, 0)
    assert read(tmp_path, ggufs.header(1, 0) + entry).tensors[0].name == key
    refused(tmp_path, ggufs.header(1, 0) + ggufs.entry(key + "k", (1,), 0, 0), "65,535")
    refused(tmp_path, ggufs.header(1, 0) + ggufs.entry("x", (1,) * 5, 0, 0), "dimensions")
    large = ggufs.header(1, 0) + ggufs.entry("x", (2**63 - 1, 1), 0, 0)
    assert read(tmp_path, large).tensors[0].shape == (2**63 - 1, 1)


@pytest.mark.parametrize("more", [0, 1])
def test_the_limit_of_tensors_and_strings(tmp_path: Path, more: int) -> None:
    """At the limit reading goes on, to the first thing that is wrong."""
    count = MAX_TENSORS + more
    unsound = ggufs.header(count, 0) + ggufs.entry("x", (1,) * 5, 0, 0) + bytes(24 * count)
    refused(tmp_path, unsound, "1,000,001 tensors" if more else "dimensions")
    count = MAX_STRINGS - 1 + more  # and one before them: all strings of all arrays are counted
    array = ggufs.string("k") + struct.pack("<IIQQ", 9, 8, count, 2**40) + bytes(8 * count)
    refused(
        tmp_path,
        with_pairs(ggufs.pair("one", ["a"]), array),
        "2,097,153 strings" if more else "ends after 0",
    )


@pytest.mark.parametrize("count", HUGE)
def test_forged_counts_cost_nothing(tmp_path: Path, count: int) -> None:
    length = struct.pack("<Q", count)
    refused(tmp_path, b"GGUF" + struct.pack("<I", 3) + length + bytes(8), "tensors")
    refused(tmp_path, b"GGUF" + struct.pack("<IQ", 3, 0) + length, "pairs")
    refused(tmp_path, with_pairs(length + b"key", count=1) + bytes(64), "key")
    text = ggufs.string("k") + struct.pack("<I", 8) + length
    refused(tmp_path, with_pairs(text) + bytes(64), "string")
    for kind in (0, 4, 8, 10, 12):
        array = ggufs.string("k") + struct.pack("<II", 9, kind) + length
        refused(tmp_path, with_pairs(array) + bytes(64), "in 64 bytes")


def test_a_string_longer_than_the_rest_ends_an_array(tmp_path: Path) -> None:
    for length in HUGE:
        array = struct.pack("<IIQ", 9, 8, 2) + ggufs.string("ok") + struct.pack("<Q", length)
        refused(tmp_path, with_pairs(ggufs.string("k") + array) + bytes(9), "ends after")


def test_more_strings_than_any_vocabulary_has(tmp_path: Path) -> None:
    count = MAX_STRINGS + 1
    array = ggufs.string("k") + struct.pack("<IIQ", 9, 8, count) + bytes(8 * count)
    refused(tmp_path, with_pairs(array), "strings")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "GGUF"),
        (b"GGML" + bytes(40), "GGML"),
        (ggufs.header(0, 0, version=1), "version 1"),
        (ggufs.header(0, 0, version=4), "version 4"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (with_pairs(ggufs.string(b"\xff\xfe") + ggufs.value(1)), "UTF-8"),
        (with_pairs(ggufs.string("k") + struct.pack("<I", 8) + ggufs.string(b"\xc3")), "UTF-8"),
        (
            with_pairs(ggufs.string("k") + struct.pack("<IIQ", 9, 8, 1) + ggufs.string(b"\x80")),
            "UTF-8",
        ),
        (with_pairs(ggufs.pair("k", 1), ggufs.pair("k", 2)), "twice"),
        (with_pairs(ggufs.pair("", 1)), "empty key"),
        (with_pairs(ggufs.string("k") + struct.pack("<I", 13)), "value type 13"),
        (with_pairs(ggufs.string("k") + struct.pack("<IIQ", 9, 9, 1) + bytes(16)), "arrays"),
        (with_pairs(ggufs.string("k") + struct.pack("<IIQ", 9, 99, 1) + bytes(16)), "type 99"),
        (with_pairs(ggufs.pair("general.alignment", 0)), "alignment"),
        (with_pairs(ggufs.pair("general.alignment", 48)), "alignment"),
        (with_pairs(ggufs.pair("general.alignment", 2**20)), "alignment"),
        (with_pairs(ggufs.pair("general.alignment", "32")), "alignment"),
        (ggufs.header(1, 0) + ggufs.string("x") + struct.pack("<I", 2**32 - 1), "dimensions"),
        (ggufs.header(1, 0) + ggufs.entry("x", (0, 4), 0, 0), "sizes"),
        (ggufs.header(1, 0) + ggufs.entry("x", (2**63, 4), 0, 0), "sizes"),
        (ggufs.header(2, 0) + 2 * ggufs.entry("x", (1,), 0, 0), "unique"),
        (with_pairs(ggufs.string("k" * 70_000) + ggufs.value(1)), "65,535"),
    ],
)
def test_what_is_no_header(tmp_path: Path, data: bytes, expected: str) -> None:
    refused(tmp_path, data + bytes(4) if len(data) < 60 else data, expected)


SOUND = ggufs.encode(
    {}, {"general.architecture": "llama", "x.tokens": ["a", "bc", "d"], "x.scores": [1.0, 2.0]}
)


@settings(max_examples=examples(300))
@given(data=st.data())
def test_any_change_is_read_or_refused(data: st.DataObject, tmp_path_factory) -> None:
    spoiled = bytearray(SOUND)
    for _ in range(data.draw(st.integers(1, 4))):
        spoiled[data.draw(st.integers(0, len(spoiled) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(spoiled)))
    with suppress(CheckpointError):
        read(tmp_path_factory.getbasetemp(), bytes(spoiled[:cut]))
