"""Names of special tokens in what a client wrote."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blazr.core.errors import RequestError
from blazr.text.templates.escaping import _PRIVATE_USE, EscapedChat

NAMES = ["<|a|>", "<|b|>", "ab", "bc", "x"]


def restored(chat: EscapedChat, text: str) -> str:
    return "".join(map(str, chat.split(text, {})))


def test_values_without_a_name_are_copied() -> None:
    values = [{"role": "user", "n": [1, 2.5, None, True]}, ("t",)]
    chat = EscapedChat(values, NAMES)
    assert not chat.has_names
    assert chat.values == [{"role": "user", "n": [1, 2.5, None, True]}, ["t"]]
    assert isinstance(chat.values, list)
    assert chat.values[0] is not values[0]
    assert chat.num_characters == len("roleusernt")


def test_a_name_is_no_longer_there_but_reads_the_same() -> None:
    chat = EscapedChat({"content": "hi <|a|> <|a|>", "<|b|>": 1}, NAMES)
    assert chat.has_names
    assert isinstance(chat.values, dict)
    content, key = chat.values["content"], list(chat.values)[1]
    assert "<|a|>" not in content
    assert "<|b|>" not in key
    assert restored(chat, content + key) == "hi <|a|> <|a|><|b|>"


def test_only_what_the_template_wrote_becomes_tokens() -> None:
    chat = EscapedChat(["<|b|>hi"], NAMES)
    assert isinstance(chat.values, list)
    text = f"<|a|>{chat.values[0]}<|b|>"
    ids = {"<|a|>": 1, "<|b|>": 2}
    assert list(chat.split(text, ids)) == [1, "<|b|>hi", 2]


def test_the_longest_name_is_the_token() -> None:
    chat = EscapedChat([], ["<|a|>", "<|a|>b"])
    assert list(chat.split("<|a|>bc<|a|>", {"<|a|>": 1, "<|a|>b": 2})) == [2, "c", 1]
    assert list(chat.split("plain", {})) == ["plain"]


def test_a_name_that_overlaps_itself_is_found_everywhere() -> None:
    chat = EscapedChat(["acaca"], ["aca"])
    assert isinstance(chat.values, list)
    assert list(chat.split(chat.values[0], {"aca": 1})) == ["acaca"]


def test_stand_ins_occur_nowhere_else() -> None:
    text = "\U0010fffd<|a|>\U0010fffc"
    chat = EscapedChat([text], NAMES)
    assert isinstance(chat.values, list)
    assert restored(chat, chat.values[0]) == text
    assert chat.values[0][0] == "\U0010fffd"


@given(st.lists(st.text("<|ab>cx\U0010fffd", max_size=20), max_size=4))
def test_no_text_keeps_a_name(texts: list[str]) -> None:
    chat = EscapedChat(texts, NAMES)
    assert isinstance(chat.values, list)
    pattern = "|".join(map(re.escape, NAMES))
    for text, copy in zip(texts, chat.values, strict=True):
        assert not re.search(pattern, copy)
        assert len(copy) == len(text)
        assert "".join(map(str, chat.split(copy, dict.fromkeys(NAMES, 0)))) == text


@pytest.mark.parametrize("left", ["", "\U00100000"])
def test_a_chat_that_leaves_no_character_to_stand_in_is_refused(left: str) -> None:
    """Otherwise a name in it would become a token."""
    every = "".join(map(chr, _PRIVATE_USE)).replace(left or "\x00", "")
    names = ["<|a|>", "[b]"]
    with pytest.raises(RequestError, match="every character"):
        EscapedChat([every, "<|a|>[b]"], names)
    assert not EscapedChat([every], names).has_names
    assert EscapedChat([every.replace("\U00100001", ""), "<|a|>"], names[:1]).has_names
