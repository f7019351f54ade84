"""What every dialect's translation to a request needs."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypedDict

from blazr.core.errors import RequestError
from blazr.engine.sampling_params import SamplingParams
from blazr.llm.generation import Prompt
from blazr.server.service import Call

MAX_REPLIES = 256
MAX_PROMPTS = 128
MAX_TOOLS = 128


def sampling_params(stop: str | list[str] | None = None, **values: object) -> SamplingParams:
    """Sampling parameters from what a body gave; what it left out or null takes our defaults.

    Raises:
        RequestError: A value is out of range.
    """
    given: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
    if stop is not None:
        given["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
    if given.get("top_k") == -1:  # how others spell "keep all"
        given["top_k"] = 0
    return SamplingParams(**given)


def grammar_of(
    form: Mapping[str, object] | None, *, param: str = "response_format"
) -> dict[str, object] | None:
    """What the reply must follow, from a response format as OpenAI spells it; None is any text.

    Raises:
        RequestError: There is no such format.
    """
    kind = "text" if form is None else form.get("type")
    if form is None or kind == "text":
        return None
    if kind == "json_object":  # llama.cpp's server takes a schema with it
        return {"json_schema": form["schema"]} if "schema" in form else {"json_object": True}
    inner = form.get("json_schema", form)  # the newer API has it flat
    if kind == "json_schema" and isinstance(inner, Mapping) and "schema" in inner:
        return {"json_schema": inner["schema"]}
    raise RequestError(
        f"{param} is of no known kind, or lacks its schema.",
        param=param,
        found=repr(kind)[:50],
        expected="'text', 'json_object' or 'json_schema'",
    )


class ToolFields(TypedDict):
    """Fields of a `GenerationRequest` that concern tools."""

    tools: Sequence[Mapping[str, object]] | None
    tool_choice: Literal["auto", "none", "required"]
    tool_name: str | None
    parallel_tool_calls: bool


def tool_choice(
    tools: Sequence[Mapping[str, object]] | None,
    choice: str = "auto",
    *,
    name: str | None = None,
    parallel: bool | None = None,
) -> ToolFields:
    """What a request says of tools.

    Args:
        tools: Functions in OpenAI's shape.
        choice: ``"auto"``, ``"none"`` or ``"required"``.
        name: The function that must be called.
        parallel: Whether several may be called at once.

    Raises:
        RequestError: There are too many tools.
    """
    if len(tools or ()) > MAX_TOOLS:
        raise RequestError(
            "there are too many tools.", param="tools", expected=f"at most {MAX_TOOLS}"
        )
    return {
        "tools": tools or None,
        "tool_choice": "none" if choice == "none" else "auto" if choice == "auto" else "required",
        "tool_name": name,
        "parallel_tool_calls": parallel is not False,
    }


class Scheduling(TypedDict):
    """Fields of a `GenerationRequest` that say when it runs and what it shares."""

    cache_salt: str
    priority: int
    timeout_s: float


def scheduling(
    call: Call[object],
    *,
    salt: str | None = None,
    priority: int | None = None,
    timeout: float | None = None,
) -> Scheduling:
    """When a request runs, for how long, and with whom it shares prefixes.

    A client's salt divides its key's prefixes further; it never reaches another key's.
    """
    longest_s = call.service.config.request_timeout_s
    return {
        # a key's name is hexadecimal, so no salt can turn one into another's
        "cache_salt": f"{call.tenant}/{salt}" if salt else call.tenant,
        "priority": priority or 0,
        "timeout_s": longest_s if timeout is None else min(timeout, longest_s),
    }


def check_num_replies(num_prompts: int, n: int = 1, *, param: str = "n") -> None:
    """Refuse more replies than one request may ask for.

    Raises:
        RequestError: Prompts times ``n`` is too many.
    """
    if num_prompts * n > MAX_REPLIES:
        raise RequestError(
            "the request asks for too much at once.",
            param=param,
            found=f"{num_prompts} prompts times {n}" if n > 1 else f"{num_prompts} prompts",
            expected=f"at most {MAX_REPLIES} in all",
        )


def to_prompts(
    given: str | list[str | int | list[int]], *, param: str = "prompt", most: int = MAX_PROMPTS
) -> list[Prompt]:
    """One prompt or many, as text or token ids; a list of integers is one prompt.

    Raises:
        RequestError: They are of several kinds, or none or too many.
    """
    if isinstance(given, str):
        return [given]
    kinds = {type(each) for each in given}
    if kinds == {int}:
        return [[each for each in given if isinstance(each, int)]]
    if len(kinds) != 1 or len(given) > most:
        raise RequestError(
            f"{param} has the wrong shape.",
            param=param,
            found=f"a list of {len(given)}",
            expected="a string, a list of token ids, or a list of one kind of these, "
            f"at most {most}",
        )
    return [each for each in given if not isinstance(each, int)]


def new_id(prefix: str) -> str:
    """A name for something new."""
    return f"{prefix}{uuid.uuid4().hex}"


def unix_time() -> int:
    """Seconds since 1970."""
    return int(datetime.now(UTC).timestamp())


def finite(logprob: float) -> float:
    """A log-probability that JSON can hold; OpenAI's floor stands for minus infinity."""
    return max(logprob, -9999.0)
