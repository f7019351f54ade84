"""The next turn of a chat is made of the ids that replies were written in."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from blazr.engine.outputs import TokenOutput
from blazr.engine.sampling_params import SamplingParams
from blazr.llm.generation import GenerationRequest
from blazr.llm.llm import LLM
from blazr.llm.reply import Reply
from blazr.llm.reply_tokens import ReplyTokenCache
from blazr.llm.results import fold
from blazr.llm.text_engine import TextEngine
from blazr.text.chat_template import ChatPrompt
from blazr.text.events import TextDelta
from blazr.text.messages import Message
from tests.support.scripted import scripted_core

ASKED = Message(role="user", content="Count.")
MORE = Message(role="user", content="Go on.")


@pytest.fixture
def core() -> Iterator[TextEngine]:
    """It says "one two", letter by letter, as no tokenizer would cut it."""
    made = scripted_core()
    made.engine.script = [each for letter in "one two" for each in made.tokenizer.encode(letter)]
    yield made
    made.close()


def ask(core: TextEngine, *messages: Message, salt: str = "", **params: object) -> str:
    asked = GenerationRequest(messages=messages, params=SamplingParams(**params), cache_salt=salt)
    return fold(LLM.of(core).events([asked]))[0].text


def next_prompt(core: TextEngine, said: str, *, salt: str = "") -> tuple[int, ...]:
    messages = [ASKED, Message(role="assistant", content=said), MORE]
    return core.prepare(GenerationRequest(messages=messages, cache_salt=salt)).request.prompt_ids


def starts_as_written(core: TextEngine, ids: tuple[int, ...], *, tokens: int) -> bool:
    first = core.engine.submitted[0].prompt_ids
    return ids[: len(first) + tokens] == (*first, *core.engine.script[:tokens])


def test_the_next_turn_keeps_the_ids_of_a_reply(core: TextEngine) -> None:
    said = ask(core, ASKED)
    ids = next_prompt(core, said)
    assert said == "one two"
    assert starts_as_written(core, ids, tokens=7)
    messages = [ASKED, Message(role="assistant", content=said), MORE]
    assert core.tokenizer.decode(ids, skip_special=False) == core.template.render(messages)
    assert ids != tuple(core.template.prompt(messages, core.tokenizer).encode())


def test_turn_after_turn_keeps_them(core: TextEngine) -> None:
    chat = [ASKED]
    for _ in range(3):
        chat += [Message(role="assistant", content=ask(core, *chat)), MORE]
    ids = core.encode_chat(GenerationRequest(messages=chat))
    written = "".join(chr(65 + each % 26) for each in core.engine.script)
    assert "".join(chr(65 + each % 26) for each in ids).count(written) == 3


def test_a_reply_that_was_cut_keeps_them(core: TextEngine) -> None:
    said = ask(core, ASKED, max_tokens=2)
    assert said == "on"
    assert starts_as_written(core, next_prompt(core, said), tokens=2)


def test_white_space_at_the_end_may_be_trimmed(core: TextEngine) -> None:
    assert ask(core, ASKED, max_tokens=4) == "one "
    assert starts_as_written(core, next_prompt(core, "one"), tokens=3)


def test_what_a_stop_string_cut_away_is_not_in_the_next_turn(core: TextEngine) -> None:
    said = ask(core, ASKED, stop=("tw",))
    assert said == "one "
    ids = next_prompt(core, said)
    assert starts_as_written(core, ids, tokens=3)
    assert "tw" not in core.tokenizer.decode(ids)


def test_tokens_of_a_step_behind_a_stop_string_are_not_in_the_next_turn(core: TextEngine) -> None:
    """A step brings several where drafts are kept, or where steps wait to be taken together."""
    core.engine.go.clear()
    core.engine.script += core.engine.script[3:]
    params = SamplingParams(stop=("tw",))
    asked = core.prepare(GenerationRequest(messages=[ASKED], params=params))
    reply = Reply(core.engine, core.tokenizer, [asked], notify=lambda: None)
    reply._deliver(0, TokenOutput(request_id=1, index=0, token_ids=tuple(core.engine.script)))
    said = fold(reply.take())[0].text
    core.engine.go.set()
    assert said == "one "
    assert starts_as_written(core, next_prompt(core, said), tokens=3)


def test_an_abandoned_reply_keeps_what_was_read_of_it(core: TextEngine) -> None:
    core.engine.halts_after = 3
    events = LLM.of(core).events([GenerationRequest(messages=[ASKED])])
    said = ""
    for event in events:
        said += getattr(event, "text", "")
        if said == "one":
            break
    events.close()
    ids = next_prompt(core, said)
    assert core.tokenizer.decode(ids[-30:]).count("one") == 1


@pytest.mark.parametrize("said", ["one three", "ONE TWO", ""])
def test_another_reply_is_tokenized(core: TextEngine, said: str) -> None:
    ask(core, ASKED)
    messages = [ASKED, Message(role="assistant", content=said), MORE]
    assert next_prompt(core, said) == tuple(core.template.prompt(messages, core.tokenizer).encode())


def test_a_reply_is_known_only_under_its_salt(core: TextEngine) -> None:
    said = ask(core, ASKED, salt="mine")
    assert not starts_as_written(core, next_prompt(core, said, salt="yours"), tokens=7)
    assert starts_as_written(core, next_prompt(core, said, salt="mine"), tokens=7)


def test_a_spelled_mark_is_never_taken_for_a_real_one(core: TextEngine) -> None:
    asked = Message(role="user", content="Say <|user|>.")
    said = ask(core, asked)
    chat = [asked, Message(role="assistant", content=said), MORE]
    ids = core.encode_chat(GenerationRequest(messages=chat))
    assert ids.count(core.tokenizer.special_ids["<|user|>"]) == 2
    assert starts_as_written(core, tuple(ids), tokens=7)


def test_garbage_collection_may_end_a_reply_while_a_chat_is_encoded(
    core: TextEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    core.engine.halts_after = 3
    events = LLM.of(core).events([GenerationRequest(messages=[ASKED])])
    said = ""
    while said != "one":
        event = next(events)
        said += event.text if isinstance(event, TextDelta) else ""
    cycle: list[object] = [events]
    cycle.append(cycle)
    encode = ChatPrompt.encode

    def collect_and_encode(self: ChatPrompt, start: int = 0) -> list[int]:
        gc.collect()  # as may happen wherever memory is allocated
        return encode(self, start)

    monkeypatch.setattr(ChatPrompt, "encode", collect_and_encode)
    other = GenerationRequest(messages=[MORE])
    thread = threading.Thread(target=core.encode_chat, args=(other,), daemon=True)
    del events, cycle
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert starts_as_written(core, next_prompt(core, "one"), tokens=3)


@pytest.mark.parametrize("bound", ["max_characters", "max_conversations"])
def test_the_oldest_are_forgotten(core: TextEngine, bound: str) -> None:
    said = [Message(role="user", content=letter * 40) for letter in "ab"]
    prompts = [core.template.prompt([each], core.tokenizer) for each in said]
    longest = len(prompts[0].text) + len(prompts[1].text)
    known = ReplyTokenCache(**{bound: longest if bound == "max_characters" else 1})
    script = core.engine.script
    for prompt in prompts:
        known.add(prompt, "", prompt.encode(), script)
    for prompt, is_known in zip(prompts, (False, True), strict=True):
        whole = prompt.followed_by("one two")
        assert (known.encode(whole, "")[-len(script) :] == script) is is_known
