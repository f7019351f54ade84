"""A short run of the fuzzer of every reader, and the inputs that once broke one."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from blazr.core.errors import CheckpointError, ConfigError
from blazr.models.adapters.read import read_adapter
from blazr.text.tokenizers.hf import load
from tools import fuzz

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "tokenizers"


@pytest.mark.parametrize("name", ["gguf", "safetensors", "adapter", "tokenizer", "template"])
def test_nothing_but_a_clear_error(name: str, tmp_path: Path) -> None:
    target, chance = fuzz.TARGETS[name](), random.Random(5)
    for _ in range(30):
        files = fuzz.changed(chance.choice(target.seeds), chance)
        assert fuzz.attempt(target, files, tmp_path / "files") is None


def test_a_failure_is_noticed(tmp_path: Path) -> None:
    def read(directory: Path) -> None:
        raise KeyError(directory)

    problem = fuzz.attempt(fuzz.Target(read, ()), {"a": b"1"}, tmp_path / "files")
    assert problem is not None
    assert "KeyError" in problem


@pytest.fixture
def byte_level(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "byte_level", tmp_path / "model"))


def test_a_name_that_is_no_text_is_no_name(byte_level: Path) -> None:
    (byte_level / "tokenizer_config.json").write_text(json.dumps({"bos_token": "\ud800"}))
    assert load(str(byte_level / "tokenizer.json")).bos_id is None


def test_what_the_library_panics_over_is_refused(byte_level: Path) -> None:
    file = byte_level / "tokenizer.json"
    whole = json.loads(file.read_text())
    whole["model"]["continuing_subword_prefix"] = "much longer than any token"
    file.write_text(json.dumps(whole))
    with pytest.raises(CheckpointError, match="not sound"):
        load(str(file))


@pytest.mark.parametrize(
    "spoiled",
    [
        {"alpha_pattern": {"q_proj": None}},
        {"rank_pattern": {"q_proj": None}},
        {"alpha_pattern": {"[[]]": 2}},
        {"lora_alpha": 10**400},
        {"alpha_pattern": {"q_proj": 10**400}},
    ],
)
def test_scales_of_adapters_that_are_no_numbers_are_refused(
    spoiled: dict[str, object], tmp_path: Path
) -> None:
    for name, data in fuzz.TARGETS["adapter"]().seeds[0].items():
        (tmp_path / name).write_bytes(data)
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | spoiled))
    with pytest.raises(ConfigError, match="is wrong"):
        read_adapter(tmp_path)
