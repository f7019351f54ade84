"""SentencePiece's own files: the same ids as its library gives, and files that are wrong."""

import io
import json
import re
import warnings
from functools import cache
from math import isclose
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blazr.core.errors import CheckpointError
from blazr.text.tokenizer import Tokenizer
from blazr.text.tokenizers.sentencepiece_file import load
from tests.support.seeds import examples

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of some releases, about how they were compiled
    import sentencepiece

WORDS = re.split(
    r"\|", "once|upon|a|time|there|was|naïve|ﬁne|12|345|½|你好|x==y|two||spaces|(tab)\t"
)
KINDS = {
    "bpe": {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity"},
    "bpe_tidied": {
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "nmt_nfkc",
        "user_defined_symbols": ["<sep>", "▁▁", "the"],
    },
    "bpe_unknown": {"model_type": "bpe", "add_dummy_prefix": False, "character_coverage": 0.98},
    "bpe_across_words": {"model_type": "bpe", "split_by_whitespace": False},
    "unigram": {"model_type": "unigram", "normalization_rule_name": "nmt_nfkc_cf"},
    "unigram_bytes": {
        "model_type": "unigram",
        "byte_fallback": True,
        "remove_extra_whitespaces": False,
        "user_defined_symbols": ["<sep>", "ﬁ"],
    },
}
TEXTS = st.lists(
    st.one_of(
        st.sampled_from([*WORDS, "<sep>", "the", " ", "  ", "\n", "▁", "<0x41>"]),
        st.sampled_from(["\uff1d", "e\u0301", "日本", "🚀"]),
        st.text(max_size=4),
    ),
    max_size=12,
).map("".join)


@cache
def trained(kind: str) -> bytes:
    return train(vocab_size=340, **KINDS[kind])


def train(**settings: object) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(" ".join(WORDS[i % 7 :] + WORDS[: 1 + i % 11]) for i in range(60)),
        model_writer=model,
        hard_vocab_limit=False,
        minloglevel=3,
        **settings,
    )
    return model.getvalue()


def write(directory: Path, data: bytes, **config: object) -> str:
    file = directory / "tokenizer.model"
    file.write_bytes(data)
    if config:
        (directory / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    return str(file)


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> object:
    data = trained(request.param)
    ours = load(write(tmp_path_factory.mktemp("model"), data))
    return ours, sentencepiece.SentencePieceProcessor(model_proto=data)


@pytest.mark.parametrize("pair", KINDS, indirect=True)
@settings(deadline=None, max_examples=examples(150))
@given(text=TEXTS)
def test_ids_are_those_of_the_library(
    pair: tuple[Tokenizer, sentencepiece.SentencePieceProcessor], text: str
) -> None:
    ours, theirs = pair
    if any(name in text for name in ours.special_ids):
        return
    found, expected = ours.encode(text), theirs.encode(text)
    if found != expected:  # it sums in single precision, so that rounding decides some draws
        scores = [[theirs.get_score(each) for each in ids] for ids in (found, expected)]
        assert isclose(sum(scores[0]), sum(scores[1]), rel_tol=1e-5)
        assert theirs.decode(found) == theirs.decode(expected)


@pytest.mark.parametrize("text", ["▁", "once▁", "once ▁ ▁", " ▁ ", "▁once▁▁upon"])
def test_a_written_mark_of_space_is_removed_at_the_end(tmp_path: Path, text: str) -> None:
    data = trained("bpe")
    theirs = sentencepiece.SentencePieceProcessor(model_proto=data)
    assert load(write(tmp_path, data)).encode(text) == theirs.encode(text)


def test_what_lies_beside_it(tmp_path: Path) -> None:
    data = trained("bpe")
    plain = load(write(tmp_path, data))
    size = plain.size
    assert (plain.name, plain.bos_id, plain.eos_ids) == (tmp_path.name, 1, (2,))
    assert set(plain.special_ids) == {"<unk>", "<s>", "</s>"}
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<extra>": size, "<no>": -1}), "utf-8")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 5]}', "utf-8")
    added = {
        str(size + 1): {"content": "<|turn|>", "special": True},
        str(size + 4): {"content": "<think>", "special": False},
    }
    tokenizer = load(
        write(
            tmp_path,
            data,
            added_tokens_decoder=added,
            add_bos_token=False,
            eos_token={"content": "<|turn|>"},
        )
    )
    assert (tokenizer.size, tokenizer.bos_id) == (size + 5, None)
    assert tokenizer.eos_ids[:3] == (size + 1, 2, 5)
    assert "<|turn|>" in tokenizer.special_ids
    assert tokenizer.unassigned(size + 6) == [size + 2, size + 3, size + 5]
    assert tokenizer.encode("<extra><think>") == [size, size + 4]
    assert size + 1 not in tokenizer.encode("<|turn|>")
    assert tokenizer.encode("<|turn|>", allow_special=True) == [size + 1]
    assert tokenizer.decode([size + 1, size + 4]) == "<think>"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, [" a", "</s>", " a"]),
        ({"legacy": False}, [" a", "</s>", "a"]),
        ({"add_prefix_space": False}, ["a", "</s>", "a"]),
    ],
)
def test_where_a_space_is_put_before_a_text(
    tmp_path: Path, config: dict[str, object], expected: list[str]
) -> None:
    tokenizer = load(write(tmp_path, trained("bpe"), **config))
    ids = tokenizer.encode("a</s>a", allow_special=True)
    assert [tokenizer.token_bytes(each).decode() for each in ids] == expected
    assert tokenizer.decode(ids) == "a" + expected[-1]


def test_markers_among_the_pieces_are_special(tmp_path: Path) -> None:
    markers = ["<|im_start|>", "<think>"]
    data = train(vocab_size=60, model_type="bpe", user_defined_symbols=markers)
    tokenizer = load(write(tmp_path, data))
    assert tokenizer.special_ids["<|im_start|>"] == 3
    assert 3 not in tokenizer.encode("<|im_start|>a")
    assert 4 in tokenizer.encode("<think>a")


@pytest.mark.parametrize("model_type", ["word", "char"])
def test_other_kinds_of_models_are_refused(tmp_path: Path, model_type: str) -> None:
    with pytest.raises(CheckpointError, match="not supported"):
        load(write(tmp_path, train(vocab_size=40, model_type=model_type)))


def test_ranks_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="llama3"):
        load(write(tmp_path, b"IQ== 0\nIg== 1\n"))


def test_a_wild_id_is_refused(tmp_path: Path) -> None:
    added = {"9999999": {"content": "<a>"}}
    with pytest.raises(CheckpointError, match="far behind"):
        load(write(tmp_path, trained("bpe"), added_tokens_decoder=added))


@settings(deadline=None, max_examples=examples(300))
@given(data=st.data())
def test_whatever_a_file_holds_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    model = bytearray(trained(data.draw(st.sampled_from(["bpe", "unigram_bytes"]))))
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(model) - 1))
        model[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(model)), st.integers(0, len(model))))
    directory = tmp_path_factory.mktemp("wrong")
    try:
        tokenizer = load(write(directory, bytes(model[:cut])))
    except CheckpointError:
        return
    tokenizer.decode(tokenizer.encode("once upon ½ \x00 日本"))
