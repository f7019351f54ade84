"""pydantic-ai, over chat completions and responses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Literal

from checks import (
    KEY,
    MAX_TOKENS,
    MODEL,
    QUESTION,
    check,
    is_stream_of,
    is_text,
    is_usage,
    run,
)
from pydantic import BaseModel, ConfigDict, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


class Weather(BaseModel):
    """The weather of the next days."""

    model_config = ConfigDict(extra="forbid")
    city: Literal["Paris", "Rome"]
    days: int = Field(ge=1, le=9)


def agents(url: str, max_tokens: int = MAX_TOKENS, **more: object) -> Iterator[Agent]:
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key=KEY)
    for model in (OpenAIChatModel, OpenAIResponsesModel):
        settings = {"temperature": 0, "max_tokens": max_tokens}
        yield Agent(model(MODEL, provider=provider), model_settings=settings, **more)


@check
def chat(url: str) -> None:
    for agent in agents(url):
        reply = agent.run_sync(QUESTION)
        is_text(reply.output)
        is_usage(reply.usage.input_tokens, reply.usage.output_tokens)


@check
def stream(url: str) -> None:
    async def ask(agent: Agent) -> list[str]:
        async with agent.run_stream(QUESTION) as reply:
            return [piece async for piece in reply.stream_text(delta=True, debounce_by=None)]

    for agent in agents(url):
        is_stream_of(asyncio.run(ask(agent)), agent.run_sync(QUESTION).output)


@check
def tools(url: str) -> None:
    for agent in agents(url, 100, output_type=ToolOutput(Weather), retries=0):
        assert isinstance(agent.run_sync(QUESTION).output, Weather)


@check
def json(url: str) -> None:
    for agent in agents(url, 100, output_type=NativeOutput(Weather), retries=0):
        assert isinstance(agent.run_sync(QUESTION).output, Weather)


run()
