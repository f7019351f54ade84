"""``POST /v1/messages`` and ``/v1/messages/count_tokens``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from blazr.core.errors import RequestError, too_many
from blazr.engine.sampling_params import SamplingParams
from blazr.llm.generation import GenerationRequest
from blazr.server.anthropic.rendering import MessageEvent, MessageRenderer, MessageReply
from blazr.server.endpoint import Call, Reply
from blazr.server.media import NamesMedia
from blazr.server.messages import MAX_MESSAGES, unreadable_part
from blazr.server.params import Stops, sampling_params
from blazr.server.response_format import ResponseFormat, grammar_of
from blazr.server.run import reply
from blazr.server.schema import CHAT, Example, schema_hint
from blazr.server.tool_choice import tool_choice
from blazr.text.images import decode_base64, join_parts, read_data_url
from blazr.text.messages import Message, function_call, function_tool
from blazr.text.reasoning import thinking_variables

_CHOICES = {"auto": "auto", "none": "none", "any": "required", "tool": "required"}
# Claude Code begins its system prompt with a block for Anthropic's accounts. It differs from one
# request to the next, so a model that read it would read everything after it again.
_BILLING = "x-anthropic-billing-header:"
_NOT_TEXT = {"tool_use", "thinking", "redacted_thinking"}


_Edit = Annotated[
    dict[str, Any],
    schema_hint(
        properties={"type": {"type": "string", "pattern": "^clear_thinking"}}, required=["type"]
    ),
]


class ImageSource(NamesMedia, kw_only=True):
    """The bytes of an image, or its URL; one that is no data URL needs a flag."""

    media_fields: ClassVar = ("url",)
    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None


class Block(msgspec.Struct, kw_only=True):
    """A piece of a message.

    Text, an image, what a search has found, a thought, the use of a tool, or what came of it.
    """

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Block] | None = None
    source: ImageSource | str | None = None
    title: str | None = None


_BLOCKS = (
    "image",
    "redacted_thinking",
    "search_result",
    "text",
    "thinking",
    "tool_result",
    "tool_use",
)


class Turn(msgspec.Struct):
    """One message."""

    role: str
    content: str | list[Annotated[Block, schema_hint(properties={"type": {"enum": _BLOCKS}})]]


class MessageTool(msgspec.Struct, kw_only=True):
    """A tool the model may use. Those without a schema run at Anthropic's, and are left out."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ThinkingConfig(msgspec.Struct):
    """Whether to think before answering."""

    type: str
    budget_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None


