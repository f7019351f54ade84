"""Who answers in a chat: a model in this process, or a server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from typing_extensions import override

from blazr.cli import options
from blazr.cli.generate import model_line
from blazr.core import env
from blazr.core.errors import EngineError, RequestError
from blazr.core.remote import EventReader, auth_headers, root_url
from blazr.engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    import httpx2

    from blazr.llm.llm import LLM
    from blazr.text.events import Event
    from blazr.text.messages import Message

_REFUSED = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a partner is asked.

    Args:
        messages: The chat.
        given: Fields of `SamplingParams`; what is not there is the model's affair.
        thinks: Whether it may think first, if it is a model that does.
        tools: Functions that it may call, in OpenAI's shape.
    """

    messages: Sequence[Message]
    given: Mapping[str, object]
    thinks: bool
    tools: Sequence[Mapping[str, object]] = ()


class Partner(Protocol):
    """Who answers in a chat."""

    @property
    def name(self) -> str:
        """What the model is called, or the adapter that answers with it."""

    @property
    def about(self) -> str:
        """The model and where it runs, in one line."""

    def answer(self, question: Question) -> Iterator[Event]:
        """The events of one answer. Leaving the loop ends it.

        Raises:
            BlazrError: There will be no answer.
        """

    def change_model(self, model: str) -> None:
        """Go on with another model; after an error, with the same as before.

        Raises:
            BlazrError: There is no such model.
        """

    def close(self) -> None:
        """Let go of it."""


class LocalPartner(Partner):
    """A model in this process.

    Args:
        model: Which; or one that is loaded already.
        load: How to load it.
        threads: How many compute; None is all.
    """

    def __init__(
        self, model: str | LLM, load: options.LoadFlags, *, threads: int | None = None
    ) -> None:
        self._load = load
        self._threads = threads
        self._path = model if isinstance(model, str) else model.core.info.name
        self.llm = self._open(model) if isinstance(model, str) else model

    @property
    @override
    def name(self) -> str:
        return self._adapter or self.llm.core.info.name

    @property
    @override
    def about(self) -> str:
        info = self.llm.core.info
        return f"{model_line(info, self._adapter)}, context {info.max_seq_len:,} tokens"

    @override
    def answer(self, question: Question) -> Iterator[Event]:
        from blazr.llm.generation import GenerationRequest, Truncation

        request = GenerationRequest(
            messages=question.messages,
            params=SamplingParams.of(**question.given),
            thinking_budget=None if question.thinks else 0,
            truncation=Truncation(drops="messages"),
            adapter=self._adapter,
            tools=question.tools or None,
        )
        return self.llm.events([request])

    @override
    def change_model(self, model: str) -> None:
        self.llm.close()  # both at once may not fit in memory
        try:
            self.llm = self._open(model)
            self._path = model
        except BaseException:
            self.llm = self._open(self._path)
            raise

    @override
    def close(self) -> None:
        """Stop the engine."""
        self.llm.close()

    @property
    def _adapter(self) -> str | None:
        return next(iter(self.llm.core.adapters.by_name), None)

    def _open(self, model: str) -> LLM:
        return self._load.load_llm(model, threads=self._threads)


