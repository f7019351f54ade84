"""blazr as a server of tools: over stdio, and over HTTP beside its own API."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from pathlib import Path
from typing import NoReturn

import httpx2
import pytest

from blazr.cli.model_plans import plan_models
from blazr.cli.options import ServeFlags
from blazr.cli.serve import open_models
from blazr.core.errors import ConfigError
from blazr.server.config import ServerConfig
from tests.support import audio_models
from tests.support.loopback import serving, serving_models
from tests.support.scripted import SCRIPT, scripted_core

pytest.importorskip("mcp")


async def use(target: object) -> dict[str, object]:
    """What the SDK's client is told: the tools, an answer of each, and refusals."""
    from mcp import Client

    async with Client(target) as client:
        tools = {each.name: each for each in (await client.list_tools()).tools}
        answers = {
            "chat": await client.call_tool("chat", {"prompt": "hi", "max_tokens": 20}),
            "generate": await client.call_tool("generate", {"prompt": "hi", "max_tokens": 3}),
            "embed": await client.call_tool("embed", {"texts": ["a", "b"]}),
            "no argument": await client.call_tool("chat", {}),
            "no model": await client.call_tool("chat", {"prompt": "x", "model": "none"}),
            "no tool": await client.call_tool("shell", {"command": "ls"}),
        }
        return {"tools": tools, **answers}


def check(found: dict, *, text: str) -> None:
    assert set(found["tools"]) == {"chat", "generate", "embed"}, "no model here can transcribe"
    chat = found["tools"]["chat"]
    assert chat.description == "Ask a language model a question, and get its answer."
    assert chat.input_schema["required"] == ["prompt"]
    assert found["chat"].content[0].text == text
    assert not found["chat"].is_error
    assert found["generate"].content[0].text == "".join(f" {x}" for x in text.split()[:3])
    assert len(json.loads(found["embed"].content[0].text)) == 2
    for name in ("no argument", "no model", "no tool"):
        assert found[name].is_error, name
    assert "prompt" in found["no argument"].content[0].text
    assert "'none'" in found["no model"].content[0].text


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_over_http(mode: str) -> None:
    from mcp import Client

    with serving(scripted_core(), mcp=True) as running:
        if mode == "auto":
            check(asyncio.run(use(f"{running.url}/mcp")), text=SCRIPT)
        else:

            async def call() -> str:
                async with Client(f"{running.url}/mcp", mode="legacy") as client:
                    result = await client.call_tool("chat", {"prompt": "hi"})
                    return result.content[0].text

            assert asyncio.run(call()) == SCRIPT


def test_a_server_elsewhere_over_stdio(monkeypatch: pytest.MonkeyPatch) -> None:
    from mcp import StdioServerParameters

    with serving(scripted_core(), api_keys=("secret",)) as running:
        program = StdioServerParameters(
            command=sys.executable,
            args=["-m", "blazr", "mcp", "--url", running.url],
            env={"BLAZR_API_KEY": "secret", "PYTHONPATH": ":".join(sys.path)},
        )
        check(asyncio.run(use(program)), text=SCRIPT)


def test_keys_are_passed_on() -> None:
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    async def call(url: str, key: str) -> str:
        headers = {"Authorization": f"Bearer {key}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=30) as network,
            Client(streamable_http_client(url, http_client=network)) as client,
        ):
            result = await client.call_tool("chat", {"prompt": "hi"})
            return result.content[0].text

    with serving(scripted_core(), mcp=True, api_keys=("one", "two")) as running:
        url = f"{running.url}/mcp"
        assert asyncio.run(call(url, "two")) == SCRIPT
        (client, _), *_ = {each.client for each in running.engine.submitted}
        assert client, "the request is that key's"
        call_of_tool = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        headers = {"Authorization": "Bearer three"}
        assert running.client.post("/mcp", json=call_of_tool, headers=headers).status_code == 401
        assert len(running.engine.submitted) == 1


def test_it_is_there_only_when_asked_for() -> None:
    with serving(scripted_core()) as running:
        assert running.client.post("/mcp", json={}).status_code == 404
    with serving(scripted_core(), mcp=True, max_body_bytes=10_000) as running:
        assert running.client.post("/mcp", content=b"x" * 20_000).status_code == 413
        assert running.client.post("/mcp", json={}).status_code == 400
    with pytest.raises(ConfigError, match="replicas"):
        ServerConfig(mcp=True, replicas=2)


def test_that_it_cannot_begin_is_told_to_each_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    def fail(_: object) -> NoReturn:
        raise RuntimeError("no room")

    monkeypatch.setattr(StreamableHTTPSessionManager, "run", fail)
    with serving(scripted_core(), mcp=True) as running:
        for _ in range(2):
            reply = running.client.post("/mcp", json={}, timeout=5)
            assert reply.status_code == 503
            assert "MCP could not begin. Found: RuntimeError: no room" in reply.text


@pytest.mark.slow
def test_a_model_of_its_own_over_stdio() -> None:
    from mcp import Client, StdioServerParameters

    program = StdioServerParameters(
        command=sys.executable,
        args=["-m", "blazr", "mcp"],
        env={"PYTHONPATH": ":".join(sys.path)},
    )

    async def call() -> str:
        async with Client(program) as client:
            result = await client.call_tool("generate", {"prompt": "Once", "max_tokens": 8})
            assert not result.is_error
            return result.content[0].text

    assert asyncio.run(call())


@pytest.mark.parametrize("answer", [{}, {"choices": []}, {"choices": [{"text": "a"}]}, [1], None])
def test_a_server_that_answers_otherwise(answer: object) -> None:
    """Another program's, behind --url."""
    from mcp import Client

    from blazr.agent.own_server import build_server

    async def call() -> str:
        transport = httpx2.MockTransport(lambda _: httpx2.Response(200, text=json.dumps(answer)))
        async with (
            httpx2.AsyncClient(transport=transport, base_url="http://other") as http,
            Client(build_server(http, reads_files=False)) as client,
        ):
            result = await client.call_tool("chat", {"prompt": "hi"})
            assert result.is_error
            return result.content[0].text

    assert "the server's answer is not understood" in asyncio.run(call())


@pytest.mark.slow
@audio_models.NEEDS_AUDIO
@pytest.mark.filterwarnings("ignore:std\\(\\)", "ignore:deprecated")
def test_recordings(tmp_path: Path) -> None:
    from mcp import Client, StdioServerParameters

    audio_models.save_whisper(tmp_path / "ears")
    recording = audio_models.sound_file(audio_models.speech(0, 4.0), form="FLAC")
    (tmp_path / "sound.flac").write_bytes(recording)
    flags = ServeFlags(device="cpu", memory="64MiB")
    plans = plan_models(["text=nano", f"ears={tmp_path / 'ears'}"], None, flags, default="nano")

    async def call(target: object, **arguments: str) -> str:
        async with Client(target) as client:
            assert "transcribe" in {each.name for each in (await client.list_tools()).tools}
            result = await client.call_tool("transcribe", {"language": "en", **arguments})
            assert not result.is_error, result.content
            return result.content[0].text

    with serving_models(open_models(plans, ServerConfig(port=0, mcp=True))) as running:
        program = StdioServerParameters(
            command=sys.executable,
            args=["-m", "blazr", "mcp", "--url", running.url],
            env={"PYTHONPATH": ":".join(sys.path)},
        )
        as_text = base64.b64encode(recording).decode()
        over_http = asyncio.run(call(f"{running.url}/mcp", audio=as_text))
        assert asyncio.run(call(program, path=str(tmp_path / "sound.flac"))) == over_http
