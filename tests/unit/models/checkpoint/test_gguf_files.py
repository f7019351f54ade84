"""GGUF files as checkpoints: tensors in their places, parts, and tables that lie."""

from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch

from blazr.core.errors import CheckpointError
from blazr.models.checkpoint.base import take_rows
from blazr.models.checkpoint.open import open_checkpoint
from blazr.models.loading.read import read_plain
from blazr.nn.quant.gguf import GGML_TYPES
from tests.support import ggufs

META = {"general.architecture": "llama"}


def blocks(name: str, rows: int, count: int) -> ggufs.Blocks:
    row = GGML_TYPES[name]
    data = torch.randint(0, 256, (rows, count * row.nbytes), dtype=torch.uint8)
    return row.number, (rows, count * row.length), data


def refused(path: Path, expected: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    assert expected in str(caught.value)


@pytest.mark.parametrize("name", [name for name in GGML_TYPES if GGML_TYPES[name].is_packed])
def test_packed_tensors_are_read_as_the_bytes_they_are(name: str, tmp_path: Path) -> None:
    stored = blocks(name, 5, 2)
    found = open_checkpoint(
        ggufs.write(tmp_path / "m.gguf", {"w": stored, "b": torch.ones(3)}, META)
    )
    assert found.tensors["w"].dtype == name
    assert found.tensors["w"].shape == stored[1]
    assert found.tensors["w"].is_packed
    assert torch.equal(found.read("w"), stored[2])
    assert torch.equal(found.read("b"), torch.ones(3))
    assert found.metadata["general.architecture"] == "llama"


def _scaled(stack: tuple[int, ...], factors: torch.Tensor, **more: torch.Tensor) -> dict[str, Any]:
    """NVFP4 with factors, as llama.cpp's converter writes the checkpoints of Model Optimizer."""
    _, _, data = blocks("NVFP4", prod(stack) * 5, 2)
    number, shape = GGML_TYPES["NVFP4"].number, (*stack, 5, 128)
    return {"a.weight": (number, shape, data), "a.scale": factors, **more}


@pytest.mark.parametrize("stack", [(), (3,)])
@pytest.mark.parametrize("count", [1, 3])
def test_factors_of_nvfp4_are_part_of_their_matrices(
    stack: tuple[int, ...], count: int, tmp_path: Path
) -> None:
    factors = torch.rand(count) + 0.5
    tensors = _scaled(stack, factors, **{"a.input_scale": torch.ones(1), "b": torch.ones(2)})
    path = ggufs.write(tmp_path / "m.gguf", tensors, META)
    if count > prod(stack):
        with pytest.raises(CheckpointError, match=r"does not fit the matrix"):
            open_checkpoint(path)
        return
    checkpoint = open_checkpoint(path)
    assert set(checkpoint.tensors) == {"a.weight", "b"}
    info = checkpoint.tensors["a.weight"]
    plain = GGML_TYPES["NVFP4"].decode(tensors["a.weight"][2]).view(info.shape)
    whole = plain * factors.view(-1, *[1] * (len(info.shape) - 1))
    assert torch.equal(read_plain(info, checkpoint), whole)
    rows = (range(1, 2), range(0, 3, 2))
    for dim in range(len(stack) + 1):
        part = take_rows(info, rows, dim)
        expected = whole.index_select(dim, torch.tensor([1, 0, 2]))
        assert torch.equal(read_plain(part, checkpoint), expected)


def test_a_vector_in_blocks_is_one_row(tmp_path: Path) -> None:
    number, (_, length), data = blocks("Q4_0", 1, 3)
    data[:, 1::18] &= 0x3B  # the scales' high bytes: no NaN
    file = ggufs.write(tmp_path / "m.gguf", {"w": (number, (length,), data)}, META)
    checkpoint = open_checkpoint(file)
    found = read_plain(checkpoint.tensors["w"], checkpoint)
    assert torch.equal(found, GGML_TYPES["Q4_0"].decode(data)[0])


def test_a_directory_with_one_file(tmp_path: Path) -> None:
    ggufs.write(tmp_path / "model-Q4_0.gguf", {"a": torch.ones(2)}, META)
    ggufs.write(tmp_path / "mmproj-model.gguf", {"b": torch.ones(2)}, META)
    assert set(open_checkpoint(tmp_path).tensors) == {"a"}
    ggufs.write(tmp_path / "model-Q8_0.gguf", {"a": torch.ones(2)}, META)
    refused(tmp_path, "name the file")


def test_what_lies_beside_it_is_not_about_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 7}')
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "unknown"}}')
    path = ggufs.write(tmp_path / "m.gguf", {"a.weight": torch.ones(2, 2)}, META)
    assert open_checkpoint(path).config == {}


