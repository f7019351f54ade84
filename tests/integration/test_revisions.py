"""--revision takes every file of a model from one commit, whatever the branch has become."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from huggingface_hub import constants
from typer.testing import CliRunner

from blazr.cli.app import app
from blazr.core.errors import ConfigError
from blazr.llm.load import load_text_engine
from blazr.llm.options import LoadOptions
from tests.support import tiny

OLD, NEW = "a" * 40, "b" * 40
SIZES = {OLD: 61, NEW: 67}  # of the vocabulary


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """The Hub's cache with two commits of one model; main is the second."""
    repo = tmp_path / "hub" / "models--org--name"
    for commit, size in SIZES.items():
        tiny.save(tiny.Tiny(vocab_size=size), repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(NEW)
    (repo / "refs" / "v1").write_text(OLD)
    return tmp_path


@pytest.mark.parametrize(
    ("revision", "commit"), [(None, NEW), ("main", NEW), ("v1", OLD), (OLD, OLD)]
)
def test_what_is_shown_and_loaded_is_of_that_commit(
    hub: Path, monkeypatch: pytest.MonkeyPatch, revision: str | None, commit: str
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(hub / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    words = [] if revision is None else ["--revision", revision]
    done = CliRunner().invoke(app, ["info", "org/name", "--json", *words])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert Path(report["path"]).name == commit
    assert report["config"]["vocab_size"] == SIZES[commit]
    options = LoadOptions("org/name", device="cpu", memory="24MiB", revision=revision)
    with closing(load_text_engine(options)) as engine:
        assert engine.info.vocab_size == SIZES[commit]


def test_what_is_here_has_no_revisions(hub: Path) -> None:
    path = hub / "hub" / "models--org--name" / "snapshots" / OLD
    for model in (str(path), "nano"):
        with pytest.raises(ConfigError, match="only a Hub id has revisions"):
            load_text_engine(LoadOptions(model, device="cpu", revision="v1"))


def test_generate_and_serve_take_the_flag() -> None:
    for command in ("generate", "run", "chat", "serve", "info"):
        done = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
        assert "--revision" in done.stdout, command
