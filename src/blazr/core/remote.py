"""A server as its clients name it: an address, with or without ``/v1``, and a key."""

from __future__ import annotations


def root_url(url: str) -> str:
    """The address of a server without the ``/v1`` that OpenAI's clients put behind it."""
    return url.rstrip("/").removesuffix("/v1")


def auth_headers(key: str | None) -> dict[str, str]:
    """The headers that show a server an API key; none without a key."""
    return {"Authorization": f"Bearer {key}"} if key else {}
