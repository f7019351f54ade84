"""tokenizer.json and the files beside it."""

import json
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from blazr.core.errors import CheckpointError
from blazr.text.chat_template import ChatTemplate
from blazr.text.messages import Message
from blazr.text.tokenizer import Tokenizer
from blazr.text.tokenizers.hf import load

Copy = Callable[[Mapping[str, object]], Tokenizer]


@pytest.fixture
def stories_with(golden: Path, tmp_path: Path) -> Copy:
    """The stories tokenizer with other files beside it; each call adds to them."""

    def copy(files: Mapping[str, object]) -> Tokenizer:
        shutil.copy(golden / "tokenizers/stories260k/tokenizer.json", tmp_path)
        for name, content in files.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content), "utf-8")
        return load(str(tmp_path / "tokenizer.json"))

    return copy


def test_roles_are_those_declared(stories: Tokenizer) -> None:
    assert stories.name == "stories260k"
    assert stories.size == 512
    assert stories.bos_id == 1
    assert stories.eos_ids == (2, 1)  # generation_config.json names both
    assert stories.special_ids == {"<unk>": 0, "<s>": 1, "</s>": 2}
    assert stories.unassigned(515) == [512, 513, 514]


def test_roles_without_any_file_are_guessed_from_the_tokenizer(stories_with: Copy) -> None:
    tokenizer = stories_with({})
    assert tokenizer.bos_id == 1  # its post-processor puts it first
    assert tokenizer.eos_ids == (2,)


