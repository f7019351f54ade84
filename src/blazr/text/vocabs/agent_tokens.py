"""The 54 agent tokens that oxidizr's vocabularies append behind the original ones (data)."""

from __future__ import annotations

_MEDIA = ("image", "audio", "video")
_NAMES = (
    "system", "user", "assistant", "im_start", "im_end",
    "think", "/think", "plan", "/plan", "step", "/step", "act", "/act", "observe", "/observe",
    "function", "/function", "result", "/result", "error", "/error",
    "code", "/code", "output", "/output", "lang", "/lang",
    "context", "/context", "quote", "/quote", "cite", "/cite", "source", "/source",
    "memory", "/memory", "recall", "/recall",
    "pad", "stop", "sep",
    "image", "/image", "audio", "/audio", "video", "/video",
    "title", "/title", "section", "/section", "summary", "/summary",
)  # fmt: skip


def agent_token_ids(first_id: int, *, first_media_id: int | None = None) -> dict[str, int]:
    """The ids of the agent tokens by name.

    Args:
        first_id: The id of ``<|system|>``; the others follow in order.
        first_media_id: Where the six media tokens begin, if they lie elsewhere. Their places in
            the order then stay empty.
    """
    ids = {f"<|{name}|>": first_id + offset for offset, name in enumerate(_NAMES)}
    if first_media_id is not None:
        media = [name for name in _NAMES if name.removeprefix("/") in _MEDIA]
        ids |= {f"<|{name}|>": first_media_id + offset for offset, name in enumerate(media)}
    return ids
