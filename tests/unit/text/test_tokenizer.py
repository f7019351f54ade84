"""Token ids to text one by one."""

import pytest

from blazr.text.tokenizer import Detokenizer, Tokenizer

pytestmark = pytest.mark.smoke


def test_half_a_character_is_held_back(cl100k: Tokenizer) -> None:
    ids = cl100k.encode("😀!")
    detokenizer = Detokenizer(cl100k)
    parts = [detokenizer.push(token_id) for token_id in ids]
    assert len(ids) == 3
    assert parts == ["", "😀", "!"]
    assert detokenizer.flush() == ""


def test_what_never_becomes_a_character_is_replaced(stories: Tokenizer) -> None:
    first_byte = 0xC3 + 3  # the pieces of single bytes follow three special tokens
    detokenizer = Detokenizer(stories, continues=True)
    assert stories.token_bytes(first_byte) == b"\xc3"
    assert detokenizer.push(first_byte) == ""
    assert detokenizer.push(first_byte) == "\ufffd"
    assert detokenizer.push(stories.encode("a")[0]) == "\ufffd a"
    assert detokenizer.push(first_byte) == ""
    assert detokenizer.flush() == "\ufffd"


def test_the_leading_space_goes_once(stories: Tokenizer) -> None:
    ids = stories.encode("Once upon a time")
    assert stories.token_bytes(ids[0]).startswith(b" ")
    assert stories.decode([1, *ids]) == "Once upon a time"
    assert stories.decode([*ids, *ids]) == "Once upon a time Once upon a time"
    assert stories.decode([1, *ids], skip_special=False) == "<s> Once upon a time"


def test_a_reply_keeps_the_space_that_parts_it_from_the_prompt(stories: Tokenizer) -> None:
    ids = stories.encode("Once upon a time")
    begin, rest = ids[:2], ids[2:]
    detokenizer = Detokenizer(stories, continues=True)
    reply = "".join(map(detokenizer.push, rest)) + detokenizer.flush()
    assert stories.decode(begin) + reply == "Once upon a time"


def test_a_skipped_token_does_not_part_the_bytes_around_it(cl100k: Tokenizer) -> None:
    first, second = cl100k.encode("😀")
    end = cl100k.eos_ids[0]
    assert cl100k.decode([first, end, second]) == "😀"
    assert cl100k.decode([first, end, second], skip_special=False) == ("\ufffd<|endoftext|>\ufffd")
