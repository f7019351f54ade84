"""Every file format: what is written is read, and no damage is more than an error."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from blazr.core.errors import CheckpointError
from blazr.models.checkpoint import FORMATS
from blazr.models.checkpoint.open import open_checkpoint
from tests.support import ggufs


def save_gguf(tensors: dict[str, Tensor], path: Path) -> None:
    ggufs.write(path, tensors, {"general.architecture": "llama", "x.names": ["a", "b"]})


WRITERS: Mapping[str, Callable[[dict[str, Tensor], Path], None]] = {
    "safetensors": save_file,
    "gguf": save_gguf,
}
TENSORS = {
    "a": torch.arange(12.0).view(3, 4),
    "b": torch.tensor([1.5, -2.0]).bfloat16(),
    "c": torch.zeros(0, 7),
    "d": torch.tensor(3.0).half(),
}
# What a format has no way to store.
IMPOSSIBLE = {"safetensors": set(), "gguf": {"c"}}


def test_every_format_has_a_writer_here() -> None:
    assert set(WRITERS) == set(FORMATS)


def write(name: str, directory: Path) -> Path:
    path = directory / f"model.{name}"
    WRITERS[name](stored_in(name), path)
    return path


def stored_in(name: str) -> dict[str, Tensor]:
    return {key: each for key, each in TENSORS.items() if key not in IMPOSSIBLE[name]}


@pytest.mark.parametrize("name", FORMATS)
def test_write_then_read(name: str, tmp_path: Path) -> None:
    found = open_checkpoint(write(name, tmp_path))
    assert set(found.tensors) == set(stored_in(name))
    for key, tensor in stored_in(name).items():
        read = found.read(key)
        assert read.dtype == tensor.dtype
        assert torch.equal(read, tensor)


@pytest.mark.parametrize("name", FORMATS)
def test_a_cut_anywhere_is_an_error(name: str, tmp_path: Path) -> None:
    path = write(name, tmp_path)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            open_checkpoint(path)


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
def test_spoiled_bytes_are_an_error_or_read(
    name: str, data: st.DataObject, tmp_path_factory
) -> None:
    directory = tmp_path_factory.getbasetemp() / f"spoiled-{name}"
    directory.mkdir(exist_ok=True)
    path = write(name, directory)
    whole = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path.unlink()  # a new file, so that mappings of the old one stay whole
    path.write_bytes(whole)
    with suppress(CheckpointError):
        found = open_checkpoint(path)
        for key in found.tensors:
            found.read(key)
