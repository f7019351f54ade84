"""Requests that are more than a prompt: filling in the middle, going on with a message."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from blazr.core.errors import ContextLengthError, RequestError
from blazr.llm.generation import GenerationRequest
from blazr.llm.infill import INFILL_FORMATS, encode_infill
from blazr.llm.text_engine import TextEngine
from blazr.text.messages import Message
from tests.support.scripted import scripted_core

pytestmark = pytest.mark.smoke


@pytest.fixture
def core() -> Iterator[TextEngine]:
    made = scripted_core()
    yield made
    made.close()


class Vocabulary:
    """Words of one character, and the special tokens it is given."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.special_ids = {name: 1000 + place for place, name in enumerate(names)}

    def encode(self, text: str) -> list[int]:
        return [ord(each) for each in text]


@pytest.mark.parametrize("name", INFILL_FORMATS)
def test_every_format_puts_the_texts_between_its_tokens(name: str) -> None:
    row = INFILL_FORMATS[name]
    vocabulary = Vocabulary((row.after, row.before, row.between))
    ids = encode_infill(vocabulary, "ab", "c", 2000)
    before, between, after = (
        vocabulary.special_ids[x] for x in (row.before, row.between, row.after)
    )
    assert ids == [before, ord("a"), ord("b"), between, ord("c"), after]


@pytest.mark.parametrize(("names", "size"), [((), 2000), (("<fim_prefix>",), 2000)])
def test_without_the_tokens_there_is_no_middle(names: tuple[str, ...], size: int) -> None:
    with pytest.raises(RequestError) as caught:
        encode_infill(Vocabulary(names), "a", "b", size)
    assert caught.value.param == "suffix"


def test_tokens_beyond_the_model_s_embedding_do_not_count() -> None:
    row = INFILL_FORMATS["qwen"]
    with pytest.raises(RequestError):
        encode_infill(Vocabulary((row.before, row.between, row.after)), "a", "b", 1002)


def test_a_long_suffix_is_refused_unread(core: TextEngine) -> None:
    with pytest.raises(ContextLengthError):
        core.prepare(GenerationRequest(prompt="a", suffix="b" * 5000))


def test_the_last_message_goes_on(core: TextEngine) -> None:
    messages = [
        Message(role="user", content="hi"),
        Message(role="assistant", content="<|user|> Well,"),
    ]
    request = GenerationRequest(messages=messages, continue_final_message=True)
    ids = core.prepare(request).request.prompt_ids
    text = core.tokenizer.decode(ids, skip_special=False)
    assert text == "<|user|>\nhi\n<|assistant|>\n<|user|> Well,"
    # what it says is text, whatever it spells
    assert ids.count(core.tokenizer.special_ids["<|user|>"]) == 1


@pytest.mark.parametrize("messages", [[], [Message(role="user", content="hi")]])
def test_there_must_be_something_to_go_on_with(messages: list[Message]) -> None:
    with pytest.raises(RequestError) as caught:
        GenerationRequest(messages=messages, continue_final_message=True)
    assert caught.value.param == "continue_final_message"
