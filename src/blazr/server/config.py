"""How the server behaves."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from math import inf
from pathlib import Path
from typing import ClassVar, Literal

from blazr.agent.config import check_installed, read_mcp_config
from blazr.core.errors import ConfigError

LARGE_BODY_BYTES = 2**16
MAX_HEADER_BYTES = 16 * 1024
MAX_HEADER_FIELDS = 100
_ROOT_PATH = re.compile(r"(/[\w.~-]+)+")
_ADDRESS = re.compile(r"https?://([\w.-]+|\[[0-9A-Fa-f:]+\])(:\d{1,5})?(/[\w.~/-]*)?")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+|null")  # of pages, extensions, desktop programs
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
LOOPBACK_ORIGIN = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a client may take.

    Args:
        max_connections: Most connections at once; a request on any further one is answered 503,
            except ``/health``.
        max_body_bytes: Longest body of a request, such as 20MB.
        max_bodies_bytes: Most memory for the bodies of all requests that are being answered, such
            as 1GB.
        request_timeout_s: Most seconds from a request to the end of its reply.
        body_timeout_s: Most seconds that a body may take to arrive.
        send_timeout_s: Drop a client that has not read for so many seconds.
        keep_alive_s: Send a comment into a stream that was silent for so many seconds.
        files_disk_bytes: Most bytes of all files in --files-dir, such as 4GiB.

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
    files_disk_bytes: int = 2**30

    def __post_init__(self) -> None:
        for each in fields(Limits):
            value = getattr(self, each.name)
            if not 0 < value < inf:
                raise ConfigError(
                    f"the limit {_flag(each.name)} cannot be used.",
                    found=repr(value),
                    expected="a finite number above 0",
                    hint=f"leave it out for {each.default}",
                )
        if self.max_bodies_bytes < self.max_body_bytes:
            raise ConfigError(
                "the limit --max-bodies leaves no room for the longest body.",
                found=f"{self.max_bodies_bytes:,}, and --max-body is {self.max_body_bytes:,}",
                expected="no less than that",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig(Limits):
    """How the server behaves; it has `Limits`, too.

    The flags of ``blazr serve`` and their help are these fields.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 picks a free one.
        health_port: Port that answers /health, without TLS, however busy the other one is: by a
            process of its own.
        uds: Unix socket to listen on, instead of a port.
        tls_cert: Certificate file (PEM), for HTTPS, with those that vouch for it.
        tls_key: Private key file (PEM) of the certificate.
        root_path: Path under which a proxy serves this server, such as /llm; requests may come with
            it or without.
        api_keys: API key that clients must send; repeatable.
        admin_api_keys: API key for commands such as /sleep; repeatable.  [default: any API key]
        allowed_hosts: Host name under which to answer without API keys, besides this machine's own,
            names without a dot and IP addresses; * is any; repeatable.
        cors_origins: Web origin that may call the server besides localhost; * is any; repeatable.
        served_names: Name of the model in the API; repeatable, for more names.  [default: its own]
        accept_any_model: Answer requests whatever model they name.
        idle_unload_s: Unload a model that was not used for this many seconds.
        models_memory_bytes: Most memory for all models, such as 24GiB; the least recently used
            are unloaded.
        drain_timeout_s: Seconds that running replies have to finish when the server stops.
        has_ui: Serve the chat page at / and the API viewer at /docs.
        access_log: Log a line for each request: text, json or off.
        otlp_endpoint: Send OpenTelemetry traces to this address (http://localhost:4318).
        mcp: Offer the models to other agents as tools, by MCP at /mcp.
        mcp_config: File of MCP servers (mcp.json), whose tools requests may let a model use.
        agent: Let models use these tools in every chat and response that does not say otherwise.
        max_tool_rounds: Most times that tools run before one reply ends.
        allow_mcp_urls: Connect to MCP servers that requests name by URL, at public addresses
            alone.
        allow_media_urls: Fetch images that requests name by http and https URLs, from public
            addresses alone.
        adapter_dir: Folder from which /v1/load_lora_adapter may read adapters.
        weights_dir: Folder from which /update_weights may read checkpoints.
        profile_dir: Folder to which /stop_profile writes profiles.
        kv_peers: Address (http://host:port) of a server of the same model, from which prompts that
            it has read may be fetched into --cache-dir; repeatable.
        files_dir: Folder in which /v1/files and /v1/batches keep what they are sent.
        replicas: Processes with the models each, behind this one port, that divide the cores.
        replica: Which of them this process is; None where it is none.

    Raises:
        ConfigError: A key is empty or cannot be sent in a header; of certificate and key one is
            missing; the root path or an address is none; an allowed host is no name; a folder is
            missing, or files_disk_bytes limits one that is not given.
    """

    not_flags: ClassVar[frozenset[str]] = frozenset({"replica"})

    host: str = "0.0.0.0"
    port: int = 8080
    health_port: int | None = None
    uds: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    root_path: str = ""
    api_keys: tuple[str, ...] = ()
    admin_api_keys: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    served_names: tuple[str, ...] = ()
    accept_any_model: bool = False
    idle_unload_s: float | None = None
    models_memory_bytes: int | None = None
    drain_timeout_s: float = 30.0
    has_ui: bool = True
    access_log: Literal["text", "json", "off"] = "text"
    otlp_endpoint: str | None = None
    mcp: bool = False
    mcp_config: Path | None = None
    agent: bool = False
    max_tool_rounds: int = 10
    allow_mcp_urls: bool = False
    allow_media_urls: bool = False
    adapter_dir: Path | None = None
    weights_dir: Path | None = None
    profile_dir: Path | None = None
    kv_peers: tuple[str, ...] = ()
    files_dir: Path | None = None
    replicas: int = 1
    replica: int | None = None

    def __post_init__(self) -> None:
        Limits.__post_init__(self)
        for key in self.api_keys + self.admin_api_keys:
            if not key or not key.isascii() or not key.isprintable() or key != key.strip():
                raise ConfigError(
                    "an API key cannot be used.",
                    found="an empty one, or one with spaces around it or unprintable characters",
                    expected="printable ASCII",
                )

        _check_names(self.served_names)
        self._check_tools()
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("TLS needs a certificate and its key.", expected="both or neither")
        for host in self.allowed_hosts:
            if host != "*" and not _HOST.fullmatch(host):
                raise ConfigError(
                    "an allowed host is not a name.",
                    found=repr(host)[:100],
                    expected="a name as in 'llm.example.com', without scheme, port and path, or *",
                )
        for origin in self.cors_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    "an origin is not what browsers send.",
                    found=repr(origin)[:100],
                    expected="scheme, host and perhaps a port, as in 'https://app.example', or *",
                )
        _check_peers(self.kv_peers)
        self._check_folders()
        if self.root_path and not _ROOT_PATH.fullmatch(self.root_path):
            raise ConfigError(
                "--root-path is not understood.",
                found=repr(self.root_path)[:100],
                expected="'/something', without a slash at its end",
            )
        if self.access_log not in {"text", "json", "off"}:
            raise ConfigError(
                "the form of --access-log is unknown.",
                found=repr(self.access_log)[:50],
                expected="text, json or off",
            )

    def _check_folders(self) -> None:
        for name in ("adapter_dir", "weights_dir", "profile_dir", "files_dir"):
            path: Path | None = getattr(self, name)
            if path is not None and not path.is_dir():
                raise ConfigError(f"the folder of {_flag(name)} is missing.", found=str(path)[:200])
        if self.files_dir is not None and not os.access(self.files_dir, os.W_OK | os.X_OK):
            raise ConfigError(
                "the folder of --files-dir cannot be written.", found=str(self.files_dir)[:200]
            )
        has_files = self.files_dir is not None or self.replica is not None  # those of its front
        if not has_files and self.files_disk_bytes != Limits().files_disk_bytes:
            raise ConfigError(
                "--files-disk limits the files in --files-dir, which is not given.",
                found=f"{self.files_disk_bytes:,} bytes",
                hint="name a directory: --files-dir DIR",
            )

    def _check_tools(self) -> None:
        """Refuse servers of tools that cannot be used, before models are loaded."""
        if self.agent and self.mcp_config is None:
            raise ConfigError("--agent needs tools.", expected="--mcp-config mcp.json")
        if self.mcp_config is not None or self.allow_mcp_urls or self.mcp:
            check_installed()
        if self.mcp and self.replicas > 1:
            raise ConfigError("--mcp is for a server without replicas.")
        if self.mcp_config is not None:
            read_mcp_config(self.mcp_config)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return self.uds is not None or self.host in LOOPBACK

    def allows_origin(self, origin: str) -> bool:
        """Whether pages of an origin may call from a browser."""
        is_listed = origin in self.cors_origins or "*" in self.cors_origins
        return is_listed or re.fullmatch(LOOPBACK_ORIGIN, origin) is not None


def _flag(field: str) -> str:
    """A field as its flag is spelled: without a unit."""
    return "--" + re.sub("_(bytes|s)$", "", field).replace("_", "-")


def _check_names(names: Iterable[str]) -> None:
    if "" in names:
        raise ConfigError(
            "the name of a model is empty.",
            found="--served-model-name ''",
            hint="leave it out for the model's own",
        )


def _check_peers(addresses: Iterable[str]) -> None:
    for address in addresses:
        if not _ADDRESS.fullmatch(address):
            raise ConfigError(
                "the address of a server to fetch from is not understood.",
                found=repr(address)[:100],
                expected="http://host:port, or https",
            )
