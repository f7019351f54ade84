"""Anthropic's client for Python."""

from __future__ import annotations

import anthropic
from checks import (
    KEY,
    MAX_TOKENS,
    MESSAGES,
    MODEL,
    WEATHER_SCHEMA,
    check,
    is_stream_of,
    is_text,
    is_usage,
    is_weather,
    run,
)

ASKED = {
    "model": MODEL,
    "messages": MESSAGES,
    "max_tokens": MAX_TOKENS,
    "extra_body": {"temperature": 0},  # which the client itself has no more
}


def client(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0)


@check
def chat(url: str) -> None:
    reply = client(url).messages.create(**ASKED)
    is_text(reply.content[0].text)
    is_usage(reply.usage.input_tokens, reply.usage.output_tokens)


@check
def stream(url: str) -> None:
    whole = client(url).messages.create(**ASKED).content[0].text
    with client(url).messages.stream(**ASKED) as events:
        is_stream_of(events.text_stream, whole)
        final = events.get_final_message()
    assert final.content[0].text == whole
    is_usage(final.usage.input_tokens, final.usage.output_tokens)


@check
def tools(url: str) -> None:
    tool = {"name": "weather", "input_schema": WEATHER_SCHEMA}
    reply = client(url).messages.create(
        **{**ASKED, "max_tokens": 100}, tools=[tool], tool_choice={"type": "any"}
    )
    assert reply.stop_reason == "tool_use"
    (call,) = (block for block in reply.content if block.type == "tool_use")
    assert call.name == "weather"
    is_weather(call.input)


@check
def json(url: str) -> None:
    reply = client(url).messages.create(
        **{**ASKED, "max_tokens": 100},
        output_config={"format": {"type": "json_schema", "schema": WEATHER_SCHEMA}},
    )
    is_weather(reply.content[0].text)


@check
def count_tokens(url: str) -> None:
    counted = client(url).messages.count_tokens(model=MODEL, messages=MESSAGES).input_tokens
    assert counted == client(url).messages.create(**ASKED).usage.input_tokens


@check
def models(url: str) -> None:
    assert MODEL in {model.id for model in client(url).models.list()}


run()
