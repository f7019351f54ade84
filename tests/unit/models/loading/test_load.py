"""Weights arrive where they belong, in the dtype asked for, and problems are named."""

import json
import logging
import math
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from blazr.core.errors import CapacityError, CheckpointError, ConfigError, UnknownNameError
from blazr.models.loading import storage
from blazr.models.loading.load import load
from blazr.models.loading.plan import plan_model
from blazr.models.loading.storage import choose_dtype
from blazr.nn.device import Device, resolve_device
from blazr.nn.kernels.cpu import compiled
from tests.support import tiny
from tests.support.tiny import Tiny
from tests.support.without_kernels import without_kernels

CPU = resolve_device("cpu")
KINDS = ("Mamba1", "Mamba2", "Mamba3", "MlaWithMoe", "MlaWithMlp", "StandardTransformer")


@dataclass(frozen=True)
class Machine(Device):
    """A CPU of chosen abilities."""

    dtypes: tuple[torch.dtype, ...] = (torch.float32,)
    free: int = 10**12

    def supports(self, dtype: torch.dtype) -> bool:
        return dtype in self.dtypes

    def free_bytes(self) -> int:
        return self.free


PLAIN = Machine("cpu", "no bfloat16")
MODERN = Machine("cpu", "bfloat16", dtypes=(torch.float32, torch.bfloat16))


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4), st.integers(0, 2**31))
def test_every_stored_number_arrives_once(tmp_path_factory, kinds: list[str], seed: int) -> None:
    """Whatever the layers: the sum over parameters is the sum over tensors, and so is the count."""
    model = Tiny(layers=tuple(kinds))
    path = tiny.save(model, tmp_path_factory.getbasetemp() / "arrives", seed=seed)
    stored = load_file(path / "model.safetensors")
    module = load(str(path), device=CPU).module
    parameters = list(module.state_dict().values())
    assert sum(p.numel() for p in parameters) == sum(t.numel() for t in stored.values())
    total = sum(p.double().square().sum().item() for p in parameters)
    wanted = sum(t.double().square().sum().item() for t in stored.values())
    assert math.isclose(total, wanted, rel_tol=1e-9)


def test_stacked_experts_and_squeezed_kernels(tmp_path: Path) -> None:
    path = tiny.save(Tiny(), tmp_path)
    stored = load_file(path / "model.safetensors")
    found = load(str(path), device=CPU).module.state_dict()
    for index in range(4):
        name = f"layers.1.moe.experts.{index}.down_proj.weight"
        assert torch.equal(found["layers.1.feed_forward.experts.down_proj"][index], stored[name])
    kernel = stored["layers.0.mamba2.mixer.conv1d.weight"]
    assert torch.equal(found["layers.0.mixer.conv1d.weight"], kernel[:, 0])


def test_the_result_says_what_it_is(tmp_path: Path) -> None:
    path = tiny.save(Tiny(), tmp_path / "my-model")
    found = load(str(path / "model.safetensors"), device=CPU)
    assert (found.name, found.family, found.directory) == ("model", "oxidizr", path)
    found = load(str(path), device=CPU)
    assert (found.name, found.path, found.directory) == ("my-model", path, path)
    assert found.metadata["hidden_size"] == 32
    assert found.config is found.module.config
    assert not found.module.training
    assert not any(p.requires_grad for p in found.module.parameters())


def test_the_same_weights_in_shards(tmp_path: Path) -> None:
    whole = tiny.save(Tiny(), tmp_path / "whole")
    stored = list(load_file(whole / "model.safetensors").items())
    sharded = tmp_path / "sharded"
    sharded.mkdir()
    (sharded / "config.json").write_bytes((whole / "config.json").read_bytes())
    where = {}
    for number in range(24):
        part = dict(stored[number::24])
        name = f"model-{number + 1:05}-of-00024.safetensors"
        save_file(part, sharded / name)
        where |= dict.fromkeys(part, name)
    index = sharded / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": where}))
    for _ in range(2):  # with the index, then without
        first = load(str(whole), device=CPU).module.state_dict()
        second = load(str(sharded), device=CPU).module.state_dict()
        assert all(torch.equal(first[name], second[name]) for name in first)
        index.unlink(missing_ok=True)


# dtypes


