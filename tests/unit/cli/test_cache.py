"""Fetching, listing and removing models, in a cache of our own and without a network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from huggingface_hub import constants
from huggingface_hub.file_download import repo_folder_name

from blazr.cli.cache import list_models, pull, remove
from blazr.core.errors import CheckpointError, ConfigError
from blazr.models.checkpoint.open import find_model

OLD = "a" * 40
NEW = "b" * 40
OTHER = "c" * 40


def add(cache: Path, name: str, commit: str, *, ref: str = "", size: int = 1000) -> Path:
    """A revision as the Hub's client stores it: blobs, links to them, and what names it."""
    repo = cache / repo_folder_name(repo_id=name, repo_type="model")
    snapshot = repo / "snapshots" / commit
    for directory in (repo / "blobs", repo / "refs", snapshot):
        directory.mkdir(parents=True, exist_ok=True)
    for file, data in (("model.safetensors", bytes(size)), ("config.json", b"{}")):
        blob = repo / "blobs" / f"{commit[:8]}{file}"
        blob.write_bytes(data)
        (snapshot / file).symlink_to(blob)
    if ref:
        (repo / "refs" / ref).write_text(commit)
    return snapshot


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return path


def listed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    list_models(as_json=True)
    return json.loads(capsys.readouterr().out)


def test_an_empty_cache(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(capsys) == []
    list_models()
    shown = capsys.readouterr()
    assert shown.out == ""
    assert str(cache) in shown.err
    assert "blazr pull ORG/NAME" in shown.err
    with pytest.raises(CheckpointError, match="not in the cache"):
        remove(["org/a"], yes=True)


def test_models_are_listed(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(cache, "org/a", OLD, size=5000)
    add(cache, "org/a", NEW, ref="main", size=7000)
    add(cache, "org/b", OTHER, ref="main")
    (cache / repo_folder_name(repo_id="org/data", repo_type="dataset") / "snapshots").mkdir(
        parents=True
    )
    rows = {row["name"]: row for row in listed(capsys)}
    assert set(rows) == {"org/a", "org/b"}
    assert rows["org/a"]["bytes"] == 12004
    assert rows["org/a"]["revisions"] == [OLD[:12], "main"]
    assert rows["org/b"]["has_weights"] is True
    list_models()
    assert "org/a" in capsys.readouterr().out


def test_one_is_removed_and_the_others_stay(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(cache, "org/a", OLD)
    add(cache, "org/a", NEW, ref="main")
    add(cache, "org/b", OTHER, ref="main")
    remove(["org/a"], revision=OLD[:7], yes=True)
    assert [path.name for path in cache.glob("models--org--a/snapshots/*")] == [NEW]
    remove(["org/a"], yes=True)
    capsys.readouterr()
    assert [row["name"] for row in listed(capsys)] == ["org/b"]
    assert not (cache / "models--org--a").exists()
    assert find_model("org/b").path.joinpath("config.json").read_text() == "{}"


def test_what_is_not_there_is_told(cache: Path) -> None:
    add(cache, "org/a", OLD, ref="main")
    with pytest.raises(CheckpointError, match="not in the cache") as caught:
        remove(["org/nothing"], yes=True)
    assert caught.value.expected == "org/a"
    with pytest.raises(CheckpointError, match="no such revision"):
        remove(["org/a"], revision="v9", yes=True)
    assert (cache / "models--org--a").exists()


def test_nothing_goes_unasked(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot = add(cache, "org/a", OLD, ref="main")
    with pytest.raises(ConfigError, match="no terminal to confirm on"):
        remove(["org/a"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr(typer, "confirm", lambda question: False)
    with pytest.raises(typer.Exit):
        remove(["org/a"])
    assert snapshot.exists()
    monkeypatch.setattr(typer, "confirm", lambda question: True)
    remove(["org/a"])
    assert not snapshot.exists()


def test_what_is_there_is_not_fetched_again(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot = add(cache, "org/a", OLD, ref="main")
    pull(["org/a"])
    assert capsys.readouterr().out == f"{snapshot}\n"
    with pytest.raises(CheckpointError, match="cannot be reached"):
        pull(["org/b"])
    with pytest.raises(CheckpointError, match="no Hub id"):
        pull([str(cache)])
