"""Tokenizers in GGUF metadata: merges, words, special tokens, and metadata that are wrong."""

import struct
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from blazr.core.errors import CheckpointError
from blazr.text.choose_template import choose_template
from blazr.text.tokenizer import Tokenizer
from blazr.text.tokenizers import hf
from blazr.text.tokenizers.choose import find_tokenizer, load_tokenizer
from blazr.text.tokenizers.gguf import from_metadata, load
from blazr.text.tokenizers.gguf_patterns import PATTERNS
from blazr.text.tokenizers.sentencepiece import Fallback, SentencePieceBpe

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
# pieces of a little SentencePiece vocabulary: text, type, score
PIECES = [
    ("<unk>", UNKNOWN, 0.0), ("<s>", CONTROL, 0.0), ("</s>", CONTROL, 0.0), ("<0x0A>", BYTE, 0.0),
    ("▁", NORMAL, -20.0), ("a", NORMAL, -21.0), ("b", NORMAL, -22.0), ("c", NORMAL, -23.0),
    ("ab", NORMAL, -5.0), ("bc", NORMAL, -4.0), ("▁a", NORMAL, -6.0), ("abc", NORMAL, -3.0),
    ("<think>", USER_DEFINED, 0.0), ("<|end|>", USER_DEFINED, 0.0), ("[pad]", UNUSED, 0.0),
]  # fmt: skip


def metadata(pieces: list[tuple[str, int, float]], **more: object) -> dict[str, object]:
    texts, types, scores = (list(each) for each in zip(*pieces, strict=True))
    entries = {
        "model": "llama",
        "tokens": texts,
        "token_type": memoryview(array("i", types)),
        "scores": memoryview(array("f", scores)),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (entries | more).items()}


def little(**more: object) -> Tokenizer:
    return from_metadata(metadata(PIECES, **more), name="little")


def spelled(tokenizer: Tokenizer, text: str, *, allow_special: bool = False) -> list[str]:
    return [PIECES[i][0] for i in tokenizer.encode(text, allow_special=allow_special)]


def test_the_best_score_is_merged_first() -> None:
    # bc before ab; then a+bc is no piece of its own beside the space, but abc would be
    assert spelled(little(), "abc") == ["▁", "abc"]
    assert spelled(little(), "ab") == ["▁", "ab"]
    assert spelled(little(), "aabc b") == ["▁a", "abc", "▁", "b"]
    assert spelled(little(add_space_prefix=False), "abc ab") == ["abc", "▁", "ab"]


def test_bytes_and_the_unknown() -> None:
    assert spelled(little(), "a\n") == ["▁a", "<0x0A>"]
    assert spelled(little(), "aé") == ["▁a", "<unk>"]
    assert little().token_bytes(3) == b"\n"


def test_special_user_defined_and_unused_tokens() -> None:
    tokenizer = little()
    assert set(tokenizer.special_ids) == {"<unk>", "<s>", "</s>", "<|end|>"}
    assert spelled(tokenizer, "a<think>a") == ["▁a", "<think>", "▁a"]
    assert "<s>" not in spelled(tokenizer, "<s>a")
    assert spelled(tokenizer, "<s>a</s>", allow_special=True) == ["<s>", "▁a", "</s>"]
    assert tokenizer.unassigned(17) == [14, 15, 16]
    assert tokenizer.decode(tokenizer.encode("ab a")) == "ab a"


def test_the_beginning_and_the_end() -> None:
    assert (little().bos_id, little().eos_ids) == (1, (2, 13))
    assert little(add_bos_token=False).bos_id is None
    assert little(eot_token_id=12).eos_ids == (2, 12, 13)
    assert little(eos_token_id=10**6).eos_ids == (13, 2)
    listed = memoryview(array("i", [2, 5, -1, 10**6]))  # as Ollama has them
    assert little(eos_token_ids=listed).eos_ids == (2, 5, 13)


