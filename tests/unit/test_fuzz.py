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

TESTS = Path(__file__).resolve().parent.parent
GOLDEN = TESTS / "golden" / "tokenizers"
CORPORA = TESTS / "golden" / "fuzz"


@pytest.mark.parametrize("name", ["gguf", "safetensors", "adapter", "tokenizer", "template"])
def test_nothing_but_a_clear_error(name: str, tmp_path: Path) -> None:
    target, chance = fuzz.TARGETS[name](), random.Random(5)
    for _ in range(30):
        files = fuzz.changed(chance.choice(target.seeds), chance)
        assert not fuzz.attempt(target, files, tmp_path / "files").problem


@pytest.mark.parametrize("file", sorted(CORPORA.glob("*.tar.xz")), ids=lambda file: file.name)
def test_what_long_runs_have_kept_is_still_refused_clearly(file: Path, tmp_path: Path) -> None:
    target = fuzz.TARGETS[file.name.partition(".")[0]]()
    for files in fuzz.read_corpus(file):
        outcome = fuzz.attempt(target, files, tmp_path / "files")
        assert not outcome.problem
        assert outcome.refused_at


def test_a_run_goes_on_with_the_corpus_of_the_last(tmp_path: Path) -> None:
    def run(seed: int) -> list[fuzz.Files]:
        corpus = tmp_path / "corpus.tar.xz"
        fuzz.fuzz("adapter", runs=40, seed=seed, save=tmp_path / "failures", corpus=corpus)
        return fuzz.read_corpus(corpus)

    first = run(1)
    assert len(first) > 1
    assert len(run(2)) >= len(first)


def test_a_failure_is_noticed(tmp_path: Path) -> None:
    def read(directory: Path) -> None:
        raise KeyError(directory)

    outcome = fuzz.attempt(fuzz.Target(read, ()), {"a": b"1"}, tmp_path / "files")
    assert "KeyError" in outcome.problem


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
