"""Converted checkpoints load with the numbers that quantizing at load makes."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from blazr.cli.convert import convert as command
from blazr.core.errors import ConfigError, UnknownNameError
from blazr.models.loading import convert as module
from blazr.models.loading.convert import convert
from blazr.models.loading.load import load
from blazr.nn.device import resolve_device
from blazr.nn.quant.weight import Weight
from tests.support import tiny
from tests.support.tiny import Tiny

CPU = resolve_device("cpu")
HYBRID = Tiny(layers=("Mamba2", "MlaWithMoe"), hidden_size=128, intermediate_size=64, kv_latent=32)
LLAMA = Tiny(layers=("StandardTransformer",), hidden_size=128, intermediate_size=256)


def numbers(path: Path, quantize: str | None = None) -> dict[str, torch.Tensor]:
    """All weights of a model as float32, by parameter."""
    loaded = load(str(path), device=CPU, dtype="float32", quantize=quantize).module
    found = {name: each.detach() for name, each in loaded.named_parameters()}
    for name, part in loaded.named_modules():
        inside = any(f"{name}.".startswith(f"{other}.") for other in found if other != name)
        if isinstance(part, Weight) and not inside:
            found[name] = part.dequantize(torch.float32)
    return found


@pytest.mark.parametrize("quantize", ["q8_0", "q4_0", "int8", "int4", "experts=int4,mixer=q8_0"])
@pytest.mark.parametrize("model", [HYBRID, LLAMA])
def test_it_loads_with_the_same_numbers(model: Tiny, quantize: str, tmp_path: Path) -> None:
    layout = "hf" if model is LLAMA else "oxidizr"
    source = tiny.save(model, tmp_path / "a", layout=layout)
    seen: list[tuple[int, int]] = []
    made = convert(
        str(source), tmp_path / "b", quantize=quantize, progress=lambda *now: seen.append(now)
    )
    expected, found = numbers(source, quantize), numbers(made.path)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    assert made.num_quantized >= 1
    assert made.nbytes < sum(t.nbytes for t in load_file(source / "model.safetensors").values())
    assert seen == sorted(seen)
    assert seen[0][0] == 0
    assert len({total for _, total in seen}) == 1
    assert seen[-1][0] == seen[-1][1]


def test_without_a_quantization_the_dtype_changes(tmp_path: Path) -> None:
    source = tiny.save(LLAMA, tmp_path / "a", layout="hf")
    convert(str(source), tmp_path / "b", dtype="bfloat16")
    for name, tensor in load_file(tmp_path / "b" / "model.safetensors").items():
        assert torch.equal(tensor, load_file(source / "model.safetensors")[name].bfloat16())


def test_a_quantized_model_can_be_made_plain_again_or_otherwise(tmp_path: Path) -> None:
    source = tiny.save(LLAMA, tmp_path / "a", layout="hf")
    convert(str(source), tmp_path / "b", quantize="int4")
    convert(str(tmp_path / "b"), tmp_path / "c", dtype="float32")
    config = json.loads((tmp_path / "c" / "config.json").read_text())
    assert "quantization_config" not in config
    for name, tensor in numbers(tmp_path / "b").items():
        assert torch.equal(numbers(tmp_path / "c")[name], tensor)
    convert(str(tmp_path / "b"), tmp_path / "d", quantize="q8_0")
    assert numbers(tmp_path / "d").keys() == numbers(source).keys()


def test_settings_among_those_of_the_language_model_are_not_kept(tmp_path: Path) -> None:
    source = tiny.save(LLAMA, tmp_path / "a", layout="hf")
    convert(str(source), tmp_path / "b", quantize="int4")
    path = tmp_path / "b" / "config.json"
    config = json.loads(path.read_text())
    config["text_config"] = {"quantization_config": config.pop("quantization_config"), "x": 1}
    path.write_text(json.dumps(config))
    convert(str(tmp_path / "b"), tmp_path / "c", dtype="float32")
    config = json.loads((tmp_path / "c" / "config.json").read_text())
    assert config["text_config"] == {"x": 1}
    for name, tensor in numbers(tmp_path / "b").items():
        assert torch.equal(numbers(tmp_path / "c")[name], tensor)


def test_files_beside_the_weights_come_along(tmp_path: Path) -> None:
    source = tiny.save(LLAMA, tmp_path / "a", layout="hf")
    beside = {
        *("tokenizer.json", "tokenizer.model", "tekken.json", "tokenizer_config.json"),
        *("generation_config.json", "chat_template.jinja"),
        *("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json"),
        "additional_chat_templates/tool_use.jinja",
    }
    (source / "additional_chat_templates").mkdir()
    for name in (*beside, "notes.txt"):
        (source / name).write_text(name)
    out = tmp_path / "b"
    convert(str(source), out, quantize="q8_0")
    there = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert there == {"model.safetensors", "config.json", *beside}


def test_nothing_is_left_behind_after_an_error(tmp_path: Path, monkeypatch) -> None:
    source = tiny.save(LLAMA, tmp_path / "a", layout="hf")
    with pytest.raises(UnknownNameError):
        convert(str(source), tmp_path / "b", quantize="q9")
    assert not (tmp_path / "b").exists()

    def fail(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(str(source), tmp_path / "b", quantize="q8_0", progress=fail)
    assert not (tmp_path / "b").exists()
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "file").write_text("mine")
    with pytest.raises(ConfigError, match="in use"):
        convert(str(source), tmp_path / "c", quantize="q8_0")
    assert (tmp_path / "c" / "file").read_text() == "mine"


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("number", "name"),
    [
        (signal.SIGTERM, "converted"),
        (signal.SIGTERM, "converted.gguf"),
        (signal.SIGHUP, "converted"),
        (signal.SIGINT, "converted.gguf"),
    ],
)
def test_nothing_is_left_behind_after_a_signal(number: int, name: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert _end_in_the_middle(number, tmp_path, name) == 128 + number
    assert not [*(tmp_path / "out").iterdir()]


@pytest.mark.parametrize("name", ["converted", "converted.gguf"])
def test_what_is_left_behind_after_a_crash_is_no_model(name: str, tmp_path: Path) -> None:
    assert _end_in_the_middle(signal.SIGKILL, tmp_path, name) == -signal.SIGKILL
    left = {path.suffix for path in tmp_path.joinpath("out").rglob("*")}
    assert ".partial" in left
    assert left.isdisjoint({".safetensors", ".gguf"})


def test_what_a_crash_has_left_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _end_in_the_middle(signal.SIGKILL, tmp_path, "converted") == -signal.SIGKILL
    out = tmp_path / "out" / "converted"
    beside = out / "tokenizer.json"  # a conversion may write one of that name, but did not
    beside.write_text("mine")
    with pytest.raises(ConfigError, match="a conversion that was stopped"):
        convert(str(tmp_path / "source"), out)
    assert beside.read_text() == "mine"
    beside.unlink()
    (left,) = out.iterdir()
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(
        shutil, "disk_usage", lambda _: usage._replace(free=0 if [*left.iterdir()] else 2**40)
    )
    convert(str(tmp_path / "source"), out)
    assert {each.name for each in out.iterdir()} == {"config.json", "model.safetensors"}


def test_two_do_not_write_to_one_directory(tmp_path: Path) -> None:
    source = tiny.save(LLAMA, tmp_path / "a", layout="hf")
    out = tmp_path / "b"
    out.mkdir()
    descriptor = os.open(out, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(ConfigError, match="another process"):
        convert(str(source), out)
    os.close(descriptor)
    convert(str(source), out)
    assert numbers(out).keys() == numbers(source).keys()


def test_a_directory_that_was_filled_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tiny.save(LLAMA, tmp_path / "a", layout="hf")
    out = tmp_path / "b"
    plan = module.plan_model

    def plan_slowly(model: str) -> object:
        out.mkdir()
        (out / "model.safetensors.partial").write_text("theirs")
        return plan(model)

    monkeypatch.setattr(module, "plan_model", plan_slowly)
    with pytest.raises(ConfigError, match="in use"):
        convert(str(source), out)
    assert (out / "model.safetensors.partial").read_text() == "theirs"


def test_what_others_write_meanwhile_stays_after_an_error(tmp_path: Path) -> None:
    source = tiny.save(LLAMA, tmp_path / "a", layout="hf")
    out = tmp_path / "b"

    def fail(done: int, total: int) -> None:
        (out / "notes").write_text("theirs")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(str(source), out, progress=fail)
    assert [each.name for each in out.iterdir()] == ["notes"]


def test_a_hangup_that_is_ignored_ends_nothing(tmp_path: Path) -> None:
    assert _end_in_the_middle(signal.SIGHUP, tmp_path, "converted", before="nohup") == 0
    assert (tmp_path / "out" / "converted" / "model.safetensors").exists()


def _end_in_the_middle(number: int, folder: Path, name: str, *, before: str = "") -> int:
    """Send a signal to ``blazr convert`` when the last tensor is written; its exit status."""
    source = tiny.save(LLAMA, folder / "source", layout="hf")
    program = f"""