def test_the_usual_tokens_of_llama_where_none_are_named() -> None:
    """Files that were converted from Meta's own say nothing; so do numbers that are none's."""
    said = metadata(PIECES)
    silent = {key: value for key, value in said.items() if not key.endswith("token_id")}
    for each in (silent, said | {"tokenizer.ggml.bos_token_id": 2**32 - 1}):
        found = from_metadata(each, name="silent")
        assert found.bos_id == 1
        assert spelled(found, "aé") == ["▁a", "<unk>"]
    others = [("<pad>", CONTROL, 0.0), ("<eos>", CONTROL, 0.0), *PIECES[3:]]
    for each in (metadata(others), metadata(PIECES, model="t5")):
        none = {key: value for key, value in each.items() if not key.endswith("token_id")}
        told = none | {"tokenizer.ggml.add_bos_token": True}
        assert from_metadata(told, name="others").bos_id is None


def test_in_the_harmony_form_a_part_does_not_end_a_text() -> None:
    more = [*PIECES, ("<|return|>", CONTROL, 0.0), ("<|call|>", CONTROL, 0.0)]
    found = from_metadata(metadata(more, eot_token_id=13), name="harmony")
    assert found.eos_ids == (2, 15, 16)


@given(text=st.text("abc ▁\n", max_size=40))
def test_words_apart_are_the_text_as_a_whole(text: str) -> None:
    usable = {t: s for t, kind, s in PIECES if kind == NORMAL}
    ids = {t: i for i, (t, kind, _) in enumerate(PIECES) if kind == NORMAL}
    apart = SentencePieceBpe(usable, ids, fallback=Fallback({10: 3}, 0))
    # a piece that crosses into the next word, which no text here has, turns the cutting off
    crossing = {"z▁z": -99.0}
    whole = SentencePieceBpe(usable | crossing, ids | {"z▁z": 99}, fallback=Fallback({10: 3}, 0))
    text = text.replace(" ", "▁")
    assert apart.encode(text) == whole.encode(text)


def test_byte_pairs_are_those_of_tokenizer_json(golden: Path) -> None:
    ours = load(str(golden / "gguf" / "byte_level.gguf"))
    theirs = hf.load(str(golden / "tokenizers" / "byte_level" / "tokenizer.json"))
    assert ours.special_ids == theirs.special_ids
    for text in ("The cat sat.", "  I'll\n\n go  ", "été 日本 😀", "a<think>b", "<|im_end|>", ""):
        assert ours.encode(text) == theirs.encode(text)
        assert ours.encode(text, allow_special=True) == theirs.encode(text, allow_special=True)
    assert all(ours.token_bytes(i) == theirs.token_bytes(i) for i in range(ours.size))


@pytest.mark.parametrize("name", PATTERNS)
def test_every_pattern_keeps_all_of_a_text(name: str, golden: Path) -> None:
    tokens = [chr(c) for c in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x144))]
    entries = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": name,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": ["a b"],
    }
    tokenizer = from_metadata(entries, name=name)
    text = "Ab1234567 I'LL été\u3000\u4e2d\u56fd \U0001f600\t_\r\n\n  $5.00 (x|y) 한 ༼ "
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("afmoe", "12345678 1234", ["12", "345", "678", " ", "1", "234"]),
        ("cohere2moe", "12345678 a1", ["12", "345", "678", " a", "1"]),
        ("laguna", "I'll 12\n\n\tgo", ["I", "'ll", " ", "1", "2", "\n\n", "\tgo"]),
        ("youtu", "aB한글 3일본\n", ["a", "B", "한글", " ", "3", "일본", "\n"]),
        ("exaone-moe", "one two'S 10\n\n", ["one two", "'S", " ", "1", "0", "\n\n"]),
        ("jais-2", "a" + 7 * " " + "b 1234", ["a", "    ", "  ", " b", " ", "123", "4"]),
    ],
)
def test_words_of_patterns(name: str, text: str, words: list[str]) -> None:
    pieces = [text]
    for each in PATTERNS[name].expressions:
        split = Split(Regex(each), "isolated")
        pieces = [word for piece in pieces for word, _ in split.pre_tokenize_str(piece)]
    assert pieces == words


