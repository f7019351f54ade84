"""Sounds in chats: through the server, the command line and Python; what is none gets a 400."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from typer.testing import CliRunner

from blazr import LLM, SamplingParams
from blazr.cli.app import app
from blazr.core.errors import RequestError
from blazr.llm.load import load_text_engine
from blazr.llm.options import LoadOptions
from blazr.pipelines import audio_encoder
from tests.support import vision_models
from tests.support.audio_models import NEEDS_AUDIO
from tests.support.loopback import Loopback, serving

pytestmark = NEEDS_AUDIO
QUESTION = "What is it?"
GREEDY = SamplingParams(temperature=0, max_tokens=5, logprobs=0)
OPTIONS: dict[str, Any] = {"device": "cpu", "dtype": "float32", "memory": "64MiB"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "hearing"
    vision_models.save("qwen2_audio", path)
    return path


@pytest.fixture(scope="module")
def noise() -> bytes:
    return vision_models.sound(0.5, 4)


@pytest.fixture(scope="module")
def expected(directory: Path, noise: bytes) -> tuple[str, int]:
    """The reply of the Python API, and the tokens of its prompt."""
    with LLM(str(directory), **OPTIONS) as llm:
        found = llm.chat([chat(noise)], GREEDY)
        other = llm.chat([chat(vision_models.sound(0.5, 5))], GREEDY)
        deaf = llm.chat([{"role": "user", "content": QUESTION}], GREEDY)
        image = {"type": "image", "image": vision_models.picture(8, 8)}
        with pytest.raises(RequestError, match="only text and audio"):
            llm.chat([{"role": "user", "content": [image]}], GREEDY)
    assert found.text != deaf.text
    assert found.logprobs != other.logprobs
    return found.text, found.usage.prompt_tokens


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Loopback]:
    with serving(load_text_engine(LoadOptions(str(directory), **OPTIONS))) as running:
        yield running


def chat(sound: bytes) -> dict[str, object]:
    parts = [{"type": "audio", "audio": sound}, {"type": "text", "text": QUESTION}]
    return {"role": "user", "content": parts}


def _chat_body(data: str) -> dict[str, Any]:
    sound = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    parts = [sound, {"type": "text", "text": QUESTION}]
    return {"messages": [{"role": "user", "content": parts}], "temperature": 0, "max_tokens": 5}


def test_openai_s_client(server: Loopback, noise: bytes, expected: tuple[str, int]) -> None:
    asked = {"model": "default", **_chat_body(b64encode(noise).decode())}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        whole = client.chat.completions.create(**asked)
        parts = list(client.chat.completions.create(**asked, stream=True))
    assert whole.usage is not None
    assert (whole.choices[0].message.content, whole.usage.prompt_tokens) == expected
    text = "".join(each.delta.content or "" for part in parts for each in part.choices)
    assert text == expected[0]
    assert server.client.get("/props").json()["modalities"] == {"vision": False, "audio": True}
    shown = server.client.post("/api/show", json={"model": "default"}).json()
    assert "audio" in shown["capabilities"]


BAD = {
    "no base64": ("@@@", "not base64"),
    "empty": ("", "empty"),
    "text": (b64encode(b"hello").decode(), "cannot be read"),
    "an image": (b64encode(vision_models.picture(4, 4)).decode(), "cannot be read"),
    "longer than is heard": (b64encode(vision_models.sound(2.1)).decode(), "too long"),
    "too short to hear": (b64encode(vision_models.sound(0.01)).decode(), "of this size"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_sound_gets_a_400(server: Loopback, name: str) -> None:
    data, message = BAD[name]
    reply = server.client.post("/v1/chat/completions", json=_chat_body(data))
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert message in error["message"]
    assert error["param"] == "messages"


def test_a_sound_of_hours_is_not_decoded_to_its_end(
    server: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audio_encoder, "MAX_SOUND_S", 1)
    data = b64encode(vision_models.sound(1.5)).decode()
    reply = server.client.post("/v1/chat/completions", json=_chat_body(data))
    assert reply.status_code == 400
    assert "too long" in reply.text


def test_the_command_line(
    directory: Path, tmp_path: Path, noise: bytes, expected: tuple[str, int]
) -> None:
    path = tmp_path / "noise.wav"
    path.write_bytes(noise)
    words = ["generate", str(directory), "-p", QUESTION, "--device", "cpu", "--dtype", "float32"]
    flags = ["--temperature", "0", "--max-tokens", "5", "--json", "--memory", "64MiB"]
    done = CliRunner().invoke(app, [*words, *flags, "--audio", str(path)])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["text"] == expected[0]
