"""GPT-2's two files, and what may be wrong with them."""

import json
import shutil
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blazr.core.errors import CheckpointError
from blazr.text.tokenizer import Tokenizer
from blazr.text.tokenizers.vocab_and_merges import load


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    folder = Path(__file__).resolve().parents[2] / "golden/tokenizers/vocab_and_merges"
    return load(str(folder / "vocab.json"))


@pytest.fixture
def files(golden: Path, tmp_path: Path) -> Path:
    shutil.copytree(golden / "tokenizers/vocab_and_merges", tmp_path, dirs_exist_ok=True)
    return tmp_path


def configure(files: Path, **config: object) -> Tokenizer:
    (files / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    return load(str(files / "vocab.json"))


@given(text=st.text())
def test_ids_are_those_of_the_same_tokenizer_json(
    tokenizer: Tokenizer, chatty: Tokenizer, text: str
) -> None:
    for allow_special in (False, True):
        ids = tokenizer.encode(text, allow_special=allow_special)
        assert ids == chatty.encode(text, allow_special=allow_special)


def test_tokens_are_declared_beside_them(tokenizer: Tokenizer, chatty: Tokenizer) -> None:
    assert tokenizer.name == "vocab_and_merges"
    assert tokenizer.special_ids == chatty.special_ids
    assert tokenizer.eos_ids[0] == chatty.eos_ids[0]
    assert tokenizer.bos_id is None
    assert tokenizer.encode("a<think>") == chatty.encode("a<think>")


def test_the_class_tells_how_texts_are_cut(files: Path) -> None:
    texts = "1234", "e\u0301"
    plain = configure(files)
    qwen = configure(files, tokenizer_class="Qwen2TokenizerFast")
    assert [plain.decode(plain.encode(each)) for each in texts] == list(texts)
    composed = [unicodedata.normalize("NFC", each) for each in texts]
    assert [qwen.decode(qwen.encode(each)) for each in texts] == composed


def test_a_token_that_begins_a_text(files: Path) -> None:
    config = {"bos_token": "a", "add_bos_token": True}
    vocab = json.loads((files / "vocab.json").read_text("utf-8"))
    assert configure(files, **config).bos_id == vocab["a"]
    assert configure(files, bos_token="a").bos_id is None


@pytest.mark.parametrize(
    "config", [{"tokenizer_class": "CTRLTokenizer"}, {"add_prefix_space": True}]
)
def test_other_ways_to_cut_are_refused(files: Path, config: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        configure(files, **config)


@pytest.mark.parametrize(
    "vocab",
    [
        "{}",
        '{"a": 1, "b": 1}',
        '{"\\ud800": 1}',
        '{"a": 4194303}',
        '{"a": "1"}',
        '{"a": -1}',
        "[]",
        "{",
    ],
)
def test_what_is_no_vocabulary_is_refused(files: Path, vocab: str) -> None:
    (files / "vocab.json").write_text(vocab, "utf-8")
    with pytest.raises(CheckpointError, match=r"vocab\.json"):
        load(str(files / "vocab.json"))


def test_merges_that_cannot_be_read_are_refused(files: Path) -> None:
    merges = files / "merges.txt"
    merges.write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match=r"merges\.txt is no text"):
        load(str(files / "vocab.json"))
    merges.unlink()
    with pytest.raises(CheckpointError, match=r"merges\.txt cannot be opened"):
        load(str(files / "vocab.json"))
