"""A tokenizer.json as GGUF metadata: the same tokens, or none."""

from __future__ import annotations

import json
import logging
import string
from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from blazr.text.tokenizers.choose import find_tokenizer, load_tokenizer
from blazr.text.tokenizers.gguf import from_metadata, has_tokenizer
from blazr.text.tokenizers.hf import HuggingFaceTokenizer, load
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


@pytest.mark.parametrize("name", ["sentencepiece", "vocab_and_merges"])
def test_other_files_than_tokenizer_json(name: str) -> None:
    theirs = load_tokenizer(find_tokenizer(directory=GOLDEN / name))
    assert theirs is not None
    metadata = gguf_vocabulary(GOLDEN / name, theirs.size + 7)
    ours = from_metadata(metadata, name=name)
    assert ours.size == theirs.size + 7
    assert (ours.special_ids, ours.bos_id) == (theirs.special_ids, theirs.bos_id)
    for text in TEXTS:
        assert ours.encode(text, allow_special=True) == theirs.encode(text, allow_special=True)
    too_small = gguf_vocabulary(GOLDEN / name, theirs.size - 1)
    assert not has_tokenizer(too_small)


def test_ranks_are_not_in_a_form_that_gguf_has(caplog: pytest.LogCaptureFixture) -> None:
    assert not has_tokenizer(gguf_vocabulary(GOLDEN / "tekken", 400))
    assert "--vocab" in caplog.text


def with_word_pieces(directory: Path, *, lowercase: bool = True) -> Backend:
    roles = {"[PAD]": "pad_token", "[UNK]": "unk_token", "[CLS]": "bos_token", "[SEP]": "eos_token"}
    words = [*roles, *string.ascii_lowercase, *(f"##{each}" for each in string.ascii_lowercase)]
    words += ["un", "##aff", "##able", "the", ".", ",", "!", "3", "##3", "\u4f60"]
    backend = Backend(
        models.WordPiece({each: i for i, each in enumerate(words)}, unk_token="[UNK]")
    )
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(list(roles))
    backend.save(str(directory / "tokenizer.json"))
    named = {role: name for name, role in roles.items()}
    (directory / "tokenizer_config.json").write_text(json.dumps(named))
    return backend


def test_word_pieces(tmp_path: Path) -> None:
    theirs = with_word_pieces(tmp_path)
    metadata = gguf_vocabulary(tmp_path, 80)
    assert metadata["tokenizer.ggml.model"] == "bert"
    ours = from_metadata(metadata, name="pieces")
    assert ours.size == 80
    for text in (*TEXTS, "The UNAFFABLE, unable! 33 \u4f60\u4f60 na\u00efve\n\u1234"):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids
    assert ours.encode("[CLS]a[SEP]", allow_special=True) == [2, 4, 3]
    assert ours.decode(ours.encode("The unaffable")) == "the unaffable"
    assert ours.eos_ids[0] == 3


def with_runs_of_spaces(directory: Path) -> None:
    """As Gemma's: a token for every run of spaces, which is declared beside the others."""
    pieces = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581"]
    pieces += ["a", "b", "\u2581a", "\u2581" * 2, "\u2581" * 3]
    merges = [("\u2581", "\u2581"), ("\u2581" * 2, "\u2581"), ("\u2581", "a")]
    backend = Backend(
        models.BPE(
            {piece: number for number, piece in enumerate(pieces)},
            merges,
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    backend.normalizer = normalizers.Replace(" ", "\u2581")
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens(["<unk>", "<s>"])
    backend.add_tokens([AddedToken("\u2581" * count, normalized=False) for count in (2, 3)])
    backend.save(str(directory / "tokenizer.json"))


def test_spaces_in_an_added_token_are_written_as_llama_cpp_finds_them(tmp_path: Path) -> None:
    with_runs_of_spaces(tmp_path)
    theirs = load(str(tmp_path / "tokenizer.json"))
    metadata = gguf_vocabulary(tmp_path, theirs.size)
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    assert tokens[-2:] == ["  ", "   "]
    ours = from_metadata(metadata, name="spaces")
    for text in ("a  b   a a", "  a", " ", "b  "):
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text)) == text


def with_capitals(directory: Path) -> None:
    with_word_pieces(directory, lowercase=False)


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


@pytest.mark.parametrize(
    "make",
    [without_a_tokenizer, with_words, with_another_pattern, with_capitals],
)
def test_what_gguf_cannot_hold_is_left_out_and_said(
    make: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path)  # type: ignore[operator]
    with caplog.at_level(logging.WARNING):
        assert not has_tokenizer(gguf_vocabulary(tmp_path, 400))
    assert "--vocab" in caplog.text


def test_a_vocabulary_larger_than_the_embedding_is_left_out() -> None:
    assert not has_tokenizer(gguf_vocabulary(GOLDEN / "byte_level", 100))
