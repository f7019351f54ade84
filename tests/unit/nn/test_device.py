"""Names of devices, and memory on them."""

from pathlib import Path

import pytest
import torch

from blazr.core.errors import CapacityError, ConfigError
from blazr.nn import device
from blazr.nn.device import limit_threads, resolve_device, zero_bytes


@pytest.mark.parametrize("name", ["gpu", "GPU", "cuda:0"])
def test_other_names_of_a_gpu_are_told_the_right_one(name: str) -> None:
    with pytest.raises(ConfigError, match="cuda is the name of the GPU"):
        resolve_device(name)


def test_an_unknown_device_gets_no_such_hint() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_device("tpu")
    assert caught.value.hint == ""


@pytest.mark.parametrize("size", [0, 100, 3 * 2**21 + 5])
def test_fresh_memory_is_zero_and_ours(size: int) -> None:
    memory = zero_bytes(torch.Size((size,)))
    assert memory.shape == (size,)
    assert not memory.any()
    memory.fill_(1)
    assert not zero_bytes(torch.Size((size,))).any()


def test_memory_that_the_system_does_not_give_is_told() -> None:
    with pytest.raises(CapacityError, match="--memory"):
        zero_bytes(torch.Size((2**60,)))


def test_a_control_group_bounds_the_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(device, "_CONTROL_GROUP", tmp_path)
    whole = resolve_device("cpu").total_bytes()
    assert whole >= resolve_device("cpu").free_bytes()
    (tmp_path / "memory.max").write_text("max")
    assert resolve_device("cpu").total_bytes() == whole
    (tmp_path / "memory.max").write_text("1000")
    assert resolve_device("cpu").total_bytes() == 1000


@pytest.fixture
def eight_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(device, "_NUM_THREADS", 8)
    torch.set_num_threads(8)


@pytest.mark.usefixtures("eight_processors")
@pytest.mark.parametrize(
    ("granted", "num_threads"),
    [
        ("200000 100000", 2),
        ("150000 100000", 2),
        ("50000 100000", 1),
        ("max 100000", 8),
        ("1600000 100000", 8),
        ("", 8),
        (None, 8),
    ],
)
def test_threads_are_no_more_than_a_control_group_grants(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, granted: str | None, num_threads: int
) -> None:
    if granted is not None:
        (tmp_path / "cpu.max").write_text(granted)
    monkeypatch.setattr(device, "_CONTROL_GROUP", tmp_path)
    limit_threads()
    assert torch.get_num_threads() == num_threads


@pytest.mark.usefixtures("eight_processors")
def test_threads_that_somebody_chose_are_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cpu.max").write_text("200000 100000")
    monkeypatch.setattr(device, "_CONTROL_GROUP", tmp_path)
    torch.set_num_threads(5)
    limit_threads()
    assert torch.get_num_threads() == 5
    torch.set_num_threads(8)
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    limit_threads()
    assert torch.get_num_threads() == 8