def test_a_declared_token_is_not_always_put_first(stories_with: Copy) -> None:
    declared = {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    assert stories_with({"tokenizer_config": {**declared, "add_bos_token": False}}).bos_id is None
    assert stories_with({"tokenizer_config": {**declared, "add_bos_token": True}}).bos_id == 1


def test_end_tokens_come_from_all_files(stories_with: Copy) -> None:
    assert stories_with({"config": {"eos_token_id": 7}}).eos_ids == (7,)
    assert stories_with({"special_tokens_map": {"eos_token": "</s>"}}).eos_ids == (2, 7)
    assert stories_with({"generation_config": {"eos_token_id": [9, 2]}}).eos_ids == (2, 9)


def test_a_declared_token_is_special(stories_with: Copy) -> None:
    piece = "he"
    tokenizer = stories_with({"tokenizer_config": {"pad_token": piece}})
    token_id = tokenizer.special_ids[piece]
    assert token_id not in tokenizer.encode("he said he")
    assert tokenizer.decode(tokenizer.encode("he said he")) == "he said he"


def test_a_marker_is_special_though_not_marked_so(chatty: Tokenizer) -> None:
    marker = "<\uff5cUser\uff5c>"
    assert marker in chatty.special_ids
    assert chatty.special_ids[marker] not in chatty.encode(f"x{marker}y")
    assert chatty.special_ids[marker] in chatty.encode(f"x{marker}y", allow_special=True)


def test_an_ordinary_added_token_is_text(chatty: Tokenizer) -> None:
    (token_id,) = chatty.encode("<think>")
    assert not chatty.is_special(token_id)
    assert chatty.decode([token_id]) == "<think>"


@pytest.mark.parametrize("name", ["stories260k", "byte_level"])
def test_decoding_equals_the_backends(name: str, golden: Path) -> None:
    file = golden / "tokenizers" / name / "tokenizer.json"
    ours, theirs = load(str(file)), Backend.from_file(str(file))
    generator = random.Random(7)
    words = ["Hello", " wörld", "\n\n", " 日本", "😀", " once upon", "a", " "]
    for _ in range(100):
        ids = theirs.encode("".join(generator.choices(words, k=8)), add_special_tokens=False).ids
        assert ours.decode(ids) == theirs.decode(ids)
    known = [each for each in range(ours.size) if ours.token_bytes(each).isascii()]
    for _ in range(100):
        ids = generator.choices(known, k=12)
        assert ours.decode(ids) == theirs.decode(ids)


def metaspace() -> Backend:
    """A SentencePiece-like vocabulary as newer files write it: the space before the first word."""
    pieces = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["\u2581", "a", "b", "\u2581a", "\u2581b", "ab", "\u2581ab"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    merges = [("\u2581", "a"), ("\u2581", "b"), ("a", "b"), ("\u2581", "ab"), ("\u2581a", "b")]
    backend = Backend(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True)
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    backend.add_special_tokens([AddedToken("<s>", normalized=False)])
    return backend


def test_metaspace_is_a_space(tmp_path: Path) -> None:
    metaspace().save(str(tmp_path / "m.json"))
    tokenizer = load(str(tmp_path / "m.json"))
    assert tokenizer.name == "m"
    assert tokenizer.strips_leading_space
    assert [tokenizer.token_bytes(each) for each in tokenizer.encode("ab b")] == [b" ab", b" b"]
    for text in ("ab b", "é", "a  b", "😀ab", ""):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.fixture
def turns(tmp_path: Path) -> Tokenizer:
    """Such a vocabulary with tokens that take the white space beside them."""
    backend = metaspace()
    backend.add_special_tokens(
        [
            AddedToken("<turn>", normalized=False, rstrip=True),
            AddedToken("<end>", normalized=False, lstrip=True),
        ]
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    return load(str(tmp_path / "tokenizer.json"))


def test_texts_between_tokens_are_cut_as_in_the_whole(turns: Tokenizer) -> None:
    begin, turn, end = (turns.special_ids[name] for name in ("<s>", "<turn>", "<end>"))
    parts: list[str | int] = ["ab", turn, " ab b ", end, "ab", begin, " a"]
    whole = "ab<turn> ab b <end>ab<s> a"
    assert turns.encode_parts(parts) == turns.encode(whole, allow_special=True)
    assert turns.encode_parts([begin, "ab"]) == turns.encode("<s>ab", allow_special=True)
    assert turns.encode_parts(["ab<end>"]) == turns.encode("ab<end>")


def test_a_name_in_a_chat_leaves_the_other_tokens_as_they_are(turns: Tokenizer) -> None:
    template = ChatTemplate(
        "<s>{% for m in messages %}<turn>\nab{{ m.content }}<end>{% endfor %}", name="turns"
    )

    def encode(*contents: str) -> list[int]:
        messages = [Message(role="user", content=content) for content in contents]
        return template.prompt(messages, turns).encode()

    plain, named = encode("a ", "ab"), encode("a ", "ab<turn>")
    assert named[: len(plain) - 1] == plain[:-1]
    assert named[-1] == plain[-1]


def test_a_reply_goes_on_without_a_space(turns: Tokenizer) -> None:
    template = ChatTemplate("<s>{{ messages[0].content }}<turn>", name="turns")
    prompt = template.prompt([Message(role="user", content="a")], turns)
    expected = turns.encode("<s>a<turn>ab", allow_special=True)
    assert prompt.followed_by("ab").encode() == expected


def test_an_added_token_of_marked_spaces_is_spaces(tmp_path: Path) -> None:
    """As Gemma's, which has one for every run of spaces: code is indented by them."""
    backend = metaspace()
    backend.add_tokens([AddedToken(text, normalized=False) for text in ("\u2581" * 4, "<x>")])
    backend.save(str(tmp_path / "m.json"))
    tokenizer = load(str(tmp_path / "m.json"))
    ids = backend.encode("<x>" + "\u2581" * 4 + "ab", add_special_tokens=False).ids
    assert [backend.id_to_token(each) for each in ids[:2]] == ["<x>", "\u2581" * 4]
    assert tokenizer.decode(ids) == backend.decode(ids)
    assert tokenizer.decode(ids).startswith("<x>    ")


def test_words_are_joined_by_spaces(tmp_path: Path) -> None:
    words = Backend(models.WordLevel({"a": 0, "bc": 1, "[UNK]": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "w.json"))
    tokenizer = load(str(tmp_path / "w.json"))
    assert tokenizer.decode(tokenizer.encode("a bc a")) == "a bc a"


def test_a_normalizer_cannot_smuggle_a_special_token_in(tmp_path: Path) -> None:
    backend = metaspace()
    backend.normalizer = normalizers.Replace("!", "<")
    backend.add_special_tokens([AddedToken("<s>", normalized=True)])
    backend.save(str(tmp_path / "n.json"))
    tokenizer = load(str(tmp_path / "n.json"))
    assert tokenizer.special_ids["<s>"] not in tokenizer.encode("!s>")


PIECES = ("<unk>", "<s>", "</s>", "\u2581", *"</s>ab", "\u2581a", "ab")


def unigram() -> Backend:
    pieces = [(piece, 0.0 if piece[0] == "<" else -2.0) for piece in dict.fromkeys(PIECES)]
    return Backend(models.Unigram(pieces, 0))


def whole_words() -> Backend:
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(PIECES))}
    merges = [("\u2581", "a"), ("a", "b")]
    return Backend(models.BPE(vocabulary, merges, unk_token="<unk>", ignore_merges=True))


def words() -> Backend:
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(PIECES))}
    return Backend(models.WordLevel(vocabulary, unk_token="<unk>"))


@pytest.mark.parametrize("make", [unigram, whole_words, words])
def test_no_model_finds_a_special_token_in_a_text(
    make: Callable[[], Backend], tmp_path: Path
) -> None:
    backend = make()
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    backend.decoder = decoders.Metaspace(prepend_scheme="never")
    names = ["<unk>", "<s>", "</s>"]
    backend.add_special_tokens([AddedToken(name, normalized=False) for name in names])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load(str(tmp_path / "tokenizer.json"))
    end = tokenizer.special_ids["</s>"]
    for text in ("</s>", "ab</s>", " a</s>b"):
        assert end not in tokenizer.encode(text)
        assert end not in tokenizer.encode_parts([end, text])[1:]
        assert end in tokenizer.encode(text, allow_special=True)
    expected = backend.encode(" ab", add_special_tokens=False).ids
    assert tokenizer.encode(" ab") == expected
    assert tokenizer.decode([*expected, end], skip_special=False).endswith("</s>")


