"""Ollama's client for Python."""

from __future__ import annotations

import ollama
from checks import (
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

OPTIONS = {"temperature": 0, "num_predict": MAX_TOKENS}
ASKED = {"model": MODEL, "messages": MESSAGES, "options": OPTIONS}


@check
def chat(url: str) -> None:
    reply = ollama.Client(url).chat(**ASKED)
    is_text(reply.message.content)
    is_usage(reply.prompt_eval_count, reply.eval_count)


@check
def stream(url: str) -> None:
    whole = ollama.Client(url).chat(**ASKED).message.content
    parts = list(ollama.Client(url).chat(**ASKED, stream=True))
    is_stream_of((part.message.content for part in parts), whole)
    assert parts[-1].done
    is_usage(parts[-1].prompt_eval_count, parts[-1].eval_count)


@check
def generate(url: str) -> None:
    asked = {"model": MODEL, "prompt": QUESTION, "options": OPTIONS}
    whole = ollama.Client(url).generate(**asked).response
    is_text(whole)
    is_stream_of(
        (part.response for part in ollama.Client(url).generate(**asked, stream=True)), whole
    )


@check
def tools(url: str) -> None:
    """Ollama cannot require a call, so what is tried is that one goes on after it was made."""
    call = {"function": {"name": "weather", "arguments": {"city": "Rome", "days": 2}}}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "weather", "content": "sun"},
    ]
    reply = ollama.Client(url).chat(MODEL, messages, tools=[WEATHER_TOOL], options=OPTIONS)
    is_text(reply.message.content)


@check
def json(url: str) -> None:
    reply = ollama.Client(url).chat(
        MODEL, MESSAGES, format=WEATHER_SCHEMA, options={**OPTIONS, "num_predict": 100}
    )
    is_weather(reply.message.content)


@check
def embeddings(url: str) -> None:
    are_vectors(ollama.Client(url).embed(MODEL, ["a dog", "the sun is hot"]).embeddings)


@check
def models(url: str) -> None:
    client = ollama.Client(url)
    assert MODEL in {model.model.removesuffix(":latest") for model in client.list().models}
    assert client.show(MODEL).modelinfo
    assert client.pull(MODEL).status == "success"
    assert client.ps().models


run()