class MessageToolChoice(msgspec.Struct):
    """Whether a tool must be used."""

    type: Literal["auto", "none", "any", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class CountMessagesBody(msgspec.Struct, kw_only=True):
    """What is counted."""

    messages: Annotated[list[Turn], schema_hint(minItems=1)]
    model: str | None = None
    system: (
        str | list[Annotated[Block, schema_hint(properties={"type": {"const": "text"}})]] | None
    ) = None
    tools: list[MessageTool] | None = None
    tool_choice: MessageToolChoice | None = None
    thinking: ThinkingConfig | None = None
    example: ClassVar[Example] = CHAT


class ContextManagement(msgspec.Struct):
    """What becomes of what was said before. Chat templates leave old thoughts out by themselves."""

    edits: list[_Edit] = []


class OutputConfig(msgspec.Struct):
    """The form of the answer, and how much to think before it."""

    format: ResponseFormat | None = None
    effort: str | None = None


class MessagesBody(CountMessagesBody, kw_only=True):
    """The request."""

    max_tokens: Annotated[int, msgspec.Meta(ge=0)]
    stream: bool | None = None
    stop_sequences: Stops | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    output_config: OutputConfig | None = None
    output_format: ResponseFormat | None = None  # where older clients have it
    context_management: ContextManagement | None = None
    example: ClassVar[Example] = {**CHAT, "max_tokens": 32}


class TokenCount(msgspec.Struct):
    """How many tokens a chat has."""

    input_tokens: int


async def answer(call: Call[MessagesBody]) -> Reply[MessageReply, MessageEvent]:
    """Answer a chat."""
    request = await call.translate(lambda: to_request(call.body, call))
    renderer = MessageRenderer(call, call.body.max_tokens)
    return await reply(call, [request], renderer, stream=call.body.stream)


async def count_tokens(call: Call[CountMessagesBody]) -> TokenCount:
    """How many tokens a chat has."""
    request = await call.translate(lambda: to_request(call.body, call))
    ids = await call.llm.encode_chat(request)
    return TokenCount(len(ids))


def to_request(body: CountMessagesBody, call: Call[CountMessagesBody]) -> GenerationRequest:
    """Translate a body; of one that is only to be counted, without its sampling.

    Raises:
        RequestError: A value is out of range, or asks for what there is not.
    """
    params = SamplingParams()
    effort = None
    if isinstance(body, MessagesBody):
        edits = body.context_management.edits if body.context_management else []
        for edit in edits:
            if not str(edit.get("type")).startswith("clear_thinking"):
                raise RequestError(
                    "this server does not edit the context.",
                    param="context_management",
                    found=repr(str(edit.get("type")))[:100],
                    expected="'clear_thinking_20251015', or the messages as they shall be read",
                )
        config = body.output_config or OutputConfig()
        grammar = (
            grammar_of(body.output_format, param="output_format")
            if config.format is None
            else grammar_of(config.format, param="output_config")
        )
        params = sampling_params(body, stop=body.stop_sequences, grammar=grammar)
        effort = config.effort
    messages = [each for turn in body.messages for each in _to_messages(turn)]
    system = _text_of(body.system or "")
    if system:
        messages.insert(0, Message(role="system", content=system))
    if len(messages) > MAX_MESSAGES:
        raise too_many(messages, MAX_MESSAGES, "messages", param="messages")
    tools = [
        function_tool(tool.name, tool.description or "", tool.input_schema)
        for tool in body.tools or ()
        if tool.input_schema is not None
    ]
    choice = body.tool_choice or MessageToolChoice("auto")
    only_one = choice.disable_parallel_tool_use
    thinking = body.thinking
    enabled = thinking.type != "disabled" if thinking else None
    return GenerationRequest(
        messages=messages,
        params=params,
        template_variables=thinking_variables(enabled=enabled, effort=effort) or None,
        thinking_budget=thinking.budget_tokens if thinking and enabled else None,
        **tool_choice(
            tools,
            _CHOICES[choice.type],
            name=choice.name,
            parallel=None if only_one is None else not only_one,
        ),
        # the reply continues what the assistant has begun to say
        continue_final_message=bool(messages) and messages[-1].role == "assistant",
        **call.scheduling(),
    )


def _to_messages(turn: Turn) -> Iterator[Message]:
    """One turn as messages: what came of tools first, each on its own.

    Raises:
        RequestError: A block is of another kind, or lacks something.
    """
    content = turn.content
    if isinstance(content, str):
        yield Message(role=turn.role, content=content)
        return
    for block in content:
        if block.type == "tool_result":
            result, images = join_parts(_parts_of(block.content or ""))
            answered = {"tool_call_id": block.tool_use_id or ""}
            yield Message(role="tool", content=result, images=images, extra=answered)
    others = [block for block in content if block.type != "tool_result"]
    if not others:
        return
    uses = [block for block in others if block.type == "tool_use"]
    if not all(block.name for block in uses):
        raise RequestError(
            "the use of a tool has no name.",
            param="messages",
            expected='{"type": "tool_use", "id": "…", "name": "…", "input": {}}',
        )
    calls = [function_call(each.id or "", each.name or "", each.input or {}) for each in uses]
    thought = "".join(block.thinking or "" for block in others if block.type == "thinking")
    extra: dict[str, object] = {"reasoning_content": thought} if thought else {}
    if calls:
        extra["tool_calls"] = calls
    spoken = [block for block in others if block.type not in _NOT_TEXT]
    text, images = join_parts(_parts_of(spoken))
    yield Message(
        role=turn.role,
        content=text if spoken or not calls else None,
        images=images,
        extra=extra or None,
    )


def _parts_of(content: str | list[Block]) -> Iterator[str | bytes]:
    """The text and the images of blocks."""
    if isinstance(content, str):
        yield content
        return
    for block in content:
        source = block.source if isinstance(block.source, ImageSource) else ImageSource(type="")
        if block.type == "text":
            text = block.text or ""
            yield "" if text.startswith(_BILLING) else text
        elif block.type == "search_result" and isinstance(block.source, str):
            yield _found_text(block.title, block.source, block.content or "")
        elif block.type == "image" and source.type == "base64" and source.data is not None:
            yield decode_base64(source.data)
        elif block.type == "image" and source.type == "url" and source.url is not None:
            yield read_data_url(source.url)
        else:
            raise unreadable_part(
                "a block", block.type, expected="'text', 'image' or 'search_result'"
            )


def _found_text(title: str | None, source: str, content: str | list[Block]) -> str:
    """What a search has found, as a paragraph under its title and where it is from."""
    other = [] if isinstance(content, str) else [x.type for x in content if x.type != "text"]
    if other:
        raise unreadable_part("a block of a search result", other[0])
    texts = [content] if isinstance(content, str) else [x.text for x in content]
    return "\n".join(each for each in (title, source, *texts) if each) + "\n\n"


def _text_of(content: str | list[Block]) -> str:
    text, images = join_parts(_parts_of(content))
    if images:
        raise unreadable_part("a block of the system", "image")
    return text
