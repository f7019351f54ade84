"""OpenAI's Agents SDK, over chat completions and responses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from checks import KEY, MAX_TOKENS, MODEL, QUESTION, check, is_text, is_usage, is_weather, run
from openai import AsyncOpenAI
from pydantic import BaseModel, Field

set_tracing_disabled(disabled=True)


class Weather(BaseModel):
    """The weather of the next days."""

    city: Literal["Paris", "Rome"]
    days: int = Field(ge=1, le=9)


def agents(url: str, max_tokens: int = MAX_TOKENS, **more: object) -> Iterator[Agent]:
    for model in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY)
        settings = ModelSettings(temperature=0, max_tokens=max_tokens)
        yield Agent("storyteller", model=model(MODEL, client), model_settings=settings, **more)


@check
def chat(url: str) -> None:
    for agent in agents(url):
        reply = Runner.run_sync(agent, QUESTION)
        is_text(reply.final_output)
        usage = reply.raw_responses[0].usage
        is_usage(usage.input_tokens, usage.output_tokens, usage.total_tokens)


@check
def stream(url: str) -> None:
    """Of JSON, which ends by itself: the SDK takes a response that is cut off for an error."""

    async def ask(agent: Agent) -> list[str]:
        reply = Runner.run_streamed(agent, QUESTION)
        return [
            event.data.delta
            async for event in reply.stream_events()
            if event.type == "raw_response_event"
            and event.data.type == "response.output_text.delta"
        ]

    for agent in agents(url, 100, output_type=Weather):
        pieces = asyncio.run(ask(agent))
        assert len(pieces) > 1, pieces
        is_weather("".join(pieces))


@check
def tools(url: str) -> None:
    calls = []

    @function_tool
    def weather(city: Literal["Paris", "Rome"]) -> str:
        """The weather of a city."""
        calls.append(city)
        return "sun"

    for choice in ("required", "weather"):
        for agent in agents(url, 60, tools=[weather]):
            agent.model_settings.tool_choice = choice
            is_text(Runner.run_sync(agent, QUESTION).final_output)
            assert len(calls) == 1, calls
            assert calls.pop() in {"Paris", "Rome"}


@check
def json(url: str) -> None:
    for agent in agents(url, 100, output_type=Weather):
        assert isinstance(Runner.run_sync(agent, QUESTION).final_output, Weather)


run()