def test_settings_for_training_are_ignored(golden: Path, tmp_path: Path) -> None:
    backend = Backend.from_file(str(golden / "tokenizers/byte_level/tokenizer.json"))
    backend.enable_truncation(2)
    backend.enable_padding(length=50)
    backend.save(str(tmp_path / "t.json"))
    text = "a text of more than two tokens"
    tokenizer = load(str(tmp_path / "t.json"))
    assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == text


@pytest.mark.parametrize(
    "content", [b"", b"{", b"{}", b'{"model":{"type":"BPE"}}', b"\xff", b"[" * 5000]
)
def test_a_broken_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        load(str(tmp_path / "tokenizer.json"))


def test_an_id_beyond_any_vocabulary_s_is_refused(golden: Path, tmp_path: Path) -> None:
    content = json.loads((golden / "tokenizers/stories260k/tokenizer.json").read_text("utf-8"))
    content["model"]["vocab"]["<far>"] = 2**31
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json has an id"):
        load(str(tmp_path / "tokenizer.json"))


@pytest.mark.parametrize("content", ["[1]", "{", '{"a": 1', "\x00", "[" * 100_000])
@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json"])
def test_a_broken_file_beside_it_is_refused(
    golden: Path, tmp_path: Path, name: str, content: str
) -> None:
    shutil.copy(golden / "tokenizers/stories260k/tokenizer.json", tmp_path)
    (tmp_path / name).write_text(content, "utf-8")
    with pytest.raises(CheckpointError, match=name):
        load(str(tmp_path / "tokenizer.json"))


def test_odd_values_beside_it_are_ignored(stories_with: Copy) -> None:
    tokenizer = stories_with(
        {
            "tokenizer_config": {"bos_token": 3, "eos_token": {"content": None}, "pad_token": "no"},
            "generation_config": {"eos_token_id": [None, "2", -4, True]},
        }
    )
    assert tokenizer.eos_ids == (2,)
    assert tokenizer.bos_id == 1


def test_an_inexact_decoder_is_refused(tmp_path: Path) -> None:
    backend = Backend(models.WordLevel({"a": 0}, unk_token="a"))
    backend.decoder = decoders.WordPiece()
    backend.save(str(tmp_path / "w.json"))
    with pytest.raises(CheckpointError, match="WordPiece"):
        load(str(tmp_path / "w.json"))


def replace(old: str | Regex, new: str) -> normalizers.Replace:
    return normalizers.Replace(old, new)


@pytest.mark.parametrize(
    ("part", "steps"),
    [
        ("normalizer", normalizers.Sequence([replace("a", "aa")] * 40)),
        ("normalizer", normalizers.Sequence([replace("a", "b" * 100), replace("b", "a" * 100)])),
        ("normalizer", replace(Regex("."), "x" * 10_000)),
        ("normalizer", normalizers.Sequence([normalizers.Prepend("x" * 99)] * 2)),
        ("normalizer", normalizers.Sequence([normalizers.ByteLevel()] * 20)),
        ("normalizer", normalizers.Sequence([normalizers.Sequence([replace("a", "aa")] * 40)])),
        ("pre_tokenizer", pre_tokenizers.Sequence([pre_tokenizers.ByteLevel()] * 20)),
        ("decoder", decoders.Sequence([decoders.Replace("a", "aa")] * 40)),
    ],
    ids=str,
)
def test_rules_that_make_a_terabyte_of_a_character_are_refused(
    part: str, steps: object, tmp_path: Path
) -> None:
    backend = metaspace()
    setattr(backend, part, steps)
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(CheckpointError, match="makes texts too long"):
        load(str(tmp_path / "tokenizer.json"))


def test_rules_of_real_models_are_not_too_long(tmp_path: Path) -> None:
    """As ALBERT's, which has most: quotes, a decomposition, and a table of SentencePiece."""
    texts = "ﷺ".encode() + b"\0" + "صلى الله عليه وسلم".encode() + b"\0"
    table = (0).to_bytes(4, "little") + texts
    rules = [replace("``", '"'), replace("''", '"'), normalizers.NFKD(), normalizers.StripAccents()]
    rules += [normalizers.Lowercase(), normalizers.Precompiled(table), replace(Regex(" {2,}"), " ")]
    backend = metaspace()
    backend.normalizer = normalizers.Sequence(rules)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert load(str(tmp_path / "tokenizer.json")).size > 1