@pytest.mark.parametrize(
    ("stored", "device", "wanted", "found"),
    [
        (torch.float32, PLAIN, "auto", torch.float32),
        (torch.bfloat16, PLAIN, "auto", torch.float32),
        (torch.bfloat16, MODERN, "auto", torch.float32),  # so few weights that it costs nothing
        (torch.bfloat16, MODERN, "bf16", torch.bfloat16),
        (torch.float16, MODERN, "auto", torch.float32),
        (torch.float64, MODERN, "auto", torch.float32),
        (torch.float16, PLAIN, "float16", torch.float16),
        (torch.float32, PLAIN, "bfloat16", torch.bfloat16),
        (torch.bfloat16, MODERN, "f32", torch.float32),
    ],
)
def test_dtypes(tmp_path: Path, stored, device: Machine, wanted: str, found) -> None:
    path = tiny.save(Tiny(), tmp_path, dtype=stored)
    module = load(str(path), device=device, dtype=wanted).module
    assert {p.dtype for p in module.parameters()} == {found}
    original = load_file(path / "model.safetensors")["layers.0.mamba2.mixer.D"]
    assert torch.equal(module.state_dict()["layers.0.mixer.d"], original.to(found))


def test_mixed_files_take_the_dtype_of_most_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "SMALL_BYTES", 0)
    path = tiny.save(Tiny(), tmp_path, dtype=torch.bfloat16)
    stored = load_file(path / "model.safetensors")
    stored["norm.weight"] = stored["norm.weight"].float()
    save_file(stored, path / "model.safetensors")
    assert chosen(path, MODERN) == torch.bfloat16


def chosen(path: Path, device: Device, **config: float) -> torch.dtype:
    planned = plan_model(str(path))
    shape = replace(planned.derivation.config, **config)
    return choose_dtype("auto", planned.plan, device, shape)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_kernels_keep_weights_as_stored_without_instructions_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: torch.dtype
) -> None:
    monkeypatch.setattr(storage, "SMALL_BYTES", 0)
    path = tiny.save(Tiny(), tmp_path, dtype=stored)
    with without_kernels():
        assert chosen(path, PLAIN) == torch.float32
    assert chosen(path, PLAIN) == (torch.float32 if compiled.missing() else stored)


def test_float16_is_widened_where_embeddings_are_scaled_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "SMALL_BYTES", 0)
    path = tiny.save(Tiny(), tmp_path, dtype=torch.float16)
    assert chosen(path, PLAIN, embedding_multiplier=48.0) == torch.float32


def test_an_unknown_dtype_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    path = tiny.save(Tiny(), tmp_path)
    with pytest.raises(UnknownNameError, match="float33") as caught:
        load(str(path), device=CPU, dtype="float33")
    assert "float32" in caught.value.hint


def test_weights_of_whole_numbers_are_refused(tmp_path: Path) -> None:
    path = tiny.save(Tiny(), tmp_path)
    stored = load_file(path / "model.safetensors")
    stored["norm.weight"] = stored["norm.weight"].to(torch.int8)
    save_file(stored, path / "model.safetensors")
    with pytest.raises(CheckpointError, match="quantized"):
        load(str(path), device=CPU)


# memory


def test_a_model_that_does_not_fit_is_refused_with_both_figures(tmp_path: Path) -> None:
    path = tiny.save(Tiny(), tmp_path, dtype=torch.bfloat16)
    with pytest.raises(CapacityError, match=r"need about [\d.]+ kB, 1 kB are free"):
        load(str(path), device=Machine("cpu", "small", free=1000))


def test_weights_that_are_taken_as_they_are_need_memory_too(tmp_path: Path) -> None:
    path = tiny.save(Tiny(layers=("Mamba2",)), tmp_path)
    with pytest.raises(CapacityError, match=r"need about [\d.]+ kB, 1 kB are free"):
        load(str(path), device=Machine("cpu", "small", free=1000))


# warnings


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["norm.weight", "layers.1.moe.experts.2.up_proj.weight"])
def test_numbers_that_are_not_finite_are_named(tmp_path: Path, caplog, name: str, bad) -> None:
    path = tiny.save(Tiny(), tmp_path)
    stored = load_file(path / "model.safetensors")
    stored[name].view(-1)[3] = bad
    save_file(stored, path / "model.safetensors")
    load(str(path), device=CPU)
    assert f"1 tensors hold NaN or infinity: {name}" in caplog.text


