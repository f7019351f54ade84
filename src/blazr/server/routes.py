"""The endpoints, one row each."""

from __future__ import annotations

from blazr.core.table import Table
from blazr.server.endpoint import Route
from blazr.server.native import cache, generate, status, tokens
from blazr.server.openai import chat, completions, models

ROUTES: Table[Route] = Table(
    "route",
    {
        f"{row.method} {row.path}": row
        for row in (
            Route("GET", "/health", status.health, is_open=True),
            Route("GET", "/ready", status.ready, is_open=True),
            Route("GET", "/version", status.version),
            Route("GET", "/metrics", status.metrics),
            Route("GET", "/debug/cache", cache.show_cache),
            Route("GET", "/v1/models", models.list_models),
            Route("GET", "/v1/models/{model:path}", models.show_model),
            Route("POST", "/v1/completions", completions.complete, completions.Body),
            Route("POST", "/v1/chat/completions", chat.answer, chat.Body),
            Route("POST", "/generate", generate.generate, generate.Body),
            Route("POST", "/tokenize", tokens.tokenize, tokens.TokenizeBody),
            Route("POST", "/detokenize", tokens.detokenize, tokens.DetokenizeBody),
            Route("GET", "/tokenizer_info", tokens.tokenizer_info),
        )
    },
)
