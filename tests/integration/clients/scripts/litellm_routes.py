"""LiteLLM: every route by which it can reach the server."""

from __future__ import annotations

from copy import deepcopy

import litellm
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

litellm.num_retries = 0


def ask(url: str, route: str, **more: object) -> litellm.ModelResponse:
    """A chat by a route; those of Ollama and Anthropic put their own paths after the URL."""
    base = url if route in {"anthropic", "ollama", "ollama_chat"} else f"{url}/v1"
    asked = {"messages": MESSAGES, "temperature": 0, "max_tokens": MAX_TOKENS, **more}
    asked = deepcopy(asked)  # it edits schemas in place
    return litellm.completion(model=f"{route}/{MODEL}", api_base=base, api_key=KEY, **asked)


def whole_and_streamed(url: str, route: str) -> None:
    reply = ask(url, route)
    text = reply.choices[0].message.content
    is_text(text)
    is_usage(reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens)
    parts = [part.choices[0].delta.content for part in ask(url, route, stream=True)]
    is_stream_of(parts, text)


def calls(url: str, route: str) -> None:
    reply = ask(url, route, tools=[WEATHER_TOOL], tool_choice="required", max_tokens=100)
    (call,) = reply.choices[0].message.tool_calls
    assert call.function.name == "weather"
    is_weather(call.function.arguments)


def formats(url: str, route: str) -> None:
    schema = {"name": "weather", "schema": WEATHER_SCHEMA, "strict": True}
    reply = ask(
        url,
        route,
        response_format={"type": "json_schema", "json_schema": schema},
        max_tokens=100,
    )
    is_weather(reply.choices[0].message.content)


@check
def openai(url: str) -> None:
    whole_and_streamed(url, "openai")
    calls(url, "openai")
    formats(url, "openai")


@check
def hosted_vllm(url: str) -> None:
    whole_and_streamed(url, "hosted_vllm")
    formats(url, "hosted_vllm")
    # This route strips additionalProperties, so that any keys may follow; the call itself is tried.
    reply = ask(url, "hosted_vllm", tools=[WEATHER_TOOL], tool_choice="required", max_tokens=100)
    (call,) = reply.choices[0].message.tool_calls
    assert call.function.name == "weather"
    assert "city" in call.function.arguments


@check
def anthropic(url: str) -> None:
    whole_and_streamed(url, "anthropic")
    calls(url, "anthropic")


@check
def text_completion(url: str) -> None:
    asked = {
        "model": f"text-completion-openai/{MODEL}",
        "api_base": f"{url}/v1",
        "api_key": KEY,
        "prompt": QUESTION,
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
    }
    text = litellm.text_completion(**asked).choices[0].text
    is_text(text)
    is_stream_of([p.choices[0].text for p in litellm.text_completion(**asked, stream=True)], text)


@check
def responses(url: str) -> None:
    reply = litellm.responses(
        model=f"openai/{MODEL}",
        api_base=f"{url}/v1",
        api_key=KEY,
        input=QUESTION,
        temperature=0,
        max_output_tokens=MAX_TOKENS,
    )
    is_text(reply.output[0].content[0].text)
    is_usage(reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.total_tokens)


@check
def embedding(url: str) -> None:
    for route, base in (("openai", f"{url}/v1"), ("hosted_vllm", f"{url}/v1"), ("ollama", url)):
        reply = litellm.embedding(
            model=f"{route}/{MODEL}",
            api_base=base,
            api_key=KEY,
            input=["a dog", "the sun is hot"],
        )
        are_vectors([row["embedding"] for row in reply.data])


@check
def rerank(url: str) -> None:
    texts = ["a dog", "the sun is hot", "a dog ran"]
    reply = litellm.rerank(
        model=f"hosted_vllm/{MODEL}", api_base=url, api_key=KEY, query="a dog", documents=texts
    )
    scores = [row["relevance_score"] for row in reply.results]
    assert sorted(row["index"] for row in reply.results) == [0, 1, 2]
    assert scores == sorted(scores, reverse=True)


@check
def ollama(url: str) -> None:
    whole_and_streamed(url, "ollama")
    formats(url, "ollama")


@check
def ollama_chat(url: str) -> None:
    whole_and_streamed(url, "ollama_chat")
    formats(url, "ollama_chat")


run()
