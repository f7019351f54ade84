"""Which tokenizer a model speaks."""

import os
import shutil
from pathlib import Path

import pytest

from blazr.core.errors import CheckpointError, UnknownNameError
from blazr.text.tokenizers.choose import find_tokenizer, load_tokenizer
from blazr.text.tokenizers.gguf import has_tokenizer
from blazr.text.tokenizers.to_gguf import gguf_vocabulary

ROBERTA = '{"tokenizer_class": "RobertaTokenizer"}'


def name_of(
    directory: Path | None = None, vocab: str | None = None, vocab_size: int | None = None
) -> str | None:
    found = load_tokenizer(find_tokenizer(directory=directory, vocab=vocab, vocab_size=vocab_size))
    return found.name if found else None


@pytest.fixture
def ranks(golden: Path) -> Path:
    return golden / "tokenizers" / "ranks"


def test_a_name_comes_first(ranks: Path) -> None:
    assert name_of(ranks, "llama3", 100_315) == "llama3"


def test_a_path_comes_first(golden: Path, ranks: Path) -> None:
    directory = golden / "tokenizers" / "byte_level"
    assert name_of(ranks, str(directory), 100_315) == "byte_level"
    assert name_of(None, str(directory / "tokenizer.json")) == "byte_level"
    assert name_of(directory, str(ranks / "tiny.tiktoken")) == "tiny"


def test_a_file_beside_the_model_comes_before_its_size(golden: Path, ranks: Path) -> None:
    assert name_of(ranks, None, 100_315) == "tiny"
    assert name_of(golden / "tokenizers" / "stories260k", None, 100_315) == "stories260k"


def test_a_tokenizer_json_comes_before_ranks(golden: Path, ranks: Path, tmp_path: Path) -> None:
    shutil.copy(ranks / "tiny.tiktoken", tmp_path)
    shutil.copy(golden / "tokenizers" / "byte_level" / "tokenizer.json", tmp_path)
    assert name_of(tmp_path) == tmp_path.name


def test_the_size_comes_last(tmp_path: Path) -> None:
    assert name_of(tmp_path, None, 100_315) == "cl100k_base"
    assert name_of(None, None, 128_256) == "llama3"
    assert name_of(tmp_path / "absent", None, 100_315) == "cl100k_base"


@pytest.mark.parametrize(
    ("settings", "name", "reason"),
    [
        ({"vocab": "llama3"}, "llama3", "--vocab"),
        ({"declared": "o200k_base"}, "o200k_base", "config.json: tokenizer_vocab"),
        ({"vocab_size": 100_352}, "cl100k_base", "100,352 rows are cl100k_base with padding"),
        ({"vocab_size": 151_936}, None, "151,936 rows are those of no known vocabulary"),
    ],
)
def test_the_reason_is_told(
    settings: dict[str, str | int], name: str | None, reason: str, tmp_path: Path
) -> None:
    size, vocab, declared = (settings.get(key) for key in ("vocab_size", "vocab", "declared"))
    found = find_tokenizer(
        directory=tmp_path,
        vocab=None if vocab is None else str(vocab),
        vocab_size=None if size is None else int(size),
        declared=None if declared is None else str(declared),
    )
    assert found.name == name
    assert reason in found.reason


def test_nothing_tells(tmp_path: Path) -> None:
    assert name_of(tmp_path, None, 32_000) is None
    assert name_of() is None


@pytest.mark.parametrize("vocab", ["cl100k", "/nowhere/tokenizer.json", ""])
def test_an_unknown_name_is_answered_with_the_known_ones(vocab: str) -> None:
    with pytest.raises(UnknownNameError, match=r"cl100k_base.*\.tiktoken"):
        name_of(None, vocab)


def test_several_rank_files_are_not_guessed_between(ranks: Path, tmp_path: Path) -> None:
    for name in ("a.tiktoken", "b.tiktoken"):
        shutil.copy(ranks / "tiny.tiktoken", tmp_path / name)
    with pytest.raises(CheckpointError, match=r"a\.tiktoken, b\.tiktoken"):
        name_of(tmp_path)


