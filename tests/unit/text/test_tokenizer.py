"""Token ids to text one by one."""

import random

import pytest

from blazr.text.tokenizer import Detokenizer, Tokenizer
from tests.support.other_threads import ticks_during

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


@pytest.mark.parametrize(
    ("kind", "num_characters"), [("cl100k", 2_000_000), ("stories", 400_000), ("chatty", 400_000)]
)
def test_other_threads_run_while_a_long_text_is_encoded(
    kind: str, num_characters: int, request: pytest.FixtureRequest
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    text = "".join(random.choices("abcdefgh ", k=num_characters))
    assert ticks_during(lambda: tokenizer.encode(text)) > 10


def test_a_long_text_has_the_ids_of_its_parts(cl100k: Tokenizer) -> None:
    parts = ["words and\n", "  <|endoftext|>\n", "\u4e2d\u6587\n", "'ll 1234567\t\n"]
    for some in (parts, [parts[0], *parts[2:]]):
        short = [each for part in some for each in cl100k.encode(part)]
        assert cl100k.encode("".join(some) * 2000) == short * 2000
