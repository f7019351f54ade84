"""What is asked for: a prompt or a chat, and how to continue it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from os import PathLike
from typing import Any, Literal, Self, cast

from blazr.core.errors import RequestError
from blazr.engine.request import Pooling
from blazr.engine.sampling_params import Array, DefaultInt, SamplingParams, are_all
from blazr.text.images import (
    Image,
    Sound,
    Video,
    decode_base64,
    join_parts,
    read_data_url,
    read_image,
    read_video_url,
)
from blazr.text.messages import Message
from blazr.text.tool_calls.custom import is_custom

Prompt = str | Sequence[int]  # text, or token ids
# The same as a dictionary, as vLLM has it: {"prompt": "..."} or {"prompt_token_ids": [1, 2]}.
PromptInput = Prompt | Mapping[str, object]
Params = SamplingParams | Sequence[SamplingParams] | None
TruncationMode = Literal["auto", "disabled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """What becomes of a prompt that is too long.

    Args:
        most: Tokens it may have; None is what fits beside the reply, or half the context at least.
        drops: What goes: tokens from the left or the right, or the oldest turns of a chat, whole
            and some at once, but for messages of the system at its beginning.
    """

    most: int | None = None
    drops: Literal["left", "right", "messages"] = "left"

    @classmethod
    def of_tokens(
        cls, truncate_prompt_tokens: int | None, side: Literal["left", "right"] | None = None
    ) -> Self | None:
        """Return what vLLM's ``truncate_prompt_tokens`` asks for.

        Args:
            truncate_prompt_tokens: Tokens that a prompt may have; -1 is as many as fit, and None
                leaves prompts as they are.
            side: Where tokens go; None is the left.

        Raises:
            RequestError: Nothing would be kept, or one of both is something else.
        """
        if side not in (None, "left", "right"):
            raise RequestError(
                "truncation_side is unknown.",
                param="truncation_side",
                found=repr(side)[:50],
                expected='"left" or "right"',
            )
        given = truncate_prompt_tokens
        if given is None:
            return None
        is_whole = isinstance(given, Integral) and not isinstance(given, bool)
        if not is_whole or given == 0 or given < -1:
            raise RequestError(
                "truncate_prompt_tokens is out of range.",
                param="truncate_prompt_tokens",
                found=repr(given)[:20],
                expected="-1, or a whole number of at least 1",
            )
        return cls(most=None if given == -1 else int(given), drops=side or "left")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One prompt or one chat to continue.

    Args:
        prompt: Text or token ids.
        messages: A chat, instead of a prompt.
        params: How to sample. A chat that leaves `max_tokens` out goes on to the context's end.
        tools: Functions and custom tools that may be called, in OpenAI's shape.
        tool_choice: Whether one may be called, must be, or none.
        tool_name: The one that must be called, where only one will do.
        parallel_tool_calls: Whether several may be called at once; None is as the model likes, and
            one where a call is required.
        template_variables: More variables for the chat template.
        thinking_budget: Most tokens to think; None is what `template_variables` say of it.
        add_special_tokens: Put the beginning-of-text token before a text prompt, where the
            model's family has one.
        add_generation_prompt: End the rendered chat where the assistant begins to speak.
        truncation: What becomes of a prompt that is too long; None refuses it.
        continue_final_message: The last message is the assistant's, and the reply goes on with it.
        suffix: What follows the reply, for models trained to fill in the middle.
        adapter: The name of an adapter that changes the model for this request; None is the model.
        pooling: Ask for the prompt as one vector instead of a reply; see `Request`.
        cache_salt: Prefixes are shared only between requests of the same salt.
        client: Who asks: the names of its groups, then its own. Those who wait are served in turn;
            without a name, in order of arrival.
        cache_anchors: Places in the prompt, in tokens, where later ones are likely to part from it,
            besides those of a chat; see `Request`.
        priority: Lower runs first; equal ones in order of arrival.
        timeout_s: Longest time from submission to the end, or None.
        num_scored: Where the prompt's scores are asked for, of how many of its last tokens they are
            told, 1 or more; None is all.

    Raises:
        RequestError: Neither or both of prompt and messages are given, or there is no last message
            to go on with.
    """

    prompt: Prompt | None = None
    messages: Sequence[Message] | None = None
    params: SamplingParams = field(default_factory=SamplingParams)
    tools: Sequence[Mapping[str, object]] | None = None
    tool_choice: Literal["auto", "none", "required"] = "auto"
    tool_name: str | None = None
    parallel_tool_calls: bool | None = None
    template_variables: Mapping[str, object] | None = None
    thinking_budget: int | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    truncation: Truncation | None = None
    suffix: str | None = None
    adapter: str | None = None
    pooling: Pooling | None = None
    cache_salt: str = ""
    client: tuple[str, ...] = ()
    cache_anchors: tuple[int, ...] = ()
    priority: int = 0
    timeout_s: float | None = None
    num_scored: int | None = None

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.messages is None):
            raise RequestError("give a prompt or messages, one of the two.", param="prompt")
        usual = self.params.max_tokens
        if isinstance(usual, DefaultInt):
            most = None if self.messages is not None else int(usual)
            object.__setattr__(self, "params", replace(self.params, max_tokens=most))
        last = self.messages[-1] if self.messages else None
        if self.continue_final_message and (last is None or last.role != "assistant"):
            raise RequestError(
                "there is no message to go on with.",
                param="continue_final_message",
                found="nothing" if last is None else repr(last.role)[:50],
                expected="a last message by the assistant",
            )

    @property
    def length(self) -> int:
        """How much there is to read: characters, token ids, or bytes of images."""
        chat = sum(len(each.content or "") for each in self.messages or ())
        chat += sum(len(image.data) for each in self.messages or () for image in each.images)
        more = sum(map(len, map(str, self.tools or ()))) + len(self.suffix or "")
        return len(self.prompt or ()) + chat + more

    @property
    def cuts_tokens(self) -> bool:
        """Whether a prompt that is too long loses tokens, and not messages."""
        return self.truncation is not None and self.truncation.drops != "messages"

    @property
    def has_images(self) -> bool:
        """Whether there is an image, which takes time to see."""
        return any(each.images for each in self.messages or ())

    @property
    def has_grammar(self) -> bool:
        """Whether the reply must follow one, which takes time to compile."""
        is_called = self.tool_choice == "required" or any(map(is_custom, self.tools or ()))
        return self.params.grammar is not None or is_called


