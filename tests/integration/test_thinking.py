"""Thinking over a real engine: bounded, with a grammar after it, asked for in every dialect."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from blazr.core.errors import UnknownNameError
from blazr.engine.sampling_params import SamplingParams
from blazr.llm.generation import GenerationRequest
from blazr.llm.llm import LLM
from blazr.llm.load import load_text_engine
from blazr.llm.options import LoadOptions
from blazr.llm.results import Completion, fold
from blazr.text.messages import Message
from blazr.text.reasoning import REASONING
from blazr.text.tool_calls.rows import TOOL_FORMATS
from tests.support.loopback import Loopback, serving

HELLO = Message(role="user", content="Tell me a story.")
BEGUN = Message(role="assistant", content="Here it comes.\n<think>")
CHAT = [{"role": each.role, "content": each.content} for each in (HELLO, BEGUN)]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """A model that is said to think, and told that it has begun to."""
    core = load_text_engine(
        LoadOptions("nano", memory="32MiB", reasoning_parser="think", tool_parser="mistral")
    )
    with LLM.of(core) as found:
        yield found


@pytest.fixture(scope="module")
def server(llm: LLM) -> Iterator[Loopback]:
    with serving(llm.core) as running:
        yield running


def think(llm: LLM, budget: int | None, **params: object) -> list[Completion]:
    settings = SamplingParams(**{"temperature": 0, "max_tokens": 40, **params})
    request = GenerationRequest(
        messages=[HELLO, BEGUN],
        params=settings,
        thinking_budget=budget,
        continue_final_message=True,
    )
    return fold(list(llm.events([request])))


def test_named_formats_are_used(llm: LLM) -> None:
    assert llm.core.reply_format.reasoning is REASONING["think"]
    assert llm.core.reply_format.tool_format is TOOL_FORMATS["mistral"]


def test_calls_are_shown_in_the_format_in_which_they_are_read(llm: LLM) -> None:
    """Where a template writes no tools, the model is told of them in the format that was named."""
    template = llm.core.template
    assert template is not None
    text = template.render([HELLO], tools=[{"type": "function", "function": {"name": "now"}}])
    assert '[TOOL_CALLS][{"name": "function-name"' in text


def test_wrong_names_are_told_before_anything_is_loaded() -> None:
    for flag in ("tool_parser", "reasoning_parser"):
        with pytest.raises(UnknownNameError, match="wonder"):
            load_text_engine(LoadOptions("/there/is/none", **{flag: "wonder"}))


def test_thinking_is_bounded(llm: LLM) -> None:
    (free,) = think(llm, None)
    assert (free.text, len(free.token_ids)) == ("", 40)
    for budget in (0, 1, 9):
        (bound,) = think(llm, budget)
        assert free.reasoning.startswith(bound.reasoning)
        assert bool(bound.reasoning) is bool(budget)
        ended = llm.core.tokenizer.encode("\n</think>\n\n")
        assert list(bound.token_ids[budget : budget + len(ended)]) == ended
        assert bound.text
        assert bound.finish_reason == "length"


def test_the_bound_is_the_same_one_by_one_and_for_every_choice(llm: LLM) -> None:
    (alone,) = think(llm, 9)
    (slow,) = think(llm, 9, logprobs=0)
    assert alone.token_ids == slow.token_ids
    assert [each.token_ids for each in think(llm, 9, n=3)] == [alone.token_ids] * 3


def test_a_grammar_begins_after_thinking(llm: LLM) -> None:
    (reply,) = think(llm, 6, grammar={"choice": ["yes", "no"]})
    assert reply.reasoning
    assert reply.text in {"yes", "no"}
    assert reply.finish_reason == "stop"


def post(server: Loopback, path: str, **body: object) -> dict:
    reply = server.client.post(path, json={"temperature": 0, **body})
    assert reply.is_success, reply.text
    return reply.json()


@pytest.mark.parametrize(
    "field",
    [
        {"max_thinking_tokens": 7},
        {"thinking_token_budget": 7},
        {"max_thinking_tokens": 7, "reasoning_effort": "medium"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "none"},
    ],
)
def test_chats(server: Loopback, field: dict) -> None:
    chat = {"messages": CHAT, "max_tokens": 40, "continue_final_message": True}
    path = "/v1/chat/completions"
    found = post(server, path, **chat, **field, add_generation_prompt=False)
    message = found["choices"][0]["message"]
    assert message["content"]
    is_off = "max_thinking_tokens" not in field and "thinking_token_budget" not in field
    assert ("reasoning" in message) is not is_off


def test_messages(server: Loopback) -> None:
    thinking = {"type": "enabled", "budget_tokens": 7}
    found = post(server, "/v1/messages", messages=CHAT, max_tokens=40, thinking=thinking)
    assert [block["type"] for block in found["content"]] == ["thinking", "text"]
    off = {"type": "disabled"}
    found = post(server, "/v1/messages", messages=CHAT, max_tokens=40, thinking=off)
    assert [block["type"] for block in found["content"]] == ["text"]


def test_chats_with_a_schema(server: Loopback) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    found = post(
        server,
        "/v1/chat/completions",
        messages=CHAT,
        max_tokens=80,
        continue_final_message=True,
        max_thinking_tokens=5,
        response_format=form,
    )
    message = found["choices"][0]["message"]
    assert message["reasoning"]
    assert message["content"].startswith("{")
    reply = server.client.post(
        "/v1/chat/completions", json={"messages": CHAT, "max_thinking_tokens": -2}
    )
    assert reply.status_code == 400
