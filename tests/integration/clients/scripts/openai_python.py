"""OpenAI's client for Python."""

from __future__ import annotations

import asyncio

import openai
from checks import (
    KEY,
    MAX_TOKENS,
    MESSAGES,
    MODEL,
    QUESTION,
    WEATHER_SCHEMA,
    WEATHER_TOOL,
    are_vectors,
    check,
    is_stream_of,
    is_text,
    is_usage,
    is_weather,
    run,
)

ASKED = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": MAX_TOKENS}


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)


@check
def chat(url: str) -> None:
    reply = client(url).chat.completions.create(**ASKED)
    is_text(reply.choices[0].message.content)
    is_usage(reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens)


@check
def stream(url: str) -> None:
    whole = client(url).chat.completions.create(**ASKED).choices[0].message.content
    parts = list(
        client(url).chat.completions.create(
            **ASKED, stream=True, stream_options={"include_usage": True}
        )
    )
    is_stream_of((choice.delta.content for part in parts for choice in part.choices), whole)
    is_usage(parts[-1].usage.prompt_tokens, parts[-1].usage.completion_tokens)


@check
def asynchronous(url: str) -> None:
    async def ask() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY) as opened:
            parts = await opened.chat.completions.create(**ASKED, stream=True)
            return [part.choices[0].delta.content async for part in parts if part.choices]

    whole = client(url).chat.completions.create(**ASKED).choices[0].message.content
    is_stream_of(asyncio.run(ask()), whole)


@check
def tools(url: str) -> None:
    asked = {
        **ASKED,
        "tools": [WEATHER_TOOL],
        "tool_choice": "required",
        "max_tokens": 100,
    }
    reply = client(url).chat.completions.create(**asked).choices[0]
    assert reply.finish_reason == "tool_calls"
    (call,) = reply.message.tool_calls
    assert call.function.name == "weather"
    is_weather(call.function.arguments)
    with client(url).chat.completions.stream(**asked) as events:
        (streamed,) = events.get_final_completion().choices[0].message.tool_calls
    assert streamed.function.arguments == call.function.arguments
    result = {"role": "tool", "tool_call_id": call.id, "content": "sun"}
    answer = client(url).chat.completions.create(
        **{**ASKED, "messages": [*MESSAGES, reply.message, result], "tools": [WEATHER_TOOL]}
    )
    is_text(answer.choices[0].message.content)


@check
def json(url: str) -> None:
    schema = {"name": "weather", "schema": WEATHER_SCHEMA, "strict": True}
    reply = client(url).chat.completions.create(
        **{**ASKED, "max_tokens": 100},
        response_format={"type": "json_schema", "json_schema": schema},
    )
    is_weather(reply.choices[0].message.content)


@check
def completions(url: str) -> None:
    asked = {"model": MODEL, "prompt": QUESTION, "temperature": 0, "max_tokens": MAX_TOKENS}
    whole = client(url).completions.create(**asked)
    is_text(whole.choices[0].text)
    parts = client(url).completions.create(**asked, stream=True)
    is_stream_of((part.choices[0].text for part in parts), whole.choices[0].text)


@check
def responses(url: str) -> None:
    asked = {
        "model": MODEL,
        "input": QUESTION,
        "temperature": 0,
        "max_output_tokens": MAX_TOKENS,
    }
    first = client(url).responses.create(**asked)
    is_text(first.output_text)
    is_usage(first.usage.input_tokens, first.usage.output_tokens, first.usage.total_tokens)
    events = list(client(url).responses.create(**asked, stream=True))
    pieces = (event.delta for event in events if event.type == "response.output_text.delta")
    is_stream_of(pieces, first.output_text)
    assert events[-1].response.output_text == first.output_text
    second = client(url).responses.create(
        **{**asked, "input": "And then?"}, previous_response_id=first.id
    )
    assert second.usage.input_tokens > first.usage.input_tokens


@check
def embeddings(url: str) -> None:
    texts = ["a dog", "the sun is hot"]
    packed = client(url).embeddings.create(model=MODEL, input=texts)  # base64, its default
    plain = client(url).embeddings.create(model=MODEL, input=texts, encoding_format="float")
    are_vectors([row.embedding for row in packed.data])
    for one, other in zip(packed.data, plain.data, strict=True):
        assert max(abs(a - b) for a, b in zip(one.embedding, other.embedding, strict=True)) < 1e-6


@check
def models(url: str) -> None:
    assert MODEL in {model.id for model in client(url).models.list()}


run()
