"""Byte-pair rank files, and what may be wrong with them."""

import base64
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from blazr.core.errors import CheckpointError
from blazr.text.tokenizers.tiktoken import load

BYTES = [bytes([byte]) for byte in range(256)]


def write(directory: Path, tokens: list[bytes], options: Mapping[str, object] | None = None) -> str:
    file = directory / "v.tiktoken"
    lines = [base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)]
    file.write_bytes(b"".join(lines))
    if options is not None:
        (directory / "v.tiktoken.json").write_text(json.dumps(options), "utf-8")
    return str(file)


def test_ranks_are_ids(tmp_path: Path) -> None:
    tokenizer = load(write(tmp_path, [*BYTES, b"ab", b"abc"]))
    assert tokenizer.name == "v"
    assert tokenizer.size == 258
    assert tokenizer.encode("abcab<|endoftext|>")[:2] == [257, 256]
    assert tokenizer.token_bytes(257) == b"abc"
    assert tokenizer.special_ids == {}
    assert tokenizer.eos_ids == ()
    assert tokenizer.bos_id is None
    assert tokenizer.unassigned(260) == [258, 259]


def test_special_tokens_lie_beside_it(golden: Path) -> None:
    tokenizer = load(str(golden / "tokenizers/ranks/tiny.tiktoken"))
    assert tokenizer.special_ids == {"<|endoftext|>": 330, "<|user|>": 331}
    assert tokenizer.eos_ids == (330,)
    assert tokenizer.size == 332
    assert tokenizer.unassigned(332) == list(range(320, 330))
    assert 331 not in tokenizer.encode("<|user|>")
    assert tokenizer.encode("<|user|>a", allow_special=True)[0] == 331


def test_the_pattern_splits_words(tmp_path: Path) -> None:
    options = {"pattern": "(?s).", "bos_token": "<s>", "special_tokens": {"<s>": 300}}
    tokenizer = load(write(tmp_path, [*BYTES, b"ab"], options))
    assert tokenizer.encode("ab") == [97, 98]
    assert tokenizer.bos_id == 300


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "256 bytes"),
        (b"YQ== 0\nYg== 1\n", "254 bytes without a token"),
        (b"!!! 0\n", "line 1"),
        (b"YQ== 0\nYg==\n", "line 2"),
        (b"YQ== x\n", "line 1"),
        (b"YQ== -1\n", "line 1"),
        (b"YQ== 99999999\n", "line 1"),
        (b"YQ== 9999999\n", "line 1"),
        (b" 0\n", "line 1"),
        (b"YQ== 0\nYg== 0\n", "line 2 .* repeats"),
        (b"YQ== 0\nYQ== 1\n", "line 2 .* repeats"),
        (b"\xff\xfe\x00", "line 1"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, data: bytes, complaint: str) -> None:
    file = tmp_path / "v.tiktoken"
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=complaint):
        load(str(file))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"pattern": 3}, "pattern"),
        ({"pattern": "("}, "cannot be used"),
        ({"pattern": r"\d"}, "leaves out part of the text"),
        ({"special_tokens": {"<s>": 97}}, "special.tokens"),
        ({"special_tokens": {"<s>": -1}}, "special.tokens"),
        ({"special_tokens": {"<s>": "300"}}, "special.tokens"),
        ({"special_tokens": {"<s>": True}}, "special.tokens"),
        ({"special_tokens": {"<s>": 300, "</s>": 300}}, "special.tokens"),
        ({"special_tokens": {"": 300}}, "special.tokens"),
        ({"special_tokens": ["<s>"]}, "special.tokens"),
        ({"eos_token": "</s>"}, "</s>"),
        ({"eos_token": 3}, "not among"),
    ],
)
def test_wrong_options_are_refused(
    tmp_path: Path, options: Mapping[str, object], complaint: str
) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        load(write(tmp_path, BYTES, options))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be opened"):
        load(str(tmp_path / "absent.tiktoken"))
