"""A model in memory does not depend on its files: none of them stays mapped."""

from __future__ import annotations

import gc
import os
import re
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from blazr.core.errors import CheckpointError
from blazr.models.checkpoint.base import take_rows
from blazr.models.checkpoint.open import open_checkpoint
from blazr.models.loading import load as loading
from blazr.models.loading.convert import convert
from blazr.models.loading.load import load
from blazr.nn.device import resolve_device
from blazr.nn.quant.weight import Weight
from tests.support import quantized, tiny
from tests.support.without_kernels import without_kernels

MODEL = tiny.Tiny(
    layers=("StandardTransformer",), hidden_size=256, num_heads=4,
    head_dim=64, intermediate_size=256, vocab_size=53,
)  # fmt: skip
CPU = resolve_device("cpu")
KINDS = ("Mamba1", "Mamba2", "Mamba3", "MlaWithMoe", "MlaWithMlp", "StandardTransformer")


def mapped_files(directory: Path) -> list[str]:
    """What /proc says is mapped of a directory, garbage left aside."""
    for collect in (lambda: None, gc.collect):
        collect()
        maps = Path("/proc/self/maps").read_text()
        if not (found := re.findall(rf"{re.escape(str(directory))}\S*", maps)):
            break
    return found


@pytest.mark.parametrize("quantize", [None, "q8_0"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16], ids=str)
def test_no_tensor_is_a_view_of_a_file(tmp_path: Path, stored, dtype, quantize) -> None:
    path = tiny.save(tiny.Tiny(layers=KINDS, hidden_size=64), tmp_path / "m", dtype=stored)
    model = load(str(path), device=CPU, dtype=dtype, quantize=quantize)
    assert mapped_files(path) == []
    assert model.module.training is False


@pytest.mark.sample
@pytest.mark.parametrize("kind", quantized.KINDS)
def test_nor_is_one_of_a_quantized_checkpoint(tmp_path: Path, monkeypatch, kind) -> None:
    """With room for plain numbers and without: then floats and tables stay as they are stored."""
    tiny.save(MODEL, tmp_path / "source", layout="hf")
    path = tmp_path / "model"
    quantized.quantize_directory(tmp_path / "source", kind, path, tmp_path / "plain")
    for room in (0, 0.5):
        monkeypatch.setattr(loading, "_PLAIN_SHARE", room)
        model = load(str(path), device=CPU, dtype="bfloat16")
        assert mapped_files(path) == []
        assert len(model.module.layers) == 1


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("stored", ["q8_0", "q4_0", "q4_k"])
def test_nor_is_one_of_a_gguf_file(tmp_path: Path, stored: str, *, kernels: bool) -> None:
    source = tiny.save(MODEL, tmp_path / "source", layout="hf")
    path = tmp_path / "model.gguf"
    convert(str(source), path, quantize=stored)
    with nullcontext() if kernels else without_kernels():
        model = load(str(path), device=CPU, dtype="bfloat16")
    assert mapped_files(path) == []
    assert any(isinstance(each, Weight) for each in model.module.modules())


def test_a_tensor_in_own_memory_outlives_its_file(tmp_path: Path) -> None:
    path = tiny.save(tiny.Tiny(), tmp_path / "m") / "model.safetensors"
    checkpoint = open_checkpoint(path.parent)
    info = checkpoint.tensors["embed_tokens.weight"]
    rows = take_rows(info, (range(5, 9), range(20, 22)))
    expected = checkpoint.view(info).clone(), checkpoint.view(rows).clone()
    owned = checkpoint.own(info), checkpoint.own(rows)
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    for mine, true in zip(owned, expected, strict=True):
        assert torch.equal(mine, true)


def test_what_is_used_twice_is_in_memory_once(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny.save(tiny.Tiny(), tmp_path / "m"))
    info = checkpoint.tensors["embed_tokens.weight"]
    first = checkpoint.own(info)
    assert checkpoint.own(info).data_ptr() == first.data_ptr()


@pytest.mark.parametrize("read", ["own", "view"])
@pytest.mark.parametrize("change", ["cut", "written", "replaced", "touched"])
def test_files_that_change_while_they_are_read_are_refused(
    tmp_path: Path, read: str, change: str
) -> None:
    path = tiny.save(tiny.Tiny(), tmp_path / "m") / "model.safetensors"
    checkpoint = open_checkpoint(path.parent)
    first, second, *_ = checkpoint.tensors.values()
    checkpoint.own(first)
    before = path.stat()
    if change == "cut":
        os.truncate(path, before.st_size // 2)
    elif change == "replaced":
        (tmp_path / "other").write_bytes(path.read_bytes())
        (tmp_path / "other").replace(path)
    else:
        with path.open("r+b") as file:
            file.write(bytes(100) if change == "written" else b"")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    with pytest.raises(CheckpointError, match="changed while it was being read"):
        getattr(checkpoint, read)(second)
    with pytest.raises(CheckpointError, match="changed while it was being read"):
        checkpoint.check_unchanged()
