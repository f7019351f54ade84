"""The official Anthropic client: every way to ask, tools, thinking, and forms of answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Literal

import anthropic
import pytest
from pydantic import BaseModel

from blazr.llm.load import load_text_engine
from blazr.llm.options import LoadOptions
from tests.support.loopback import Loopback, serving
from tests.support.scripted import SCRIPT, scripted_core, thinking_core

HELLO = [{"role": "user", "content": "hello"}]
ASKED = {"model": "default", "max_tokens": 200, "messages": HELLO}
THOUGHT = "The user wants Rome."
ROME = {"city": "Rome", "days": 2}
CALL = "<tool_call>\n" + json.dumps({"name": "weather", "arguments": ROME}) + "\n</tool_call>"
TEXT = f"<think>\n{THOUGHT}\n</think>\n\nLet me look.\n{CALL}\n{CALL}"
PLACE = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"name": "weather", "description": "Of a city.", "input_schema": PLACE}


@pytest.fixture(scope="module")
def script() -> Iterator[Loopback]:
    """One that counts to ten."""
    with serving(scripted_core()) as running:
        yield running


@pytest.fixture(scope="module")
def plain(script: Loopback) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=script.url, api_key="none", max_retries=0) as opened:
        yield opened


@pytest.fixture
def caller() -> Iterator[Loopback]:
    """One that thinks, says something, and calls twice."""
    with serving(thinking_core(TEXT)) as running:
        yield running


@pytest.fixture
def calling(caller: Loopback) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=caller.url, api_key="none", max_retries=0) as opened:
        yield opened


@pytest.fixture(scope="module")
def nano() -> Iterator[anthropic.Anthropic]:
    """The built-in model, said to think."""
    with (
        serving(load_text_engine(LoadOptions("nano", reasoning_parser="think"))) as running,
        anthropic.Anthropic(base_url=running.url, api_key="none", max_retries=0) as opened,
    ):
        yield opened


def test_a_raw_response_has_headers_and_the_message(plain: anthropic.Anthropic) -> None:
    raw = plain.messages.with_raw_response.create(**ASKED)
    assert raw.parse().content[0].text == SCRIPT
    assert raw.request_id == raw.headers["x-request-id"]
    assert raw.parse()._request_id == raw.request_id
    assert raw.retries_taken == 0


def test_a_streaming_response_is_read_line_by_line(plain: anthropic.Anthropic) -> None:
    with plain.messages.with_streaming_response.create(**ASKED, stream=True) as raw:
        lines = [line for line in raw.iter_lines() if line.startswith("event: ")]
    assert lines[0] == "event: message_start"
    assert lines[-1] == "event: message_stop"


def test_a_stream_can_be_watched_as_it_grows(plain: anthropic.Anthropic) -> None:
    with plain.messages.stream(**ASKED) as stream:
        seen = [
            (event.text, stream.current_message_snapshot.content[0].text)
            for event in stream
            if event.type == "text"
        ]
        assert stream.request_id
        assert stream.get_final_text() == SCRIPT
    assert "".join(text for text, _ in seen) == SCRIPT
    assert [snapshot for _, snapshot in seen] == [
        "".join(text for text, _ in seen[: n + 1]) for n in range(len(seen))
    ]


def test_the_beta_surface_is_the_same(plain: anthropic.Anthropic) -> None:
    beta = plain.beta.messages
    whole = beta.create(**ASKED, betas=["output-128k-2025-02-19"])
    assert whole.content[0].text == SCRIPT
    with beta.stream(**ASKED) as stream:
        assert stream.get_final_message().content[0].text == SCRIPT
    counted = beta.count_tokens(model="default", messages=HELLO)
    assert counted.input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens


def test_async_is_the_same(script: Loopback) -> None:
    async def ask() -> tuple[str, str, list[str]]:
        async with anthropic.AsyncAnthropic(base_url=script.url, api_key="none") as client:
            whole = await client.messages.create(**ASKED)
            async with client.messages.stream(**ASKED) as stream:
                text = "".join([each async for each in stream.text_stream])
            raw = await client.messages.create(**ASKED, stream=True)
            return whole.content[0].text, text, [event.type async for event in raw]

    whole, text, kinds = asyncio.run(ask())
    assert whole == text == SCRIPT
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"


def test_models_are_listed_to_their_end_and_looked_up(plain: anthropic.Anthropic) -> None:
    (model,) = list(plain.models.list(limit=1))  # turns pages by itself
    assert (model.type, model.id, model.max_input_tokens) == ("model", "scripted", 512)
    assert plain.models.retrieve("scripted").display_name == "scripted"
    assert [each.id for each in plain.beta.models.list()] == ["scripted"]
    with pytest.raises(anthropic.NotFoundError) as caught:
        plain.models.retrieve("claude-none")
    assert caught.value.type == "not_found_error"
    assert caught.value.request_id


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.messages.batches.create(requests=[]),
        lambda c: c.messages.batches.list(),
        lambda c: c.messages.batches.retrieve("batch_1"),
        lambda c: c.beta.skills.list(),
    ],
    ids=["create", "list", "retrieve", "skills"],
)
def test_what_is_not_here_is_not_found(plain: anthropic.Anthropic, call) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        call(plain)
    assert caught.value.type == "not_found_error"


IMAGE = {"type": "base64", "media_type": "image/png", "data": "aGk="}
PAPER = {"type": "base64", "media_type": "application/pdf", "data": "aGk="}


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "source": IMAGE},
        {"type": "document", "source": PAPER},
        {
            "type": "tool_result",
            "tool_use_id": "t",
            "content": [{"type": "image", "source": IMAGE}],
        },
    ],
    ids=["image", "document", "result"],
)
def test_images_are_refused_by_name(plain: anthropic.Anthropic, block: dict) -> None:
    for ask in (plain.messages.create, plain.beta.messages.create):
        with pytest.raises(anthropic.BadRequestError, match="text") as caught:
            ask(**{**ASKED, "messages": [{"role": "user", "content": [block]}]})
        assert caught.value.type == "invalid_request_error"
    with pytest.raises(anthropic.BadRequestError):
        plain.messages.count_tokens(
            model="default", messages=[{"role": "user", "content": [block]}]
        )


KIND = {"type": "text", "text": "be kind"}
SYSTEMS = [
    "be kind",
    [KIND],
    [{**KIND, "cache_control": {"type": "ephemeral"}}],
    [{"type": "text", "text": "be "}, {"type": "text", "text": "kind"}],
]


@pytest.mark.parametrize("system", SYSTEMS, ids=["text", "block", "cached", "blocks"])
def test_every_form_of_system_is_one_prompt(plain: anthropic.Anthropic, system: object) -> None:
    counted = plain.messages.count_tokens(model="default", messages=HELLO, system=system)
    first = plain.messages.count_tokens(
        model="default", messages=[{"role": "system", "content": "be kind"}, *HELLO]
    )
    bare = plain.messages.count_tokens(model="default", messages=HELLO)
    assert counted.input_tokens == first.input_tokens > bare.input_tokens


def test_a_system_message_may_come_later(script: Loopback, plain: anthropic.Anthropic) -> None:
    later = [*HELLO, {"role": "system", "content": "be brief"}, *HELLO]
    assert plain.messages.create(**{**ASKED, "messages": later}).content
    ids = script.engine.submitted[-1].prompt_ids
    assert "be brief" in script.core.tokenizer.decode(ids)


@pytest.mark.parametrize(
    ("ask", "text", "reason", "stop"),
    [
        ({}, SCRIPT, "end_turn", None),
        ({"max_tokens": 2}, " one two", "max_tokens", None),
        ({"max_tokens": 0}, "", "max_tokens", None),
        ({"stop_sequences": [" three"]}, " one two", "stop_sequence", " three"),
        ({"stop_sequences": ["wo th", "ree"]}, " one t", "stop_sequence", "wo th"),
    ],
    ids=["end", "length", "nothing", "stop", "across"],
)
def test_why_it_ends(
    plain: anthropic.Anthropic, ask: dict, text: str, reason: str, stop: str | None
) -> None:
    whole = plain.messages.create(**{**ASKED, **ask})
    with plain.messages.stream(**{**ASKED, **ask}) as stream:
        final = stream.get_final_message()
    for message in (whole, final):
        assert "".join(block.text for block in message.content) == text
        assert (message.stop_reason, message.stop_sequence) == (reason, stop)


def test_thinking_comes_before_text(calling: anthropic.Anthropic) -> None:
    whole = calling.messages.create(**ASKED, thinking={"type": "adaptive"})
    assert [block.type for block in whole.content] == ["thinking", "text"]
    assert whole.content[0].thinking == THOUGHT
    details = whole.usage.output_tokens_details
    assert 0 < details.thinking_tokens < whole.usage.output_tokens
    with calling.messages.stream(**ASKED, thinking={"type": "adaptive"}) as stream:
        told = [event for event in stream if event.type in {"thinking", "signature"}]
    assert "".join(each.thinking for each in told[:-1]) == THOUGHT
    assert told[-1].type == "signature"


def test_a_budget_bounds_thinking(nano: anthropic.Anthropic) -> None:
    begun = [*HELLO, {"role": "assistant", "content": "So.\n<think>"}]
    asked = {**ASKED, "messages": begun, "max_tokens": 30, "extra_body": {"temperature": 0}}
    on = nano.messages.create(**asked, thinking={"type": "enabled", "budget_tokens": 6})
    assert [block.type for block in on.content] == ["thinking", "text"]
    off = nano.messages.create(**asked, thinking={"type": "disabled"})
    assert [block.type for block in off.content] == ["text"]
    with nano.messages.stream(**asked, thinking={"type": "enabled", "budget_tokens": 6}) as stream:
        assert stream.get_final_text() == on.content[1].text


@pytest.mark.parametrize("choice", [None, {"type": "auto"}, {"type": "none"}], ids=str)
def test_calls_are_told_where_there_are_tools(
    calling: anthropic.Anthropic, choice: dict | None
) -> None:
    asked = {**ASKED, "tools": [WEATHER], **({"tool_choice": choice} if choice else {})}
    whole = calling.messages.create(**asked)
    calls = [block for block in whole.content if block.type == "tool_use"]
    if choice == {"type": "none"}:
        assert (calls, whole.stop_reason) == ([], "end_turn")
        return
    assert [(call.name, call.input) for call in calls] == [("weather", ROME)] * 2
    assert calls[0].id != calls[1].id
    assert whole.stop_reason == "tool_use"
    with calling.messages.stream(**asked) as stream:
        growing = [event.snapshot for event in stream if event.type == "input_json"]
        final = stream.get_final_message()
    assert [block.input for block in final.content[-2:]] == [ROME, ROME]
    assert {} in growing or any(len(each) == 1 for each in growing)  # it came piece by piece


def test_results_of_tools_are_read(caller: Loopback, calling: anthropic.Anthropic) -> None:
    asked = {**ASKED, "tools": [WEATHER]}
    first = calling.messages.create(**asked)
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "sunny", "is_error": False}
        for block in first.content
        if block.type == "tool_use"
    ]
    turns = [*HELLO, first.to_param(), {"role": "user", "content": results}]
    again = calling.messages.create(**{**asked, "messages": turns})
    assert again.stop_reason == "tool_use"
    prompt = caller.core.tokenizer.decode(caller.engine.submitted[-1].prompt_ids)
    assert prompt.count("sunny") == 2


def test_the_tool_runner_runs_to_the_end(caller: Loopback, calling: anthropic.Anthropic) -> None:
    asked: list[tuple[str, int]] = []

    @anthropic.beta_tool
    def weather(city: str, days: int) -> str:
        """The weather of a city."""
        asked.append((city, days))
        caller.engine.script = caller.core.tokenizer.encode("It is sunny.")
        return "sunny"

    final = calling.beta.messages.tool_runner(**ASKED, tools=[weather]).until_done()
    assert final.content[0].text == "It is sunny."
    assert asked == [("Rome", 2)] * 2


def test_the_tool_runner_streams_and_awaits(caller: Loopback) -> None:
    @anthropic.beta_async_tool
    async def weather(city: str, days: int) -> str:
        """The weather of a city."""
        caller.engine.script = caller.core.tokenizer.encode(f"{days} days in {city}.")
        return "sunny"

    async def ask() -> list[str]:
        async with anthropic.AsyncAnthropic(base_url=caller.url, api_key="none") as client:
            runner = client.beta.messages.tool_runner(**ASKED, tools=[weather], stream=True)
            ends = [await stream.get_final_message() async for stream in runner]
        return [end.stop_reason for end in ends]

    assert asyncio.run(ask()) == ["tool_use", "end_turn"]


class Forecast(BaseModel, extra="forbid"):
    day: Literal["today", "tomorrow"]
    is_sunny: bool


def test_parse_gives_the_type(nano: anthropic.Anthropic) -> None:
    asked = {**ASKED, "output_format": Forecast, "max_tokens": 60}
    assert isinstance(nano.messages.parse(**asked).parsed_output, Forecast)
    assert isinstance(nano.beta.messages.parse(**asked).parsed_output, Forecast)
    with nano.messages.stream(**asked) as stream:
        assert isinstance(stream.get_final_message().parsed_output, Forecast)


@pytest.mark.parametrize("field", ["output_config", "output_format"])
def test_a_schema_holds_the_reply(nano: anthropic.Anthropic, field: str) -> None:
    form = {"type": "json_schema", "schema": Forecast.model_json_schema()}
    said = {"output_config": {"format": form, "effort": "low"}, "output_format": form}
    reply = nano.messages.create(**{**ASKED, "max_tokens": 60}, extra_body={field: said[field]})
    assert Forecast.model_validate_json(reply.content[0].text)


@pytest.mark.parametrize(
    "ask",
    [
        {"tool_choice": {"type": "any"}},
        {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "clock"}},
        {"output_config": {"format": {"type": "xml"}}},
        {"extra_body": {"mirostat": 2}},
        {"extra_body": {"top_p": 7}},
        {"messages": [{"role": "user", "content": []}]},
    ],
    ids=lambda ask: str(ask)[:50],
)
def test_bad_requests_say_so(plain: anthropic.Anthropic, ask: dict) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        plain.messages.create(**{**ASKED, **ask})
    assert caught.value.type == "invalid_request_error"
    assert caught.value.api_message
