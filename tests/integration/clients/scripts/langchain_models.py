"""LangChain, by its packages for OpenAI's, Anthropic's and Ollama's dialects."""

from __future__ import annotations

from checks import (
    KEY,
    MAX_TOKENS,
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
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_ollama import ChatOllama, OllamaEmbeddings
from langchain_openai import ChatOpenAI, OpenAIEmbeddings


def openai(url: str, max_tokens: int = MAX_TOKENS, **more: object) -> ChatOpenAI:
    return ChatOpenAI(
        model=MODEL,
        base_url=f"{url}/v1",
        api_key=KEY,
        temperature=0,
        max_tokens=max_tokens,
        stream_usage=True,
        **more,
    )


def anthropic(url: str, max_tokens: int = MAX_TOKENS) -> ChatAnthropic:
    return ChatAnthropic(
        model=MODEL, base_url=url, api_key=KEY, temperature=0, max_tokens=max_tokens
    )


def ollama(url: str, max_tokens: int = MAX_TOKENS) -> ChatOllama:
    return ChatOllama(model=MODEL, base_url=url, temperature=0, num_predict=max_tokens)


def models(url: str) -> list[BaseChatModel]:
    return [openai(url), openai(url, use_responses_api=True), anthropic(url), ollama(url)]


@check
def chat(url: str) -> None:
    for model in models(url):
        reply = model.invoke(QUESTION)
        is_text(reply.text)
        is_usage(reply.usage_metadata["input_tokens"], reply.usage_metadata["output_tokens"])


@check
def stream(url: str) -> None:
    for model in models(url):
        is_stream_of([part.text for part in model.stream(QUESTION)], model.invoke(QUESTION).text)


@check
def tools(url: str) -> None:
    for model in (
        openai(url, 100),
        openai(url, 100, use_responses_api=True),
        anthropic(url, 100),
    ):
        (call,) = model.bind_tools([WEATHER_TOOL], tool_choice="any").invoke(QUESTION).tool_calls
        assert call["name"] == "weather"
        is_weather(call["args"])


@check
def json(url: str) -> None:
    schema = {"title": "weather", "description": "the weather", **WEATHER_SCHEMA}
    for method in ("json_schema", "function_calling"):
        is_weather(openai(url, 100).with_structured_output(schema, method=method).invoke(QUESTION))
    for model in (anthropic(url, 100), ollama(url, 100)):
        is_weather(model.with_structured_output(schema, method="json_schema").invoke(QUESTION))


@check
def embeddings(url: str) -> None:
    texts = ["a dog", "the sun is hot"]
    openais = OpenAIEmbeddings(
        model=MODEL, base_url=f"{url}/v1", api_key=KEY, check_embedding_ctx_length=False
    )
    for model in (openais, OllamaEmbeddings(model=MODEL, base_url=url)):
        are_vectors(model.embed_documents(texts))


run()
