"""``POST /completion`` and ``/infill``: prompts continued, as llama.cpp's server spells it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from blazr.core.errors import RequestError
from blazr.llm.generation import GenerationRequest, Prompt
from blazr.llm.workers import run_on_worker
from blazr.server.endpoint import Call, Reply
from blazr.server.native.llama_cpp import (
    LlamaCppBody,
    PieceEvent,
    PieceRenderer,
    TextPiece,
    to_params,
)
from blazr.server.params import MAX_PROMPTS, EmptyList, TokenId, check_num_replies
from blazr.server.run import Run, reply
from blazr.server.schema import Example, schema_hint
from blazr.text.tokenizer import Tokenizer


class PromptText(msgspec.Struct, kw_only=True):
    """A prompt as an object; there is no use for images and sounds."""

    prompt_string: str
    multimodal_data: Annotated[str, schema_hint(maxLength=0)] | EmptyList | None = None


_SOME = schema_hint(minItems=1)
LlamaCppPrompts = (
    str
    | PromptText
    | Annotated[list[str | TokenId | PromptText | Annotated[list[TokenId | str], _SOME]], _SOME]
)


class LlamaCompletionBody(LlamaCppBody, kw_only=True):
    """The request. Left as it is, it asks for all that fits.

    A prompt is a text, or token ids with texts among them; a list of such is several prompts.
    """

    prompt: LlamaCppPrompts
    n_predict: int | None = -1
    example: ClassVar[Example] = {"prompt": "Once upon a time", "max_tokens": 32}


class ExtraFile(msgspec.Struct):
    """Another file, to know of."""

    text: str
    filename: str = ""


class InfillBody(LlamaCppBody, kw_only=True):
    """The request; ``prompt`` is more of the prefix."""

    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: list[ExtraFile] | None = None
    prompt: str = ""
    example: ClassVar[Example] = {
        "max_tokens": 32,
        "input_prefix": "def add(a, b):\n    return ",
        "input_suffix": "\n",
    }


async def complete(
    call: Call[LlamaCompletionBody],
) -> Reply[TextPiece | list[TextPiece], PieceEvent]:
    """Continue a prompt, or several."""
    params = await to_params(call)
    given = call.body.prompt
    prompts = await run_on_worker(
        lambda: _prompts(given, call.llm.tokenizer),
        length=len(given) if isinstance(given, list) else 0,
    )
    check_num_replies(len(prompts), param="prompt")
    renderer = PieceRenderer(call, params)
    requests = [
        GenerationRequest(prompt=each, params=params, **call.scheduling()) for each in prompts
    ]
    if len(prompts) == 1 or call.body.stream:
        return await reply(call, requests, renderer, stream=call.body.stream)
    run = await Run.start(call, requests)
    completions, _ = await run.result(renderer.gather)
    return renderer.pieces(completions)


async def infill(call: Call[InfillBody]) -> Reply[TextPiece, PieceEvent]:
    """Fill in the middle."""
    body = call.body
    params = await to_params(call)

    def translate() -> GenerationRequest:
        before = "".join(f"{extra.filename}\n{extra.text}\n" for extra in body.input_extra or ())
        return GenerationRequest(
            prompt=before + body.input_prefix + body.prompt,
            suffix=body.input_suffix,
            params=params,
            **call.scheduling(),
        )

    request = await call.translate(translate)
    return await reply(call, [request], PieceRenderer(call, params), stream=body.stream)


def _prompts(given: LlamaCppPrompts, tokenizer: Tokenizer) -> list[Prompt]:
    if not isinstance(given, list):
        return [_prompt(given, tokenizer)]
    if any(isinstance(each, int) for each in given):
        parts = [each for each in given if isinstance(each, int | str)]
        if len(parts) == len(given):
            return [_prompt(parts, tokenizer)]
    elif 0 < len(given) <= MAX_PROMPTS:
        return [_prompt(each, tokenizer) for each in given if not isinstance(each, int)]
    raise RequestError(
        "prompt has the wrong shape.",
        param="prompt",
        found=f"a list of {len(given)}",
        expected=f"a prompt, or a list of at most {MAX_PROMPTS}",
    )


def _prompt(given: str | PromptText | Sequence[int | str], tokenizer: Tokenizer) -> Prompt:
    if isinstance(given, str):
        return given
    if isinstance(given, PromptText):
        if given.multimodal_data:
            raise RequestError(
                "this model reads only text.", param="prompt", found="multimodal_data"
            )
        return given.prompt_string
    ids: list[int] = []
    for part in given:
        ids += [part] if isinstance(part, int) else tokenizer.encode(part)
    return ids
