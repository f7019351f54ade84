"""Images through every dialect: the same picture arrives, and what is none gets a 400."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from typer.testing import CliRunner

from blazr import LLM, SamplingParams
from blazr.cli.app import app
from blazr.llm.load import load_text_engine
from blazr.llm.options import LoadOptions
from blazr.server.media import MediaFetcher
from tests.support import vision_models
from tests.support.loopback import Loopback, serving
from tests.support.scripted import scripted_core
from tests.support.web import PUBLIC, Internet, site

PICTURE = vision_models.picture(37, 21, 5)
DATA = b64encode(PICTURE).decode()
URL = f"data:image/png;base64,{DATA}"
QUESTION = "What is it?"
TOKENS = 5


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "seeing"
    vision_models.save("llava", path)
    return path


@pytest.fixture(scope="module")
def expected(directory: Path) -> tuple[str, int]:
    """The reply of the Python API, and the tokens of its prompt."""
    with LLM(str(directory), device="cpu", dtype="float32", memory="64MiB") as llm:
        parts = [{"type": "image", "image": PICTURE}, {"type": "text", "text": QUESTION}]
        params = SamplingParams(temperature=0, max_tokens=TOKENS)
        found = llm.chat([{"role": "user", "content": parts}], params)
        blind = llm.chat([{"role": "user", "content": QUESTION}], params)
    assert found.text != blind.text
    assert found.usage.prompt_tokens == blind.usage.prompt_tokens + 16
    return found.text, found.usage.prompt_tokens


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Loopback]:
    options = LoadOptions(str(directory), device="cpu", dtype="float32", memory="64MiB")
    with serving(load_text_engine(options)) as running:
        yield running


def post(server: Loopback, path: str, body: Mapping[str, object]) -> httpx2.Response:
    return httpx2.post(server.url + path, json=body, timeout=60)


def chat_body(url: str) -> dict[str, object]:
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": QUESTION}]
    return {"messages": [{"role": "user", "content": parts}], "max_tokens": TOKENS}


def messages_body(source: Mapping[str, str]) -> dict[str, object]:
    parts = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
    return {"messages": [{"role": "user", "content": parts}], "max_tokens": TOKENS}


def test_openai_s_client(server: Loopback, expected: tuple[str, int]) -> None:
    asked: dict[str, Any] = {"model": "default", "temperature": 0, **chat_body(URL)}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        whole = client.chat.completions.create(**asked)
        parts = list(client.chat.completions.create(**asked, stream=True))
    assert whole.usage is not None
    assert (whole.choices[0].message.content, whole.usage.prompt_tokens) == expected
    text = "".join(each.delta.content or "" for part in parts for each in part.choices)
    assert text == expected[0]


def test_openai_s_responses(server: Loopback, expected: tuple[str, int]) -> None:
    parts = [
        {"type": "input_image", "image_url": URL, "detail": "auto"},
        {"type": "input_text", "text": QUESTION},
    ]
    asked: dict[str, Any] = {
        "model": "default",
        "input": [{"role": "user", "content": parts}],
        "temperature": 0,
        "max_output_tokens": TOKENS,
    }
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        found = client.responses.create(**asked)
        counted = client.responses.input_tokens.count(model="default", input=asked["input"])
        again = client.responses.create(
            model="default", previous_response_id=found.id, input="And?", max_output_tokens=TOKENS
        )
    assert found.usage is not None
    assert (found.output_text, found.usage.input_tokens) == expected
    assert counted.input_tokens == expected[1]
    (item,) = server.client.get(f"/v1/responses/{found.id}/input_items").json()["data"]
    assert item["content"][0]["image_url"] == URL
    assert again.usage is not None
    assert again.usage.input_tokens > expected[1]


def test_anthropic_s_client(server: Loopback, expected: tuple[str, int]) -> None:
    asked: dict[str, Any] = messages_body(
        {"type": "base64", "media_type": "image/png", "data": DATA}
    )
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        found = client.messages.create(model="default", extra_body={"temperature": 0}, **asked)
        del asked["max_tokens"]
        counted = client.messages.count_tokens(model="default", **asked)
    (block,) = found.content
    assert (block.text, counted.input_tokens) == expected  # type: ignore[union-attr]
    spent = found.usage.input_tokens + (found.usage.cache_read_input_tokens or 0)
    assert spent == expected[1]


def test_ollama_s_routes(server: Loopback, expected: tuple[str, int]) -> None:
    options = {"options": {"temperature": 0, "num_predict": TOKENS}, "stream": False}
    message = {"role": "user", "content": QUESTION, "images": [DATA]}
    chat = post(server, "/api/chat", {"messages": [message], **options}).json()
    assert (chat["message"]["content"], chat["prompt_eval_count"]) == expected
    prompt = post(server, "/api/generate", {"prompt": QUESTION, "images": [DATA], **options})
    assert prompt.json()["response"] == expected[0]
    raw = {"prompt": QUESTION, "images": [DATA], "raw": True}
    assert post(server, "/api/generate", raw).status_code == 400
    assert "vision" in post(server, "/api/show", {"model": "default"}).json()["capabilities"]
    assert httpx2.get(f"{server.url}/props").json()["modalities"]["vision"] is True


BAD: dict[str, str] = {
    "remote": "https://example.com/cat.png",
    "local": "file:///etc/passwd",
    "no base64": "data:image/png;base64,@@@",
    "text": "data:image/png;base64," + b64encode(b"hello").decode(),
    "cut": URL[: len(URL) // 8 * 4],
    "bmp": "data:image/bmp;base64," + b64encode(vision_models.picture(4, 4, kind="BMP")).decode(),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_image_gets_a_400(server: Loopback, name: str) -> None:
    url = BAD[name]
    kind, _, data = url.partition(",")
    source = {"type": "base64", "media_type": "image/png", "data": data}
    if not data:
        source = {"type": "url", "url": kind}
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": chat_body(url),
        "/v1/responses": {
            "input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]
        },
        "/v1/messages": messages_body(source),
        "/api/chat": {"messages": [{"role": "user", "content": "a", "images": [data or kind]}]},
        "/api/generate": {"prompt": "a", "images": [data or kind]},
    }
    for path, body in bodies.items():
        reply = post(server, path, body)
        assert reply.status_code == 400, (path, reply.text)
        assert "image" in reply.text


async def _resolve(host: str, port: int) -> list[str]:
    return [PUBLIC] if host == "public.example" else ["10.0.0.1"]


def test_images_by_url(directory: Path, expected: tuple[str, int]) -> None:
    """Where it is allowed, every dialect takes them; what leads inside is a 400 like any other."""
    options = LoadOptions(str(directory), device="cpu", dtype="float32", memory="64MiB")
    answers = {"/a.png": (200, {"Content-Type": "image/png"}, PICTURE)}
    url = "http://public.example/a.png"
    item = {"role": "user", "content": [{"type": "input_image", "image_url": url}]}
    item["content"] += [{"type": "input_text", "text": QUESTION}]  # type: ignore[operator]
    greedy = {"temperature": 0}
    with (
        site(answers) as (handler, port),
        serving(load_text_engine(options), allow_media_urls=True) as running,
    ):
        running.state.media = MediaFetcher(_resolve, Internet(port))
        chat = post(running, "/v1/chat/completions", {**chat_body(url), **greedy}).json()
        assert chat["choices"][0]["message"]["content"] == expected[0]
        asked = {**messages_body({"type": "url", "url": url}), **greedy}
        assert post(running, "/v1/messages", asked).json()["content"][0]["text"] == expected[0]
        counted = post(running, "/v1/messages/count_tokens", asked).json()
        assert counted["input_tokens"] == expected[1]
        body = {"input": [item], "max_output_tokens": TOKENS, **greedy}
        found = post(running, "/v1/responses", body).json()
        assert found["output"][0]["content"][0]["text"] == expected[0]
        (shown,) = running.client.get(f"/v1/responses/{found['id']}/input_items").json()["data"]
        assert shown["content"][0]["image_url"] == url
        num_asked = len(handler.asked)
        more = {"input": "And?", "previous_response_id": found["id"], "max_output_tokens": TOKENS}
        assert post(running, "/v1/responses", more).status_code == 200
        assert len(handler.asked) == num_asked  # what was fetched is part of the conversation
        for wrong in ("http://inside.example/a.png", "http://public.example/none"):
            reply = post(running, "/v1/chat/completions", chat_body(wrong))
            assert reply.status_code == 400
            assert "cannot be fetched" in reply.json()["error"]["message"]
        assert post(running, "/v1/chat/completions", chat_body(URL)).status_code == 200


def test_a_text_model_fetches_nothing() -> None:
    with (
        site({}) as (handler, port),
        serving(scripted_core(), allow_media_urls=True) as running,
    ):
        running.state.media = MediaFetcher(_resolve, Internet(port))
        reply = post(running, "/v1/chat/completions", chat_body("http://public.example/a.png"))
        assert (reply.status_code, handler.asked) == (400, [])
        assert "only text" in reply.text


def test_a_text_model_says_that_it_reads_only_text() -> None:
    with serving(scripted_core()) as running:
        for path, body in (
            ("/v1/chat/completions", chat_body(URL)),
            ("/api/generate", {"prompt": "a", "images": [DATA]}),
        ):
            reply = post(running, path, body)
            assert reply.status_code == 400
            assert "only text" in reply.text


def test_text_runs_while_many_images_are_prepared(server: Loopback) -> None:
    """Whoever sends images takes one thread of the server's, however many they are."""

    async def ask() -> tuple[list[int], list[int]]:
        async with httpx2.AsyncClient(base_url=server.url, timeout=60) as client:
            images = [
                chat_body(f"data:;base64,{b64encode(vision_models.picture(600, 500, n)).decode()}")
                for n in range(8)
            ]
            texts = [{"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}] * 8
            sent = [client.post("/v1/chat/completions", json=each) for each in [*images, *texts]]
            codes = [each.status_code for each in await asyncio.gather(*sent)]
        return codes[:8], codes[8:]

    seen, read = asyncio.run(ask())
    assert seen == read == [200] * 8


def test_the_command_line(directory: Path, tmp_path: Path, expected: tuple[str, int]) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(PICTURE)
    flags = ["--temperature", "0", "--max-tokens", str(TOKENS), "--json", "--memory", "64MiB"]
    words = ["generate", str(directory), "-p", QUESTION, "--device", "cpu", "--dtype", "float32"]
    done = CliRunner().invoke(app, [*words, *flags, "--image", str(path)])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["text"] == expected[0]
    failed = CliRunner().invoke(app, [*words, *flags, "--image", str(tmp_path / "none.png")])
    assert failed.exit_code != 0
    # what is asked about an image is a chat, whose answers have no bound but the context
    flags = ["--json", "--memory", "64MiB", "--min-tokens", "120"]
    whole = CliRunner().invoke(app, [*words, *flags, "--image", str(path)])
    assert json.loads(whole.stdout)["usage"]["completion_tokens"] >= 120
