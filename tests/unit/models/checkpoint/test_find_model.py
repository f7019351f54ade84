"""Paths, the built-in model and Hub ids; no test here reaches for the network."""

import errno
from pathlib import Path

import pytest
from huggingface_hub import constants

from blazr.core.errors import CheckpointError
from blazr.models.checkpoint.open import ModelFiles, find_model

SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hub cache, offline, and an empty working directory."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "cache"


def put_in_cache(cache: Path, repo: str) -> Path:
    home = cache / ("models--" + repo.replace("/", "--"))
    snapshot = home / "snapshots" / SHA
    snapshot.mkdir(parents=True)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(SHA)
    (snapshot / "model.safetensors").touch()
    return snapshot


@pytest.mark.usefixtures("cache")
def test_a_directory_and_a_file_are_taken_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "my-model").mkdir()
    file = tmp_path / "my-model" / "run_final.safetensors"
    file.touch()
    assert find_model(str(tmp_path / "my-model")) == ModelFiles("my-model", file.parent)
    assert find_model(str(file)) == ModelFiles("run_final", file)


def test_a_hub_id_is_found_in_the_cache_without_the_network(cache: Path) -> None:
    snapshot = put_in_cache(cache, "org/name")
    assert find_model("org/name") == ModelFiles("org/name", snapshot)
    assert find_model("org/name", revision=SHA).path == snapshot


def test_a_local_path_wins_over_a_hub_id(cache: Path) -> None:
    put_in_cache(cache, "org/name")
    Path("org/name").mkdir(parents=True)
    assert find_model("org/name").path == Path("org/name")


@pytest.mark.usefixtures("cache")
def test_a_hub_id_that_cannot_be_had_says_what_to_do() -> None:
    with pytest.raises(CheckpointError, match="cannot be reached") as caught:
        find_model("org/name")
    assert "HF_HUB_OFFLINE" in caught.value.hint


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("./checkpoints/nan", "checkpoints/nano"),
        ("checkpoints/nan", "checkpoints/nano"),
        ("checkpoint", "checkpoints"),
        ("naon", "nano"),
    ],
)
def test_the_closest_name_is_proposed(typed: str, near: str) -> None:
    Path("checkpoints/nano").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="no model at") as caught:
        find_model(typed)
    assert near in caught.value.found


@pytest.mark.usefixtures("cache")
def test_a_path_that_may_not_be_looked_at_is_not_said_to_be_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(path: Path, **_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(CheckpointError, match="no model at") as caught:
        find_model("/secret/model")
    assert "Permission denied" in caught.value.found


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    "typed",
    [
        "",
        "..name",
        "a/b/c",
        "../x/y",
        "org/na me",
        "https://x.y/z",
        "org/m.gguf",
        "x" * 900,
        "a\0b",
        "~nobody-of-that-name/x",
    ],
)
def test_what_is_neither_path_nor_id_is_refused(typed: str) -> None:
    with pytest.raises(CheckpointError, match="no model at") as caught:
        find_model(typed)
    assert len(str(caught.value)) < 400
    assert "Hub id (org/name)" in caught.value.hint


@pytest.mark.usefixtures("cache")
def test_nano_is_built_in_unless_a_path_of_that_name_exists(monkeypatch, tmp_path: Path) -> None:
    package = tmp_path / "package"
    (package / "data" / "nano").mkdir(parents=True)
    monkeypatch.setattr("blazr.models.checkpoint.open.files", lambda name: package)
    assert find_model("nano") == ModelFiles("nano", package / "data" / "nano")
    Path("nano").mkdir()
    assert find_model("nano").path == Path("nano")