def test_marked_pairs() -> None:
    """Merges of characters as Gemma 4 has them, to which ``</s>`` is text that is struck out."""
    pieces = [("<eos>", CONTROL, 0.0), ("<turn|>", CONTROL, 0.0), ("</s>", NORMAL, 0.0)]
    pieces += [(f"<0x{byte:02X}>", BYTE, 0.0) for byte in "é".encode()]
    pieces += [(text, NORMAL, 0.0) for text in ("\n", "\n\n", "▁", "a", "b", "ab", "▁ab")]
    more = {"model": "gemma4", "merges": ["\n \n", "a b", "▁ ab", "b ▁"], "eos_token_id": 0}
    tokenizer = from_metadata(metadata(pieces, **more), name="marked")
    assert set(tokenizer.special_ids) == {"<eos>", "<turn|>"}
    assert tokenizer.eos_ids == (0, 1)
    text = "ab ab\n\n ba\u00e9<eos>"
    found = [pieces[i][0] for i in tokenizer.encode(text, allow_special=True)]
    parts = ["ab", "▁ab", "\n\n", "▁", "b", "a", "<0xC3>", "<0xA9>", "<eos>"]
    assert found == parts
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text[:-5]))).decode() == text[:-5]


# a vocabulary of unigrams: with no bytes in it, and two pieces that share all of their letters
UNIGRAMS = {"▁": -2.0, "a": -3.0, "b": -3.5, "ab": -4.0, "ba": -5.0, "▁ab": -6.5, "abab": -9.0}


def unigrams(**more: object) -> Tokenizer:
    pieces = [("<unk>", UNKNOWN, 0.0), ("<s>", CONTROL, 0.0), ("</s>", CONTROL, 0.0)]
    pieces += [(text, NORMAL, score) for text, score in UNIGRAMS.items()]
    return from_metadata(metadata(pieces, model="t5", **more), name="unigrams")


def best_sum(text: str) -> float:
    """Of the scores of pieces, over all ways to cut a text."""
    if not text:
        return 0.0
    cuts = [
        UNIGRAMS[text[:end]] + best_sum(text[end:]) for end in range(1, 5) if text[:end] in UNIGRAMS
    ]
    return max(cuts)


@given(text=st.text("ab ", min_size=1, max_size=12))
def test_unigrams_are_the_likeliest(text: str) -> None:
    tokenizer = unigrams(add_space_prefix=False)
    names = [
        tokenizer.token_bytes(each).decode().replace(" ", "▁") for each in tokenizer.encode(text)
    ]
    assert "".join(names) == text.replace(" ", "▁")
    assert sum(UNIGRAMS[each] for each in names) == pytest.approx(best_sum(text.replace(" ", "▁")))


def test_what_unigrams_do_to_a_text() -> None:
    assert unigrams().bos_id is None
    assert unigrams(add_bos_token=True).bos_id == 1
    assert unigrams().encode("xyz aéb") == [3, 0, 3, 4, 0, 5]
    tidy = unigrams(remove_extra_whitespaces=True)
    assert tidy.encode("  a   b ") == unigrams().encode("a b")
    assert tidy.encode("   ") == []


def test_a_table_says_what_stands_for_what() -> None:
    """One key, ``é``: two units of the trie lead to it, the third holds where its text begins."""
    size, units = 1024, [0] * 1024
    first, second = "é".encode()
    offset = 256
    units[0] = offset << 10
    at = offset ^ first
    units[at] = first | (512 ^ at) << 10
    at = 512 ^ second
    units[at] = second | 1 << 8 | (768 ^ at) << 10
    units[768] = 1 << 31 | 2
    table = struct.pack(f"<I{size}I", 4 * size, *units) + b"x\0ab\0"
    assert unigrams(precompiled_charsmap=memoryview(table)).encode("béa") == unigrams().encode(
        "baba"
    )
    units = [97 | 97 << 10 if each == 97 else 0 for each in range(256)]  # its own successor
    looped = struct.pack("<I256I", 1024, *units)
    tokenizer = unigrams(precompiled_charsmap=memoryview(looped))
    assert tokenizer.encode("a" * 5_000) == unigrams().encode("a" * 5_000)
    for wrong in (b"", b"\xff\xff\xff\xff", table[:700], struct.pack("<I2I", 8, 2**32 - 1, 0)):
        tokenizer = unigrams(precompiled_charsmap=memoryview(wrong))
        assert tokenizer.encode("ba") == unigrams().encode("ba")


