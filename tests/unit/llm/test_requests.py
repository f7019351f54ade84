"""Requests that are more than a prompt: filling in the middle, going on with a message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, cast

import pytest

from blazr.core.errors import ContextLengthError, RequestError
from blazr.engine.sampling_params import SamplingParams
from blazr.llm.generation import GenerationRequest, Truncation
from blazr.llm.infill import INFILL_FORMATS, encode_infill
from blazr.llm.llm import LLM
from blazr.llm.text_engine import TextEngine
from blazr.text.images import Image
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


def test_a_chat_has_no_bound_but_the_context_and_a_prompt_has_one() -> None:
    messages = [Message(role="user", content="a")]
    wanted = SamplingParams(min_tokens=150)
    assert GenerationRequest(messages=messages, params=wanted).params.max_tokens is None
    with pytest.raises(RequestError, match="max_tokens \\(100\\)"):
        GenerationRequest(prompt="a", params=wanted)
    assert GenerationRequest(prompt="a").params.max_tokens == 100


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


CALL = {"id": "a1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def test_turns_go_whole_and_the_system_stays(core: TextEngine) -> None:
    """A result stays with its call, and both with the question."""
    told = Message(role="system", content="be kind")
    turns = [
        [
            Message(role="user", content=f"question {i}" + " x" * 20),
            Message(role="assistant", content=None, extra={"tool_calls": [CALL]}),
            Message(role="tool", content=f"result {i}", extra={"tool_call_id": "a1"}),
            Message(role="assistant", content=f"answer {i}"),
        ]
        for i in range(10, 22)
    ]
    last = Message(role="user", content="and now?")
    messages = [told, *(each for turn in turns for each in turn), last]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    request = GenerationRequest(
        messages=messages,
        tools=tools,
        params=SamplingParams(max_tokens=100),
        truncation=Truncation(drops="messages"),
    )
    prepared = core.prepare(request)
    text = core.tokenizer.decode(prepared.request.prompt_ids, skip_special=False)
    first = min(i for i in range(10, 22) if f"question {i}" in text)
    assert prepared.num_dropped_messages == 4 * (first - 10) > 0
    for word in ("question", "result", "answer"):
        assert [i for i in range(10, 22) if f"{word} {i}" in text] == list(range(first, 22))
    assert "be kind" in text
    assert '"name": "f"' in text


def test_a_chat_that_fits_stays_whole(core: TextEngine) -> None:
    message = Message(role="user", content="hi")
    request = GenerationRequest(messages=[message], truncation=Truncation(drops="messages"))
    assert core.prepare(request).num_dropped_messages == 0


def test_truncation_is_auto_or_disabled(core: TextEngine) -> None:
    with pytest.raises(RequestError) as caught:
        LLM.of(core).chat([Message(role="user", content="hi")], truncation="left")
    assert caught.value.param == "truncation"
    chat = [Message(role="user", content=" x" * 300), Message(role="assistant", content=" y" * 300)]
    chat.append(Message(role="user", content="hi"))
    with pytest.raises(ContextLengthError):
        LLM.of(core).chat(chat)
    assert LLM.of(core).chat(chat, truncation="auto").num_dropped_messages == 2


@pytest.mark.parametrize("most", [0, -2, 2.5, True, "5"])
def test_tokens_that_a_prompt_may_have_are_a_whole_number(most: object) -> None:
    with pytest.raises(RequestError, match="truncate_prompt_tokens"):
        Truncation.of_tokens(cast("int", most))


@pytest.mark.parametrize("side", ["middle", "messages", 5, ["left"]])
def test_tokens_go_from_the_left_or_the_right(side: object) -> None:
    with pytest.raises(RequestError, match="truncation_side"):
        Truncation.of_tokens(5, cast("Literal['left']", side))


def test_a_rendered_chat_that_cannot_fit_is_refused_before_it_is_encoded(core: TextEngine) -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "a " * 1_000_000}}
    messages = [Message(role="user", content="Hello")]
    request = GenerationRequest(messages=messages, tools=[tool])
    with pytest.raises(ContextLengthError, match="at most 8192 characters"):
        core.prepare(request)


def test_arguments_of_calls_count_before_they_are_rendered(core: TextEngine) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": '{"a": 1}' + " " * 10_000}}
    messages = [
        Message(role="user", content="Hello"),
        Message(role="assistant", content=None, extra={"tool_calls": [call]}),
    ]
    with pytest.raises(ContextLengthError, match="at most 4096 characters"):
        core.prepare(GenerationRequest(messages=messages))


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("truncation", [None, Truncation(drops="messages")])
def test_a_model_that_reads_only_text_says_so(
    core: TextEngine, truncation: Truncation | None, count: int
) -> None:
    """Also where old messages may go, which looks at the images before anything is rendered."""
    message = Message(role="user", content="hi", images=(Image(0, b"x"),) * count)
    with pytest.raises(RequestError, match="reads only text"):
        core.prepare(GenerationRequest(messages=[message], truncation=truncation))