class RemotePartner(Partner):
    """A server that speaks OpenAI's chat API: blazr's, or another.

    Args:
        url: Where it listens, with or without ``/v1``.
        model: Which of its models; None is the first.

    Raises:
        ConfigError: The address is none.
        EngineError: It does not answer, or has no model.
    """

    def __init__(self, url: str, model: str | None) -> None:
        import httpx2

        # blazr knows the field in chats; a server that refuses it is asked without
        self._truncates = True
        self._url = root_url(url) + "/v1"
        self._client = httpx2.Client(
            headers=auth_headers(env.api_key()),
            timeout=httpx2.Timeout(10, read=600),  # a first token may take long
        )
        try:
            self._name = self._pick(model)
        except BaseException:
            self.close()
            raise

    @property
    @override
    def name(self) -> str:
        return self._name

    @property
    @override
    def about(self) -> str:
        return f"{self.name} at {self._url}"

    @override
    def answer(self, question: Question) -> Iterator[Event]:
        import httpx2

        from blazr.text.messages import openai_message

        # OpenAI's API says some of `SamplingParams` otherwise
        fields = dict(question.given)
        if fields.get("max_tokens") == -1:
            del fields["max_tokens"]
        grammar = fields.pop("grammar", None)
        if isinstance(grammar, Mapping):
            schema = {"name": "answer", "schema": grammar["json_schema"], "strict": True}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        body = {
            "model": self.name,
            "messages": [openai_message(each) for each in question.messages],
            "stream": True,
            "stream_options": {"include_usage": True},
            **fields,
        }
        if question.tools:
            body["tools"] = question.tools
        if not question.thinks:
            body["chat_template_kwargs"] = {"enable_thinking": False}
        if self._truncates:
            body["truncation"] = "auto"  # leave out the oldest turns where the chat is too long
        try:
            with self._client.stream("POST", f"{self._url}/chat/completions", json=body) as answer:
                if answer.status_code < _REFUSED:
                    yield from _events(answer)
                    return
                status = answer.status_code
                content = answer.read()
        except (httpx2.HTTPError, ValueError) as error:
            raise _unreachable(self._url, error) from None
        if not (self._truncates and b"truncation" in content):
            raise _refusal(status, content)
        self._truncates = False
        yield from self.answer(question)

    @override
    def change_model(self, model: str) -> None:
        self._name = self._pick(model)

    @override
    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _pick(self, model: str | None) -> str:
        """A model that the server has."""
        import httpx2

        try:
            answer = self._client.get(f"{self._url}/models")
            if answer.status_code >= _REFUSED:
                raise _refusal(answer.status_code, answer.content)
            names = [str(each["id"]) for each in answer.json()["data"]]
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, KeyError, TypeError) as error:
            raise _unreachable(self._url, error) from None
        if not names or (model is not None and model not in names):
            raise EngineError(
                "the server has no such model." if names else "the server has no model.",
                found=repr(model)[:100] if names else self._url[:100],
                expected=", ".join(names)[:300],
            )
        return names[0] if model is None else model


def _events(answer: httpx2.Response) -> Iterator[Event]:
    """What a stream of server-sent events tells, as events of one reply."""
    from blazr.text.events import (
        Finished,
        PromptDone,
        ReasoningDelta,
        TextDelta,
        ToolCallDelta,
    )

    reason = "abort"
    num_calls = 0
    has_begun = False
    num_dropped = int(answer.headers.get("X-Blazr-Dropped-Messages", 0))
    usage: dict[str, Any] = {}
    reader = EventReader()
    for data in (each for piece in answer.iter_bytes() for each in reader.feed(piece)):
        chunk = json.loads(data)
        if chunk.get("error"):
            raise EngineError("the server failed.", found=_message(chunk)[:200])
        usage = chunk.get("usage") or usage
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            if not has_begun:
                has_begun = True
                yield PromptDone(0, 0, 0, num_dropped_messages=num_dropped)
            if thought := delta.get("reasoning_content") or delta.get("reasoning"):
                yield ReasoningDelta(0, thought)
            if text := delta.get("content"):
                yield TextDelta(0, text)
            for call in delta.get("tool_calls") or ():
                function = call.get("function") or {}
                place = call.get("index") or 0
                num_calls = max(num_calls, place + 1)
                arguments = function.get("arguments") or ""
                yield ToolCallDelta(0, place, call.get("id"), function.get("name"), arguments)
            reason = choice.get("finish_reason") or reason
    details = usage.get("prompt_tokens_details") or {}
    yield PromptDone(
        0,
        usage.get("prompt_tokens", 0),
        details.get("cached_tokens") or 0,
        num_dropped_messages=num_dropped,
    )
    reason = "stop" if reason == "tool_calls" else reason
    num_tokens = usage.get("completion_tokens", 0)
    yield Finished(0, reason, num_tokens, num_tool_calls=num_calls)


def _message(body: Mapping[str, object]) -> str:
    error = body.get("error")
    return str(error.get("message") if isinstance(error, Mapping) else error)


def _refusal(status: int, content: bytes) -> RequestError:
    try:
        text = _message(json.loads(content))
    except (ValueError, AttributeError):
        text = content.decode(errors="replace")
    return RequestError(f"the server refused: HTTP {status}.", found=text[:300])


def _unreachable(url: str, error: Exception) -> EngineError:
    return EngineError(
        f"cannot chat with {url[:100]}.",
        found=f"{type(error).__name__}: {str(error)[:150]}",
        hint="check that the server runs (blazr serve starts one) and that the address is right",
    )