def test_word_pieces() -> None:
    words = ["[PAD]", "[UNK]", "▁un", "aff", "able", "▁the", "."]
    entries = {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type": memoryview(array("i", [3, 3, 1, 1, 1, 1, 1])),
        "tokenizer.ggml.unknown_token_id": 1,
    }
    tokenizer = from_metadata(entries, name="bert")
    assert tokenizer.encode("The UNAFFABLE xyz") == [5, 2, 3, 4, 1]
    assert tokenizer.decode([5, 2, 3, 4]) == "the unaffable"


@pytest.mark.parametrize(
    "change",
    [
        {"model": "rwkv"},
        {"model": 5},
        {"model": ["llama"]},
        {"model": memoryview(array("i", [1]))},
        {"tokens": []},
        {"tokens": "abc"},
        {"scores": memoryview(array("f", [1.0]))},
        {"scores": [1, 2]},
        {"token_type": memoryview(array("i", [1]))},
        {"add_bos_token": 0},
        {"add_space_prefix": "false"},
    ],
)
def test_metadata_that_cannot_be_used(change: dict[str, object]) -> None:
    with pytest.raises(CheckpointError) as caught:
        little(**change)
    assert "--vocab" in caught.value.hint


def test_too_few_scores_are_counted() -> None:
    with pytest.raises(CheckpointError, match="scores") as caught:
        little(scores=memoryview(array("f", [1.0])))
    assert caught.value.found == f"1 for {len(PIECES)} tokens"


@pytest.mark.parametrize("model", [["llama"], [], memoryview(array("i", [1])), True])
def test_a_model_that_is_no_text_is_looked_at_as_a_tokenizer(model: object) -> None:
    told = metadata(PIECES) | {"tokenizer.ggml.model": model}
    with pytest.raises(CheckpointError, match="tokenizer"):
        load_tokenizer(find_tokenizer(vocab_size=15, metadata=told))


@pytest.mark.parametrize("none", [[], memoryview(array("i"))])
def test_a_vocabulary_without_merges(none: object) -> None:
    """Of an empty list some writers say that it is one of numbers."""
    found = little(model="gpt2", pre="gpt-2", merges=none)
    assert spelled(found, "abc") == ["a", "b", "c"]


@pytest.mark.parametrize("model", ["gpt2", "gemma4"])
def test_merges_that_are_not_there_at_all(model: str) -> None:
    with pytest.raises(CheckpointError, match="merges") as caught:
        little(model=model)
    assert "--vocab" in caught.value.hint


def test_an_unknown_pattern_is_named() -> None:
    entries = {"model": "gpt2", "pre": "of-tomorrow", "merges": []}
    with pytest.raises(CheckpointError, match="not known") as caught:
        little(**entries)
    assert "of-tomorrow" in caught.value.found


def test_the_file_itself_comes_before_what_lies_beside_it(golden: Path) -> None:
    found = load_tokenizer(
        find_tokenizer(
            directory=golden / "tokenizers" / "byte_level",
            vocab_size=15,
            metadata=metadata(PIECES) | {"general.name": "itself"},
        )
    )
    assert found is not None
    assert found.name == "itself"
    named = load_tokenizer(
        find_tokenizer(vocab=str(golden / "gguf" / "byte_level.gguf"), vocab_size=15)
    )
    assert named is not None
    assert named.size == 325


def test_the_template_is_in_the_file() -> None:
    source = "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}"
    template = choose_template(
        directory=None,
        name_or_path=None,
        family="gguf",
        tokenizer=little(),
        metadata={"tokenizer.chat_template": source, "tokenizer.chat_template.tool_use": "x"},
    )
    assert template.name == "the model's own"
