"""Haystack: its components for OpenAI's API."""

from __future__ import annotations

from checks import (
    KEY,
    MAX_TOKENS,
    MODEL,
    QUESTION,
    WEATHER_SCHEMA,
    are_vectors,
    check,
    is_stream_of,
    is_text,
    is_usage,
    is_weather,
    run,
)
from haystack.components.embedders import OpenAIDocumentEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage, Document
from haystack.tools import Tool
from haystack.utils import Secret

TOKEN = Secret.from_token(KEY)


def ask(
    url: str, streaming_callback: object = None, tools: object = None, **more: object
) -> ChatMessage:
    generator = OpenAIChatGenerator(
        model=MODEL,
        api_base_url=f"{url}/v1",
        api_key=TOKEN,
        generation_kwargs={"temperature": 0, "max_tokens": MAX_TOKENS, **more},
        streaming_callback=streaming_callback,
        tools=tools,
        max_retries=0,
    )
    return generator.run([ChatMessage.from_user(QUESTION)])["replies"][0]


@check
def chat(url: str) -> None:
    reply = ask(url)
    is_text(reply.text)
    usage = reply.meta["usage"]
    is_usage(usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"])


@check
def stream(url: str) -> None:
    pieces = []
    ask(url, lambda part: pieces.append(part.content))
    is_stream_of(pieces, ask(url).text)


@check
def tools(url: str) -> None:
    tool = Tool("weather", "The weather of the next days.", WEATHER_SCHEMA, print)
    (call,) = ask(url, tools=[tool], tool_choice="required", max_tokens=100).tool_calls
    assert call.tool_name == "weather"
    is_weather(call.arguments)


@check
def json(url: str) -> None:
    schema = {"name": "weather", "schema": WEATHER_SCHEMA, "strict": True}
    format_ = {"type": "json_schema", "json_schema": schema}
    is_weather(ask(url, response_format=format_, max_tokens=100).text)


@check
def embeddings(url: str) -> None:
    embedder = OpenAIDocumentEmbedder(
        api_key=TOKEN, model=MODEL, api_base_url=f"{url}/v1", progress_bar=False
    )
    documents = [Document(content="a dog"), Document(content="the sun is hot")]
    are_vectors([each.embedding for each in embedder.run(documents)["documents"]])


run()
