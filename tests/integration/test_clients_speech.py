"""Text to speech through OpenAI's client, the command line, and back through a model that hears."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from wave import open as open_wave

import httpx2
import openai
import pytest
from typer.testing import CliRunner

from blazr.cli.app import app
from blazr.cli.model_plans import plan_models
from blazr.cli.options import ServeFlags
from blazr.cli.serve import open_models
from blazr.pipelines.audio.encoder import MEDIA_TYPES
from blazr.pipelines.audio.sound import read_sound
from blazr.server.config import ServerConfig
from blazr.server.served import ServedPipeline
from tests.support import audio_models
from tests.support.loopback import Loopback, serving_models
from tests.support.scripted import wait_until
from tests.support.speech_models import save_speecht5

pytestmark = audio_models.NEEDS_AUDIO
TEXT = "hello there. how are you"
ASKED = {"input": TEXT, "seed": 3}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "voice"
    audio_models.save_vits(path)
    return path


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Loopback]:
    flags = ServeFlags(device="cpu", memory="16MiB")
    plans = plan_models(["text=nano", f"tts-1={directory}"], None, flags, default="nano")
    models = open_models(plans, ServerConfig(host="127.0.0.1", port=0))
    with serving_models(models) as running:
        yield running


def post(server: Loopback, **more: object) -> httpx2.Response:
    return httpx2.post(f"{server.url}/v1/audio/speech", json={**ASKED, **more}, timeout=60)


def test_openai_s_client_gets_every_form(server: Loopback) -> None:
    said = {"model": "tts-1", "voice": "alloy", "input": TEXT, "extra_body": {"seed": 3}}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        for form in ("mp3", "opus", "flac", "wav", "pcm"):
            reply = client.audio.speech.create(**said, response_format=form)
            assert reply.response.headers["content-type"] == MEDIA_TYPES[form]
            length = len(reply.content) // 2 if form == "pcm" else None
            assert length or len(read_sound(reply.content, rate=16_000)) > 1000
        with client.audio.speech.with_streaming_response.create(
            **said, response_format="wav", stream_format="audio"
        ) as reply:
            streamed = b"".join(reply.iter_bytes())
    whole = post(server, response_format="wav").content
    assert streamed[44:] == whole[44:]  # the same seed, the same bytes
    with open_wave(BytesIO(whole)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (16_000, 1, 2)
        assert file.getnframes() == (len(whole) - 44) // 2


def test_events_hold_the_same_sound(server: Loopback) -> None:
    reply = post(server, response_format="wav", stream_format="sse")
    events = [
        json.loads(line.removeprefix("data: "))
        for line in reply.text.split("\n")
        if line.startswith("data: {")
    ]
    assert [each["type"] for each in events] == ["speech.audio.delta"] * 2 + ["speech.audio.done"]
    data = b"".join(b64decode(each["audio"]) for each in events[:-1])
    assert data[44:] == post(server, response_format="wav").content[44:]
    assert events[-1]["usage"]["input_tokens"] == len(TEXT)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": "a" * 4097}, "input"),
        ({"input": "\u4f60"}, "input"),
        ({"voice": "7"}, "voice"),
        ({"voice": {"id": "7"}}, "voice"),
        ({"voice": {}}, "voice"),
        ({"voice": {"id": 0}}, "voice"),
        ({"response_format": "aac"}, "response_format"),
        ({"speed": 9}, "speed"),
        ({"instructions": "shout"}, "instructions"),
        ({"model": "text"}, "model"),
    ],
)
def test_what_cannot_be_said_gets_a_400(
    server: Loopback, more: dict[str, object], param: str
) -> None:
    refused = post(server, **more)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param


def test_the_model_shows_what_it_can_do_and_who_leaves_ends_the_work(server: Loopback) -> None:
    assert post(server).status_code == 200
    cards = {each["id"]: each for each in server.client.get("/v1/models").json()["data"]}
    assert cards["tts-1"]["capabilities"] == ["speech"]
    model = server.models.find("tts-1").model
    assert isinstance(model, ServedPipeline)
    jobs = model.pipeline.jobs
    asked = {"input": "hello. " * 500, "response_format": "pcm"}
    url = f"{server.url}/v1/audio/speech"
    with httpx2.stream("POST", url, json=asked, timeout=60) as reply:
        next(reply.iter_raw())
    wait_until(lambda: jobs.figures == {"running": 0, "waiting": 0})
    ended = 'blazr_requests_total{model="tts-1",outcome="cancelled"}'
    wait_until(lambda: ended in server.client.get("/metrics").text)


def test_the_command_writes_a_file(directory: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.wav"
    said = ["speak", TEXT, "-m", str(directory), "--device", "cpu", "--seed", "3", "-o"]
    found = CliRunner().invoke(app, [*said, str(file)])
    assert found.exit_code == 0, found.output
    assert len(read_sound(file.read_bytes(), rate=16_000)) > 1000
    assert CliRunner().invoke(app, [*said, str(tmp_path / "a.aac")]).exit_code


def test_voices_by_name(tmp_path: Path) -> None:
    path = tmp_path / "voice"
    save_speecht5(path)
    flags = ServeFlags(device="cpu", memory="16MiB")
    plans = plan_models(["text=nano", f"tts-1={path}"], None, flags, default="nano")
    models = open_models(plans, ServerConfig(host="127.0.0.1", port=0))
    with serving_models(models) as running:
        sounds = [
            post(running, response_format="wav", voice=voice).raise_for_status().content
            for voice in ("clb", "rms", "1", "alloy", {"id": "rms"})
        ]
        assert sounds[0] == sounds[3] != sounds[1] == sounds[2] == sounds[4]
        for more, param in (({"voice": "nobody"}, "voice"), ({"speed": 2}, "speed")):
            refused = post(running, **more)
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == param
