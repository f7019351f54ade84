"""How the server behaves."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from math import inf
from pathlib import Path
from typing import Literal

from blazr.core.errors import ConfigError

LARGE_BODY_BYTES = 2**16
MAX_HEADER_BYTES = 16 * 1024
MAX_HEADER_FIELDS = 100
_ROOT_PATH = re.compile(r"(/[\w.~-]+)+")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
LOOPBACK_ORIGIN = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a client may take.

    Args:
        max_connections: Most connections at once; a request on any further one is answered 503,
            except ``/health``.
        max_body_bytes: Longest body of a request (20MB).
        max_bodies_bytes: Most memory for the bodies of all requests that are being answered (1GB).
        request_timeout_s: Most seconds from a request to the end of its reply.
        body_timeout_s: Most seconds that a body may take to arrive.
        send_timeout_s: Drop a client that has not read for so many seconds.
        keep_alive_s: Send a comment into a stream that was silent for so many seconds.

    Raises:
        ConfigError: One is not above 0, or the longest body takes more than all may.
    """

    # Below the 1,024 descriptors that a process usually may have open, with room for files. More
    # than an engine works on at once, and few enough that each is looked at every few milliseconds.
    max_connections: int = 800
    max_body_bytes: int = 10_000_000
    max_bodies_bytes: int = 128 * 2**20
    request_timeout_s: float = 600.0
    body_timeout_s: float = 60.0
    send_timeout_s: float = 60.0
    keep_alive_s: float = 15.0

    def __post_init__(self) -> None:
        for each in fields(Limits):
            value = getattr(self, each.name)
            if not 0 < value < inf:
                raise ConfigError(
                    f"the limit {each.name!r} cannot be used.",
                    found=repr(value),
                    expected="a number above 0",
                )
        if self.max_bodies_bytes < self.max_body_bytes:
            raise ConfigError(
                "the limit max_bodies_bytes leaves no room for the longest body.",
                found=f"{self.max_bodies_bytes:,}, and max_body_bytes is {self.max_body_bytes:,}",
                expected="no less than that",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig(Limits):
    """How the server behaves; it has `Limits`, too.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 picks a free one.
        health_port: Port on which ``/health`` is answered by a process of its own, too, without
            TLS; None is none.
        api_keys: Keys of which a client must show one; none leaves the server open.
        admin_api_keys: Keys of which one must be shown to command the server; none leaves that to
            the others, and without any key nobody may.
        allowed_hosts: Names under which requests may come without a key, besides this machine's
            own, those without a dot, and addresses; ``"*"`` is any.
        cors_origins: Origins that browsers may call from, besides loopback; ``"*"`` is any.
        uds: Socket file to listen on instead.
        tls_cert: File with the certificate and those that vouch for it; with ``tls_key``.
        tls_key: File with its key.
        root_path: What a proxy has put before every path; requests may come with it or without.
        served_names: What the model is called, the one it shows first; none takes its own name.
        accept_any_model: Answer whatever model a request names.
        idle_unload_s: Silence after which a model leaves the memory; None keeps it.
        models_memory_bytes: Most memory of all models together; None is no bound.
        has_ui: Whether there are the chat page and the viewer of the API.
        access_log: A line for every request: ``"text"``, ``"json"`` or ``"off"``.
        otlp_endpoint: Where traces go, in OpenTelemetry's protocol over HTTP; None makes none.
        drain_timeout_s: How long running requests may take when the server stops.
        adapter_dir: Below it lie the adapters that a model may load while it runs; None is nowhere.
        weights_dir: Below it lie the checkpoints whose weights a model may go on with; None is
            nowhere.
        profile_dir: Where profiles are written; None makes none.

    Raises:
        ConfigError: A key is empty or cannot be sent in a header; of certificate and key one is
            missing; the root path is none; an allowed host is no name.
    """

    host: str = "0.0.0.0"
    port: int = 8080
    health_port: int | None = None
    api_keys: tuple[str, ...] = ()
    admin_api_keys: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    uds: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    root_path: str = ""
    served_names: tuple[str, ...] = ()
    accept_any_model: bool = False
    idle_unload_s: float | None = None
    models_memory_bytes: int | None = None
    has_ui: bool = True
    access_log: Literal["text", "json", "off"] = "text"
    otlp_endpoint: str | None = None
    drain_timeout_s: float = 30.0
    adapter_dir: Path | None = None
    weights_dir: Path | None = None
    profile_dir: Path | None = None

    def __post_init__(self) -> None:
        Limits.__post_init__(self)
        for key in self.api_keys + self.admin_api_keys:
            if not key or not key.isascii() or not key.isprintable() or key != key.strip():
                raise ConfigError(
                    "an API key cannot be used.",
                    found="an empty one, or one with spaces around it or unprintable characters",
                    expected="printable ASCII",
                )

        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("TLS needs a certificate and its key.", expected="both or neither")
        for host in self.allowed_hosts:
            if host != "*" and not _HOST.fullmatch(host):
                raise ConfigError(
                    "an allowed host is not a name.",
                    found=repr(host)[:100],
                    expected="a name as in 'llm.example.com', without scheme, port and path, or *",
                )
        for path in (self.adapter_dir, self.weights_dir, self.profile_dir):
            if path is not None and not path.is_dir():
                raise ConfigError("a folder is missing.", found=str(path)[:200])
        if self.root_path and not _ROOT_PATH.fullmatch(self.root_path):
            raise ConfigError(
                "the root path is not understood.",
                found=repr(self.root_path)[:100],
                expected="'/something', without a slash at its end",
            )
        if self.access_log not in {"text", "json", "off"}:
            raise ConfigError(
                "the form of the access log is unknown.",
                found=repr(self.access_log)[:50],
                expected="text, json or off",
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return self.uds is not None or self.host in LOOPBACK

    def allows_origin(self, origin: str) -> bool:
        """Whether pages of an origin may call from a browser."""
        is_listed = origin in self.cors_origins or "*" in self.cors_origins
        return is_listed or re.fullmatch(LOOPBACK_ORIGIN, origin) is not None
