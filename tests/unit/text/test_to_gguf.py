"""A tokenizer.json as GGUF metadata: the same tokens, or none."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from blazr.text.tokenizers.gguf import from_metadata, has_tokenizer
from blazr.text.tokenizers.hf import HuggingFaceTokenizer
from blazr.text.tokenizers.to_gguf import gguf_vocabulary

GOLDEN = Path(__file__).parents[2] / "golden" / "tokenizers"
TEXTS = ("", "Hello world", " 12 345\n\nit's naïve 🚀", "<s>a</s><|im_end|>", "x\t\ty  z ")


@pytest.mark.parametrize("name", ["stories260k", "byte_level"])
def test_the_same_tokens(name: str) -> None:
    theirs = HuggingFaceTokenizer(GOLDEN / name / "tokenizer.json")
    metadata = gguf_vocabulary(GOLDEN / name, theirs.size + 7)
    ours = from_metadata(metadata, name=name)
    assert ours.size == theirs.size + 7
    for text in TEXTS:
        for allow in (False, True):
            ids = theirs.encode(text, allow_special=allow)
            assert ours.encode(text, allow_special=allow) == ids
            assert ours.decode(ids) == theirs.decode(ids)
    assert ours.special_ids == theirs.special_ids
    assert ours.bos_id == theirs.bos_id
    assert set(theirs.eos_ids) <= set(ours.eos_ids)
    assert ours.eos_ids[0] == theirs.eos_ids[0]
    assert set(ours.unassigned(theirs.size + 7)) >= set(range(theirs.size, theirs.size + 7))


def test_templates_come_along(tmp_path: Path) -> None:
    for file in (GOLDEN / "byte_level").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "chat_template.json").write_text(
        json.dumps({"chat_template": [{"name": "tool_use", "template": "B"}]})
    )
    (tmp_path / "chat_template.jinja").write_text("A")
    metadata = gguf_vocabulary(tmp_path, 400)
    assert metadata["tokenizer.chat_template"] == "A"
    assert metadata["tokenizer.chat_template.tool_use"] == "B"
    assert metadata["tokenizer.chat_templates"] == ["tool_use"]


def without_a_tokenizer(directory: Path) -> None:
    del directory


def with_words(directory: Path) -> None:
    vocab = {"a": 0, "b": 1}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "a"}
    (directory / "tokenizer.json").write_text(json.dumps({"model": model, "added_tokens": []}))


def with_another_pattern(directory: Path) -> None:
    stored = json.loads((GOLDEN / "byte_level" / "tokenizer.json").read_text())
    split = {"type": "Split", "pattern": {"String": "e"}, "behavior": "Isolated", "invert": False}
    spell = dict.fromkeys(("add_prefix_space", "trim_offsets", "use_regex"), False)
    steps = [split, {"type": "ByteLevel", **spell}]
    stored["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    (directory / "tokenizer.json").write_text(json.dumps(stored))


@pytest.mark.parametrize("make", [without_a_tokenizer, with_words, with_another_pattern])
def test_what_gguf_cannot_hold_is_left_out_and_said(
    make: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path)  # type: ignore[operator]
    with caplog.at_level(logging.WARNING):
        assert not has_tokenizer(gguf_vocabulary(tmp_path, 400))
    assert "--vocab" in caplog.text


def test_a_vocabulary_larger_than_the_embedding_is_left_out() -> None:
    assert not has_tokenizer(gguf_vocabulary(GOLDEN / "byte_level", 100))