# Directories with one file of each kind, those that tell most first.
IN_ORDER = {
    "byte_level": "tokenizer.json",
    "ranks": "tiny.tiktoken",
    "sentencepiece": "tokenizer.model",
    "tekken": "tekken.json",
    "kimi": "tiktoken.model",
    "vocab_and_merges": "vocab.json",
}


def test_every_file_is_found_and_the_one_that_tells_most_is_taken(
    golden: Path, tmp_path: Path
) -> None:
    for name in reversed(IN_ORDER):
        for file in (golden / "tokenizers" / name).iterdir():
            if file.name != "tokenizer_config.json":  # it would speak of the others too
                shutil.copy(file, tmp_path)
        file = str(golden / "tokenizers" / name / IN_ORDER[name])
        named = load_tokenizer(find_tokenizer(vocab=file))
        found = load_tokenizer(find_tokenizer(directory=tmp_path))
        assert named is not None
        assert found is not None
        assert found.encode("naïve 12") == named.encode("naïve 12")


@pytest.mark.parametrize("name", ["tokenizer.model.v3", "mistral_tokenizer_240323.model.v3"])
def test_versions_of_files(golden: Path, tmp_path: Path, name: str) -> None:
    shutil.copy(golden / "tokenizers/sentencepiece/tokenizer.model", tmp_path / name)
    assert name_of(None, str(tmp_path / name)) == tmp_path.name
    assert (name_of(tmp_path) is not None) == name.startswith("tokenizer.model")


@pytest.mark.parametrize(
    "name", ["spiece.model", "vocab.txt", "vocab.json", "merges.txt", "tokenization_own.py"]
)
def test_nothing_is_guessed_beside_a_file_that_is_not_read(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / name).write_text("")
    assert name_of(tmp_path, None, 128_256) is None
    assert name in caplog.text
    assert "--vocab" in caplog.text
    assert name_of(tmp_path, "llama3", 128_256) == "llama3"


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer.model": "IQ== 0\nIg== 1\n"},
        {"vocab.json": "{}", "merges.txt": "", "tokenizer_config.json": ROBERTA},
    ],
)
def test_a_kind_that_is_not_read_leaves_a_model_without(
    tmp_path: Path, files: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert name_of(tmp_path, None, 128_256) is None
    assert "--vocab" in caplog.text
    with pytest.raises(CheckpointError):
        name_of(None, str(tmp_path))
    assert not has_tokenizer(gguf_vocabulary(tmp_path, 100))


def test_the_last_version_is_taken(golden: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model.v1").write_text("")
    shutil.copy(
        golden / "tokenizers/sentencepiece/tokenizer.model", tmp_path / "tokenizer.model.v3"
    )
    assert name_of(tmp_path) == tmp_path.name
    assert has_tokenizer(gguf_vocabulary(tmp_path, 512))


def test_nothing_is_guessed_where_a_class_is_named(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer_config.json"
    file.write_text('{"bos_token": "<s>"}')
    assert name_of(tmp_path, None, 128_256) == "llama3"
    file.write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')  # any vocabulary's
    assert name_of(tmp_path, None, 128_256) == "llama3"
    file.write_text('{"tokenizer_class": "OwnTokenizer"}')
    assert name_of(tmp_path, None, 128_256) is None
    file.write_text('{"tokenizer_class": ["PreTrainedTokenizerFast"]}')  # who knows what that is
    assert name_of(tmp_path, None, 128_256) is None


@pytest.mark.parametrize("name", [*IN_ORDER.values(), "tokenizer_config.json"])
def test_nothing_is_guessed_in_place_of_a_broken_link(tmp_path: Path, name: str) -> None:
    (tmp_path / "merges.txt").write_text("")
    (tmp_path / name).symlink_to(tmp_path / "blobs" / "4d7a")
    with pytest.raises(CheckpointError, match=f"{name} cannot be opened"):
        name_of(tmp_path, None, 128_256)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.model", "tokenizer_config.json"])
def test_pipes_and_devices_are_refused_without_waiting(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match="not a regular file"):
        name_of(tmp_path)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(CheckpointError, match="not a regular file"):
        name_of(tmp_path)
