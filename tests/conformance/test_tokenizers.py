"""Every tokenizer: decode(encode(x)) = x, incremental = whole, and no text forges a token."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import splintr
from hypothesis import given, settings
from hypothesis import strategies as st

from blazr.core.errors import RequestError
from blazr.text.tokenizer import Detokenizer, Tokenizer
from blazr.text.tokenizers import TOKENIZERS
from blazr.text.vocabs import CHAT_STOP_NAMES, VOCABS
from tests.support.seeds import examples

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "tokenizers"
GGUF = GOLDEN.parent / "gguf"

# Each kind of tokenizer with something to load it from.
SOURCES = {
    **{name: ("vocabulary", name) for name in VOCABS},
    "stories260k": ("tokenizer.json", str(GOLDEN / "stories260k" / "tokenizer.json")),
    "byte_level": ("tokenizer.json", str(GOLDEN / "byte_level" / "tokenizer.json")),
    "ranks": ("tiktoken", str(GOLDEN / "ranks" / "tiny.tiktoken")),
    "sentencepiece": ("tokenizer.model", str(GOLDEN / "sentencepiece" / "tokenizer.model")),
    "tekken": ("tekken.json", str(GOLDEN / "tekken" / "tekken.json")),
    "kimi": ("tiktoken.model", str(GOLDEN / "kimi" / "tiktoken.model")),
    "vocab_and_merges": ("vocab.json", str(GOLDEN / "vocab_and_merges" / "vocab.json")),
    "gguf_sentencepiece": ("gguf", str(GGUF / "stories260K-q4_0.gguf")),
    "gguf_byte_pairs": ("gguf", str(GGUF / "byte_level.gguf")),
}
every_tokenizer = pytest.mark.parametrize("name", SOURCES)
slowly = settings(deadline=None, max_examples=examples(150))

# A SentencePiece vocabulary writes a space as this character, and cannot tell the two apart.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\u2581"))
PIECES = st.lists(
    st.one_of(
        TEXT,
        st.sampled_from(
            ["<|user|>", "<|endoftext|>", "<s>", "</s>", "<|eot_id|>", "<\uff5cUser\uff5c>"]
        ),
        st.sampled_from(
            ["  ", "\n\n", "\r\n", "\t", "\x00", "I'll", "été", "日本", "😀", "👨‍👩‍👧", "0x1F"]
        ),
    ),
    max_size=8,
).map("".join)


@cache
def load(name: str) -> Tokenizer:
    kind, source = SOURCES[name]
    return TOKENIZERS[kind](source)


def stream(tokenizer: Tokenizer, ids: list[int], *, skip_special: bool = True) -> str:
    detokenizer = Detokenizer(tokenizer, skip_special=skip_special)
    parts = [detokenizer.push(token_id) for token_id in ids]
    for part in parts:
        assert not any(0xD800 <= ord(character) <= 0xDFFF for character in part)
    return "".join(parts) + detokenizer.flush()


def test_every_kind_is_tested() -> None:
    assert {kind for kind, _ in SOURCES.values()} == set(TOKENIZERS)


@every_tokenizer
@slowly
@given(text=PIECES)
def test_decoding_undoes_encoding(name: str, text: str) -> None:
    tokenizer = load(name)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@every_tokenizer
@slowly
@given(text=PIECES)
def test_no_text_spells_a_special_token(name: str, text: str) -> None:
    tokenizer = load(name)
    ids = tokenizer.encode(text)
    assert not set(ids) & set(tokenizer.special_ids.values())
    assert not set(ids) & set(tokenizer.unassigned(tokenizer.size))
    assert all(0 <= token_id < tokenizer.size for token_id in ids)


@every_tokenizer
def test_each_special_name_is_plain_text_unless_allowed(name: str) -> None:
    tokenizer = load(name)
    for text, token_id in tokenizer.special_ids.items():
        assert tokenizer.encode(text, allow_special=True)[-1] == token_id
        assert token_id not in tokenizer.encode(f"a{text}b {text} c")
        assert tokenizer.token_bytes(token_id) == text.encode()
        assert tokenizer.is_special(token_id)
        assert tokenizer.decode([token_id]) == ""
        assert tokenizer.decode([token_id], skip_special=False) == text


@every_tokenizer
@slowly
@given(data=st.data(), skip_special=st.booleans())
def test_incremental_is_whole_on_any_ids(
    name: str, data: st.DataObject, skip_special: bool
) -> None:
    tokenizer = load(name)
    ids = data.draw(st.lists(st.integers(-3, tokenizer.size + 300), max_size=30))
    whole = tokenizer.decode(ids, skip_special=skip_special)
    assert stream(tokenizer, ids, skip_special=skip_special) == whole
    shown = [each for each in ids if not (skip_special and tokenizer.is_special(each))]
    joined = b"".join(map(tokenizer.token_bytes, shown))
    if tokenizer.strips_leading_space:
        joined = joined.removeprefix(b" ")
    assert whole == joined.decode("utf-8", "replace")


@every_tokenizer
@slowly
@given(text=TEXT, data=st.data())
def test_characters_cut_across_bytes_come_out_whole(
    name: str, text: str, data: st.DataObject
) -> None:
    """Each byte as a token of its own: the worst cut there is."""
    tokenizer = load(name)
    single = {tokenizer.token_bytes(each): each for each in range(min(tokenizer.size, 600))}
    ids = [single[bytes([byte])] for byte in text.encode() if bytes([byte]) in single]
    expected = b"".join(map(tokenizer.token_bytes, ids))
    if tokenizer.strips_leading_space:
        expected = expected.removeprefix(b" ")
    assert stream(tokenizer, ids) == expected.decode("utf-8", "replace")


@every_tokenizer
def test_unassigned_ids_are_nothing(name: str) -> None:
    tokenizer = load(name)
    ids = [*tokenizer.unassigned(tokenizer.size + 10), -1, 10**9]
    assert len(ids) >= 12
    assert all(tokenizer.token_bytes(token_id) == b"" for token_id in ids)
    assert tokenizer.decode(ids) == ""
    assert set(tokenizer.unassigned(100)) <= set(ids)
    assigned = set(range(tokenizer.size)) - set(ids)
    empty = [each for each in assigned if not tokenizer.token_bytes(each)]
    assert not empty


@every_tokenizer
def test_half_a_surrogate_pair_is_refused(name: str) -> None:
    for allow_special in (False, True):
        with pytest.raises(RequestError, match="Unicode"):
            load(name).encode("a\ud83d", allow_special=allow_special)


@pytest.mark.sample(5)
@every_tokenizer
def test_long_runs_are_encoded_in_linear_time(name: str) -> None:
    for text in ("a" * 100_000, "^" * 100_000, " " * 100_000, "é\n" * 50_000):
        assert load(name).decode(load(name).encode(text)) == text


@pytest.mark.parametrize("name", VOCABS)
def test_facts_are_those_of_the_vocabulary(name: str) -> None:
    row = VOCABS[name]
    known = splintr.Tokenizer.from_pretrained(name)
    assert row.size == known.vocab_size
    assert row.base_size == splintr.base_vocab_size(name)
    assert row.eos_id == known.eos_token_id
    assert len(row.agent_tokens) == 54
    assert row.agent_tokens.items() <= known.special_tokens().items()
    chat_ends = (row.agent_tokens[name] for name in CHAT_STOP_NAMES)
    named = {*row.stop_ids, *chat_ends, row.bos_id} - {None}
    assert named <= set(known.special_tokens().values())
    assert load(name).special_ids == known.special_tokens()
    gaps = {token_id for gap in row.unassigned for token_id in gap}
    for token_id in range(row.size):
        try:
            known.decode_bytes([token_id])
        except ValueError:
            assert token_id in gaps
        else:
            assert token_id not in gaps


def ids_of_llama3() -> tuple[list[str], list[list[int]]]:
    texts = (GOLDEN / "llama3.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = (GOLDEN / "llama3.out").read_text("utf-8").split("\n")  # the last text is empty
    return texts, [[int(word) for word in line.split()] for line in lines]


def ids_of_stories260k() -> tuple[list[str], list[list[int]]]:
    cases = json.loads((GOLDEN / "stories260k" / "expected_ids.json").read_text("utf-8"))["cases"]
    assert all(case["ids"][0] == load("stories260k").bos_id for case in cases)
    return [case["text"] for case in cases], [case["ids"][1:] for case in cases]


def ids_of_openai() -> tuple[list[str], list[list[int]]]:
    return ["hello world", "tiktoken is great!"], [[15339, 1917], [83, 1609, 5963, 374, 2294, 0]]


@pytest.mark.parametrize(
    ("name", "recorded", "count"),
    [
        ("llama3", ids_of_llama3, 47),
        ("stories260k", ids_of_stories260k, 40),
        ("sentencepiece", ids_of_stories260k, 40),
        ("gguf_sentencepiece", ids_of_stories260k, 40),
        ("cl100k_base", ids_of_openai, 2),
    ],
)
def test_ids_equal_recorded_ones(
    name: str, recorded: Callable[[], tuple[list[str], list[list[int]]]], count: int
) -> None:
    texts, ids = recorded()
    assert len(texts) == len(ids) == count
    for text, expected in zip(texts, ids, strict=True):
        assert load(name).encode(text) == expected
        assert load(name).decode(expected) == text
