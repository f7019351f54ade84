"""instructor: every mode of its client for OpenAI's API."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Literal

import instructor
import openai
from checks import KEY, MESSAGES, MODEL, check, run
from instructor import Mode
from instructor.core.exceptions import InstructorError
from pydantic import BaseModel, ConfigDict, Field


class Weather(BaseModel):
    """The weather of the next days."""

    model_config = ConfigDict(extra="forbid")
    city: Literal["Paris", "Rome"]
    days: int = Field(ge=1, le=9)


def extract(url: str, mode: Mode, response_model: object = Weather, **hooks: object) -> object:
    """What the model says, which instructor has validated; it asks no second time."""
    client = instructor.from_openai(openai.OpenAI(base_url=f"{url}/v1", api_key=KEY), mode=mode)
    for event, hook in hooks.items():
        client.on(event.replace("_", ":"), hook)
    return client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        response_model=response_model,
        temperature=0,
        max_retries=0,
    )


def is_extracted(url: str, mode: Mode) -> None:
    found = extract(url, mode)
    assert isinstance(found, Weather), found


def is_answered(url: str, mode: Mode, response_model: object = Weather) -> None:
    """For modes that hold the model to nothing: it replies, whatever instructor finds in that."""
    replies = []
    with suppress(InstructorError):
        extract(url, mode, response_model, completion_response=replies.append)
    assert replies, "there is no reply"
    assert replies[0].usage.completion_tokens >= 1, replies[0]


@check
def tools(url: str) -> None:
    is_extracted(url, Mode.TOOLS)


@check
def tools_strict(url: str) -> None:
    is_extracted(url, Mode.TOOLS_STRICT)


@check
def parallel_tools(url: str) -> None:
    is_answered(url, Mode.PARALLEL_TOOLS, Iterable[Weather])


@check
def json_schema(url: str) -> None:
    is_extracted(url, Mode.JSON_SCHEMA)


@check
def responses_tools(url: str) -> None:
    is_extracted(url, Mode.RESPONSES_TOOLS)


@check
def json(url: str) -> None:
    is_answered(url, Mode.JSON)


@check
def md_json(url: str) -> None:
    is_answered(url, Mode.MD_JSON)


run()
