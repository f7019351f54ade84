"""The header reader takes what the safetensors library writes, and refuses all that is unsound."""

import json
import os
import struct
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from blazr.core.errors import CheckpointError
from blazr.models.checkpoint.safetensors import read_header

Header = dict[str, object]


def entry(shape: list[int], start: int, dtype: str = "F32") -> Header:
    size = {"F32": 4, "F16": 2, "U8": 1}[dtype]
    return {
        "dtype": dtype,
        "shape": shape,
        "data_offsets": [start, start + size * torch.Size(shape).numel()],
    }


def write(path: Path, header: Header | bytes, data: bytes = b"", length: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def test_reads_names_dtypes_shapes_and_places(file: Path) -> None:
    write(file, {"a": entry([2, 3], 0), "b": entry([4], 24, "F16")}, bytes(32))
    found = read_header(file).tensors
    base = file.stat().st_size - 32
    assert found["a"].shape == (2, 3)
    assert (found["a"].start, found["a"].end) == (base, base + 24)
    assert (found["b"].dtype, found["b"].nbytes) == ("F16", 8)


def test_scalars_empty_tensors_and_metadata_are_fine(file: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "s": entry([], 0),
        "e": entry([0, 5], 4),
        "t": entry([1], 4),
    }
    assert set(read_header(write(file, header, bytes(8))).tensors) == {"s", "e", "t"}


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).filter(
    lambda name: name != "__metadata__"
)
sizes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8])


@given(st.dictionaries(names, st.tuples(sizes, dtypes), max_size=5))
def test_what_the_library_writes_is_read(tmp_path_factory, wanted) -> None:
    """Names, shapes and dtypes come back, and the ranges cover the data."""
    tensors = {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in wanted.items()}
    path = tmp_path_factory.getbasetemp() / "written.safetensors"
    path.write_bytes(save(tensors))
    found = read_header(path).tensors
    assert {name: info.shape for name, info in found.items()} == {
        name: tuple(tensor.shape) for name, tensor in tensors.items()
    }
    assert {name: info.nbytes for name, info in found.items()} == {
        name: tensor.nbytes for name, tensor in tensors.items()
    }


good = entry([4], 0)
UNSOUND: dict[str, tuple[Header | bytes, bytes, int | None, str]] = {
    "an empty header": (b"", b"", None, "parsed"),
    "a header beyond the file": ({"a": good}, b"", 5000, "cut short"),
    "a header of a terabyte": ({"a": good}, bytes(16), 2**40, "cut short"),
    "a header length of 2^64 - 1": ({"a": good}, bytes(16), 2**64 - 1, "cut short"),
    "no JSON": (b"{'a': 1}", b"", None, "parsed"),
    "invalid UTF-8": (b'{"\xff": 1}', b"", None, "parsed"),
    "deep nesting": (b"[" * 100_000, b"", None, "parsed"),
    "a number of 5000 digits": (b'{"a": ' + b"9" * 5000 + b"}", b"", None, "parsed"),
    "a list": (b"[]", b"", None, "not a JSON object"),
    "metadata that is no object": ({"__metadata__": [1]}, b"", None, "__metadata__"),
    "metadata of numbers": ({"__metadata__": {"a": 1}}, b"", None, "__metadata__"),
    "an entry that is no object": ({"a": 3}, b"", None, "not described"),
    "an entry with a key too many": ({"a": {**good, "x": 1}}, bytes(16), None, "not described"),
    "an entry without a shape": ({"a": {"dtype": "F32"}}, b"", None, "not described"),
    "an unknown dtype": ({"a": {**good, "dtype": "Q4_0"}}, bytes(16), None, "unknown dtype"),
    "a dtype that is a list": ({"a": {**good, "dtype": []}}, bytes(16), None, "unknown dtype"),
    "a negative size": ({"a": {**good, "shape": [-4]}}, bytes(16), None, "malformed"),
    "a fractional size": ({"a": {**good, "shape": [4.0]}}, bytes(16), None, "malformed"),
    "a true size": ({"a": {**good, "shape": [True]}}, bytes(16), None, "malformed"),
    "a size of 2^63": ({"a": {**good, "shape": [2**63]}}, bytes(16), None, "malformed"),
    "more sizes than can be multiplied": (
        {"a": {**good, "shape": [2**62] * 300}},
        bytes(16),
        None,
        "malformed",
    ),
    "sizes that overflow": (
        {"a": {**good, "shape": [2**32, 2**32]}},
        bytes(16),
        None,
        "does not fill",
    ),
    "one offset": ({"a": {**good, "data_offsets": [0]}}, bytes(16), None, "malformed"),
    "offsets backwards": (
        {"a": {**good, "data_offsets": [16, 0]}},
        bytes(16),
        None,
        "does not fill",
    ),
    "a range too short": ({"a": {**good, "shape": [5]}}, bytes(16), None, "does not fill"),
    "data cut short": ({"a": good}, bytes(15), None, "cut short"),
    "bytes after the data": ({"a": good}, bytes(17), None, "after the last"),
    "no tensors but data": ({}, bytes(4), None, "after the last"),
    "an overlap": ({"a": good, "b": entry([4], 8)}, bytes(24), None, "overlaps"),
    "the same range twice": ({"a": good, "b": good}, bytes(16), None, "overlaps"),
    "a hole": ({"a": good, "b": entry([4], 20)}, bytes(36), None, "hole"),
    "a hole at the start": ({"a": entry([4], 4)}, bytes(20), None, "hole"),
    "a name twice": (
        b'{"a": ' + json.dumps(good).encode() + b', "a": ' + json.dumps(good).encode() + b"}",
        bytes(16),
        None,
        "two entries called 'a'",
    ),
}


