"""The endpoints, one row each: which function answers what, and how its dialect writes.

What a handler takes and answers is read from its annotations. A path that a second row names again
is an alias; the row says whose clients ask for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from blazr.core.table import Table
from blazr.pipelines.kinds import (
    CLASSIFICATION,
    EMBEDDING,
    IMAGE,
    RERANKING,
    SPEECH,
    TRANSCRIPTION,
)
from blazr.server import hub
from blazr.server.anthropic import messages
from blazr.server.anthropic.rendering import anthropic_error
from blazr.server.endpoint import Route
from blazr.server.kv_peers import EXPORT_PATH
from blazr.server.native import (
    adapters,
    cache,
    cache_events,
    commands,
    completion,
    kv_cache,
    model_info,
    pages,
    profile,
    props,
    router,
    slots,
    status,
    tgi,
    tokens,
    weights,
)
from blazr.server.native.tgi import tgi_error
from blazr.server.ollama import catalog
from blazr.server.ollama import embed as ollama_embed
from blazr.server.ollama import generate as ollama_generate
from blazr.server.ollama.catalog import ollama_error
from blazr.server.openai import (
    batches,
    chat,
    classify,
    cohere,
    completions,
    content_embeddings,
    decisions,
    embeddings,
    images,
    model_list,
    scoring,
    speech,
    tei,
    transcriptions,
    unsupported,
)
from blazr.server.openai.cohere import cohere_error
from blazr.server.openai.responses import endpoints as responses
from blazr.server.openai.tei import tei_error
from blazr.server.sse import ENDLESS_DATA, LINES, NAMED

_Anthropic = partial(Route, error=anthropic_error, framing=NAMED)
_Batches = partial(Route, needs_model=False, is_in_front=True)
_Command = partial(Route, is_command=True, needs_model=False)
_Loading = partial(Route, needs_operator=True, needs_model=False)
_Hearing = partial(Route, capability=TRANSCRIPTION, is_form=True)
_Embedding = partial(Route, capability=EMBEDDING)
_Events = partial(Route, framing=NAMED, needs_operator=True)
_Any = partial(Route, capability=None)
_Comparing = partial(Route, capability=RERANKING)
_Drawing = partial(Route, capability=IMAGE)
_LlamaCpp = partial(Route, framing=ENDLESS_DATA)
_Ollama = partial(Route, error=ollama_error, framing=LINES)
_Responses = partial(Route, framing=NAMED)

_ROWS = (
    Route("GET", "/", pages.chat_page, is_open=True),
    Route("GET", "/docs", pages.docs_page, is_open=True),
    Route("GET", "/ui/{name}", pages.asset, is_open=True),
    Route("GET", "/health", status.health, is_open=True),
    Route("GET", "/v1/health", status.health, is_open=True),  # llama.cpp
    Route("GET", "/ping", status.health, is_open=True),  # SageMaker
    # SGLang, whose probe writes a token to see whether the engine lives
    Route("GET", "/health_generate", status.health, is_open=True),
    Route("GET", "/ready", status.ready, is_open=True),
    Route("GET", "/version", status.version),
    Route("GET", "/load", status.load),
    Route("GET", "/server_info", status.server_info),
    Route("GET", "/openapi.json", status.openapi),
    Route("GET", "/metrics", status.metrics),
    Route("GET", "/debug/cache", cache.show_cache, needs_model=True),
    _Events("GET", "/cache_events", cache_events.watch),
    Route("GET", "/v1/models", model_list.list_models),
    Route("GET", "/models", model_list.list_models),  # llama.cpp
    Route("GET", "/v1/models/{model:name}", model_list.show_model),
    # llama.cpp's router
    _Loading("POST", "/models/load", router.load),
    _Loading("POST", "/models/unload", router.unload),
    _LlamaCpp("GET", "/models/sse", router.watch),
    # operators' commands, as vLLM names them
    _Command("POST", "/sleep", commands.sleep),
    _Command("POST", "/wake_up", commands.wake_up),
    Route("GET", "/is_sleeping", commands.is_sleeping),
    _Command("POST", "/pause", commands.pause),
    _Command("POST", "/resume", commands.resume),
    Route("GET", "/is_paused", commands.is_paused),
    _Command("POST", "/reset_prefix_cache", commands.reset_prefix_cache),
    _Command("POST", "/abort_requests", commands.abort_requests),
    _Command("POST", "/update_weights", weights.update_weights),
    Route("POST", EXPORT_PATH, kv_cache.export_blocks, needs_operator=True),
    _Command("POST", "/v1/load_lora_adapter", adapters.load_adapter),
    _Command("POST", "/v1/unload_lora_adapter", adapters.unload_adapter),
    _Command("POST", "/start_profile", profile.start_profile),
    _Command("POST", "/stop_profile", profile.stop_profile),
    # the same, as SGLang's clients ask for them
    _Command("POST", "/pause_generation", commands.pause),
    _Command("POST", "/continue_generation", commands.resume),
    _Command("POST", "/flush_cache", commands.reset_prefix_cache),
    _Command("POST", "/abort_request", commands.abort_requests),
    _Command("POST", "/update_weights_from_disk", weights.update_weights),
    Route("POST", "/v1/completions", completions.complete),
    Route("POST", "/v1/chat/completions", chat.answer),
    Route("POST", "/chat/completions", chat.answer),  # Continue, llama.cpp
    Route("POST", "/v1/chat/completions/input_tokens", tokens.count_tokens),
    Route("POST", "/chat/completions/input_tokens", tokens.count_tokens),
    _Responses("POST", "/v1/responses", responses.create),
    _Responses("POST", "/responses", responses.create),  # llama.cpp
    Route("POST", "/v1/responses/input_tokens", responses.count_tokens),
    _Responses("GET", "/v1/responses/{id}", responses.retrieve),
    Route("DELETE", "/v1/responses/{id}", responses.delete),
    Route("POST", "/v1/responses/{id}/cancel", responses.cancel),
    Route("GET", "/v1/responses/{id}/input_items", responses.input_items),
    _Batches("POST", "/v1/files", batches.upload, is_form=True),
    _Batches("GET", "/v1/files", batches.list_files),
    _Batches("GET", "/v1/files/{id}", batches.show_file),
    _Batches("GET", "/v1/files/{id}/content", batches.read_file),
    _Batches("DELETE", "/v1/files/{id}", batches.delete_file),
    _Batches("POST", "/v1/batches", batches.create),
    _Batches("GET", "/v1/batches", batches.list_batches),
    _Batches("GET", "/v1/batches/{id}", batches.show_batch),
    _Batches("POST", "/v1/batches/{id}/cancel", batches.cancel),
    _Embedding("POST", "/v1/embeddings", embeddings.embed),
    _Embedding("POST", "/embedding", content_embeddings.embed),  # llama.cpp
    _Embedding(
        "POST", "/embeddings", content_embeddings.embed_either
    ),  # llama.cpp, and OpenAI's clients
    # text-embeddings-inference
    _Embedding("POST", "/embed", tei.embed, error=tei_error),
    _Embedding("POST", "/embed_all", tei.embed_all, error=tei_error),
    _Embedding("POST", "/similarity", tei.similarity, error=tei_error),
    _Embedding("POST", "/v2/embed", cohere.embed, error=cohere_error),  # Cohere
    _Embedding("POST", "/v1/embed", cohere.embed_old, error=cohere_error),
    Route("POST", "/v1/decisions", decisions.decide),
    _Comparing("POST", "/v1/score", scoring.score),
    _Comparing("POST", "/score", scoring.score),  # vLLM
    _Comparing("POST", "/v1/rerank", scoring.rerank),
    _Comparing("POST", "/v2/rerank", scoring.rerank, error=cohere_error),  # Cohere
    _Comparing("POST", "/rerank", tei.rerank),  # vLLM, Jina; text-embeddings-inference
    _Comparing("POST", "/reranking", scoring.rerank),  # llama.cpp
    _Comparing("POST", "/v1/reranking", scoring.rerank),  # llama.cpp
    Route("POST", "/classify", classify.classify, capability=CLASSIFICATION),  # vLLM
    Route("POST", "/v1/classify", classify.classify, capability=CLASSIFICATION),
    Route(
        "POST", "/predict", tei.predict, capability=CLASSIFICATION, error=tei_error
    ),  # text-embeddings-inference
    _Hearing("POST", "/v1/audio/transcriptions", transcriptions.transcribe),
    _Hearing("POST", "/v1/audio/translations", transcriptions.translate),
    Route("POST", "/v1/audio/speech", speech.speak, capability=SPEECH),
    _Drawing("POST", "/v1/images/generations", images.generate),
    _Drawing("POST", "/v1/images/edits", images.edit, is_form=True),
    Route("POST", "/v1/images/variations", unsupported.refuse_variations),
    Route("GET", "/v1/images/files/{id}", images.show_file, is_open=True),
    Route("POST", "/v1/responses/compact", unsupported.refuse_compact),
    _Anthropic("POST", "/v1/messages", messages.answer),
    _Anthropic("POST", "/v1/messages/count_tokens", messages.count_tokens),
    Route("POST", "/generate", tgi.generate_either),  # SGLang, text-generation-inference
    # the hub's clients
    _Any("POST", "/", hub.answer, error=tgi_error, framing=ENDLESS_DATA),
    # text-generation-inference
    Route("POST", "/generate_stream", tgi.generate_stream, error=tgi_error, framing=ENDLESS_DATA),
    _LlamaCpp("POST", "/completion", completion.complete),  # llama.cpp, here and below
    _LlamaCpp("POST", "/completions", completion.complete),
    _Any("GET", "/props", props.show_props, needs_model=True),
    _Any("GET", "/info", tei.info, needs_model=True, error=tei_error),  # text-embeddings-inference
    # SGLang, by its newer name and by the one that its own client asks for
    _Any("GET", "/model_info", model_info.show_model, needs_model=True),
    _Any("GET", "/get_model_info", model_info.show_model, needs_model=True),
    _Any("GET", "/slots", slots.show_slots, needs_model=True),
    Route("POST", "/slots/{id}", slots.use_slot, is_command=True),
    _LlamaCpp("POST", "/infill", completion.infill),
    _LlamaCpp("POST", "/v1/infill", completion.infill),
    _Any("POST", "/tokenize", tokens.tokenize),
    _Any("POST", "/detokenize", tokens.detokenize),
    Route("POST", "/apply-template", tokens.apply_template),
    Route("GET", "/tokenizer_info", tokens.tokenizer_info, needs_model=True),
    _Ollama("GET", "/api/version", catalog.version),
    _Ollama("GET", "/api/tags", catalog.tags),
    _Ollama("GET", "/api/ps", catalog.running),
    _Ollama("POST", "/api/show", catalog.show, capability=None),
    _Ollama("POST", "/api/pull", catalog.pull, needs_model=False),
    _Ollama("POST", "/api/create", catalog.refuse_name),
    _Ollama("POST", "/api/blobs/{digest}", catalog.refuse_name),
    _Ollama("POST", "/api/copy", catalog.refuse_name),
    _Ollama("DELETE", "/api/delete", catalog.refuse_delete),
    _Ollama("POST", "/api/push", catalog.refuse_push),
    _Ollama("POST", "/api/generate", ollama_generate.generate),
    _Ollama("POST", "/api/chat", ollama_generate.chat),
    _Ollama("POST", "/api/embed", ollama_embed.embed, capability=EMBEDDING),
    _Ollama("POST", "/api/embeddings", ollama_embed.embed_one, capability=EMBEDDING),
)

ROUTES: Table[Route] = Table("route", {f"{row.method} {row.path}": row for row in _ROWS})


def batch_paths(routes: Iterable[Route] = ROUTES.values()) -> set[str]:
    """The endpoints that a batch may be for: those under ``/v1`` that answer JSON with JSON."""
    return {
        row.path
        for row in routes
        if row.method == "POST"
        and row.path.startswith("/v1/")
        and "{" not in row.path
        and not (row.body is None or row.is_form or row.capability == SPEECH)
        and not (row.is_command or row.needs_operator or row.needs_model is False)
    }
