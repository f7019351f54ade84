"""Chats with the built-in model, turn after turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from blazr import LLM, SamplingParams
from blazr.cli.conversation import Conversation
from blazr.cli.options import LoadFlags
from blazr.cli.partners import LocalPartner
from blazr.core.errors import ContextLengthError
from blazr.llm.generation import chat_request
from blazr.nn.operands.step import GRID
from blazr.text.messages import Message

ASKED = ("Tell me a story about a dog.", "Another one, please!", "Thank you!")


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM() as opened:
        yield opened


def test_a_turn_reads_again_less_than_a_block_of_what_was_said(llm: LLM) -> None:
    """Also where a reply is not written in the tokens that the tokenizer would make of it."""
    letters = [each for letter in "A dog ran away." for each in llm.tokenizer.encode(letter)]
    chat: list[dict[str, object]] = []
    before = 0
    for turn, asked in enumerate(ASKED):
        chat.append({"role": "user", "content": asked})
        prompt = llm.core.encode_chat(chat_request(chat, None, None))
        assert len(prompt) >= before
        if turn == 0:  # a reply of single letters
            (read,) = llm.generate([prompt + letters], SamplingParams(max_tokens=64, temperature=0))
            rendered = llm.core.template.prompt(
                [Message(role="user", content=asked)], llm.tokenizer
            )
            said = (*letters, *read.token_ids)
            llm.core.reply_cache.add(rendered, "", prompt, said)
            chat.append({"role": "assistant", "content": llm.tokenizer.decode(said)})
            before = len(prompt) + len(said)
            continue
        usage = (answer := llm.chat(chat, SamplingParams(max_tokens=64, temperature=0))).usage
        assert usage.cached_tokens >= before // GRID * GRID - GRID
        before = usage.total_tokens
        chat.append({"role": "assistant", "content": answer.text})


def test_a_conversation_never_ends_for_want_of_room(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(llm.core, "info", replace(llm.core.info, max_seq_len=200))
    given: dict[str, object] = {"max_tokens": 40, "temperature": 0.0}
    partner = LocalPartner(llm, LoadFlags())
    conversation = Conversation(partner, given, system="You are a kind storyteller.")
    for _ in range(5):
        conversation.say(ASKED[0])
    said = capsys.readouterr()
    assert "no longer fit" in said.err
    assert "error" not in said.err
    assert len(conversation.history) == 10
    assert 0 < conversation.num_forgotten < 10
    assert all(each.content for each in conversation.history)


def test_the_error_of_a_long_prompt_says_each_thing_once(llm: LLM) -> None:
    limit = llm.core.info.max_seq_len
    with pytest.raises(ContextLengthError) as caught:
        llm.generate([5] * (limit + 7))
    assert str(caught.value).count(str(limit + 7)) == 1
    assert caught.value.num_tokens == limit + 7