@pytest.mark.parametrize("what", UNSOUND)
def test_unsound_headers_are_refused(file: Path, what: str) -> None:
    header, data, length, complaint = UNSOUND[what]
    with pytest.raises(CheckpointError, match=complaint):
        read_header(write(file, header, data, length))


@pytest.mark.parametrize("size", [0, 1, 7, 8])
def test_files_too_short_for_a_header(file: Path, size: int) -> None:
    file.write_bytes(b"\xff" * size)
    with pytest.raises(CheckpointError, match="cut short"):
        read_header(file)


def test_a_file_cut_anywhere_is_refused(file: Path) -> None:
    whole = save({"a": torch.ones(3), "b": torch.ones(2, 2)})
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            read_header(file)


@given(st.integers(0, 10**9), st.binary(min_size=1, max_size=4))
def test_spoiled_bytes_never_crash(tmp_path_factory, position: int, noise: bytes) -> None:
    """Whatever is overwritten in the header: a CheckpointError, or a header that is sound."""
    whole = bytearray(save({"a": torch.ones(3), "b": torch.ones(2, 2)}))
    at = position % (len(whole) - 28)
    whole[at : at + len(noise)] = noise
    path = tmp_path_factory.getbasetemp() / "spoiled.safetensors"
    path.write_bytes(whole)
    with suppress(CheckpointError):
        assert all(info.end <= len(whole) for info in read_header(path).tensors.values())


@pytest.mark.timeout(30)
def test_a_pipe_is_refused_without_waiting(file: Path) -> None:
    os.mkfifo(file)
    with pytest.raises(CheckpointError, match="not a regular file"):
        read_header(file)


def test_a_pointer_of_git_lfs_is_called_so(file: Path) -> None:
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    with pytest.raises(CheckpointError, match="not the file itself") as raised:
        read_header(file)
    assert "git lfs pull" in raised.value.hint


def test_a_device_and_a_directory_are_refused(tmp_path: Path) -> None:
    link = tmp_path / "model.safetensors"
    link.symlink_to("/dev/zero")
    for path in (link, tmp_path):
        with pytest.raises(CheckpointError, match="not a regular file"):
            read_header(path)


def test_a_file_that_the_system_cannot_read_is_told(file: Path) -> None:
    file.symlink_to("/proc/self/mem")  # nothing lies at its beginning: an input/output error
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_header(file)


def test_a_missing_file_and_a_broken_link_are_refused(tmp_path: Path) -> None:
    link = tmp_path / "link.safetensors"
    link.symlink_to(tmp_path / "nowhere")
    for path in (tmp_path / "none.safetensors", link):
        with pytest.raises(CheckpointError, match="cannot be opened"):
            read_header(path)


def test_messages_do_not_repeat_long_names(file: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_header(write(file, {"x" * 5000: {**good, "dtype": "y" * 5000}}, bytes(16)))
    assert len(str(caught.value)) < 600