import os, signal, sys
from blazr.models.loading import convert

def then_signal(function):
    def run(*args):
        function(*args)
        os.kill(os.getpid(), {int(number)})
    return run

convert._write_config = then_signal(convert._write_config)
convert.write_gguf = then_signal(convert.write_gguf)
sys.argv = ["blazr", "convert", {str(source)!r}, {str(folder / "out" / name)!r}]
from blazr.__main__ import main
main()
"""
    # a parent that ignores signals leaves that to its children
    usual = ["env", "--default-signal=HUP,INT,TERM", *before.split()]
    command = [*usual, sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode


@pytest.mark.parametrize("is_link", [False, True])
def test_an_empty_directory_stays_after_an_error(is_link: bool, tmp_path: Path) -> None:
    source = tiny.save(LLAMA, tmp_path / "a", layout="hf")
    out = tmp_path / "b"
    out.mkdir()
    if is_link:
        out = tmp_path / "c"
        out.symlink_to("b")
    place = out.stat().st_ino

    def fail(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(str(source), out, progress=fail)
    assert out.stat().st_ino == place
    assert not [*out.iterdir()]


def test_a_directory_gets_no_name_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="would be a directory"):
        convert(str(tmp_path), tmp_path / "model.safetensors")


def test_a_full_disk_is_told_first(tmp_path: Path, monkeypatch) -> None:
    source = tiny.save(LLAMA, tmp_path / "a", layout="hf")
    free = shutil.disk_usage(tmp_path)._replace(free=2000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    with pytest.raises(module.CapacityError) as raised:
        convert(str(source), tmp_path / "b", quantize="q8_0")
    # with what is left free, and in units that show something of a tiny model
    assert raised.value.found.startswith("2 kB are free in ")
    assert re.fullmatch(r"67\.[1-9] MB", raised.value.expected)
    assert not (tmp_path / "b").exists()


def test_a_place_that_takes_nothing_is_not_called_full(tmp_path: Path, monkeypatch) -> None:
    source = tiny.save(LLAMA, tmp_path / "a", layout="hf")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)  # whoever runs the tests may write anywhere
    with pytest.raises(module.CapacityError) as raised:
        convert(str(source), tmp_path / "b")
    assert raised.value.expected == "a place where this user may write"


def test_the_command_says_what_it_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tiny.save(LLAMA, tmp_path / "a", layout="hf")
    command(str(source), tmp_path / "b", quantize="int8", as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["quantized"] == 9
    assert found["plain"] == 3
    weights = load_file(tmp_path / "b" / "model.safetensors").values()
    assert found["bytes"] == sum(tensor.nbytes for tensor in weights)
    command(str(source), tmp_path / "c", dtype="bfloat16")
    assert "0 matrices quantized" in capsys.readouterr().out


def test_what_safetensors_cannot_hold_is_told(tmp_path: Path) -> None:
    source = tiny.save(LLAMA, tmp_path / "a", layout="hf")
    with pytest.raises(ConfigError, match="cannot hold") as caught:
        convert(str(source), tmp_path / "b", quantize="q4_k")
    assert ".gguf" in str(caught.value)
    assert "q4_0" in caught.value.expected
    gguf = Path(__file__).parents[3] / "golden" / "gguf" / "stories260K-q4_0.gguf"
    with pytest.raises(ConfigError, match="GGUF"):
        convert(str(gguf), tmp_path / "b")
