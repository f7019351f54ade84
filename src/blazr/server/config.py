"""How the server behaves."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from blazr.core.errors import ConfigError

MAX_BODY_BYTES = 10_000_000
MAX_HEADER_BYTES = 16 * 1024
MAX_HEADER_FIELDS = 100
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """How the server behaves.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 picks a free one.
        api_keys: Keys of which a client must show one; none leaves the server open.
        cors_origins: Origins that browsers may call from, besides loopback; ``"*"`` is any.
        served_name: What the model is called; None takes its own name.
        accept_any_model: Answer whatever model a request names.
        max_body_bytes: Longest request body.
        request_timeout_s: Longest time for a reply.
        body_timeout_s: Longest time a body may take to arrive.
        send_timeout_s: Longest time a client may not read before it is dropped.
        keep_alive_s: Silence in a stream after which a comment shows that it lives.
        drain_timeout_s: How long running requests may take when the server stops.

    Raises:
        ConfigError: A key is empty or cannot be sent in a header.
    """

    host: str = "0.0.0.0"
    port: int = 8080
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    served_name: str | None = None
    accept_any_model: bool = False
    max_body_bytes: int = MAX_BODY_BYTES
    request_timeout_s: float = 600.0
    body_timeout_s: float = 60.0
    send_timeout_s: float = 60.0
    keep_alive_s: float = 15.0
    drain_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        for key in self.api_keys:
            if not key or not key.isascii() or not key.isprintable() or key != key.strip():
                raise ConfigError(
                    "an API key cannot be used.",
                    found="an empty one, or one with spaces around it or unprintable characters",
                    expected="printable ASCII",
                )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return self.host in LOOPBACK

    def key_digests(self) -> tuple[bytes, ...]:
        """SHA-256 of each key; the keys themselves are not looked at again."""
        return tuple(hashlib.sha256(key.encode()).digest() for key in self.api_keys)