def test_parts_are_one_model(tmp_path: Path) -> None:
    for number, name in enumerate("abc", 1):
        part = tmp_path / f"m-{number:05}-of-00003.gguf"
        ggufs.write(part, {name: torch.full((2,), float(number))}, META if number == 1 else {})
    for path in (tmp_path, tmp_path / "m-00002-of-00003.gguf"):
        found = open_checkpoint(path)
        assert [found.read(name)[0].item() for name in "abc"] == [1, 2, 3]
        assert found.metadata == META
    (tmp_path / "m-00003-of-00003.gguf").unlink()
    refused(tmp_path, "00003-of-00003")


def write_parts(directory: Path, *names: str, order: tuple[int, ...] = (0, 1)) -> None:
    """The two parts of a model under these names, in this order."""
    parts = [{"a": torch.ones(2)}, {"b": torch.ones(2)}]
    for name, number in zip(names, order, strict=False):
        said = {"split.no": number, "split.count": 2} | (META if number == 0 else {})
        ggufs.write(directory / name, parts[number], said)


def test_parts_that_say_which_they_are(tmp_path: Path) -> None:
    names = ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf")
    write_parts(tmp_path, *names)
    assert set(open_checkpoint(tmp_path).tensors) == {"a", "b"}
    write_parts(tmp_path, *names, order=(1, 0))
    refused(tmp_path, "part 2 of 2")
    merged = META | {"split.no": 0, "split.count": 0}  # as llama-gguf-split leaves it
    ggufs.write(tmp_path / "merged.gguf", {"a": torch.ones(2)}, merged)
    assert set(open_checkpoint(tmp_path / "merged.gguf").tensors) == {"a"}


def test_a_part_alone(tmp_path: Path) -> None:
    """Renamed; what it lacks may be a head, in whose place the embedding would be taken."""
    write_parts(tmp_path, "model.gguf")
    refused(tmp_path, "part 1 of 2")
    said = META | {"split.no": 0, "split.count": 3}
    for number in (1, 2):
        more = said | {"split.no": number - 1}
        ggufs.write(tmp_path / f"m-0000{number}-of-00002.gguf", {f"{number}": torch.ones(1)}, more)
    refused(tmp_path / "m-00001-of-00002.gguf", "part 1 of 3")


def table(*entries: bytes) -> bytes:
    return ggufs.padded(ggufs.header(len(entries), 0) + b"".join(entries)) + bytes(256)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (table(ggufs.entry("w", (4,), 999, 0)), "type 999"),
        (table(ggufs.entry("w", (4,), 9, 0)), "type 9"),  # Q8_1: activations only
        (table(ggufs.entry("w", (2, 33), 2, 0)), "whole blocks"),
        (table(ggufs.entry("w", (), 2, 0)), "whole blocks"),
        (table(ggufs.entry("w", (4,), 0, 7)), "not aligned"),
        (table(ggufs.entry("w", (65,), 0, 0)), "cut short"),
        (table(ggufs.entry("w", (4,), 0, 2**63)), "cut short"),
        (table(ggufs.entry("w", (2**62, 2**62, 2**62, 2**62), 0, 0)), "cut short"),
        (table(ggufs.entry("v", (16,), 0, 0), ggufs.entry("w", (4,), 0, 32)), "overlaps"),
        (table(ggufs.entry("v", (16,), 0, 0), ggufs.entry("w", (4,), 0, 0)), "overlaps"),
        (table(), "no tensors"),
    ],
)
def test_a_table_that_lies(tmp_path: Path, data: bytes, expected: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    refused(path, expected)


def test_a_vocabulary_alone_says_so(tmp_path: Path) -> None:
    refused(ggufs.write(tmp_path / "v.gguf", {}, META), "--vocab")


def test_names_that_two_parts_share(tmp_path: Path) -> None:
    for number in (1, 2):
        ggufs.write(tmp_path / f"m-0000{number}-of-00002.gguf", {"a": torch.ones(1)}, META)
    refused(tmp_path, "two files")
