"""Packed weights that are kept: the same ones at the next start, and nothing out of date."""

from __future__ import annotations

import logging
import shutil
from importlib.resources import files
from pathlib import Path

import pytest
import torch

from blazr.models.loading import kept as keeping
from blazr.models.loading import read as reading
from blazr.models.loading.load import load
from blazr.nn.device import Device, resolve_device
from blazr.nn.kernels.cpu import compiled
from blazr.nn.quant.packed import PackedWeight

pytestmark = pytest.mark.skipif(bool(compiled.missing()), reason="the kernels are not compiled")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Where weights are kept."""
    monkeypatch.setenv("BLAZR_KEEP_PACKED", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "blazr"


@pytest.fixture
def model(tmp_path):
    """A model whose files may be changed."""
    path = tmp_path / "small"
    shutil.copytree(Path(str(files("blazr") / "data" / "nano")), path)
    return path


def packed(model: Path, quantize: str = "q4_0") -> dict[str, PackedWeight]:
    loaded = load(str(model), device=resolve_device("cpu"), quantize=quantize)
    modules = loaded.module.named_modules()
    return {name: each for name, each in modules if isinstance(each, PackedWeight)}


def are_same(some: dict[str, PackedWeight], others: dict[str, PackedWeight]) -> bool:
    assert some.keys() == others.keys()
    return all(
        torch.equal(each.blocks, others[name].blocks)
        and each.shape == others[name].shape
        and (each.row_scales is None) == (others[name].row_scales is None)
        and (each.row_scales is None or torch.equal(each.row_scales, others[name].row_scales))
        for name, each in some.items()
    )


@pytest.mark.parametrize("quantize", ["q4_0", "int8", "q4_k", "experts=int4"])
def test_the_next_start_has_the_same_weights(home, model, quantize, monkeypatch):
    first = packed(model, quantize)
    assert first
    assert len(list(home.glob("*.safetensors"))) == 1
    monkeypatch.setattr("blazr.models.loading.read.read_weight", None)  # nobody asks for it
    assert are_same(first, packed(model, quantize))


def test_nothing_is_kept_unless_asked_for(home, model, monkeypatch):
    monkeypatch.delenv("BLAZR_KEEP_PACKED")
    assert packed(model)
    assert not home.exists()


def test_each_way_of_loading_has_its_own(home, model):
    some, other = packed(model, "q4_0"), packed(model, "q8_0")
    assert len(list(home.iterdir())) == 2
    assert are_same(some, packed(model, "q4_0"))
    assert are_same(other, packed(model, "q8_0"))


def test_changed_files_are_packed_again_and_the_old_ones_go(home, model):
    packed(model)
    (before,) = home.iterdir()
    weights = model / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-3000:] = bytes(3000)
    weights.write_bytes(raw)
    second = packed(model)
    (after,) = home.iterdir()
    assert after != before
    assert are_same(second, packed(model))


def test_other_layouts_are_packed_again(home, model, monkeypatch):
    first = packed(model)
    (before,) = home.iterdir()
    monkeypatch.setattr(keeping, "layouts", lambda: "other")
    assert are_same(first, packed(model))
    (after,) = home.iterdir()
    assert after != before


@pytest.mark.parametrize("length", [0, 7, 2000])
def test_a_file_that_is_cut_short_is_written_again(home, model, length, caplog):
    first = packed(model)
    (path,) = home.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:length])
    with caplog.at_level(logging.WARNING):
        assert are_same(first, packed(model))
    assert "written again" in caplog.text
    assert path.read_bytes() == whole


@pytest.mark.parametrize("cpu_experts", [0, 10**6])
def test_what_goes_to_a_gpu_is_not_taken_from_what_is_kept(home, model, monkeypatch, cpu_experts):
    first = packed(model)
    asked = set()
    read_weight, read_tensor = reading.read_weight, reading._read_tensor

    def note(step, checkpoint, storing, *, dtype, device):
        assert device == torch.device("cuda")
        asked.add(step.parameter)
        return read_weight(step, checkpoint, storing, dtype=dtype, device=torch.device("cpu"))

    def stay(step, checkpoint, dtype, _):
        return read_tensor(step, checkpoint, dtype, torch.device("cpu"))

    monkeypatch.setattr(reading, "read_weight", note)
    monkeypatch.setattr(reading, "_read_tensor", stay)
    load(
        str(model),
        device=Device("cuda", "a card"),
        dtype=str(next(iter(first.values())).dtype).removeprefix("torch."),
        quantize="q4_0",
        free_bytes=2**30,
        cpu_experts=cpu_experts,
    )
    stay = {name for name in first if ".experts." in name and cpu_experts}
    assert asked == first.keys() - stay


def test_without_room_the_model_loads_all_the_same(home, model, caplog):
    home.parent.mkdir()
    home.write_text("a file where the directory should be")
    with caplog.at_level(logging.WARNING):
        assert packed(model)
    assert "not kept" in caplog.text