def as_prompts(prompts: PromptInput | Sequence[PromptInput]) -> list[Prompt]:
    """Return one prompt or many as a list of prompts; a list of integers is one prompt.

    Token ids may be an array of numpy's, or a tensor.

    Raises:
        RequestError: Something is no prompt.
    """
    if isinstance(prompts, str | Mapping):
        return [as_prompt(prompts)]
    items = _items(prompts)
    if items is None:
        raise _no_prompt(prompts)
    ids = _ids(items)
    return [ids] if ids else [as_prompt(item) for item in items]


def as_prompt(prompt: object) -> Prompt:
    """Return one prompt as text or a list of token ids.

    Raises:
        RequestError: It is something else.
    """
    if isinstance(prompt, Mapping):
        prompt = _in_dictionary(prompt)
    if isinstance(prompt, str):
        return prompt
    ids = _ids(_items(prompt))
    if ids is None:
        raise _no_prompt(prompt)
    return ids


def _items(given: object) -> list[Any] | None:
    """The items of a list, an array or a tensor, of which numpy's become Python's; else None."""
    if isinstance(given, Array):
        given = given.tolist()
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | bytearray):
        return None
    return list(given)


def _ids(items: list[Any] | None) -> list[int] | None:
    """Token ids as integers of Python's; None for anything else."""
    if items is None or not are_all(Integral, items):
        return None
    return list(map(int, items))


def _no_prompt(found: object) -> RequestError:
    return RequestError(
        "a prompt cannot be read.",
        param="prompts",
        found=f"{found!r:.80}",
        expected="text, token ids, or a list of prompts",
    )


def as_token_ids(given: object) -> list[int]:
    """Return token ids as a list; they may be an array of numpy's, or a tensor.

    Raises:
        RequestError: They are something else.
    """
    ids = _ids(_items(given))
    if ids is None:
        raise RequestError(
            "token ids cannot be read.",
            param="token_ids",
            found=f"{given!r:.80}",
            expected="a list of whole numbers, as llm.tokenizer.encode(text) returns it",
        )
    return ids


def _in_dictionary(prompt: Mapping[str, object]) -> object:
    names = {name for name, value in prompt.items() if value is not None}
    if len(names) != 1 or not names <= {"prompt", "prompt_token_ids"}:
        raise RequestError(
            "a prompt's dictionary cannot be read.",
            param="prompts",
            found=", ".join(sorted(names))[:100],
            expected='{"prompt": "..."} or {"prompt_token_ids": [...]}',
        )
    return prompt[names.pop()]


def as_message(message: Message | Mapping[str, object]) -> Message:
    """A message, also from a dictionary with ``role`` and ``content``.

    The content is text, or a list of parts: ``{"type": "text", "text": "..."}``,
    ``{"type": "image", "image": ...}`` or ``{"type": "audio", "audio": ...}`` with the path or the
    bytes of a file, ``{"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}``,
    ``{"type": "video", "video": [...]}`` with the paths or the bytes of frames, one a second,
    ``{"type": "video_url", "video_url": {"url": "data:video/jpeg;base64,...,..."}}``, and
    ``{"type": "input_audio", "input_audio": {"data": "...", "format": "wav"}}`` in base64.

    Raises:
        RequestError: There is no role, or the content is neither text nor such parts.
    """
    if isinstance(message, Message):
        if message.content is None or isinstance(message.content, str):
            return message
        # parts, as a dictionary has them, which the chat template would print as a list
        message = {"role": message.role, "content": message.content, **(message.extra or {})}
    extra = dict(message) if isinstance(message, Mapping) else {}
    role = extra.pop("role", None)
    content = extra.pop("content", None)
    images: tuple[Image, ...] = ()
    if isinstance(content, list | tuple):
        content, images = join_parts(map(_read_part, content))
    if not isinstance(role, str) or not (content is None or isinstance(content, str)):
        raise RequestError(
            "a message has no role, or its content is not text.",
            param="messages",
            found=f"{message!r:.80}",
            expected='{"role": "user", "content": "…"}, in a list',
        )
    return Message(role=role, content=content, images=images, extra=extra or None)


