"""Chats and texts as tokens, tokens as text, and what tokenizer there is."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast

import msgspec

from blazr.core.errors import RequestError, outside_vocabulary
from blazr.llm.generation import GenerationRequest
from blazr.llm.workers import run_on_worker
from blazr.pipelines.kinds import CLASSIFICATION, EMBEDDING
from blazr.server.endpoint import Call
from blazr.server.messages import ChatMessage, to_messages
from blazr.server.params import InputTokens, TemplateVariables
from blazr.server.schema import CHAT, Example, Schema, any_given, schema_hint
from blazr.server.served import ServedPipeline
from blazr.server.tool_choice import ToolChoice, ToolMode, tool_fields
from blazr.server.work import PipelineRun
from blazr.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from blazr.pipelines.encoders.encoder import Encoder


class ChatTextBody(msgspec.Struct, kw_only=True):
    """A chat and how it is rendered."""

    messages: Annotated[list[ChatMessage], schema_hint(minItems=1)] | None = None
    model: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolMode | ToolChoice | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateVariables | None = None
    schema_extra: ClassVar[Schema] = any_given("messages")
    example: ClassVar[Example] = CHAT


class TokenizeBody(ChatTextBody, kw_only=True):
    """A text or a chat; ``content``, ``add_special`` and ``with_pieces`` are llama.cpp's words."""

    prompt: str | None = None
    content: str | None = None
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    return_token_strs: bool | None = None
    with_pieces: bool | None = None
    schema_extra: ClassVar[Schema] = {
        "oneOf": [any_given("messages"), any_given("prompt", "content")]
    }
    example: ClassVar[Example] = {"prompt": "Once upon a time"}


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """Token ids."""

    tokens: list[Annotated[int, schema_hint(minimum=0)]]
    model: str | None = None
    example: ClassVar[Example] = {"tokens": [1, 2, 3]}


class Piece(msgspec.Struct):
    """A token and its text, or its bytes where they are no characters by themselves."""

    id: int
    piece: str | list[int]


class Tokens(msgspec.Struct):
    """A text as tokens."""

    count: int
    max_model_len: int
    tokens: Sequence[int | Piece]
    token_strs: list[str] | None


class DecodedText(msgspec.Struct):
    """Tokens as a text, under the names that clients look for."""

    prompt: str
    content: str


class RenderedChat(msgspec.Struct):
    """A chat as the text that the model reads."""

    prompt: str


class TokenizerInfo(msgspec.Struct):
    """What a client that tokenizes for itself asks."""

    tokenizer: str
    eos_token: str | None
    bos_token: str | None


async def tokenize(call: Call[TokenizeBody]) -> Tokens:
    """Text to token ids."""
    body = call.body
    adds = body.add_special if body.add_special_tokens is None else body.add_special_tokens
    text = body.content if body.prompt is None else body.prompt
    # llama.cpp's spelling has llama.cpp's default: nothing is added
    adds = body.content is None if adds is None else adds
    if isinstance(call.model, ServedPipeline):
        return await _tokenize_by_encoder(call, text, adds_special=adds)
    core = call.llm.core
    request = await call.translate(lambda: _to_request(body, text, adds_special=adds))

    def encode() -> Tokens:
        encode = core.encode_prompt if request.messages is None else core.encode_chat
        ids = encode(request)
        strings = pieces = None
        if body.with_pieces or body.return_token_strs:
            spelled = [core.tokenizer.token_bytes(each) for each in ids]
            strings = [each.decode("utf-8", "replace") for each in spelled]
            pieces = [Piece(*pair) for pair in zip(ids, map(_piece, spelled), strict=True)]
        return Tokens(
            count=len(ids),
            max_model_len=core.info.max_seq_len,
            tokens=pieces if body.with_pieces and pieces is not None else ids,
            token_strs=strings if body.return_token_strs else None,
        )

    return await call.llm.read(encode, request)


