"""``mcp.json``: which servers of tools there are, and which of their tools run without asking."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Mapping
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from blazr.core import env
from blazr.core.errors import ConfigError

Policy = Literal["auto", "ask", "deny"]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=86400)]

_MAX_FILE_BYTES = 1_000_000
_KINDS = frozenset({"stdio", "http", "streamable-http", "streamableHttp"})


class McpServer(msgspec.Struct, frozen=True, kw_only=True):
    """One server of tools.

    Args:
        name: What the file calls it.
        command: The program that is the server and is spoken to over stdin and stdout; or a `url`.
        args: Its arguments.
        env: Environment variables that it gets besides PATH, HOME and the like.
        cwd: The folder in which it runs.
        url: Where it is reached over HTTP.
        headers: What it is sent with every request.
        policy: Whether its tools run without asking, after asking, or are not offered.
        tools: The same for some of its tools, by name or pattern (``read_*``); the first that fits.
        timeout: Longest time of one call.
        startup_timeout: Longest time to connect, and to list its tools.
        max_output: Characters of a result that a model gets to see.
        disabled: Whether it is left out.
    """

    name: str = ""
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] = {}
    policy: Policy = "ask"
    tools: Mapping[str, Policy] = {}
    timeout: Seconds = 60.0
    startup_timeout: Seconds = 20.0
    max_output: Annotated[int, msgspec.Meta(ge=100, le=1_000_000)] = 20_000
    disabled: bool = False

    def policy_of(self, tool: str) -> Policy:
        """Whether a tool runs without asking, after asking, or is not offered."""
        if tool in self.tools:
            return self.tools[tool]
        fitting = (each for pattern, each in self.tools.items() if fnmatchcase(tool, pattern))
        return next(fitting, self.policy)


def check_installed() -> None:
    """Refuse where the library that speaks to servers of tools is not installed.

    Raises:
        ConfigError: It is not.
    """
    if find_spec("mcp") is None:
        raise ConfigError("MCP is not installed.", hint="pip install 'blazr[mcp]'")


def read_mcp_config(path: Path) -> list[McpServer]:
    """The servers of an ``mcp.json``, in its order, without those that are disabled.

    The format is that of other clients, ``{"mcpServers": {NAME: {...}}}``; what these keep there
    besides is not looked at. ``${NAME}`` and ``${NAME:-default}`` in strings stand for environment
    variables.

    Raises:
        ConfigError: The file cannot be read, or says something else.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        if len(data) > _MAX_FILE_BYTES:
            raise _wrong(path, "more than 1 MB")
        found = msgspec.json.decode(data.removeprefix(BOM_UTF8))
    except (OSError, msgspec.DecodeError, UnicodeError) as error:
        raise _wrong(path, str(error)[:200]) from None
    servers = found.get("mcpServers") if isinstance(found, dict) else None
    if not isinstance(servers, dict):
        raise _wrong(path, "no mcpServers")
    read = [_read_server(path, name, each) for name, each in servers.items()]
    return [each for each in read if not each.disabled]


def _read_server(path: Path, name: str, given: object) -> McpServer:
    try:
        fields = msgspec.convert(given, dict[str, object])
        kind = fields.pop("type", None)
        server = msgspec.convert(_expanded({**fields, "name": name}), McpServer)
    except (msgspec.ValidationError, ConfigError) as error:
        raise _wrong(path, f"{name[:50]!r}: {str(error)[:200]}") from None
    if kind is not None and not (isinstance(kind, str) and kind in _KINDS):
        raise _wrong(path, f"{name[:50]!r}: the type {str(kind)[:30]!r}")
    if (server.command is None) == (server.url is None):
        raise _wrong(path, f"{name[:50]!r}: neither or both of command and url")
    if server.url is not None and not server.url.startswith(("http://", "https://")):
        raise _wrong(path, f"{name[:50]!r}: the url {server.url[:50]!r}")
    return server


def _expanded(value: object) -> object:
    """A value with the environment variables that its strings name."""
    if isinstance(value, str):
        return env.expand(value)
    if isinstance(value, list):
        return [_expanded(each) for each in value]
    if isinstance(value, dict):
        return {name: _expanded(each) for name, each in value.items()}
    return value


def _wrong(path: Path, found: str) -> ConfigError:
    return ConfigError(
        "the file of MCP servers cannot be used.",
        found=f"{str(path)[:100]}: {found}",
        expected='{"mcpServers": {"name": {"command": "...", "args": [...]}, '
        '"other": {"url": "https://.../mcp"}}}',
    )
