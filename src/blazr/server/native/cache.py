"""``GET /debug/cache``: why prefixes are reused, or are not."""

from __future__ import annotations

from starlette.responses import Response

from blazr.server.service import Call, json_response

_REASON = "reuse_"


async def show_cache(call: Call[None]) -> Response:
    """A model's: what the caches hold, how often prefixes were reused, the latest requests."""
    stats = call.service.llm.core.engine.stats()

    def pick(**figures: str) -> dict[str, int]:
        return {shown: int(stats.get(name, 0)) for shown, name in figures.items()}

    return json_response(
        {
            "pages": pick(
                used="pages_used", idle="pages_idle", free="pages_free", evictions="page_evictions"
            ),
            "states": pick(used="states_used", free="states_free", evictions="state_evictions"),
            **pick(
                blocks="prefix_blocks", prompt_tokens="prompt_tokens", cached_tokens="cached_tokens"
            ),
            "reasons": {
                name.removeprefix(_REASON): int(count)
                for name, count in stats.items()
                if name.startswith(_REASON)
            },
            "recent": [
                each for each in call.state.reports(call.tenant) if each.model == call.service.name
            ],
        }
    )
