"""smolagents: its model for OpenAI's API; an agent's own prompt needs a longer context."""

from __future__ import annotations

from checks import KEY, MAX_TOKENS, MODEL, QUESTION, check, is_stream_of, is_text, is_usage, run
from smolagents import OpenAIServerModel, Tool
from smolagents.models import ChatMessage, MessageRole

MESSAGES = [ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": QUESTION}])]


class Weather(Tool):
    name = "weather"
    description = "The weather of the next days."
    inputs = {"city": {"type": "string", "enum": ["Paris", "Rome"], "description": "where"}}
    output_type = "string"

    def forward(self, city: str) -> str:
        return f"sun in {city}"


def model(url: str, max_tokens: int = MAX_TOKENS) -> OpenAIServerModel:
    return OpenAIServerModel(
        MODEL, api_base=f"{url}/v1", api_key=KEY, temperature=0, max_tokens=max_tokens
    )


@check
def chat(url: str) -> None:
    reply = model(url).generate(MESSAGES)
    is_text(reply.content)
    is_usage(reply.token_usage.input_tokens, reply.token_usage.output_tokens)


@check
def stream(url: str) -> None:
    whole = model(url).generate(MESSAGES).content
    is_stream_of([part.content for part in model(url).generate_stream(MESSAGES)], whole)


@check
def tools(url: str) -> None:
    """Its schemas leave objects open, so that any keys may follow those that are named."""
    reply = model(url, 60).generate(MESSAGES, tools_to_call_from=[Weather()])
    (call,) = reply.tool_calls
    assert call.function.name == "weather"
    assert '"city"' in call.function.arguments


run()
