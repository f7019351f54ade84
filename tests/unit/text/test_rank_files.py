"""Ranks as Mistral AI and Moonshot AI write them, and what may be wrong with such files."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blazr.core.errors import CheckpointError
from blazr.text.tokenizer import Tokenizer
from blazr.text.tokenizers import kimi, tekken, tiktoken

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "tokenizers"
NUM_SPECIAL = 24


@pytest.fixture(scope="module")
def ranks() -> Tokenizer:
    return tiktoken.load(str(GOLDEN / "ranks/tiny.tiktoken"))


@pytest.fixture(scope="module")
def of_mistral() -> Tokenizer:
    return tekken.load(str(GOLDEN / "tekken/tekken.json"))


@pytest.fixture(scope="module")
def of_kimi() -> Tokenizer:
    return kimi.load(str(GOLDEN / "kimi/tiktoken.model"))


@given(word=st.from_regex(r"[A-Za-z]{1,12}", fullmatch=True))
def test_words_have_the_ids_of_their_ranks(
    ranks: Tokenizer, of_mistral: Tokenizer, of_kimi: Tokenizer, word: str
) -> None:
    ids = ranks.encode(word)
    known = [each for each in ids if each < 330 - NUM_SPECIAL]
    if known == ids:  # the file says that its last ranks are not used
        assert of_mistral.encode(word) == [each + NUM_SPECIAL for each in ids]
    if word in {word.lower(), word.capitalize()}:
        assert of_kimi.encode(word) == ids


def test_tokens_of_mistral(of_mistral: Tokenizer) -> None:
    assert (of_mistral.name, of_mistral.size) == ("tekken", 330)
    assert (of_mistral.bos_id, of_mistral.eos_ids) == (1, (2,))
    assert of_mistral.special_ids["[INST]"] == 3
    assert of_mistral.special_ids["<SPECIAL_23>"] == 23
    assert of_mistral.encode("[INST]", allow_special=True) == [3]
    assert 3 not in of_mistral.encode("[INST]")
    assert of_mistral.encode("<think>", allow_special=True) == [6]
    assert "<think>" not in of_mistral.special_ids
    assert of_mistral.decode([1, 6, 2]) == "<think>"
    assert of_mistral.unassigned(331) == [330]


def test_tokens_of_kimi(of_kimi: Tokenizer) -> None:
    assert (of_kimi.name, of_kimi.size, of_kimi.bos_id) == ("kimi", 576, None)
    assert of_kimi.eos_ids == (321,)
    assert of_kimi.special_ids["<|im_end|>"] == 322
    assert of_kimi.special_ids["<|reserved_token_330|>"] == 330
    assert of_kimi.decode([320, 323, 321]) == "<think>"
    assert of_kimi.encode("a[EOS]<think>", allow_special=True)[1:] == [321, 323]
    assert of_kimi.encode("a<think>")[1:] == [323]  # as it is shown, so it is read


def test_han_is_cut_from_other_letters(of_kimi: Tokenizer, ranks: Tokenizer) -> None:
    assert of_kimi.encode("日a") == ranks.encode("日") + ranks.encode("a")


def test_older_files_list_no_special_tokens(tmp_path: Path) -> None:
    assert changed(tmp_path, special_tokens=None).special_ids["[TOOL_CONTENT]"] == 19


def changed(directory: Path, **changes: object) -> Tokenizer:
    stored = json.loads((GOLDEN / "tekken/tekken.json").read_text("utf-8"))
    config = changes.pop("config", {})
    assert isinstance(config, dict)
    file = directory / "tekken.json"
    file.write_text(json.dumps(stored | {"config": stored["config"] | config} | changes), "utf-8")
    return tekken.load(str(file))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"config": {"default_vocab_size": -1}}, "default_vocab_size"),
        ({"config": {"default_vocab_size": 10**9}}, "default_vocab_size"),
        ({"config": {"default_vocab_size": 200}}, "no token for some bytes"),
        ({"config": {"default_num_special_tokens": 3}}, "default_num_special_tokens"),
        ({"config": {"pattern": "("}}, "cannot be used"),
        ({"config": {"pattern": "[a-z]+"}}, "leaves out part of the text"),
        ({"config": {"pattern": 1}}, "pattern"),
        ({"vocab": []}, "no token for some bytes"),
        ({"vocab": [{"rank": 0, "token_bytes": "é"}]}, "line 1"),
        ({"vocab": 3}, "vocab"),
        ({"special_tokens": [{"rank": 24, "token_str": "<s>"}]}, "special_tokens"),
        ({"special_tokens": [{"rank": 1, "token_str": "a"}] * 2}, "special_tokens"),
        ({"special_tokens": [{"rank": 1, "token_str": ""}]}, "special_tokens"),
        ({"special_tokens": [{"rank": 1, "token_str": "<SPECIAL_2>"}]}, "special_tokens"),
    ],
)
def test_wrong_files_of_mistral_are_refused(
    tmp_path: Path, changes: dict[str, object], complaint: str
) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        changed(tmp_path, **changes)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b'{"\xc9"', b"{}"])
def test_what_is_no_such_file_is_refused(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "tekken.json"
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"tekken\.json"):
        tekken.load(str(file))


@pytest.mark.parametrize(
    "added",
    [
        {"319": {"content": "<a>"}},
        {"9999999": {"content": "<a>"}},
    ],
)
def test_special_tokens_in_the_wrong_place_are_refused(
    tmp_path: Path, added: dict[str, object]
) -> None:
    shutil.copy(GOLDEN / "kimi/tiktoken.model", tmp_path)
    config = json.dumps({"added_tokens_decoder": added})
    (tmp_path / "tokenizer_config.json").write_text(config, "utf-8")
    with pytest.raises(CheckpointError, match=r"special tokens|far behind"):
        kimi.load(str(tmp_path / "tiktoken.model"))
