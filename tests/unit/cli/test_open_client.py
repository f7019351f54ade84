"""Commands that answer by a server of their own load its models where Ctrl+C ends that."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from blazr.cli import serve
from blazr.cli.app import app


@pytest.mark.parametrize("command", ["batch", "mcp"])
def test_models_are_loaded_before_the_event_loop(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event loop would wait for the model before it looks at a signal."""
    if command == "mcp":
        pytest.importorskip("mcp")

    def load(*_: object) -> None:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        raise KeyboardInterrupt

    monkeypatch.setattr(serve, "open_models", load)
    body = {"model": "nano", "prompt": "a", "max_tokens": 1}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    requests = tmp_path / "in.jsonl"
    requests.write_text(json.dumps(line) + "\n")
    words = [str(requests), "-o", str(tmp_path / "out.jsonl")] if command == "batch" else []
    done = CliRunner().invoke(app, [command, *words])
    if command == "batch":
        assert "the batch was stopped" in f"{done.exception} {done.output}"
    else:
        assert done.exit_code == 130
