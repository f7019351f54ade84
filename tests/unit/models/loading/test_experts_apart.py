"""Which experts stay on the CPU when a network is loaded to a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from blazr.core.errors import CapacityError, ConfigError
from blazr.llm.options import LoadOptions
from blazr.models.loading import read as reading
from blazr.models.loading.load import load
from blazr.nn.device import Device
from blazr.nn.layers.moe import Experts
from tests.support import tiny
from tests.support.quantized import quantize_directory


@dataclass(frozen=True, slots=True)
class Card(Device):
    """Has the face of a GPU, and lies in the memory of the CPU."""

    free: int = 2**30

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    def supports(self, dtype: torch.dtype) -> bool:
        return dtype == torch.float32

    def free_bytes(self) -> int:
        return self.free


@pytest.fixture
def path(tmp_path):
    tiny.save(tiny.Tiny(layers=("GqaWithMoe", "Mamba2", "MlaWithMoe")), tmp_path)
    return str(tmp_path)


@pytest.mark.parametrize("cpu_experts", [0, 1, 2, 3, 10**6])
def test_those_of_the_first_layers_stay(path, monkeypatch, cpu_experts):
    read, places = reading._read_tensor, {}

    def note(step, checkpoint, dtype, device):
        places[step.parameter] = device is reading._CPU
        return read(step, checkpoint, dtype, device)

    monkeypatch.setattr(reading, "_read_tensor", note)
    module = load(path, device=Card("cuda", "a card"), cpu_experts=cpu_experts).module
    stay = {name: part.stays for name, part in module.named_modules() if isinstance(part, Experts)}
    assert stay == {
        "layers.0.feed_forward.experts": cpu_experts >= 1,
        "layers.2.feed_forward.experts": cpu_experts >= 3,
    }
    for name, is_on_cpu in places.items():
        assert is_on_cpu == stay.get(name.rpartition(".")[0], False)


def test_on_a_cpu_all_are_where_the_rest_is(path):
    module = load(path, device=Device("cpu", "a processor"), cpu_experts=3).module
    assert not any(part.stays for part in module.modules() if isinstance(part, Experts))


def test_only_what_goes_to_the_card_has_to_fit_there(path):
    with pytest.raises(CapacityError, match="the weights need") as caught:
        load(path, device=Card("cuda", "a card", free=40_000))
    assert "--cpu-moe" in caught.value.hint
    load(path, device=Card("cuda", "a card", free=120_000), cpu_experts=3)


@pytest.mark.parametrize("free", [200_000, 2**30])
def test_those_that_stay_are_plain_if_there_is_room_where_they_are(path, tmp_path, free):
    """Floats for which the processor has no kernels; the card's room is not theirs."""
    quantize_directory(Path(path), "fp8 per matrix", tmp_path / "packed", tmp_path / "plain")
    card = Card("cuda", "a card", free=free)
    module = load(str(tmp_path / "packed"), device=card, cpu_experts=10**6).module
    experts = [part for part in module.modules() if isinstance(part, Experts)]
    assert {type(part.down_proj) for part in experts} == {torch.nn.Parameter}


@pytest.mark.parametrize(
    ("given", "layers"),
    [
        ({}, 0),
        ({"cpu_moe": True}, 10**6),
        ({"n_cpu_moe": 7}, 7),
        ({"place": "experts=cpu"}, 10**6),
    ],
)
def test_there_are_three_ways_to_say_it(given, layers):
    assert LoadOptions(**given).cpu_experts == layers


@pytest.mark.parametrize(
    "given",
    [
        {"n_cpu_moe": -1},
        {"place": "experts=cuda:1"},
        {"place": "attention=cpu"},
        {"cpu_moe": True, "adapter": "a=b"},
        {"cpu_moe": True, "tp": 2},
    ],
)
def test_what_cannot_be_is_refused(given):
    with pytest.raises(ConfigError):
        LoadOptions(**given)
