"""What each handler answers, as types, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from blazr.server.anthropic import messages
from blazr.server.anthropic import replies as anthropic
from blazr.server.native import (
    cache,
    commands,
    completion,
    generate,
    infill,
    pages,
    profile,
    props,
    router,
    sleep,
    slots,
    status,
    tokens,
    weights,
)
from blazr.server.native import replies as native
from blazr.server.native.pieces import FRAMING
from blazr.server.ollama import embed as ollama_embed
from blazr.server.ollama import generate as ollama_generate
from blazr.server.ollama import models as ollama_models
from blazr.server.ollama import replies as ollama
from blazr.server.openai import (
    chat,
    completions,
    decisions,
    embeddings,
    models,
    replies,
    responses,
    scoring,
    unsupported,
)
from blazr.server.openai import response_replies as items
from blazr.server.service import Call
from blazr.server.sse import DATA, LINES, NAMED, Framing

Handler = Callable[[Call[Any]], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a handler answers when nothing is wrong.

    Args:
        whole: Type of the JSON; None where it is of another kind.
        media_type: What kind, where it is no JSON.
        events: Type of what a stream consists of; None where there is none.
        framing: How a stream's events become bytes.
        is_hidden: It is no part of the API: a page, or a refusal.
    """

    whole: object = None
    media_type: str = "application/json"
    events: object = None
    framing: Framing = DATA
    is_hidden: bool = False


_HIDDEN = Answer(is_hidden=True)
_SEEN = Answer(whole=items.ResponseObject)

ANSWERS: Mapping[Handler, Answer] = {
    pages.chat_page: _HIDDEN,
    pages.docs_page: _HIDDEN,
    pages.asset: _HIDDEN,
    status.health: Answer(whole=native.Health),
    status.ready: Answer(whole=native.Ready),
    status.version: Answer(whole=native.Version),
    status.load: Answer(whole=native.Load),
    status.server_info: Answer(whole=native.ServerInfo),
    status.openapi: Answer(whole=dict[str, Any]),
    status.metrics: Answer(media_type="text/plain"),
    cache.show_cache: Answer(whole=native.CacheReport),
    generate.generate: Answer(whole=native.Generated, events=native.Generated),
    completion.complete: Answer(
        whole=native.TextPiece | list[native.TextPiece], events=native.TextPiece, framing=FRAMING
    ),
    infill.infill: Answer(whole=native.TextPiece, events=native.TextPiece, framing=FRAMING),
    props.show_props: Answer(whole=native.Props),
    slots.show_slots: Answer(whole=list[native.Slot]),
    router.load: Answer(whole=native.Success),
    router.unload: Answer(whole=native.Success),
    router.watch: Answer(media_type=FRAMING.media_type, events=native.ModelNews, framing=FRAMING),
    sleep.sleep: Answer(whole=native.Sleeping),
    sleep.wake_up: Answer(whole=native.Sleeping),
    sleep.is_sleeping: Answer(whole=native.Sleeping),
    commands.pause: Answer(whole=native.PauseState),
    commands.resume: Answer(whole=native.PauseState),
    commands.is_paused: Answer(whole=native.Paused),
    commands.reset_prefix_cache: Answer(whole=native.Forgotten),
    commands.abort_requests: Answer(whole=native.Aborted),
    weights.update_weights: Answer(whole=native.Success),
    profile.start_profile: Answer(whole=native.ProfileState),
    profile.stop_profile: Answer(whole=native.ProfileState),
    tokens.tokenize: Answer(whole=native.Tokens),
    tokens.detokenize: Answer(whole=native.Text),
    tokens.apply_template: Answer(whole=native.Prompt),
    tokens.tokenizer_info: Answer(whole=native.TokenizerInfo),
    tokens.count_tokens: Answer(whole=replies.InputTokens),
    models.list_models: Answer(whole=replies.ModelList),
    models.show_model: Answer(whole=replies.ModelCard),
    completions.complete: Answer(whole=replies.TextCompletion, events=replies.TextCompletion),
    chat.answer: Answer(whole=replies.ChatCompletion, events=replies.ChatChunk),
    responses.create: Answer(whole=items.ResponseObject, events=items.ResponseEvent, framing=NAMED),
    responses.retrieve: Answer(
        whole=items.ResponseObject, events=items.ResponseEvent, framing=NAMED
    ),
    responses.cancel: _SEEN,
    responses.delete: Answer(whole=items.ResponseDeleted),
    responses.input_items: Answer(whole=items.InputItemList),
    responses.count_tokens: Answer(whole=replies.InputTokens),
    embeddings.embed: Answer(whole=replies.EmbeddingList),
    decisions.decide: Answer(whole=items.Decisions),
    scoring.score: Answer(whole=replies.ScoreList),
    scoring.rerank: Answer(whole=replies.RerankReply),
    unsupported.refuse_sound: _HIDDEN,
    unsupported.refuse_images: _HIDDEN,
    unsupported.refuse_compact: _HIDDEN,
    messages.answer: Answer(
        whole=anthropic.MessageReply, events=anthropic.MessageEvent, framing=NAMED
    ),
    messages.count_tokens: Answer(whole=anthropic.TokenCount),
    ollama_models.version: Answer(whole=ollama.OllamaVersion),
    ollama_models.pull: Answer(whole=ollama.PullLine, events=ollama.PullLine, framing=LINES),
    ollama_models.tags: Answer(whole=ollama.TagList),
    ollama_models.running: Answer(whole=ollama.RunningList),
    ollama_models.show: Answer(whole=ollama.ShownModel),
    ollama_generate.generate: Answer(
        whole=ollama.GenerateLine, events=ollama.GenerateLine, framing=LINES
    ),
    ollama_generate.chat: Answer(whole=ollama.ChatLine, events=ollama.ChatLine, framing=LINES),
    ollama_embed.embed: Answer(whole=ollama.Vectors),
    ollama_embed.embed_one: Answer(whole=ollama.Vector),
}