def test_a_sound_model_loads_in_silence(tmp_path: Path, caplog) -> None:
    load(str(tiny.save(Tiny(), tmp_path)), device=CPU)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_stale_configs_and_assumptions_are_logged(tmp_path: Path, caplog) -> None:
    load(str(tiny.save(Tiny(), tmp_path / "a", changes={"num_layers": 9})), device=CPU)
    assert "num_layers = 9" in caplog.text
    load(str(tiny.save(Tiny(), tmp_path / "b", layout="bare")), device=CPU)
    assert "assuming mamba2_n_groups = 1" in caplog.text


# decay rates


def decay_rates(path: Path, **options: str) -> torch.Tensor:
    module = load(str(path), device=CPU, **options).module
    return module.state_dict()["layers.0.mixer.a_log"]


@pytest.mark.parametrize("kind", ["Mamba2", "Mamba3"])
def test_ssm_a_replaces_the_decay_rates(tmp_path: Path, kind: str) -> None:
    model = Tiny(layers=(kind, "MlaWithMlp"))
    path = tiny.save(model, tmp_path / "a")
    trained = torch.arange(1.0, 9).log()
    assert not torch.allclose(decay_rates(path), trained)
    assert torch.equal(decay_rates(path, ssm_a="trained"), trained)
    path = tiny.save(model, tmp_path / "b", changes={"ssm_a": "trained"})
    assert torch.equal(decay_rates(path), trained)
    assert not torch.allclose(decay_rates(path, ssm_a="stored"), trained)


@pytest.mark.parametrize("changes", [{"ssm_a": "learned"}, {"ssm_a": 3}])
def test_an_unknown_ssm_a_is_refused(tmp_path: Path, changes) -> None:
    with pytest.raises(ConfigError, match="ssm_a"):
        load(str(tiny.save(Tiny(), tmp_path, changes=changes)), device=CPU)


def test_untrained_decay_rates_are_mentioned(tmp_path: Path, caplog) -> None:
    path = tiny.save(Tiny(layers=("Mamba2",), ssm_heads=16, ssm_head_dim=4), tmp_path)
    stored = load_file(path / "model.safetensors")
    stored["layers.0.mamba2.mixer.A_log"] *= 0.01
    save_file(stored, path / "model.safetensors")
    caplog.set_level(logging.INFO)
    load(str(path), device=CPU)
    assert "ssm_a = 'trained'" in caplog.text


# training_config.json

TRAINED = {"hidden_size": 32, "num_layers": 1, "vocab_size": 61, "num_heads": 4}


def save_with_notes(directory: Path, notes: object) -> str:
    path = tiny.save(Tiny(layers=("StandardTransformer",)), directory, layout="bare")
    (path / "training_config.json").write_text(json.dumps(notes))
    return str(path)


def test_the_training_notes_tell_the_heads_as_a_last_resort(tmp_path: Path) -> None:
    found = plan_model(save_with_notes(tmp_path, {"config": {"model": TRAINED}})).derivation
    assert found.config.layers[0].mixer.num_heads == 4
    assert any(v.source == "training_config.json: config: model: num_heads" for v in found.values)


@pytest.mark.parametrize(
    "notes",
    [
        {"config": {"model": TRAINED | {"hidden_size": 64}}},
        {"config": {"model": {"num_heads": 4}}},
        {"config": {}},
        {},
    ],
)
def test_notes_about_another_model_are_not_used(tmp_path: Path, notes: object) -> None:
    with pytest.raises(CheckpointError, match="cannot be read from tensor shapes"):
        plan_model(save_with_notes(tmp_path, notes))


def test_progress_goes_from_nothing_to_all(tmp_path: Path) -> None:
    source = tiny.save(Tiny(layers=("Mamba2", "MlaWithMoe")), tmp_path / "a")
    seen: list[tuple[int, int]] = []
    load(str(source), device=CPU, progress=lambda *now: seen.append(now))
    total = sum(info.nbytes for step in plan_model(str(source)).plan.steps for info in step.sources)
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == ((0, total), (total, total))
    assert len(seen) > 10
