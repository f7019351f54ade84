"""Speech to text through OpenAI's client and plain HTTP, beside a language model in one server."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import openai
import pytest
from openai.types.audio import TranscriptionVerbose
from typer.testing import CliRunner

from blazr.cli.app import app
from blazr.cli.model_plans import plan_models
from blazr.cli.options import ServeFlags
from blazr.cli.serve import open_models
from blazr.pipelines.jobs import JobQueue, Outlet
from blazr.server.config import ServerConfig
from blazr.server.served import ServedPipeline
from tests.support import audio_models
from tests.support.loopback import Loopback, serving_models
from tests.support.scripted import wait_until

pytestmark = [
    pytest.mark.filterwarnings("ignore:std\\(\\)", "ignore:deprecated"),
    audio_models.NEEDS_AUDIO,
]
SECONDS = 8.0
HEARD = {"language": "en", "model": "ears"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "ears"
    audio_models.save_whisper(path)
    return path


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Loopback]:
    flags = ServeFlags(device="cpu", memory="64MiB")
    plans = plan_models(["text=nano", f"ears={directory}"], None, flags, default="nano")
    models = open_models(plans, ServerConfig(host="127.0.0.1", port=0))
    with serving_models(models) as running:
        yield running


@pytest.fixture(scope="module")
def sound() -> bytes:
    return audio_models.sound_file(audio_models.speech(0, SECONDS), form="FLAC")


@pytest.fixture
def client(server: Loopback) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def jobs_of(server: Loopback) -> JobQueue:
    slot = server.models.find("ears")
    server.client.post("/models/load", json={"model": "ears"})
    wait_until(lambda: slot.model is not None)
    assert isinstance(slot.model, ServedPipeline)
    return slot.model.pipeline.jobs


def post(server: Loopback, data: bytes, **fields: str) -> httpx2.Response:
    files = {"file": ("a.flac", data)}
    url = f"{server.url}/v1/audio/transcriptions"
    return httpx2.post(url, files=files, data={**HEARD, **fields}, timeout=60)


def test_openai_s_client_gets_every_form(client: openai.OpenAI, sound: bytes) -> None:
    asked: dict[str, Any] = {"file": ("a.flac", sound), **HEARD}
    whole = client.audio.transcriptions.create(**asked)
    text = client.audio.transcriptions.create(**asked, response_format="text")
    stream = list(client.audio.transcriptions.create(**asked, stream=True))
    assert whole.text
    assert whole.usage.seconds == SECONDS
    assert text == f"{whole.text}\n"
    deltas = [each.delta for each in stream if each.type == "transcript.text.delta"]
    assert len(deltas) > 1
    assert stream[-1].type == "transcript.text.done"
    assert "".join(deltas) == stream[-1].text == whole.text


def test_openai_s_client_gets_times(client: openai.OpenAI, sound: bytes) -> None:
    verbose = client.audio.transcriptions.create(
        file=("a.flac", sound),
        **HEARD,
        response_format="verbose_json",
        timestamp_granularities=["segment", "word"],
    )
    assert isinstance(verbose, TranscriptionVerbose)
    assert (verbose.language, verbose.duration) == ("english", SECONDS)
    assert verbose.segments
    assert verbose.words
    assert verbose.text == "".join(each.text for each in verbose.segments).lstrip()
    for each in (*verbose.segments, *verbose.words):
        assert 0 <= each.start <= each.end <= SECONDS
    one = verbose.segments[0]
    assert one.tokens
    assert one.avg_logprob < 0
    assert 0 <= one.no_speech_prob <= 1


def test_subtitles_and_translations(server: Loopback, client: openai.OpenAI, sound: bytes) -> None:
    srt = post(server, sound, response_format="srt")
    assert srt.headers["content-type"].startswith("text/plain")
    assert srt.text.startswith("1\n00:00:0")
    assert post(server, sound, response_format="vtt").text.startswith("WEBVTT\n\n00:00:0")
    translated = client.audio.translations.create(
        file=("a.flac", sound), model="ears", response_format="verbose_json"
    )
    assert translated.text


def test_the_model_shows_what_it_can_do(server: Loopback, sound: bytes) -> None:
    assert post(server, sound).status_code == 200
    cards = {each["id"]: each for each in server.client.get("/v1/models").json()["data"]}
    assert cards["ears"]["capabilities"] == ["transcription"]
    assert cards["ears"]["status"]["value"] == "loaded"
    assert cards["ears"]["owned_by"] == "whisper"
    assert cards["text"]["capabilities"] == ["completion", "embedding", "reranking"]
    assert server.client.get("/health").json()["models"]["ears"] == "loaded"
    assert server.client.get("/server_info").status_code == 200
    assert server.client.get("/api/ps").status_code == 200
    figures = server.client.get("/metrics").text
    assert 'blazr_requests_total{model="ears",outcome="ok"}' in figures


def test_each_model_is_asked_for_what_it_can_do(server: Loopback, sound: bytes) -> None:
    refused = server.client.post(
        "/v1/chat/completions",
        json={"model": "ears", "messages": [{"role": "user", "content": "a"}]},
    )
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "model_not_suited")
    refused = post(server, sound, model="text")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")
    assert post(server, sound, model="nobody").status_code == 404
    assert post(server, sound, model="").status_code == 200  # the first that hears
    for path in ("/tokenize", "/v1/embeddings"):
        body = {"model": "ears", "prompt": "a", "input": "a"}
        assert server.client.post(path, json=body).status_code == 400
    for command in ("is_paused", "is_sleeping"):
        assert server.client.get(f"/{command}?model=ears").status_code == 200
    assert server.client.get("/v1/models/ears").json()["id"] == "ears"


@pytest.mark.parametrize(
    "kind", ["empty", "text", "cut", "no samples", "hours", "silence of hours"]
)
def test_what_is_no_sound_gets_a_400(server: Loopback, sound: bytes, kind: str) -> None:
    silence = np.zeros(8000 * 10_000, np.float32)
    data = {
        "empty": lambda: b"",
        "text": lambda: b"what is said",
        "cut": lambda: sound[:50],
        "no samples": lambda: audio_models.sound_file(np.zeros(0, np.float32)),
        "hours": lambda: b"RIFF\xff\xff\xff\xffWAVEfmt ",
        "silence of hours": lambda: audio_models.sound_file(silence, form="FLAC", rate=1000),
    }[kind]()
    refused = post(server, data)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", "file")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"language": "xx"}, "language"),
        ({"response_format": "mp3"}, "response_format"),
        ({"temperature": "5"}, "temperature"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities"),
        ({"stream": "true", "response_format": "srt"}, "response_format"),
        ({"prompt": "<|endoftext|>"}, "prompt"),
        ({"include[]": "logprobs"}, "include"),
        ({"chunking_strategy": "never"}, "chunking_strategy"),
    ],
)
def test_wrong_fields_are_named(
    server: Loopback, sound: bytes, fields: dict[str, str], param: str
) -> None:
    refused = post(server, sound, **fields)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param


def test_what_is_no_form_is_refused(server: Loopback, sound: bytes) -> None:
    url = f"{server.url}/v1/audio/transcriptions"
    no_file = httpx2.post(url, data=HEARD, files={"other": b"x"})
    assert no_file.status_code == 400
    assert httpx2.post(url, json=HEARD).status_code == 400
    broken = {"Content-Type": "multipart/form-data; boundary=x"}
    assert httpx2.post(url, content=b"--y\r\n", headers=broken).status_code == 400
    assert httpx2.post(url, content=b"", headers=broken).status_code == 400
    huge = httpx2.post(url, data=HEARD, files={"file": b"x" * 10_000_001}, timeout=60)
    assert huge.status_code == 413


def test_silence_says_nothing(server: Loopback) -> None:
    silence = audio_models.sound_file(np.zeros(16_000 * 40, np.float32))
    assert post(server, silence).json()["text"] == ""


def test_who_leaves_ends_the_work(server: Loopback) -> None:
    long = audio_models.sound_file(np.tile(audio_models.speech(), 5), form="FLAC")
    jobs = jobs_of(server)
    has_left = threading.Event()
    heard = itertools.count()

    def wait(*_: object) -> None:
        """Hear no more than two windows before the client has left, however long that takes it."""
        if next(heard) >= 2:
            has_left.wait(60)

    model = server.models.find("ears").model
    assert isinstance(model, ServedPipeline)
    hook = model.pipeline.network.get_encoder().register_forward_pre_hook(wait)
    url = f"{server.url}/v1/audio/transcriptions"
    asked = {"data": {**HEARD, "stream": "true"}, "files": {"file": long}, "timeout": 60}
    try:
        with httpx2.stream("POST", url, **asked) as reply:
            lines = reply.iter_lines()
            first = next(lines)
            assert "transcript.text.delta" in first
            assert jobs.figures["running"] == 1, [first, *lines, next(heard)]
        ended = 'blazr_requests_total{model="ears",outcome="cancelled"} '
        wait_until(lambda: ended in server.client.get("/metrics").text)
    finally:
        has_left.set()
        hook.remove()
    wait_until(lambda: jobs.figures == {"running": 0, "waiting": 0})


def test_too_many_requests_are_refused_while_text_goes_on(server: Loopback, sound: bytes) -> None:
    jobs = jobs_of(server)
    begun, may_end = threading.Event(), threading.Event()

    def block(outlet: Outlet[object]) -> None:
        begun.set()
        may_end.wait(30)

    loop = asyncio.new_event_loop()
    try:
        held = [loop.run_until_complete(_start(jobs, block))]
        assert begun.wait(10)
        held += [loop.run_until_complete(_start(jobs, block)) for _ in range(16)]
        refused = post(server, sound)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "overloaded"
        assert refused.headers["retry-after"]
        text = server.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2})
        assert text.status_code == 200
        for job in held:
            job.abort()
    finally:
        may_end.set()
        wait_until(lambda: jobs.figures == {"running": 0, "waiting": 0})
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
    assert post(server, sound).status_code == 200


async def _start(jobs: Any, work: Any) -> Any:
    return jobs.start(work)


def test_a_server_of_one_model_that_hears(directory: Path, sound: bytes) -> None:
    plans = plan_models([str(directory)], None, ServeFlags(device="cpu"), default="nano")
    models = open_models(plans, ServerConfig(host="127.0.0.1", port=0))
    with serving_models(models) as running:
        assert running.client.get("/v1/models").json()["data"][0]["id"] == "ears"
        assert post(running, sound, model="").json()["text"]
        refused = running.client.post("/v1/completions", json={"prompt": "a"})
        assert refused.status_code == 501
        for path in ("/health", "/ready", "/metrics", "/api/tags", "/api/ps"):
            assert running.client.get(path).status_code == 200


def test_a_server_that_takes_any_name(directory: Path, sound: bytes) -> None:
    flags = ServeFlags(device="cpu", memory="16MiB")
    plans = plan_models(["text=nano", f"ears={directory}"], None, flags, default="nano")
    config = ServerConfig(host="127.0.0.1", port=0, accept_any_model=True)
    with serving_models(open_models(plans, config)) as running:
        for name in ("whisper-1", "text", "ears:latest"):
            assert post(running, sound, model=name).status_code == 200
        body = {"model": "gpt-5", "prompt": "a", "max_tokens": 1}
        assert running.client.post("/v1/completions", json=body).json()["model"] == "text"


def thread_names() -> set[str]:
    return {each.name for each in threading.enumerate()}


def test_models_that_hear_give_way_like_others(directory: Path, sound: bytes) -> None:
    named = ["text=nano", f"a={directory}", f"b={directory}"]
    flags = ServeFlags(device="cpu", memory="1MiB")
    plans = plan_models(named, None, flags, default="nano")
    bound = 500_000  # one of them, or text
    config = ServerConfig(host="127.0.0.1", port=0, models_memory_bytes=bound)
    with serving_models(open_models(plans, config)) as running:
        before = thread_names()
        for name, other in (("a", "b"), ("b", "a"), ("a", "b")):
            assert post(running, sound, model=name).status_code == 200
            found = running.client.get("/health").json()["models"]
            assert (found[name], found[other]) == ("loaded", "unloaded")
        running.client.post("/models/unload", json={"model": "a"})
        wait_until(lambda: not running.models.loaded())
        left = "blazr-ears"  # how its threads' names begin
        wait_until(lambda: not any(name.startswith(left) for name in thread_names() - before))


def test_the_command_writes_text_subtitles_and_json(
    directory: Path, sound: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "a.flac"
    file.write_bytes(sound)
    said = ["transcribe", str(file), "-m", str(directory), "--language", "en", "--device", "cpu"]
    text = CliRunner().invoke(app, said)
    assert text.exit_code == 0, text.output
    assert text.stdout.strip()
    assert "%|" not in text.stderr  # a progress bar, where there is no terminal
    found = json.loads(CliRunner().invoke(app, [*said, "--format", "json"]).stdout)
    assert found["duration_s"] == SECONDS
    assert found["segments"]
    assert CliRunner().invoke(app, [*said, "--format", "vtt"]).stdout.startswith("WEBVTT")
    assert CliRunner().invoke(app, ["transcribe", str(file), "-m", "nano"]).exit_code
