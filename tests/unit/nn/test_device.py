"""Names of devices, and memory on them."""

from pathlib import Path

import pytest
import torch

from blazr.core import log
from blazr.core.errors import CapacityError, ConfigError
from blazr.nn import device
from blazr.nn.device import limit_threads, resolve_device, seeded, zero_bytes


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.cuda
    monkeypatch.setattr(cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "device_count", lambda: 2)
    monkeypatch.setattr(cuda, "current_device", lambda: 0)
    monkeypatch.setattr(cuda, "get_device_name", ["small", "large"].__getitem__)
    monkeypatch.setattr(cuda, "mem_get_info", [(1, 10), (2, 20)].__getitem__)


@pytest.mark.parametrize("name", ["gpu", "GPU", "cuda:", "cuda:one", "cuda:-1", "cuda:1:1"])
def test_other_names_of_a_gpu_are_told_the_right_one(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_device(name)
    assert "cuda is the name of the GPU" in caught.value.hint


@pytest.mark.parametrize("name", ["tpu", "cpu:0", "auto:1", "mps:0", ""])
def test_an_unknown_device_gets_no_such_hint(name: str) -> None:
    with pytest.raises(ConfigError, match="unknown device") as caught:
        resolve_device(name)
    assert caught.value.hint == ""


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_has_a_number() -> None:
    second = resolve_device("cuda:1")
    assert str(second) == "cuda:1 (large)"
    assert second.torch_device == torch.device("cuda", 1)
    assert (second.free_bytes(), second.total_bytes()) == (2, 20)
    for name in ("auto", "cuda", "cuda:0"):
        assert str(resolve_device(name)) == "cuda:0 (small)"
    assert resolve_device("cuda").free_bytes() == 1


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("name", ["cuda:2", "cuda:99999999999999999999"])
def test_a_gpu_that_is_not_there_is_told_from_those_that_are(name: str) -> None:
    with pytest.raises(ConfigError, match="there is no cuda:") as caught:
        resolve_device(name)
    assert caught.value.found == "cuda:0 (small), cuda:1 (large)"
    assert caught.value.expected == "one of cpu, cuda:0, cuda:1"


@pytest.mark.parametrize("name", ["cuda", "cuda:1", "xpu", "mps"])
def test_without_such_a_card_the_error_says_what_there_is(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="torch sees no such device") as caught:
        resolve_device(name)
    assert caught.value.expected == "cpu, the only one here"
    assert "--device cpu" in caught.value.hint
    assert resolve_device("auto").kind == "cpu"


def test_where_there_are_no_kernels_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log, "_seen", set())
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    monkeypatch.setattr(torch.xpu, "device_count", lambda: 1)
    monkeypatch.setattr(torch.xpu, "get_device_name", lambda _: "Arc")
    monkeypatch.setattr(torch.xpu, "mem_get_info", lambda _: (3, 4))
    found = [resolve_device("xpu") for _ in range(2)]
    assert [str(each) for each in found] == ["xpu:0 (Arc)"] * 2
    assert found[0].free_bytes() == 3
    assert found[0].supports(torch.bfloat16)
    assert len([line for line in caplog.messages if "every operation is torch's" in line]) == 1


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
def eight_processors(monkeypatch: pytest.MonkeyPatch, kernels_as_before: None) -> None:
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


def test_rows_of_other_devices_are_zeroed_run_by_run() -> None:
    assert list(device._runs([])) == []
    assert list(device._runs([7, 3, 4, 5, 9, 8])) == [(3, 6), (7, 10)]
    rows = torch.ones(4, 2, device="meta")
    device.zero_rows(rows, [2, 1])  # no list of places goes there


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(("name", "own"), [("cpu", []), ("cuda:1", [1])])
def test_a_seed_concerns_the_own_device_alone(
    name: str, own: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked for the state of its generator, a GPU that nobody uses takes memory."""
    asked, given_back = [], []
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda card: asked.append(card) or card)
    monkeypatch.setattr(
        torch.cuda, "set_rng_state", lambda state, card: given_back.append((state, card))
    )
    before = torch.random.get_rng_state()
    with seeded(torch.device(name), 3):
        first = torch.rand(4)
    assert torch.equal(torch.random.get_rng_state(), before)
    with seeded(torch.device(name), 3):
        assert torch.equal(torch.rand(4), first)
    with seeded(torch.device(name), 4):
        assert not torch.equal(torch.rand(4), first)
    cards = [torch.device(f"cuda:{index}") for index in own]
    assert asked == cards * 3
    assert given_back == [(card, card) for card in cards] * 3


@pytest.mark.parametrize("name", ["mps", "xpu:0"])
def test_a_seed_on_other_cards_forks_what_they_have(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = torch.device(name)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: there)
    card = torch.mps if name == "mps" else torch.xpu
    held = []
    monkeypatch.setattr(card, "get_rng_state", lambda *_: torch.zeros(1))
    monkeypatch.setattr(card, "set_rng_state", lambda *state: held.append(state[0]))
    with seeded(there, 3):
        torch.rand(4)
    assert [state.tolist() for state in held] == [[0.0]]
