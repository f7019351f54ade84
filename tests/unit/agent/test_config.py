"""What an ``mcp.json`` may say."""

from __future__ import annotations

from pathlib import Path

import pytest

from blazr.agent.config import read_mcp_config
from blazr.core.errors import ConfigError
from tests.support.mcp_servers import write_config

WRONG = [
    {},
    {"command": "x", "url": "https://a.example"},
    {"url": "ftp://a.example"},
    {"command": "x", "policy": "perhaps"},
    {"command": "x", "tools": {"a": "perhaps"}},
    {"command": "x", "timeout": 0},
    {"command": ["x"]},
    {"type": "sse", "url": "https://a.example"},
    {"type": [], "command": "x"},
    {"command": "x", "env": {"A": "${THERE_IS_NO_SUCH_VARIABLE}"}},
    "x",
]


@pytest.mark.parametrize("entry", WRONG)
def test_wrong_servers(entry: object, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="wrong one"):
        read_mcp_config(write_config(tmp_path, **{"wrong one": entry}))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"mcpServers": []}', "\x00", " " * 1_000_001])
def test_wrong_files(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"mcp\.json"):
        read_mcp_config(path)
    with pytest.raises(ConfigError):
        read_mcp_config(tmp_path / "none.json")


def test_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN_OF_MINE", "secret")
    entry = {
        "url": "https://${HOST_OF_MINE:-a.example}/mcp",
        "headers": {"Authorization": "Bearer ${TOKEN_OF_MINE}"},
    }
    (server,) = read_mcp_config(write_config(tmp_path, web=entry))
    assert server.url == "https://a.example/mcp"
    assert server.headers == {"Authorization": "Bearer secret"}
