"""``POST /tokenize``, ``POST /detokenize``, ``GET /tokenizer_info``."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.responses import Response

from blazr.core.errors import RequestError
from blazr.llm.generation import GenerationRequest
from blazr.server.messages import ChatMessage, to_messages
from blazr.server.service import Call, json_response


class TokenizeBody(msgspec.Struct, kw_only=True):
    """A text or a chat; ``content`` and ``add_special`` are other servers' spellings."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """Token ids."""

    tokens: list[int]
    model: str | None = None


async def tokenize(call: Call[TokenizeBody]) -> Response:
    """Text to token ids."""
    body, service = call.body, call.service
    service.check_model(body.model)
    core = service.llm.core
    adds = body.add_special if body.add_special_tokens is None else body.add_special_tokens
    request = GenerationRequest(
        prompt=body.content if body.prompt is None else body.prompt,
        messages=None if body.messages is None else to_messages(body.messages),
        add_special_tokens=adds is not False,
        add_generation_prompt=body.add_generation_prompt is not False,
    )
    encode = core.encode_prompt if request.messages is None else core.encode_chat
    ids = await asyncio.to_thread(encode, request)
    strings = None
    if body.return_token_strs:
        strings = [core.tokenizer.token_bytes(each).decode("utf-8", "replace") for each in ids]
    return json_response(
        {
            "count": len(ids),
            "max_model_len": core.info.max_seq_len,
            "tokens": ids,
            "token_strs": strings,
        }
    )


async def detokenize(call: Call[DetokenizeBody]) -> Response:
    """Token ids to text."""
    call.service.check_model(call.body.model)
    tokenizer, ids = call.service.llm.tokenizer, call.body.tokens
    limit = max(tokenizer.size, call.service.llm.core.info.vocab_size)
    if not all(0 <= each < limit for each in ids):
        raise RequestError(
            "a token id is outside the vocabulary.",
            param="tokens",
            expected=f"0 to {limit - 1}",
        )
    text = await asyncio.to_thread(tokenizer.decode, ids, skip_special=False)
    return json_response({"prompt": text, "content": text})


async def tokenizer_info(call: Call[None]) -> Response:
    """What a client that tokenizes for itself asks."""
    tokenizer = call.service.llm.tokenizer
    names = {token_id: name for name, token_id in tokenizer.special_ids.items()}
    eos = next((names[each] for each in tokenizer.eos_ids if each in names), None)
    bos = names.get(tokenizer.bos_id) if tokenizer.bos_id is not None else None
    return json_response({"tokenizer": tokenizer.name, "eos_token": eos, "bos_token": bos})
