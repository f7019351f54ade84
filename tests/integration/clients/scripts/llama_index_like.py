"""LlamaIndex, by its packages for servers that are like OpenAI's."""

from __future__ import annotations

from checks import (
    KEY,
    MAX_TOKENS,
    MODEL,
    QUESTION,
    WEATHER_TOOL,
    are_vectors,
    check,
    is_stream_of,
    is_text,
    is_weather,
    run,
)
from llama_index.core.llms import ChatMessage
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

MESSAGES = [ChatMessage(role="user", content=QUESTION)]


def model(url: str, max_tokens: int = MAX_TOKENS, *, is_chat: bool = True) -> OpenAILike:
    return OpenAILike(
        model=MODEL,
        api_base=f"{url}/v1",
        api_key=KEY,
        is_chat_model=is_chat,
        is_function_calling_model=is_chat,
        temperature=0,
        max_tokens=max_tokens,
        context_window=512,
        max_retries=0,
    )


@check
def chat(url: str) -> None:
    is_text(model(url).chat(MESSAGES).message.content)


@check
def stream(url: str) -> None:
    whole = model(url).chat(MESSAGES).message.content
    is_stream_of([part.delta for part in model(url).stream_chat(MESSAGES)], whole)


@check
def completions(url: str) -> None:
    plain = model(url, is_chat=False)
    whole = plain.complete(QUESTION).text
    is_text(whole)
    is_stream_of([part.delta for part in plain.stream_complete(QUESTION)], whole)


@check
def tools(url: str) -> None:
    reply = model(url, 100).chat(MESSAGES, tools=[WEATHER_TOOL], tool_choice="required")
    (call,) = model(url).get_tool_calls_from_response(reply)
    assert call.tool_name == "weather"
    is_weather(call.tool_kwargs)


@check
def embeddings(url: str) -> None:
    embedder = OpenAILikeEmbedding(model_name=MODEL, api_base=f"{url}/v1", api_key=KEY)
    are_vectors(embedder.get_text_embedding_batch(["a dog", "the sun is hot"]))


run()