def _read_part(part: object) -> str | bytes:
    """The text of a part of a message's content, or the bytes of its image or sound."""
    given = part if isinstance(part, Mapping) else {}
    kind = given.get("type")
    value = given.get(str(kind))
    if kind == "text" and isinstance(value, str):
        return value
    if kind in {"image_url", "video_url"}:
        url = value.get("url") if isinstance(value, Mapping) else value
        if isinstance(url, str):
            return read_data_url(url) if kind == "image_url" else read_video_url(url)
    if kind == "video" and isinstance(value, list | tuple):
        return Video.of([_file(each) for each in value])
    if kind == "input_audio" and isinstance(value, Mapping):
        return Sound(decode_base64(str(value.get("data")), noun="a sound"))
    if kind in {"image", "audio"} and isinstance(value, bytes | str | PathLike):
        return Sound(_file(value)) if kind == "audio" else _file(value)
    raise RequestError(
        "a part of a message cannot be read.",
        param="messages",
        found=repr(part)[:100],
        expected='{"type": "text", "text": "..."} or {"type": "image", "image": "file.png"}',
    )


def _file(given: bytes | str | PathLike[str]) -> bytes:
    """A file's bytes, given as they are or as its path."""
    return given if isinstance(given, bytes) else read_image(given)


def prompt_requests(
    prompts: PromptInput | Sequence[PromptInput], params: Params, adapter: str | None = None
) -> list[GenerationRequest]:
    """Return one request for each prompt.

    Raises:
        RequestError: There are not as many sampling parameters as prompts.
    """
    found = as_prompts(prompts)
    return [
        GenerationRequest(prompt=prompt, params=wanted, adapter=adapter)
        for prompt, wanted in zip(found, params_of_each(params, len(found)), strict=True)
    ]


def params_of_each(params: Params, count: int) -> list[SamplingParams]:
    """Return the sampling parameters of each of so many requests.

    Raises:
        RequestError: There are not as many as requests, or they are something else.
    """
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if not isinstance(params, Sequence) or not all(
        isinstance(each, SamplingParams) for each in params
    ):
        raise RequestError(
            "sampling parameters are something else.",
            param="params",
            found=f"{params!r:.80}",
            expected="SamplingParams(max_tokens=…), or a list of them",
        )
    if len(params) != count:
        raise RequestError(
            "there are not as many sampling parameters as prompts.",
            param="params",
            found=str(len(params)),
            expected=f"{count}, or one for all",
        )
    return list(params)


Chat = Sequence[Message | Mapping[str, object]]


def as_chats(messages: Chat | Sequence[Chat]) -> tuple[list[Chat], bool]:
    """Return the chats there are, and whether they are a batch rather than one chat.

    Raises:
        RequestError: They are no list.
    """
    items = _listed_messages(messages)
    if items and all(isinstance(each, list | tuple) for each in items):
        return cast("list[Chat]", items), True
    return [cast("Chat", items)], False


def _listed_messages(messages: object) -> list[Any]:
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise RequestError(
            "messages are no list.",
            param="messages",
            found=f"{messages!r:.80}",
            expected='[{"role": "user", "content": "…"}], or a list of such chats',
        )
    return list(messages)


def _check_tools(tools: object) -> None:
    if tools is None:
        return
    if (
        isinstance(tools, Mapping)
        or not isinstance(tools, Iterable)
        or not all(isinstance(each, Mapping) for each in tools)
    ):
        raise RequestError(
            "tools cannot be read.",
            param="tools",
            found=f"{tools!r:.80}",
            expected='[{"type": "function", "function": {"name": "…", "parameters": {…}}}]',
        )


def chat_request(
    messages: Sequence[Message | Mapping[str, object]],
    params: SamplingParams | None,
    tools: Sequence[Mapping[str, object]] | None,
    truncation: TruncationMode = "disabled",
) -> GenerationRequest:
    """The request that a chat is.

    Raises:
        RequestError: There is no such truncation, or messages or tools are something else.
    """
    _check_tools(tools)
    if truncation not in {"auto", "disabled"}:
        raise RequestError(
            "truncation is unknown.",
            param="truncation",
            found=repr(truncation)[:100],
            expected='"auto" or "disabled"',
        )
    return GenerationRequest(
        messages=[as_message(each) for each in _listed_messages(messages)],
        params=params or SamplingParams(),
        tools=tools,
        truncation=Truncation(drops="messages") if truncation == "auto" else None,
    )