async def _tokenize_by_encoder(
    call: Call[TokenizeBody], text: str | None, *, adds_special: bool
) -> Tokens:
    body = call.body
    encoder = _encoder_of(call)
    if text is None or body.messages is not None:
        raise RequestError(
            "this model has no chat template.", param="messages", expected="prompt or content"
        )
    run = PipelineRun[list[tuple[int, str]]](
        call, lambda outlet: outlet.emit(encoder.tokenize(text, adds_special=adds_special))
    )
    (spelled,) = await run.result()
    ids = [token_id for token_id, _ in spelled]
    return Tokens(
        count=len(ids),
        max_model_len=encoder.max_tokens,
        tokens=list(itertools.starmap(Piece, spelled)) if body.with_pieces else ids,
        token_strs=[each for _, each in spelled] if body.return_token_strs else None,
    )


def _encoder_of(call: Call[Any]) -> Encoder:
    """The model of a request, which reads texts.

    Raises:
        RequestError: It reads none.
    """
    if {EMBEDDING, CLASSIFICATION}.isdisjoint(call.model.capabilities):
        raise RequestError("this model reads no text by tokens.", param="model")
    return cast("Encoder", call.pipeline)


def _piece(spelled: bytes) -> str | list[int]:
    """A token as llama.cpp tells it."""
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return list(spelled)


async def count_tokens(call: Call[ChatTextBody]) -> InputTokens:
    """How many tokens a chat has."""
    request = await call.translate(lambda: _to_request(call.body))
    ids = await call.llm.encode_chat(request)
    return InputTokens(input_tokens=len(ids))


async def apply_template(call: Call[ChatTextBody]) -> RenderedChat:
    """A chat as its template renders it; from the tokens, some vocabularies' text would differ."""
    request = await call.translate(lambda: _to_request(call.body))
    core = call.llm.core
    return RenderedChat(await call.llm.read(lambda: str(core.render_chat(request)), request))


def _to_request(
    body: ChatTextBody, text: str | None = None, *, adds_special: bool = True
) -> GenerationRequest:
    return GenerationRequest(
        prompt=text,
        messages=None if body.messages is None else to_messages(body.messages),
        **tool_fields(body.tools, body.tool_choice, parallel=None),
        template_variables=body.chat_template_kwargs,
        add_special_tokens=adds_special,
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final_message=bool(body.continue_final_message),
    )


async def detokenize(call: Call[DetokenizeBody]) -> DecodedText:
    """Token ids to text."""
    ids = call.body.tokens
    if isinstance(call.model, ServedPipeline):
        encoder = _encoder_of(call)
        run = PipelineRun[str](call, lambda outlet: outlet.emit(encoder.detokenize(ids)))
        (text,) = await run.result()
        return DecodedText(prompt=text, content=text)
    tokenizer = call.llm.tokenizer
    limit = max(tokenizer.size, call.llm.core.info.vocab_size)
    if min(ids, default=0) < 0 or max(ids, default=0) >= limit:
        raise outside_vocabulary(limit)
    text = await run_on_worker(lambda: tokenizer.decode(ids, skip_special=False), length=len(ids))
    return DecodedText(prompt=text, content=text)


async def tokenizer_info(call: Call[None]) -> TokenizerInfo:
    """What a client that tokenizes for itself asks."""
    tokenizer = call.llm.tokenizer
    bos, eos = special_names(tokenizer)
    return TokenizerInfo(tokenizer=tokenizer.name, eos_token=eos, bos_token=bos)


def special_names(tokenizer: Tokenizer) -> tuple[str | None, str | None]:
    """The tokens that begin and end a text, as they are written; None where there is none."""
    names = {token_id: name for name, token_id in tokenizer.special_ids.items()}
    eos = next((names[each] for each in tokenizer.eos_ids if each in names), None)
    bos = names.get(tokenizer.bos_id) if tokenizer.bos_id is not None else None
    return bos, eos
