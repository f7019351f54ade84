"""The endpoints, one row each."""

from __future__ import annotations

from functools import partial

from blazr.core.table import Table
from blazr.server.anthropic import messages
from blazr.server.anthropic.rendering import error_object as anthropic_error
from blazr.server.endpoint import Route
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
from blazr.server.ollama import embed as ollama_embed
from blazr.server.ollama import generate as ollama_generate
from blazr.server.ollama import models as ollama_models
from blazr.server.openai import (
    chat,
    completions,
    decisions,
    embeddings,
    models,
    responses,
    scoring,
    unsupported,
)

_Anthropic = partial(Route, shape=anthropic_error)
_Command = partial(Route, is_command=True, needs_model=False)
_Ollama = partial(Route, shape=ollama_models.error_object)

ROUTES: Table[Route] = Table(
    "route",
    {
        f"{row.method} {row.path}": row
        for row in (
            Route("GET", "/", pages.chat_page, is_open=True),
            Route("GET", "/docs", pages.docs_page, is_open=True),
            Route("GET", "/ui/{name}", pages.asset, is_open=True),
            Route("GET", "/health", status.health, is_open=True),
            Route("GET", "/v1/health", status.health, is_open=True),
            Route("GET", "/ping", status.health, is_open=True),
            Route("GET", "/ready", status.ready, is_open=True),
            Route("GET", "/version", status.version),
            Route("GET", "/load", status.load),
            Route("GET", "/server_info", status.server_info),
            Route("GET", "/openapi.json", status.openapi),
            Route("GET", "/metrics", status.metrics),
            Route("GET", "/debug/cache", cache.show_cache, needs_model=True),
            *(Route("GET", path, models.list_models) for path in ("/v1/models", "/models")),
            Route("GET", "/v1/models/{model:path}", models.show_model),
            Route("POST", "/models/load", router.load, router.Body, needs_model=False),
            Route("POST", "/models/unload", router.unload, router.Body, needs_model=False),
            Route("GET", "/models/sse", router.watch),
            _Command("POST", "/sleep", sleep.sleep, sleep.SleepBody),
            _Command("POST", "/wake_up", sleep.wake_up, sleep.WakeBody),
            Route("GET", "/is_sleeping", sleep.is_sleeping, commands.Target),
            *(
                _Command("POST", path, commands.pause, commands.PauseBody)
                for path in ("/pause", "/pause_generation")
            ),
            *(
                _Command("POST", path, commands.resume, commands.Target)
                for path in ("/resume", "/continue_generation")
            ),
            Route("GET", "/is_paused", commands.is_paused, commands.Target),
            *(
                _Command("POST", path, commands.reset_prefix_cache, commands.ResetBody)
                for path in ("/reset_prefix_cache", "/flush_cache")
            ),
            *(
                _Command("POST", path, commands.abort_requests, commands.AbortBody)
                for path in ("/abort_requests", "/abort_request")
            ),
            *(
                _Command("POST", path, weights.update_weights, weights.Body)
                for path in ("/update_weights", "/update_weights_from_disk")
            ),
            _Command("POST", "/start_profile", profile.start_profile, profile.StartBody),
            _Command("POST", "/stop_profile", profile.stop_profile),
            Route("POST", "/v1/completions", completions.complete, completions.Body),
            *(
                Route("POST", path, chat.answer, chat.Body)
                for path in ("/v1/chat/completions", "/chat/completions")
            ),
            *(
                Route("POST", f"{path}/input_tokens", tokens.count_tokens, tokens.ChatTextBody)
                for path in ("/v1/chat/completions", "/chat/completions")
            ),
            *(
                Route("POST", path, responses.create, responses.Body)
                for path in ("/v1/responses", "/responses")
            ),
            Route(
                "POST", "/v1/responses/input_tokens", responses.count_tokens, responses.CountBody
            ),
            Route("GET", "/v1/responses/{id}", responses.retrieve, responses.Query),
            Route("DELETE", "/v1/responses/{id}", responses.delete),
            Route("POST", "/v1/responses/{id}/cancel", responses.cancel),
            Route("GET", "/v1/responses/{id}/input_items", responses.input_items),
            Route("POST", "/v1/embeddings", embeddings.embed, embeddings.Body),
            Route("POST", "/v1/decisions", decisions.decide, decisions.Body),
            *(
                Route("POST", path, scoring.score, scoring.ScoreBody)
                for path in ("/v1/score", "/score")
            ),
            *(
                Route("POST", path, scoring.rerank, scoring.RerankBody)
                for path in ("/v1/rerank", "/v2/rerank", "/rerank", "/reranking", "/v1/reranking")
            ),
            *(Route("POST", path, unsupported.refuse_sound) for path in unsupported.SOUND_PATHS),
            *(Route("POST", path, unsupported.refuse_images) for path in unsupported.IMAGE_PATHS),
            Route("POST", "/v1/responses/compact", unsupported.refuse_compact),
            _Anthropic("POST", "/v1/messages", messages.answer, messages.Body),
            _Anthropic(
                "POST", "/v1/messages/count_tokens", messages.count_tokens, messages.CountBody
            ),
            Route("POST", "/generate", generate.generate, generate.Body),
            *(
                Route("POST", path, completion.complete, completion.Body)
                for path in ("/completion", "/completions")
            ),
            Route("GET", "/props", props.show_props, needs_model=True),
            Route("GET", "/slots", slots.show_slots, slots.Query, needs_model=True),
            *(
                Route("POST", path, infill.infill, infill.Body)
                for path in ("/infill", "/v1/infill")
            ),
            Route("POST", "/tokenize", tokens.tokenize, tokens.TokenizeBody),
            Route("POST", "/detokenize", tokens.detokenize, tokens.DetokenizeBody),
            Route("POST", "/apply-template", tokens.apply_template, tokens.ChatTextBody),
            Route("GET", "/tokenizer_info", tokens.tokenizer_info, needs_model=True),
            _Ollama("GET", "/api/version", ollama_models.version),
            _Ollama("GET", "/api/tags", ollama_models.tags),
            _Ollama("GET", "/api/ps", ollama_models.running),
            _Ollama("POST", "/api/show", ollama_models.show, ollama_models.ShowBody),
            _Ollama(
                "POST", "/api/pull", ollama_models.pull, ollama_models.PullBody, needs_model=False
            ),
            _Ollama(
                "POST", "/api/generate", ollama_generate.generate, ollama_generate.GenerateBody
            ),
            _Ollama("POST", "/api/chat", ollama_generate.chat, ollama_generate.ChatBody),
            _Ollama("POST", "/api/embed", ollama_embed.embed, ollama_embed.EmbedBody),
            _Ollama("POST", "/api/embeddings", ollama_embed.embed_one, ollama_embed.OldBody),
        )
    },
)
