"""Which files of a directory are taken."""

import json
import os
from pathlib import Path

import pytest

from blazr.core.errors import CheckpointError, ConfigError
from blazr.models.checkpoint.open import INDEX, find_weights

SHARDS = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]


def touch(directory: Path, *names: str) -> None:
    """Empty files, each newer than the one before."""
    for age, name in enumerate(names):
        (directory / name).touch()
        os.utime(directory / name, (1_000_000 + age, 1_000_000 + age))


def chosen(path: Path) -> list[str]:
    return [file.name for file in find_weights(path).files]


def test_the_order_of_preference(tmp_path: Path) -> None:
    """Take away what was chosen, and the next in order is."""
    order = [
        "model.safetensors",
        "pytorch_model.safetensors",
        "nano_512_117m_f32_final.safetensors",
        "nano_512_117m_f32_step_100.safetensors",
        "other.safetensors",
    ]
    touch(tmp_path, *reversed(order))
    for name in order:
        assert chosen(tmp_path) == [name]
        (tmp_path / name).unlink()


def test_shards_come_after_the_single_file_and_before_the_rest(tmp_path: Path) -> None:
    touch(tmp_path, "a_final.safetensors", "pytorch_model.safetensors", *SHARDS)
    assert chosen(tmp_path) == SHARDS
    touch(tmp_path, "model.safetensors")
    assert chosen(tmp_path) == ["model.safetensors"]


def test_the_newest_final_wins(tmp_path: Path) -> None:
    touch(tmp_path, "b_final.safetensors", "z_final.safetensors", "a_final.safetensors")
    assert chosen(tmp_path) == ["a_final.safetensors"]


def test_the_highest_step_wins_by_number(tmp_path: Path) -> None:
    touch(tmp_path, *(f"m_512_1m_f32_step_{n}.safetensors" for n in (1000, 900, 99)))
    assert chosen(tmp_path) == ["m_512_1m_f32_step_1000.safetensors"]


def test_several_nameless_files_are_not_guessed_between(tmp_path: Path) -> None:
    touch(tmp_path, "a.safetensors", "b.safetensors")
    with pytest.raises(CheckpointError, match="more than one model") as caught:
        find_weights(tmp_path)
    assert "a.safetensors, b.safetensors" in caught.value.found


def test_a_file_is_taken_as_named(tmp_path: Path) -> None:
    touch(tmp_path, "a.safetensors", "b.safetensors")
    assert chosen(tmp_path / "b.safetensors") == ["b.safetensors"]


def test_one_shard_stands_for_all(tmp_path: Path) -> None:
    touch(tmp_path, *SHARDS)
    assert chosen(tmp_path / SHARDS[1]) == SHARDS


@pytest.mark.parametrize("total", ["00000", 5 * "\u0660"])
def test_a_file_of_a_set_of_none_is_taken_alone(tmp_path: Path, total: str) -> None:
    name = f"model-00001-of-{total}.safetensors"
    touch(tmp_path, name)
    assert chosen(tmp_path) == chosen(tmp_path / name) == [name]


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    touch(tmp_path, SHARDS[0], SHARDS[2])
    with pytest.raises(CheckpointError, match="lacks 1 of 3 shards") as caught:
        find_weights(tmp_path)
    assert SHARDS[1] in caught.value.found


def test_two_sets_of_shards_are_not_guessed_between(tmp_path: Path) -> None:
    touch(tmp_path, *SHARDS, "model-00001-of-00001.safetensors")
    with pytest.raises(CheckpointError, match="more than one model"):
        find_weights(tmp_path)


def write_index(directory: Path, where: object) -> None:
    (directory / INDEX).write_text(json.dumps({"weight_map": where}))


def test_the_index_says_which_shards(tmp_path: Path) -> None:
    touch(tmp_path, "x.safetensors", "y.safetensors", "z.safetensors")
    where = {"a": "y.safetensors", "b": "x.safetensors", "c": "y.safetensors"}
    write_index(tmp_path, where)
    found = find_weights(tmp_path)
    assert [file.name for file in found.files] == ["x.safetensors", "y.safetensors"]
    assert found.index == where
    assert find_weights(tmp_path / INDEX) == found


def test_a_shard_of_the_index_that_is_missing_is_named(tmp_path: Path) -> None:
    write_index(tmp_path, {"a": "gone.safetensors"})
    with pytest.raises(CheckpointError, match="lacks 1 of 1") as caught:
        find_weights(tmp_path)
    assert "gone.safetensors" in caught.value.found


@pytest.mark.parametrize(
    "name",
    [
        "../secret.safetensors",
        "/etc/secret.safetensors",
        "sub/x.safetensors",
        "..\\x.safetensors",
        "http://example.com/x.safetensors",
        "x.bin",
        "..",
        "",
        "a\nb.safetensors",
        7,
        None,
    ],
)
def test_shard_names_must_be_plain(tmp_path: Path, name: object) -> None:
    write_index(tmp_path, {"a": name})
    with pytest.raises(CheckpointError, match="not a file beside it"):
        find_weights(tmp_path)


@pytest.mark.parametrize("where", [None, [], {}, "x"])
def test_an_index_without_shards_is_refused(tmp_path: Path, where: object) -> None:
    write_index(tmp_path, where)
    with pytest.raises(CheckpointError, match="names no shards"):
        find_weights(tmp_path)


def test_an_index_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text("{")
    with pytest.raises(ConfigError, match="not valid JSON"):
        find_weights(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "m.ckpt"])
def test_formats_that_can_run_code_are_refused_with_the_remedy(tmp_path: Path, name: str) -> None:
    touch(tmp_path, name, "config.json")
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(CheckpointError, match="can run code") as caught:
            find_weights(path)
        assert "save_file" in caught.value.hint


def test_gguf_comes_after_safetensors(tmp_path: Path) -> None:
    touch(tmp_path, "model.gguf")
    assert [file.name for file in find_weights(tmp_path).files] == ["model.gguf"]
    touch(tmp_path, "model.safetensors")
    assert [file.name for file in find_weights(tmp_path).files] == ["model.safetensors"]


def test_an_empty_directory_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no weights") as caught:
        find_weights(tmp_path)
    assert caught.value.found == "nothing"
    assert "model.safetensors" in caught.value.expected


def test_what_is_there_instead_is_listed(tmp_path: Path) -> None:
    touch(tmp_path, "README.md", "notes.txt")
    with pytest.raises(CheckpointError) as caught:
        find_weights(tmp_path)
    assert caught.value.found == "README.md, notes.txt"


@pytest.mark.parametrize(
    ("name", "found"), [("y.txt", ".txt"), ("y", "without an end"), ("config.json", ".json")]
)
def test_a_file_of_another_kind_is_told_from_a_directory(
    tmp_path: Path, name: str, found: str
) -> None:
    touch(tmp_path, name, "model.safetensors")
    with pytest.raises(CheckpointError, match=f"{name} is a file without weights") as caught:
        find_weights(tmp_path / name)
    assert found in caught.value.found
    assert ".safetensors or .gguf" in caught.value.expected
